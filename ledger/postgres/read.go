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
	case err == nil, errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrOperationNotFound):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return ledger.ErrOperationNotFound
	default:
		return unavailable(step, err)
	}
}

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
func query[T any](ctx context.Context, s *Store, collect func(pgx.Rows) ([]T, error), sql string, args ...any) (found []T, err error) {
	err = s.again(ctx, func() error {
		rows, err := s.pool.Query(ctx, sql, args...)
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
	var now time.Time
	var o ledger.Operation
	err = s.again(ctx, func() (err error) {
		o, err = scanRow(s.pool.QueryRow(ctx, selectRowWithTime, id(op)), &now)
		return err
	})
	if err != nil {
		return ledger.Operation{}, time.Time{}, readError("get", err)
	}
	now = s.now(now)
	if now.Before(o.UpdateTime) {
		now = o.UpdateTime
	}
	return o, now, nil
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (s *Store) ByDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.OperationID{}, err
	}
	defer done()
	found, err := query(ctx, s, collectIDs, selectByDownstream, downstreamKey)
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
	now, err := s.time(ctx)
	if err != nil {
		return nil, time.Time{}, unavailable("list", err)
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
	page, err := query(ctx, s, collectListed, sql, string(q.Scope), string(q.Task), position(after.Time), uuid(after.ID), digests(q.SubjectDigests), states, q.Limit)
	return page, now, readError("list", err)
}

// time is the store's, for reads whose statement does not bring it along.
func (s *Store) time(ctx context.Context) (time.Time, error) {
	var database time.Time
	err := s.again(ctx, func() error { return s.pool.QueryRow(ctx, selectNow).Scan(&database) })
	return s.now(database), err
}

// Due returns a page of due operations.
func (s *Store) Due(ctx context.Context, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var now pgtype.Timestamptz // NULL: the statement's own
	if s.opts.Now != nil {
		moved, err := s.time(ctx)
		if err != nil {
			return nil, unavailable("due", err)
		}
		now = instant(moved)
	}
	due, err := query(ctx, s, collectDue, selectDue, now, position(after.Time), uuid(after.ID), limit)
	return due, readError("due", err)
}

// Events returns a whole history.
func (s *Store) Events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	events, err := query(ctx, s, collectEvents, selectEvents, id(op))
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
