// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// markMargin: a row becomes visible some time after the moment at which it was decided when it is due, at most about as long as a call
	// may take.
	markMargin = callBound + confirmBound + 2*time.Second
	// markTrust is how long the mark is believed. A caller's own transaction may take longer than any call, and clocks may be set.
	markTrust = time.Minute
)

// mark is where a scan of due operations begins. Each operation that was settled leaves an entry in the index, which stays until the
// table is vacuumed: a scan from the beginning reads all of them, each time.
type mark struct {
	mu   sync.Mutex
	from time.Time
	// whole is when a scan has begun at the very beginning.
	whole time.Time
}

// begin is where to begin now; zero: at the very beginning. Where that takes too long, there is the last mark, if any: what was read on
// the way is not read again, and the next one comes further.
func (m *mark) begin() (from, last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole.IsZero() || time.Since(m.whole) >= markTrust {
		return time.Time{}, m.from
	}
	return m.from, m.from
}

// found notes what a scan that began at a time has found: nothing due before the first of these, or before now. It also moves the mark
// back, if the clock has been.
func (m *mark) found(from, now time.Time, due []ledger.DuePosition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from.IsZero() {
		m.whole = time.Now()
	}
	if len(due) > 0 && due[0].Time.Before(now) {
		now = due[0].Time
	}
	m.from = now.Add(-markMargin)
}

// Due returns a page of due operations. The first page begins at the mark.
func (s *Store) Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.DuePage{}, err
	}
	defer done()
	r := s.reading()
	now, err := r.time(ctx)
	if err != nil {
		return ledger.DuePage{}, readError("due", err)
	}
	if q.After != (ledger.DuePosition{}) || len(q.Without) > 0 {
		page, err := r.due(ctx, now, q)
		return page, readError("due", err)
	}
	from, last := s.mark.begin()
	q.After.Time = from
	page, err := r.due(ctx, now, q)
	if isCanceled(err) && !from.Equal(last) {
		from, q.After.Time = last, last
		page, err = r.due(ctx, now, q)
	}
	if err == nil {
		s.mark.found(from, now, page.Due)
	}
	return page, readError("due", err)
}

// Due returns a page of due operations.
func (t *TxStore) Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error) {
	r := t.reading()
	now, err := r.time(ctx)
	if err != nil {
		return ledger.DuePage{}, readError("due", err)
	}
	page, err := r.due(ctx, now, q)
	return page, readError("due", err)
}

// due reads a page, and tells what was left out from what is due.
func (r reading) due(ctx context.Context, now time.Time, q ledger.DueQuery) (page ledger.DuePage, err error) {
	found, err := query(ctx, r, collectLooked, selectDue, instant(now), position(q.After.Time), uuid(q.After.ID), q.Limit, texts(q.Without), q.Scanned())
	page = ledger.PageOf(found, q.Limit)
	page.Now = now
	return page, err
}

func collectLooked(rows pgx.Rows) ([]ledger.LookedAt, error) {
	return pgx.AppendRows([]ledger.LookedAt(nil), rows, func(row pgx.CollectableRow) (ledger.LookedAt, error) {
		var p ledger.LookedAt
		var u pgtype.UUID
		err := row.Scan((*stamp)(&p.Time), &u, &p.Wanted, &p.Last)
		p.ID = u.Bytes
		return p, err
	})
}
