// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

const (
	setTimeline     = `UPDATE meta SET timeline = ?, watermark_time = ?, watermark_lost_since = ? WHERE id = 1`
	timelineColumns = `number, begin_time, lost_since, cause`
	insertTimeline  = `INSERT INTO timelines (` + timelineColumns + `) VALUES (?, ?, ?, ?)`
	selectTimelines = `SELECT ` + timelineColumns + ` FROM timelines ORDER BY number, begin_time`
)

var _ ledger.RestoreStore = (*Store)(nil)

// Restored begins a timeline because a person knows that commits may have been lost. Of a file nobody else can tell.
func (s *Store) Restored(ctx context.Context, lostSince time.Time) (ledger.Timeline, error) {
	const step = "begin a timeline"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.Timeline{}, err
	}
	defer done()
	s.writing.Lock()
	defer s.writing.Unlock()
	m, err := s.begin(ctx)
	if err != nil {
		return ledger.Timeline{}, readError(step, err)
	}
	now := s.now()
	if err := ledger.CheckLostSince(lostSince, now); err != nil {
		s.undo()
		return ledger.Timeline{}, err
	}
	w := m.watermark.Moved(now, lostSince)
	next := ledger.Timeline{Number: ledger.NextTimeline(m.timeline, now), BeginTime: now, LostSince: w.LostSince, Cause: ledger.CauseRestored}
	_, err = s.writer.exec(background, setTimeline, int64(next.Number), instant(w.At), instant(w.LostSince))
	if err == nil {
		_, err = s.writer.exec(background, insertTimeline, int64(next.Number), instant(next.BeginTime), instant(next.LostSince), string(next.Cause))
	}
	if err != nil {
		s.undo()
		return ledger.Timeline{}, unavailable(step, err)
	}
	if _, err := s.writer.exec(background, commit); err != nil {
		s.drop() // the log may or may not have got it
		return ledger.Timeline{}, unavailable(step, err)
	}
	m.timeline, m.watermark = next.Number, w
	s.met.Store(&m)
	return next, nil
}

// Timelines returns all of them, the oldest first.
func (s *Store) Timelines(ctx context.Context) ([]ledger.Timeline, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := read(ctx, s, func(r *row) (ledger.Timeline, error) {
		t := ledger.Timeline{Number: uint32(r.integer()), BeginTime: r.time(), LostSince: r.time(), Cause: ledger.TimelineCause(r.text())}
		if r.damaged {
			return t, errDamaged
		}
		return t, nil
	}, selectTimelines)
	return found, readError("read the timelines", err)
}
