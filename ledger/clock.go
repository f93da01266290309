// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"slices"
	"sync"
	"time"
)

// The store's clock decides when a lease is over, when absence begins to prove something and until when a target remembers a key. It may be
// set: by a person, by a time server, or because a failover has changed the host. A Clock tells how far it was set, by comparing what
// it shows with a clock of this process that nobody sets. From then on what was noted before is judged by the time that has really passed:
//
//	store's clock    12:00 noted "over at 12:05"   12:01 --set--> 12:11          12:15 judged over: five minutes have passed
//	this process's    0:00                          0:01           0:01           0:05
//
// Jumps only ever make it later that something is over, and earlier that a window closes, than the store's clock alone says: whoever knows
// nothing of them, or not all, errs to no other side than the clock did. A process that has started after a jump does not know of it.

const (
	// jumpMargin is how far the store's clock may differ from what this process expects. It is more than a leap second, the steps below one
	// second by which time servers correct a clock, and what a guess of the store's time may be off (0.1 s); it is less than any effect_within
	// in which a margin for clocks has been thought of. How long a call was on its way doesn't count: a reading is of somewhen between.
	jumpMargin = 2 * time.Second
	// jumpDrift is by how much faster or slower the store's clock may run, one in so many: twice what a kernel slews at most (500 ppm). A clock
	// that is slewed faster is taken for one that jumps again and again.
	jumpDrift = 1000
	// maxEras bounds what is remembered of a clock that is set again and again: the two oldest become one, in which either may hold.
	maxEras = 16
)

// Clock watches a store's clock. It may be used by many at once.
type Clock struct {
	elapsed func() time.Duration
	jumped  func(by time.Duration)

	mu   sync.Mutex
	eras []era // the last is the present one
	// asked is before the last reading that was made in the present era, answered after it.
	asked, answered time.Duration
}

// era is a time without a jump.
type era struct {
	// first and last are bounds of what the store's clock can have shown in it; zero: none.
	first, last time.Time
	// low and high are bounds of what it showed when elapsed was zero, had it run like this all the time.
	low, high time.Time
	// since is when it had begun at the latest, by elapsed.
	since time.Duration
}

// NewClock makes a Clock. elapsed is the time since some moment, on a clock that nobody sets and that goes on while the machine sleeps. jumped,
// which may be nil, is told at each jump that is noticed by how far the store's clock was set forward at least, or back if it is negative.
func NewClock(elapsed func() time.Duration, jumped func(by time.Duration)) *Clock {
	return &Clock{elapsed: elapsed, jumped: jumped}
}

// Look reads a store's clock. Decisions do, too; but who has seldom something to decide would notice a jump late, and who has not looked
// before it, not at all.
func (c *Clock) Look(ctx context.Context, store Store) error {
	asked := c.now()
	_, shown, err := store.List(ctx, Listing{Limit: 1})
	if err == nil {
		c.read(asked, shown)
	}
	return err
}

// now is when a question is put to the store.
func (c *Clock) now() time.Duration {
	if c == nil {
		return 0
	}
	return c.elapsed()
}

// read notes what the store's clock showed somewhen between asked and now, and returns what is known of its jumps. A nil Clock knows of
// none.
func (c *Clock) read(asked time.Duration, shown time.Time) Jumps {
	if c == nil {
		return Jumps{}
	}
	answered := c.elapsed()
	r := era{low: shown.Add(-answered), high: shown.Add(-asked)}
	c.mu.Lock()
	jumps, by := c.note(r, asked, answered)
	c.mu.Unlock()
	if by != 0 && c.jumped != nil {
		c.jumped(by)
	}
	return jumps
}

func (c *Clock) note(r era, asked, answered time.Duration) (Jumps, time.Duration) {
	if c.eras == nil {
		c.eras = []era{r}
	}
	for i := len(c.eras) - 1; i > 0 && asked < c.eras[i].since; i-- { // it may be an answer that was long on its way
		if before := c.eras[i-1]; c.eras[i].jump(r) != 0 && before.jump(r) == 0 {
			return c.jumps(i - 1), 0
		}
	}
	now := &c.eras[len(c.eras)-1]
	drift := max(answered-c.answered, 0) / jumpDrift
	now.low, now.high = now.low.Add(-drift), now.high.Add(drift)
	by := now.jump(r)
	if by == 0 {
		// What is off by less than the margin does not move the bounds: else many small steps would be none.
		now.low, now.high = within(r.low, now.low, now.high), within(r.high, now.low, now.high)
		c.asked, c.answered = max(c.asked, asked), max(c.answered, answered)
		return c.jumps(len(c.eras) - 1), 0
	}
	now.last = now.high.Add(answered)
	r.first, r.since = r.low.Add(c.asked), answered
	c.eras = append(slices.Clone(c.eras), r)
	c.asked, c.answered = asked, answered
	if len(c.eras) > maxEras {
		a, b := c.eras[0], c.eras[1]
		c.eras = slices.Insert(c.eras[2:], 0, era{first: a.first, last: latest(a.last, b.last), low: earliest(a.low, b.low), high: latest(a.high, b.high)})
	}
	return c.jumps(len(c.eras) - 1), by
}

// jump is how far a reading is at least from what is expected; 0 within the margin.
func (e era) jump(r era) time.Duration {
	switch {
	case r.low.After(e.high.Add(jumpMargin)):
		return r.low.Sub(e.high)
	case r.high.Before(e.low.Add(-jumpMargin)):
		return r.high.Sub(e.low)
	default:
		return 0
	}
}

// jumps as they are known in an era. Without any, nothing is copied.
func (c *Clock) jumps(in int) Jumps {
	if len(c.eras) == 1 {
		return Jumps{}
	}
	return Jumps{eras: slices.Clone(c.eras), now: in}
}

// Jumps are what is known of the jumps of the store's clock when a decision is taken. The zero value knows of none.
type Jumps struct {
	eras []era
	now  int
}

// gained is by how much the store's clock was set forward, at most, since it had shown a time; never negative. Zero: a time that is not known.
func (j Jumps) gained(since time.Time) time.Duration { return j.most(since, j.now, era.gain) }

// lost is by how much it was set back, at most.
func (j Jumps) lost(since time.Time) time.Duration { return j.most(since, j.now, era.loss) }

// gainedUntil is gained at another time than now, which may even have been before: what was looked at then has seen nothing of what was noted
// since.
func (j Jumps) gainedUntil(since, until time.Time) time.Duration {
	var most time.Duration
	for i := range j.eras {
		if j.among(i, until) {
			most = max(most, j.most(since, i, era.gain))
		}
	}
	return most
}

func (j Jumps) most(since time.Time, now int, of func(from, to era) time.Duration) time.Duration {
	var most time.Duration
	for i := range j.eras {
		if i != now && j.among(i, since) {
			most = max(most, of(j.eras[i], j.eras[now]))
		}
	}
	return most
}

// among reports whether a time can have been noted in an era. One that fits none was not the store's, and might be of any.
func (j Jumps) among(i int, t time.Time) bool {
	return t.IsZero() || j.eras[i].shows(t) || !slices.ContainsFunc(j.eras, func(e era) bool { return e.shows(t) })
}

// shows reports whether a time can have been noted in an era: what is noted on a guess may be off by less than the margin.
func (e era) shows(t time.Time) bool {
	return (e.first.IsZero() || !t.Before(e.first.Add(-jumpMargin))) && (e.last.IsZero() || !t.After(e.last.Add(jumpMargin)))
}

func (e era) gain(to era) time.Duration { return to.high.Sub(e.low) }
func (e era) loss(to era) time.Duration { return e.high.Sub(to.low) }

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func within(t, low, high time.Time) time.Time { return latest(earliest(t, high), low) }
