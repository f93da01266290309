// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

// readError keeps the errors that mean something, and hides the rest.
func readError(step string, err error) error {
	switch {
	case err == nil, errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrOperationNotFound), errors.Is(err, ledger.ErrStoreUnavailable):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return ledger.ErrOperationNotFound
	default:
		return unavailable(step, err)
	}
}

// reading runs what only reads: on the pool, or on a transaction of the caller.
type reading struct {
	from  querier
	clock clock
	// again runs a read, and runs it once more where that can help.
	again func(ctx context.Context, read func() error) error
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *Store) reading() reading { return reading{from: s.pool, clock: s.opts.Now, again: s.again} }

// again runs a read once more where the connection was lost: after a restart of the server the pool's are dead.
func (s *Store) again(ctx context.Context, read func() error) error {
	for i := 1; ; i++ {
		err := read()
		if i == maxFailures || ctx.Err() != nil || !connectionLost(err) {
			return err
		}
		s.pool.Reset()
	}
}

// query reads all rows of a statement.
func query[T any](ctx context.Context, r reading, collect func(pgx.Rows) ([]T, error), sql string, args ...any) (found []T, err error) {
	err = r.again(ctx, func() error {
		rows, err := r.from.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err = collect(rows)
		return err
	})
	return found, err
}

// Get reads one operation with the database's time.
func (s *Store) Get(ctx context.Context, op ledger.OperationID) (ledger.Operation, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.Operation{}, time.Time{}, err
	}
	defer done()
	for i := 1; ; i++ {
		v, err := enqueue(ctx, s, s.reads, ledger.ReadSet{ID: op}, false)
		if i == maxFailures || ctx.Err() != nil || !connectionLost(err) {
			return got(v, err)
		}
	}
}

// got is the operation that was read.
func got(v ledger.View, err error) (ledger.Operation, time.Time, error) {
	switch {
	case err != nil:
		return ledger.Operation{}, time.Time{}, readError("get", err)
	case v.Current == nil:
		return ledger.Operation{}, time.Time{}, ledger.ErrOperationNotFound
	default:
		return *v.Current, v.Now, nil
	}
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (s *Store) ByDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.OperationID{}, err
	}
	defer done()
	return s.reading().byDownstreamKey(ctx, downstreamKey)
}

func (r reading) byDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	found, err := query(ctx, r, collectIDs, selectByDownstream, downstream(downstreamKey))
	switch {
	case err != nil:
		return ledger.OperationID{}, readError("find by downstream key", err)
	case len(found) == 0:
		return ledger.OperationID{}, ledger.ErrOperationNotFound
	default:
		return found[0], nil
	}
}

// List returns a page. A record of a newer release has its place in it, but no state.
func (s *Store) List(ctx context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	return s.reading().list(ctx, q)
}

func (r reading) list(ctx context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	now, err := r.time(ctx)
	if err != nil {
		return nil, time.Time{}, readError("list", err)
	}
	states := make([]int16, len(q.States))
	for i, state := range q.States {
		states[i] = int16(state)
	}
	sql, after := listByCreate, ledger.DuePosition{Time: q.AfterTime, ID: q.AfterID}
	switch {
	case !q.UpdatedAfter.IsZero():
		sql = listByUpdate
		if after.Time.Before(q.UpdatedAfter) {
			// The first page begins after all rows of that very time.
			after = ledger.DuePosition{Time: q.UpdatedAfter, ID: lastID}
		}
	case q.Task != "":
		sql = listByTask
	}
	page, err := query(ctx, r, collectListed, sql, string(q.Scope), string(q.Task), position(after.Time), uuid(after.ID), digests(q.SubjectDigests), states, q.Limit)
	return page, now, readError("list", err)
}

// time is the store's, for reads whose statement does not bring it along.
func (r reading) time(ctx context.Context) (time.Time, error) {
	var database time.Time
	err := r.again(ctx, func() error { return r.from.QueryRow(ctx, selectNow).Scan(&database) })
	return r.clock.now(database), err
}

// Events returns a whole history.
func (s *Store) Events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.reading().events(ctx, op)
}

func (r reading) events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	events, err := query(ctx, r, collectEvents, selectEvents, id(op))
	return events, readError("events", err)
}

// lastID comes after all ids.
var lastID = ledger.OperationID{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// position is a time to begin at: unset means before all.
func position(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return instant(t)
}

// uuid is an id to begin at: the zero one is before all, not NULL.
func uuid(v ledger.OperationID) pgtype.UUID { return pgtype.UUID{Bytes: v, Valid: true} }

// digests is never NULL, which would compare with nothing.
func digests(d [][]byte) [][]byte {
	if d == nil {
		return [][]byte{}
	}
	return d
}
