// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/opsledger/opsledger/ledger"
)

// turns let the callers of one row go one after another, before each takes a connection to wait for the row's lock.
type turns struct {
	mu   sync.Mutex
	rows map[ledger.OperationID]*turn
}

type turn struct {
	free chan struct{}
	// users hold it or wait for it.
	users int
}

// take waits until it is the caller's turn.
func (t *turns) take(ctx context.Context, op ledger.OperationID) (leave func(), err error) {
	t.mu.Lock()
	if t.rows == nil {
		t.rows = map[ledger.OperationID]*turn{}
	}
	row := t.rows[op]
	if row == nil {
		row = &turn{free: make(chan struct{}, 1)}
		row.free <- struct{}{}
		t.rows[op] = row
	}
	row.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if row.users--; row.users == 0 {
			delete(t.rows, op)
		}
	}
	select {
	case <-row.free:
		return func() {
			row.free <- struct{}{}
			forget()
		}, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

// taken reports whether somebody has or waits for the row's turn.
func (t *turns) taken(op ledger.OperationID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows[op] != nil
}

// enterAlone takes a connection for what may wait for others. Such callers never have all of the pool: batches go on beside them.
func (s *Store) enterAlone(ctx context.Context) (*pgxpool.Conn, func(), error) {
	select {
	case s.alone <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		<-s.alone
		return nil, nil, err
	}
	return conn, func() {
		if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
			_, _ = conn.Exec(ctx, rollback) // else the pool closes it
		}
		conn.Release()
		<-s.alone
	}, nil
}
