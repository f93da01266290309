// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// querier is a connection, or a handle with many.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query reads all rows of one statement.
func query[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), statement string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

// readError keeps the errors that mean something, and hides the rest.
func readError(step string, err error) error {
	if err == nil || errors.Is(err, ledger.ErrRecordTooNew) {
		return err
	}
	return unavailable(step, err)
}

// Get reads one operation with the store's time.
func (s *Store) Get(ctx context.Context, op ledger.OperationID) (ledger.Operation, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.Operation{}, time.Time{}, err
	}
	defer done()
	now := s.now() // before the read, so that the row is at least as new as the time says
	found, err := query(ctx, s.readers, scanRow, selectRow, op[:])
	if err != nil {
		return ledger.Operation{}, time.Time{}, readError("get", err)
	}
	if len(found) == 0 {
		return ledger.Operation{}, time.Time{}, ledger.ErrOperationNotFound
	}
	return found[0], latest(now, found[0].UpdateTime), nil
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (s *Store) ByDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.OperationID{}, err
	}
	defer done()
	found, err := query(ctx, s.readers, scanID, selectByDownstream, downstreamKey)
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
	statement, after := listByCreate, ledger.DuePosition{Time: q.AfterTime, ID: q.AfterID}
	switch {
	case !q.UpdatedAfter.IsZero():
		statement = listByUpdate
		if after.Time.Before(q.UpdatedAfter) {
			// The first page begins after all rows of that very time.
			after = ledger.DuePosition{Time: q.UpdatedAfter, ID: lastID}
		}
	case q.Task != "":
		statement = listByTask
	}
	now := s.now()
	subjects, states := digests(q.SubjectDigests), stateList(q.States)
	page, err := query(ctx, s.readers, scanListed, statement, string(q.Scope), string(q.Task), position(after.Time), after.ID[:],
		subjects, subjects, states, states, q.Limit)
	return page, now, readError("list", err)
}

// Due returns a page of due operations.
func (s *Store) Due(ctx context.Context, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	due, err := query(ctx, s.readers, func(rows *sql.Rows) (ledger.DuePosition, error) {
		var p ledger.DuePosition
		var b []byte
		err := rows.Scan((*stamp)(&p.Time), &b)
		copy(p.ID[:], b)
		return p, err
	}, selectDue, instant(s.now()), position(after.Time), after.ID[:], limit)
	return due, readError("due", err)
}

// Events returns a whole history.
func (s *Store) Events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	events, err := query(ctx, s.readers, scanEvent, selectEvents, op[:])
	return events, readError("events", err)
}

// lastID comes after all ids.
var lastID = ledger.OperationID{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// latest keeps time from running backwards for a row, also when the host's clock was set back.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// position is a time to begin at: unset means before all.
func position(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixMicro()
}

// digests is a JSON list of digests, as hex() writes them.
func digests(list [][]byte) string {
	out := make([]string, len(list))
	for i, d := range list {
		out[i] = strings.ToUpper(hex.EncodeToString(d))
	}
	return jsonList(out)
}

func idList(list []ledger.OperationID) string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = hex.EncodeToString(list[i][:])
	}
	return jsonList(out)
}

func stateList(list []ledger.State) string {
	out := make([]int, len(list)) // not uint8, which JSON would make one string of
	for i, s := range list {
		out[i] = int(s)
	}
	return jsonList(out)
}

func jsonList(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("sqlite: %T is not a list", v))
	}
	return string(b)
}
