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
func (s *Store) Due(ctx context.Context, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	r := s.reading()
	now, err := r.time(ctx)
	if err != nil {
		return nil, readError("due", err)
	}
	if after != (ledger.DuePosition{}) {
		due, err := r.due(ctx, now, after, limit)
		return due, readError("due", err)
	}
	from, last := s.mark.begin()
	due, err := r.due(ctx, now, ledger.DuePosition{Time: from}, limit)
	if isCanceled(err) && !from.Equal(last) {
		from = last
		due, err = r.due(ctx, now, ledger.DuePosition{Time: from}, limit)
	}
	if err == nil {
		s.mark.found(from, now, due)
	}
	return due, readError("due", err)
}

func (r reading) due(ctx context.Context, now time.Time, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	return query(ctx, r, collectDue, selectDue, instant(now), position(after.Time), uuid(after.ID), limit)
}

// Due returns a page of due operations.
func (t *TxStore) Due(ctx context.Context, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	r := t.reading()
	now, err := r.time(ctx)
	if err != nil {
		return nil, readError("due", err)
	}
	due, err := r.due(ctx, now, after, limit)
	return due, readError("due", err)
}

func collectDue(rows pgx.Rows) ([]ledger.DuePosition, error) {
	return pgx.AppendRows([]ledger.DuePosition(nil), rows, func(row pgx.CollectableRow) (ledger.DuePosition, error) {
		var p ledger.DuePosition
		var u pgtype.UUID
		err := row.Scan((*stamp)(&p.Time), &u)
		p.ID = u.Bytes
		return p, err
	})
}
