// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/recent"
)

const (
	// remembered is how many rows a process knows as it has written them.
	remembered = 8192
	// A guess at the database's time counts on from a time that was read at most guessFor ago; a write refreshes what is older than refreshAfter. The
	// database looks whether the guess is off by more than guessWithin.
	guessFor, refreshAfter = time.Second, 250 * time.Millisecond
	guessWithin            = 500 * time.Millisecond
)

// meta is what a decision is given of the database as a whole.
type meta struct {
	schema    int
	timeline  int64
	watermark ledger.Watermark
}

func (m *meta) equal(o *meta) bool {
	return m.schema == o.schema && m.timeline == o.timeline && m.watermark.At.Equal(o.watermark.At) && m.watermark.LostSince.Equal(o.watermark.LostSince)
}

// glimpse is what was last seen of the database as a whole.
type glimpse struct {
	mu   sync.Mutex
	meta meta
	// now is its time, at the process's at which that was asked for at the earliest: a guess is never early, because a send window that
	// began too early would end before its holder's does.
	now, at time.Time
}

// saw notes what was read after a moment.
func (g *glimpse) saw(m meta, now, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at.After(g.at) {
		g.meta, g.now, g.at = m, now, at
	}
}

// guess is what would be seen now, if something was seen a short time ago.
func (g *glimpse) guess() (m meta, now time.Time, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := time.Since(g.at)
	return g.meta, g.now.Add(since), !g.at.IsZero() && since < guessFor
}

func (g *glimpse) stale() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.at) > refreshAfter
}

// look adds to a batch that the database as a whole is seen.
func (g *glimpse) look(b *pgx.Batch) {
	at := time.Now()
	b.Queue(selectMeta).QueryRow(func(row pgx.Row) error {
		m, now, err := scanMeta(row)
		if err == nil {
			g.saw(m, now, at)
		}
		return err
	})
}

func scanMeta(row pgx.Row) (m meta, now time.Time, err error) {
	err = row.Scan(&now, &m.schema, &m.timeline, (*stamp)(&m.watermark.At), (*stamp)(&m.watermark.LostSince))
	return m, now, err
}

// guessed attempts to write what is decided on a guess, in one round trip where a read takes another one before. It reports whether that
// has settled the call. Where it has not, nothing was written.
func (u *update) guessed() (settles bool, what outcome, err error) {
	m, now, ok := u.store.seen.guess()
	if !ok || supported(m.schema) != nil || u.store.turns.taken(u.reads.ID) {
		return false, failed, nil
	}
	g, ok := u.store.recent.Guess(u.reads)
	if !ok {
		return false, failed, nil
	}
	view := g.At(clock(u.store.opts.Now).now(now), uint32(m.timeline), m.watermark)
	change, err := u.decide(view)
	if err != nil || change.Next == nil || change.Companion != nil {
		return false, failed, nil
	}
	if u.writes, err = plan(u.reads.ID, view, change); err != nil {
		return true, settled, err
	}
	u.change, u.from = change, g
	u.writes[0].guess, u.writes[0].unlike = &m, u.reads.Siblings != nil
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		return true, failed, unavailable("write", err)
	}
	err = u.together(u.writes[0])
	switch {
	case errors.Is(err, errRace), errors.Is(err, errAlone):
		u.store.recent.Wrong(u.reads)
		u.from, u.alone = recent.Guess{}, errors.Is(err, errAlone)
		return false, failed, nil
	default:
		what, err = u.written(err)
		return true, what, err
	}
}

// guard makes the writes of a statement depend on a guess. The zero value does not.
type guard struct {
	meta *meta
	now  time.Time
}

// holds is the condition, with its parameters from that one on.
func (guard) holds(from int) string {
	p := func(n int, kind string) string { return fmt.Sprintf("$%d::%s", from+n, kind) }
	return `(` + p(0, "integer") + ` IS NULL OR (SELECT m.schema_version = ` + p(0, "integer") + ` AND m.timeline = ` + p(1, "bigint") + `
		AND m.watermark_time IS NOT DISTINCT FROM ` + p(2, "timestamptz") + ` AND m.watermark_lost_since IS NOT DISTINCT FROM ` + p(3, "timestamptz") + `
		AND clock_timestamp() BETWEEN ` + p(4, "timestamptz") + ` AND ` + p(5, "timestamptz") + ` FROM meta AS m WHERE m.id = 1))`
}

func (g guard) args(to []any) []any {
	if g.meta == nil {
		return append(to, nil, nil, nil, nil, nil, nil)
	}
	w := g.meta.watermark
	return append(to, int32(g.meta.schema), g.meta.timeline, instant(w.At), instant(w.LostSince),
		instant(g.now.Add(-guessWithin)), instant(g.now.Add(guessWithin)))
}

// guesses takes out of writes those that rest on a guess, with what has to hold for all of them. One that was made when the database was
// another is lost.
func (s *Store) guesses(writes []write) (guard, []write, []write) {
	m, now, ok := s.seen.guess()
	rest := make([]write, 0, len(writes))
	var guessed []write
	for _, w := range writes {
		switch {
		case w.guess == nil:
			rest = append(rest, w)
		case ok && m.equal(w.guess):
			guessed = append(guessed, w)
		}
	}
	return guard{&m, now}, slices.Clip(guessed), rest
}
