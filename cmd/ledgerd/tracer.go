// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tracer makes spans of PostgreSQL's statements, without the texts of errors: the server puts values into them, the driver the names of
// host and user.
type tracer struct{ *otelpgx.Tracer }

// wordless keeps of an error what tells its kind.
func wordless(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows):
		return err
	case errors.As(err, &pg):
		return &pgconn.PgError{Severity: pg.Severity, Code: pg.Code}
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return context.Canceled
	default:
		return errConnection
	}
}

var errConnection = errors.New("the connection failed")

func (t tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceQueryEnd(ctx, conn, data)
}

func (t tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceBatchQuery(ctx, conn, data)
}

func (t tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceBatchEnd(ctx, conn, data)
}

func (t tracer) TraceCopyFromEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceCopyFromEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceCopyFromEnd(ctx, conn, data)
}

func (t tracer) TracePrepareEnd(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TracePrepareEnd(ctx, conn, data)
}

func (t tracer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceConnectEnd(ctx, data)
}

func (t tracer) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	data.Err = wordless(data.Err)
	t.Tracer.TraceAcquireEnd(ctx, pool, data)
}
