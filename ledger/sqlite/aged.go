// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectScopeAfter = `SELECT scope FROM operations WHERE scope > ? ORDER BY scope LIMIT 1`
	selectAged       = `SELECT id, tool, record_version, state, custody, may_have_applied, needs_attention, create_time, final_time FROM operations
	WHERE scope = ? AND (create_time, id) > (?, ?) AND create_time <= ?
	ORDER BY create_time, id LIMIT ?`

	selectForgotten = `SELECT final_time FROM forgotten WHERE tool = ?`

	// SQLite's WITH can't write: what is forgotten goes row by row, in one transaction. What is retired never changes again: with its final time
	// it is that very operation.
	selectTombstone = `SELECT tool FROM operations WHERE id = ? AND final_time = ? AND state = 6`
	markForgotten   = `INSERT INTO forgotten (tool, final_time) VALUES (?, ?)
	ON CONFLICT (tool) DO UPDATE SET final_time = max(final_time, excluded.final_time)`
	deleteEvents    = `DELETE FROM events WHERE operation_id = ?`
	deleteSlots     = `DELETE FROM slots WHERE operation_id = ?`
	deleteOperation = `DELETE FROM operations WHERE id = ?`
)

var _ ledger.AgedStore = (*Store)(nil)

// aged is a place in the walk: behind a row of a scope, or, with the last id, behind the scope.
type aged struct {
	Scope []byte
	At    int64 // in microseconds
	ID    ledger.OperationID
}

func (a aged) text() string {
	text, err := json.Marshal(a)
	if err != nil {
		panic("sqlite: a place has no text")
	}
	return string(text)
}

// errPlace is a fault of the caller's code.
var errPlace = errors.New("sqlite: a page begins where another one has ended")

// Aged returns a page of old operations of one scope.
func (s *Store) Aged(ctx context.Context, q ledger.AgedQuery) (ledger.AgedPage, error) {
	const step = "read what is old"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.AgedPage{}, err
	}
	defer done()
	now, from := s.now(), aged{ID: lastID}
	if q.After != "" && json.Unmarshal([]byte(q.After), &from) != nil {
		return ledger.AgedPage{}, errPlace
	}
	if from.ID == lastID { // no scope is empty
		scopes, err := read(ctx, s, func(r *row) (string, error) { return r.text(), nil }, selectScopeAfter, string(from.Scope))
		if err != nil || len(scopes) == 0 {
			return ledger.AgedPage{Now: now}, readError(step, err)
		}
		from = aged{Scope: []byte(scopes[0]), At: position(time.Time{})}
	}
	page := ledger.AgedPage{Now: now, End: aged{Scope: from.Scope, ID: lastID}.text()}
	rows, err := read(ctx, s, scanAged, selectAged, string(from.Scope), from.At, from.ID[:], instant(now.Add(-q.Age)), int64(q.Limit))
	if err != nil {
		return ledger.AgedPage{}, readError(step, err)
	}
	for _, r := range rows {
		if r.record <= recordVersion {
			page.Operations = append(page.Operations, r.AgedOperation)
		}
	}
	if n := len(rows); n > 0 && n == q.Limit {
		page.End = aged{from.Scope, rows[n-1].CreateTime.UnixMicro(), rows[n-1].ID}.text()
	}
	return page, nil
}

type agedRow struct {
	ledger.AgedOperation
	record int64
}

func scanAged(r *row) (agedRow, error) {
	a := agedRow{}
	a.ID, a.Tool, a.record = r.id(), ledger.Tool(r.text()), r.integer()
	a.State, a.Custody, a.MayHaveApplied, a.NeedsAttention = ledger.State(r.small()), ledger.Custody(r.small()), r.boolean(), r.boolean()
	a.CreateTime, a.FinalTime = r.time(), r.time()
	return a, nil
}

// ForgetHistories removes the events of retired operations.
func (s *Store) ForgetHistories(ctx context.Context, of []ledger.Tombstone) (int, error) {
	return s.forget(ctx, "forget histories", of, func(ledger.Tombstone, string) (bool, error) { return false, nil })
}

// ForgetKeys removes retired operations.
func (s *Store) ForgetKeys(ctx context.Context, of []ledger.Tombstone) (int, error) {
	return s.forget(ctx, "forget keys", of, func(t ledger.Tombstone, tool string) (bool, error) {
		c := s.writer
		if _, err := c.exec(background, markForgotten, tool, instant(t.FinalTime)); err != nil {
			return false, err
		}
		if _, err := c.exec(background, deleteSlots, t.ID[:]); err != nil {
			return false, err
		}
		n, err := c.exec(background, deleteOperation, t.ID[:])
		return n > 0, err
	})
}

// forget removes the events of retired operations, and what more does, in one transaction between two batches. It can be run again where its outcome can't be
// seen: it then finds less.
func (s *Store) forget(ctx context.Context, step string, of []ledger.Tombstone, more func(ledger.Tombstone, string) (bool, error)) (int, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.begin(ctx); err != nil {
		return 0, readError(step, err)
	}
	gone := 0
	for _, t := range of {
		went, err := s.forgetOne(t, more)
		if err != nil {
			s.undo()
			return 0, readError(step, err)
		}
		if went {
			gone++
		}
	}
	if _, err := s.writer.exec(background, commit); err != nil {
		s.drop()
		return 0, unavailable(step, err)
	}
	return gone, nil
}

func (s *Store) forgetOne(t ledger.Tombstone, more func(ledger.Tombstone, string) (bool, error)) (bool, error) {
	tools, err := query(background, s.writer, func(r *row) (string, error) { return r.text(), nil }, selectTombstone, t.ID[:], instant(t.FinalTime))
	if err != nil || len(tools) == 0 {
		return false, err
	}
	events, err := s.writer.exec(background, deleteEvents, t.ID[:])
	if err != nil {
		return false, err
	}
	went, err := more(t, tools[0])
	return went || events > 0, err
}
