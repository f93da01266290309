// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

const (
	// remembered is how many rows a process knows as it has written them.
	remembered = 8192
	// The database's time is guessed from one that was read at most guessFor ago, in glimpseFor at most; a write refreshes what is older than
	// refreshAfter. With guessWithin the database looks whether the guess is off.
	guessFor, refreshAfter  = time.Second, 250 * time.Millisecond
	glimpseFor, guessWithin = 100 * time.Millisecond, 100 * time.Millisecond
)

// meta is what a decision is given of the database as a whole.
type meta struct {
	schema    int
	timeline  int64
	watermark ledger.Watermark
	paused    ledger.PausedTools
}

// equal reports whether a guess rests on the same. Which tools are paused is looked at by each grant that is written, guessed or not.
func (m *meta) equal(o *meta) bool {
	return m.schema == o.schema && m.timeline == o.timeline && m.watermark.At.Equal(o.watermark.At) && m.watermark.LostSince.Equal(o.watermark.LostSince)
}

// glimpse is what was last seen of the database as a whole.
type glimpse struct {
	mu   sync.Mutex
	meta meta
	// now is its time, somewhen between asked and answered, which are the process's.
	now, asked, answered time.Time
}

// saw notes what was asked for at a moment and is answered now.
func (g *glimpse) saw(m meta, now, asked time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if answered := time.Now(); asked.After(g.asked) && answered.Sub(asked) <= glimpseFor {
		g.meta, g.now, g.asked, g.answered = m, now, asked, answered
	}
}

// sighting is what would be seen now.
type sighting struct {
	meta
	// early and late are before and after what the database's clock says.
	early, late time.Time
}

// guess is what would be seen now, if something was seen a short time ago.
func (g *glimpse) guess() (sighting, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.IsZero() || time.Since(g.asked) > guessFor {
		return sighting{}, false
	}
	return sighting{g.meta, g.now.Add(time.Since(g.answered)), g.now.Add(time.Since(g.asked))}, true
}

// elapsed is what the clock that was last seen would show now; zero: none was.
func (g *glimpse) elapsed() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.IsZero() {
		return time.Time{}
	}
	return g.now.Add(time.Since(g.answered))
}

func (g *glimpse) stale() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.asked) > refreshAfter
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
	err = row.Scan(&now, &m.schema, &m.timeline, (*stamp)(&m.watermark.At), (*stamp)(&m.watermark.LostSince), &m.paused)
	return m, now, err
}

// guessed attempts to write what is decided on a guess, in one round trip where a read takes another one before. It reports whether that
// has settled the call. Where it has not, nothing was written.
//
// The time of a guess is off by less than a round trip, or where the database's clock was set meanwhile by guessWithin, and to the safe
// side: a first grant is late, so that its send window ends after its holder's does; all else is early, so that no lease is over and no
// check begins before it may.
func (u *update) guessed() (settles bool, what outcome, err error) {
	if err := u.ctx.Err(); err != nil {
		return true, failed, unavailable("wait", err)
	}
	now, ok := u.store.seen.guess()
	if !ok || supported(now.schema) != nil || u.store.turns.taken(u.reads.ID) {
		return false, failed, nil
	}
	g, ok := u.store.recent.Guess(u.reads)
	if !ok {
		return false, failed, nil
	}
	at := now.early
	if u.reads.MayCreate {
		at = now.late
	}
	view := g.At(clock(u.store.opts.Now).now(at), uint32(now.timeline), now.watermark)
	view.Paused = now.paused
	change, err := u.decide(view)
	if err != nil || change.Next == nil || change.Companion != nil {
		return false, failed, nil
	}
	if u.writes, err = plan(u.reads.ID, view, change); err != nil {
		return true, settled, err
	}
	u.change, u.from = change, g
	w := &u.writes[0]
	w.guess, w.unlike = &now.meta, u.reads.Siblings != nil
	if w.creates() {
		w.caller = u.ctx
	}
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		return true, failed, unavailable("write", err)
	}
	err = u.together(*w)
	switch u.wrong = errors.Is(err, errRace); {
	case u.wrong, errors.Is(err, errAlone):
		u.alone = !u.wrong
		return false, failed, nil
	default:
		what, err = u.written(err)
		return true, what, err
	}
}

// hungUp reports whether a write was only waited for, by somebody who has gone.
func (w write) hungUp() bool { return w.caller != nil && w.caller.Err() != nil }

// guard is what the guesses of a batch depend on. The zero value is for those that rest on none.
type guard struct{ sighting *sighting }

// holds is the condition for a row, with a guard's parameters from that one on.
func (guard) holds(guarded string, from int) string {
	p := func(n int, kind string) string { return fmt.Sprintf("$%d::%s", from+n, kind) }
	return `(NOT ` + guarded + ` OR (SELECT m.schema_version = ` + p(0, "integer") + ` AND m.timeline = ` + p(1, "bigint") + `
		AND m.watermark_time IS NOT DISTINCT FROM ` + p(2, "timestamptz") + ` AND m.watermark_lost_since IS NOT DISTINCT FROM ` + p(3, "timestamptz") + `
		AND clock_timestamp() BETWEEN ` + p(4, "timestamptz") + ` AND ` + p(5, "timestamptz") + ` FROM meta AS m WHERE m.id = 1))`
}

func (g guard) args(to []any) []any {
	if g.sighting == nil {
		return append(to, nil, nil, nil, nil, nil, nil)
	}
	w := g.sighting.watermark
	return append(to, int32(g.sighting.schema), g.sighting.timeline, instant(w.At), instant(w.LostSince),
		instant(g.sighting.early.Add(-guessWithin)), instant(g.sighting.late.Add(guessWithin)))
}

// guarded is what the guesses among writes depend on, and those writes that can be made: a guess of when the database was another is lost.
func (s *Store) guarded(writes []write) (guard, []write) {
	now, ok := s.seen.guess()
	possible := make([]write, 0, len(writes))
	for _, w := range writes {
		if w.guess == nil || ok && now.meta.equal(w.guess) {
			possible = append(possible, w)
		}
	}
	if !ok {
		return guard{}, possible
	}
	return guard{&now}, possible
}
