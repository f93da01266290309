// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// door is a gate that a test goes through; its time is moved.
type door struct {
	t    *testing.T
	gate gate
	now  time.Time
	wish wish
	ids  int
}

func newDoor(t *testing.T) *door {
	return &door{
		t: t, gate: gate{Version: gateVersion}, now: time.Unix(1000, 0).UTC(),
		wish: wish{atOnce: 4, lasts: 30 * time.Second, longest: longestOpen},
	}
}

func (d *door) pass(w wish) given {
	d.t.Helper()
	document, err := d.gate.document() // each change goes through the store
	if err != nil {
		d.t.Fatal(err)
	}
	out := given{}
	for changed := true; ; {
		if d.gate, err = readGate(document); err != nil {
			d.t.Fatal(err)
		}
		if !changed { // nothing is written
			return out
		}
		if out, changed = d.gate.pass(d.now, w); changed {
			return out
		}
	}
}

// ask wants turns.
func (d *door) ask(turns int) given {
	d.t.Helper()
	w := d.wish
	for range turns {
		d.ids++
		w.ids = append(w.ids, fmt.Sprint(d.ids))
	}
	return d.pass(w)
}

// end gives turns back that have ended in the same way.
func (d *door) end(how outcome, after time.Duration, turns ...turn) {
	d.t.Helper()
	w := d.wish
	for _, turn := range turns {
		w.ended = append(w.ended, ended{id: turn.id, how: how, after: after})
	}
	d.pass(w)
}

// one wants a turn and must get it.
func (d *door) one() turn {
	d.t.Helper()
	got := d.ask(1)
	if len(got.turns) != 1 {
		d.t.Fatalf("no turn at %v: %+v, %+v", d.now, got, d.gate)
	}
	return got.turns[0]
}

// none wants turns and must get none before some time is over.
func (d *door) none(again time.Duration, full bool) {
	d.t.Helper()
	if got := d.ask(2); len(got.turns) != 0 || got.again != again || got.full != full {
		d.t.Errorf("at %v it was given %+v; want none, again after %v, full %t", d.now, got, again, full)
	}
}

func TestAGateLetsNoMoreThroughThanItsLimit(t *testing.T) {
	for _, limit := range []int{1, 4} {
		d := newDoor(t)
		d.wish.atOnce = limit
		first := d.ask(limit + 2)
		if len(first.turns) != limit || !first.full || first.again != 30*time.Second {
			t.Errorf("limit %d: %+v", limit, first)
		}
		d.now = d.now.Add(10 * time.Second)
		d.none(20*time.Second, true)
		d.end(answered, 0, first.turns[0])
		second := d.one()
		if limit == 1 {
			d.none(30*time.Second, true)
			continue
		}
		d.none(20*time.Second, true)
		// Who has died gives nothing back; what has been given back, or has ended by itself, is not given back once more.
		d.now = d.now.Add(20 * time.Second)
		if got := d.ask(limit); len(got.turns) != limit-1 {
			t.Errorf("limit %d, after %d turns have ended by themselves: %+v", limit, limit-1, got)
		}
		d.end(failed, 0, first.turns...)
		if d.gate.Failures != 0 || len(d.gate.Turns) != limit {
			t.Errorf("limit %d, after the end of turns that have ended: %+v", limit, d.gate)
		}
		d.end(answered, 0, second)
		d.one()
	}
}

// A wish whose outcome was not seen is told again.
func TestAWishIsGrantedOnce(t *testing.T) {
	d := newDoor(t)
	old := d.one()
	w := d.wish
	w.ids = []string{"a", "b"}
	w.ended = []ended{{id: old.id, how: failed}}
	for range 3 {
		if got := d.pass(w); len(got.turns) != 2 || got.turns[0].id != "a" || got.turns[1].id != "b" || got.again != 0 {
			t.Errorf("it was given %+v", got)
		}
		if len(d.gate.Turns) != 2 || d.gate.Failures != 1 {
			t.Errorf("the gate is %+v", d.gate)
		}
	}
}

func TestThePaceIsThatOfAllLoops(t *testing.T) {
	d := newDoor(t)
	d.wish.apart, d.wish.atOnce, d.wish.chance = 200*time.Millisecond, 100, 0.5
	d.one()
	d.none(200*time.Millisecond-ahead/2, false) // up to ahead before, so that not all come at once
	d.now = d.now.Add(200 * time.Millisecond)
	d.one()
	d.none(200*time.Millisecond-ahead/2, false)

	d.wish.apart = 5 * time.Millisecond
	d.now = d.now.Add(time.Second)
	var waits []time.Duration
	for _, turn := range d.ask(100).turns {
		waits = append(waits, turn.wait)
	}
	if diff := cmp.Diff([]time.Duration{0, 5e6, 10e6, 15e6, 20e6}, waits); diff != "" {
		t.Error(diff)
	}
}

func TestATargetIsLeftAloneAsLongAsItWants(t *testing.T) {
	d := newDoor(t)
	several := d.ask(4).turns
	d.end(throttled, 2*time.Second, several[0])
	d.none(2*time.Second, false)
	d.now = d.now.Add(time.Second)
	d.end(answered, 0, several[1]) // it had asked before
	d.none(time.Second, false)
	d.end(throttled, 2*time.Second, several[2:]...)
	d.none(2*time.Second, false)
	d.now = d.now.Add(2 * time.Second)
	trial := d.one()
	d.none(30*time.Second, true) // one, until it is known how it goes
	d.end(throttled, 0, trial)
	d.none(2*time.Second, false) // it says no time: it is left alone longer each time
	d.now = d.now.Add(2 * time.Second)
	trial = d.one()
	d.end(throttled, 0, trial)
	d.none(4*time.Second, false)
	d.now = d.now.Add(4 * time.Second)
	d.end(answered, 0, d.one())
	if got := d.ask(5); len(got.turns) != 4 {
		t.Errorf("when it answers again: %+v", got)
	}
	if d.gate.Opened != 0 || d.gate.Failures != 0 {
		t.Errorf("being throttled is no failure: %+v", d.gate)
	}

	d = newDoor(t)
	d.wish.chance = 0.5
	d.end(throttled, 2*time.Second, d.one())
	d.none(2*time.Second+250*time.Millisecond+50*time.Millisecond, false) // later, by chance
	d = newDoor(t)
	d.end(failed, time.Minute, d.one()) // a 503 may say when, too
	d.none(time.Minute, false)
}

func TestTheBreaker(t *testing.T) {
	d := newDoor(t)
	stands := func(want Breaker) {
		t.Helper()
		if got := d.gate.standing(d.now).Breaker; got != want {
			t.Errorf("the breaker stands at %v, want %v: %+v", got, want, d.gate)
		}
	}
	for range failuresInARow - 1 {
		d.end(failed, 0, d.one())
	}
	d.end(unused, 0, d.one()) // says nothing
	d.end(answered, 0, d.one())
	for range failuresInARow - 1 {
		stands(BreakerClosed)
		d.end(failed, 0, d.one())
	}
	late := d.ask(2).turns
	d.end(failed, 0, d.one())
	stands(BreakerOpen)
	d.none(firstOpen, false)
	d.now = d.now.Add(firstOpen)
	stands(BreakerHalfOpen)
	d.none(25*time.Second, true) // while somebody asks who began before
	d.end(failed, 0, late[0])    // which says nothing new
	stands(BreakerHalfOpen)
	d.end(unused, 0, late[1])

	var open []time.Duration
	for range 9 {
		trial := d.one()
		if !trial.trial {
			t.Error("it is not said to be a trial")
		}
		d.none(30*time.Second, true)
		d.end(failed, 0, trial)
		stands(BreakerOpen)
		again := d.ask(1).again
		open = append(open, again)
		d.now = d.now.Add(again)
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s, 300 * s, 300 * s}, open); diff != "" {
		t.Error(diff)
	}
	d.one() // and dies
	d.none(30*time.Second, true)
	d.now = d.now.Add(30 * time.Second)
	d.end(answered, 0, d.one())
	stands(BreakerClosed)
	if got := d.ask(5); len(got.turns) != 4 || got.turns[0].trial {
		t.Errorf("when it works again: %+v", got)
	}

	d = newDoor(t)
	d.wish.chance, d.wish.longest = 0.8, 8*time.Second
	for range failuresInARow {
		d.end(failed, 0, d.one())
	}
	d.none(4*time.Second+80*time.Millisecond, false) // shorter by chance, never longer than its bound
}

func TestGatesThatCanNotBeRead(t *testing.T) {
	for _, document := range []string{"", "{", "[]", "{}", `{"version":2}`, `{"version":1,"turns":7}`} {
		if g, err := readGate([]byte(document)); !errors.Is(err, errGate) {
			t.Errorf("%q is read as %+v, %v", document, g, err)
		}
	}
}

// Whatever loops do and whichever of them die: never more than the limit, never nothing for ever.
func TestAGateUnderRandomLoops(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		d := newDoor(t)
		limit := 1 + draw.IntN(4)
		d.wish.atOnce, d.wish.apart = limit, time.Duration(draw.IntN(100))*time.Millisecond
		var alive []turn
		over := map[string]time.Time{}
		begun := time.Time{}
		last := d.now
		for range 300 {
			d.wish.chance = draw.Float64()
			d.now = d.now.Add(time.Duration(draw.IntN(400)) * time.Millisecond)
			if len(alive) > 0 && draw.IntN(3) > 0 {
				i := draw.IntN(len(alive))
				if draw.IntN(10) > 0 { // else it dies
					d.end(outcome(draw.IntN(4)), time.Duration(draw.IntN(2))*time.Second, alive[i])
					delete(over, alive[i].id)
				}
				alive = append(alive[:i:i], alive[i+1:]...)
			}
			for _, turn := range d.ask(1 + draw.IntN(3)).turns {
				at := d.now.Add(turn.wait)
				if at.Sub(begun) < d.wish.apart {
					t.Errorf("a turn begins %v after the one before, want %v", at.Sub(begun), d.wish.apart)
				}
				alive, over[turn.id], begun, last = append(alive, turn), at.Add(d.wish.lasts), at, d.now
			}
			n := 0
			for _, until := range over {
				if until.After(d.now) {
					n++
				}
			}
			if n > limit {
				t.Fatalf("round %d: %d turns at a time, want at most %d", round, n, limit)
			}
			if d.now.Sub(last) > longestOpen+30*time.Second {
				t.Fatalf("round %d: nothing was let through for %v: %+v", round, d.now.Sub(last), d.gate)
			}
		}
	}
}

// A clock that is set back makes nobody wait longer than what was noted before: the pace, the breaker, a target's wish, the turns of the dead.
func TestAGateWhoseClockIsSetBack(t *testing.T) {
	const by = 10 * time.Hour
	for name, c := range map[string]struct {
		before func(d *door)
		after  time.Duration
		full   bool
	}{
		"pace":    {func(d *door) { d.end(answered, 0, d.one()) }, 10 * time.Second, false},
		"breaker": {func(d *door) { d.wish.apart = 0; fail(d, failuresInARow) }, firstOpen, false},
		"a wish":  {func(d *door) { d.end(throttled, time.Minute, d.one()) }, time.Minute, false},
		"turns":   {func(d *door) { d.wish.apart = 0; d.ask(4) }, 30 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t)
			d.wish.apart = 10 * time.Second
			c.before(d)
			d.now = d.now.Add(-by)
			d.none(c.after, c.full)
			d.now = d.now.Add(c.after / 2)
			d.none(c.after-c.after/2, c.full) // and it goes on
			d.now = d.now.Add(c.after - c.after/2)
			d.one()
		})
	}
}

func fail(d *door, times int) {
	for range times {
		d.end(failed, 0, d.one())
	}
}

// A clock of the store that is set forward ends no turn and no wait: what was left of them is left, once for all loops.
func TestAGateWhoseClockWasSetForward(t *testing.T) {
	d := newDoor(t)
	d.wish.atOnce = 1
	turn := d.ask(1).turns[0]
	d.now = d.now.Add(10 * time.Second)
	const by = time.Hour
	d.now = d.now.Add(by)
	if !d.gate.windOn(d.now, by) {
		t.Fatal("nothing was moved")
	}
	if out := d.ask(1); !out.full || out.again != d.wish.lasts-10*time.Second {
		t.Errorf("while the turn is used: %+v", out)
	}
	d.end(throttled, time.Minute, turn)
	d.now = d.now.Add(30*time.Second + by)
	d.gate.windOn(d.now, by)
	if out := d.ask(1); out.full || len(out.turns) > 0 || out.again < 30*time.Second || out.again > 32*time.Second {
		t.Errorf("while it is left alone: %+v", out)
	}
	if d.gate.windOn(d.now, 0) || (&gate{}).windOn(d.now, by) {
		t.Error("something was moved where nothing has jumped, or nothing was known")
	}
}

// unreadable are gates that can't be read.
type unreadable struct{ ledger.GateStore }

func (unreadable) Gate(context.Context, ledger.Tool, func(time.Time, []byte) ([]byte, error)) error {
	return ledger.ErrStoreUnavailable
}

// What is to be given back while a gate can't be read is not more than what may have been given.
func TestTurnsOfAGateThatCantBeReadEnd(t *testing.T) {
	s := newSite(t)
	s.granted(t, "charge")
	c := s.contracts["charge"]
	c.CheckTimeout = -turnMargin // each turn is over at once
	s.contracts["charge"] = c
	l := s.loop(t, nil, Options{})
	l.gates = unreadable{s.store}
	l.queue.add("charge", ledger.OperationID{1})
	a := &l.queue.tools["charge"].access
	for range 100 {
		a.asking = true
		l.knocked(l.knock(t.Context(), "charge", l.wish("charge", 8)))
	}
	if n := len(a.ended); n > 8 {
		t.Errorf("%d turns are to be given back", n)
	}
}

// What a loop asks a gate goes by the clock that the ledger watches.
func TestALoopKeepsTurnsOverAJumpOfTheClock(t *testing.T) {
	s := newSite(t)
	s.limited("charge", 1, 1000)
	began := time.Now()
	s.Watching(ledger.NewClock(func() time.Duration { return time.Since(began) }, nil))
	l := s.loop(t, nil, Options{})
	if k := l.knock(t.Context(), "charge", l.wish("charge", 1)); k.err != nil || len(k.given.turns) != 1 {
		t.Fatalf("%+v, %v", k.given, k.err)
	}
	s.advance(time.Hour)
	for range 2 {
		if k := l.knock(t.Context(), "charge", l.wish("charge", 1)); k.err != nil || !k.given.full || k.given.again <= 0 || k.given.again > 30*time.Second {
			t.Errorf("after the jump: %+v, %v", k.given, k.err)
		}
	}
}
