// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// shows is a store of which only the clock is looked at.
type shows struct {
	ledger.Store
	time time.Time
}

func (s shows) List(context.Context, ledger.Listing) ([]ledger.Operation, time.Time, error) {
	return nil, s.time, nil
}

// reading is one look at a store's clock: when it was asked and when it answered, and by how much what it showed differs from what it would show
// at the answer if it had never been set.
type reading struct{ asked, answered, off time.Duration }

func TestAClockNoticesJumps(t *testing.T) {
	at := func(s, off time.Duration) reading { return reading{s, s, off} }
	every := func(d time.Duration, n int, off func(i int) time.Duration) (out []reading) {
		for i := range n {
			out = append(out, at(time.Duration(i)*d, off(i)))
		}
		return out
	}
	const s = time.Second
	for name, c := range map[string]struct {
		readings []reading
		want     []time.Duration
	}{
		"a clock that goes right":  {[]reading{at(0, 0), at(5*s, 0), at(3600*s, 0)}, nil},
		"set forward":              {[]reading{at(0, 0), at(5*s, 600*s), at(10*s, 600*s)}, []time.Duration{600 * s}},
		"set back":                 {[]reading{at(0, 0), at(5*s, -600*s), at(10*s, -600*s)}, []time.Duration{-600 * s}},
		"set, and set right again": {[]reading{at(0, 0), at(5*s, 600*s), at(10*s, 0)}, []time.Duration{600 * s, -600 * s}},
		"a leap second, and a time server's step":         {[]reading{at(0, 0), at(5*s, -s), at(10*s, -s+s/2), at(15*s, 0)}, nil},
		"small steps, until they are a large one":         {[]reading{at(0, 0), at(5*s, s), at(10*s, 2*s), at(15*s, 3*s), at(20*s, 4*s)}, []time.Duration{3*s - 15*time.Millisecond}},
		"slewed by what a kernel slews at most for a day": {every(5*s, 24*720, func(i int) time.Duration { return time.Duration(i) * 2500 * time.Microsecond }), nil},
		"slewed by eight in a hundred for a minute": {
			every(5*s, 13, func(i int) time.Duration { return time.Duration(i) * 400 * time.Millisecond }), []time.Duration{2370 * time.Millisecond, 2370 * time.Millisecond},
		},
		"a drift of 500 ppm that nobody looked at for a day":          {[]reading{at(0, 0), at(86400*s, 43*s)}, nil},
		"an answer that was read at once and was long on its way":     {[]reading{at(0, 0), {5 * s, 65 * s, -60 * s}, at(66*s, 0)}, nil},
		"an answer that was long on its way, and was read at the end": {[]reading{at(0, 0), {5 * s, 65 * s, 0}, at(66*s, 0)}, nil},
		"set while an answer was on its way":                          {[]reading{at(0, 0), {5 * s, 65 * s, 540 * s}, at(66*s, 600*s)}, []time.Duration{540*s - 65*time.Millisecond}},
		"an answer of before the jump that comes after one of later":  {[]reading{at(0, 0), at(5*s, 600*s), {s, 6 * s, -4 * s}, at(7*s, 600*s)}, []time.Duration{600 * s}},
		"the first answer was long on its way":                        {[]reading{{0, 60 * s, -60 * s}, at(61*s, 0), at(62*s, 60*s)}, []time.Duration{60*s - time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			var elapsed []time.Duration
			var got []time.Duration
			clock := ledger.NewClock(func() (e time.Duration) {
				e, elapsed = elapsed[0], elapsed[1:]
				return e
			}, func(by time.Duration) { got = append(got, by) })
			for _, r := range c.readings {
				elapsed = []time.Duration{r.asked, r.answered}
				if err := clock.Look(t.Context(), shows{time: shelfBegins.Add(r.answered + r.off)}); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.EqualFunc(got, c.want, func(a, b time.Duration) bool { return (a - b).Abs() <= 20*time.Millisecond }) {
				t.Errorf("noticed %v, want %v", got, c.want)
			}
		})
	}
}

// clocked is a ledger over a store whose clock is set, with one operation.
type clocked struct {
	t *testing.T
	ledgerSystem
	id ledger.OperationID
	c  ledger.Contract
	// watched is what the service knows of the store's clock, jumps how often it has noticed that it was set.
	watched *ledger.Clock
	jumps   int
}

func newClocked(t *testing.T, change func(*ledger.Contract)) *clocked {
	c := ledger.DefaultContract(modelTool)
	c.Method, c.EffectWithin, c.VerifyStated = ledger.MethodProbe, minute, true
	change(&c)
	w := &clocked{t: t, ledgerSystem: newLedgerSystem(declared{modelTool: c}), id: modelKey.Hash().OperationID(), c: c}
	w.watched = ledger.NewClock(func() time.Duration { return w.clock.Sub(shelfBegins) }, func(time.Duration) { w.jumps++ })
	w.service.Watching(w.watched)
	return w
}

var modelKey = ledger.Key{Scope: "team", Tool: modelTool, Task: "task-1", Key: "charge-1"}

func (w *clocked) do(cmd ledger.Command) ledger.Answer {
	w.t.Helper()
	answer, err := w.apply(w.id, cmd)
	if err != nil {
		w.t.Fatalf("%T: %v", cmd, err)
	}
	return answer
}

func (w *clocked) claim(id string) ledger.Answer {
	w.t.Helper()
	return w.do(ledger.Claim{
		Key: modelKey, ClaimID: claimID(id), WorkerID: "worker", Actor: scriptWorker, Fingerprint: scriptFingerprint("request"), ToolAllowed: true, IntentTime: shelfBegins,
	})
}

func (w *clocked) state() ledger.State {
	op, _ := w.read(w.id)
	return op.State
}

// absent has recovery ask the target, which has nothing.
func (w *clocked) absent() {
	w.t.Helper()
	check := w.do(ledger.BeginCheck{Actor: scriptLoop})
	if check.CheckNumber == 0 {
		w.t.Fatal("no check is due")
	}
	w.do(ledger.Reconcile{Actor: scriptLoop, CheckNumber: check.CheckNumber, CommandID: ledger.CommandID(claimID(check.Operation.UpdateTime.String())), Evidence: ledger.Evidence{Finding: ledger.NotFound}})
}

const (
	jump = 10 * time.Minute
	// drifted is by what a clock may have drifted meanwhile: what is noted is over so much later.
	drifted = 5 * time.Second
)

func TestALeaseIsOverWhenItReallyIs(t *testing.T) {
	w := newClocked(t, func(*ledger.Contract) {})
	w.claim("first")
	w.advance(5 * time.Second)
	w.set += jump
	if a := w.claim("second"); a.Outcome != ledger.OutcomeInProgress || a.Wait.RetryAfter.Round(time.Second) != 25*time.Second {
		t.Errorf("after the jump: %s for %s, want IN_PROGRESS for 25s", a.Outcome, a.Wait.RetryAfter)
	}
	if a := w.do(ledger.BeginCheck{Actor: scriptLoop}); a.CheckNumber != 0 {
		t.Error("recovery looks at what somebody executes")
	}
	w.advance(24 * time.Second)
	if a := w.claim("second"); a.Outcome != ledger.OutcomeInProgress {
		t.Errorf("a second before the lease is over: %s", a.Outcome)
	}
	w.advance(time.Second + drifted)
	if a := w.claim("second"); a.Outcome != ledger.OutcomeUnknown {
		t.Errorf("when the lease is over: %s, want UNKNOWN", a.Outcome)
	}
}

func TestWhatIsGrantedAfterAJumpIsJudgedByTheClockAsItIs(t *testing.T) {
	w := newClocked(t, func(*ledger.Contract) {})
	if err := w.watched.Look(t.Context(), shows{time: w.shelf.shown()}); err != nil { // so that the jump is noticed
		t.Fatal(err)
	}
	w.set += jump
	w.advance(time.Second)
	w.claim("first")
	if w.jumps != 1 {
		t.Fatalf("%d jumps were noticed, want the one before the grant", w.jumps)
	}
	w.advance(30 * time.Second)
	if a := w.claim("second"); a.Outcome != ledger.OutcomeUnknown {
		t.Errorf("when the lease is over: %s, want UNKNOWN", a.Outcome)
	}
}

// TestAbsenceCountsFromWhenItReallySettles: also where that lies further away than the jump, so that an equal time has passed long before.
func TestAbsenceCountsFromWhenItReallySettles(t *testing.T) {
	w := newClocked(t, func(c *ledger.Contract) {
		c.EffectWithin, c.Repeat, c.MaxInterval = time.Hour, ledger.RepeatAllowed, time.Minute
	})
	w.claim("first")
	w.do(ledger.MarkUnknown{ClaimID: claimID("first"), Actor: scriptWorker, Cause: ledger.CauseTimeout})
	w.advance(time.Minute)
	w.set += jump
	w.absent()
	settles := shelfBegins.Add(time.Hour + 30*time.Second)
	op, _ := w.read(w.id)
	if got := op.NextCheckTime.Add(-w.set); op.State != ledger.Unknown || got.Sub(settles) > time.Second || got.Before(settles) {
		t.Fatalf("%s, looked at again at %s, want UNKNOWN until it settles at %s", op.State, got, settles)
	}
	w.do(ledger.CheckNow{CommandID: "now", Actor: people[0], Reason: "in a hurry"})
	w.advance(54 * time.Minute) // by the store's clock, it has settled; and more than an equal time has passed
	w.absent()
	if w.state() != ledger.Unknown {
		t.Fatalf("%s five minutes before it settles", w.state())
	}
	w.advance(5*time.Minute + 30*time.Second + drifted)
	w.absent()
	if w.state() != ledger.Received {
		t.Errorf("%s after it has settled, want RECEIVED", w.state())
	}
}

func TestNothingIsRepeatedThatTheTargetHasForgotten(t *testing.T) {
	w := newClocked(t, func(c *ledger.Contract) {
		c.Effect, c.Method, c.KeyRetention = ledger.Keyed, ledger.MethodRegrant, time.Hour
	})
	w.claim("first")
	w.advance(56 * time.Minute)
	w.do(ledger.Regrant{Actor: scriptLoop})
	if w.state() != ledger.Received {
		t.Fatalf("%s, want RECEIVED: the target remembers the key for three minutes more than a repeat takes", w.state())
	}
	w.advance(3 * time.Minute)
	w.set -= jump
	if a := w.claim("second"); a.Outcome == ledger.OutcomeGranted || w.state() != ledger.Unknown {
		t.Errorf("%s, %s: want UNKNOWN, its key window is over", a.Outcome, w.state())
	}
}

func TestAGrantThatIsShownAgainLastsNoLonger(t *testing.T) {
	w := newClocked(t, func(*ledger.Contract) {})
	w.claim("first")
	w.advance(10 * time.Second)
	if a := w.claim("first"); a.Grant == nil || a.Grant.SendWithin != 20*time.Second {
		t.Fatalf("%+v, want 20s", a.Grant)
	}
	w.set -= jump
	if a := w.claim("first"); a.Grant == nil || a.Grant.SendWithin != 20*time.Second {
		t.Errorf("after the clock was set back: %+v, want 20s", a.Grant)
	}
	if a := w.do(ledger.Renew{ClaimID: claimID("first"), Actor: scriptWorker}); a.SendWithin != 20*time.Second {
		t.Errorf("renewed after the clock was set back: %s, want 20s", a.SendWithin)
	}
}

// TestWhatIsNotedAheadOfTheClockIsNotOfAnotherTime: what is noted on a guess of the store's time may be a little later than all that the clock has
// shown before it is set.
func TestWhatIsNotedAheadOfTheClockIsNotOfAnotherTime(t *testing.T) {
	const ahead = 100 * time.Millisecond
	for name, sets := range map[string][2]time.Duration{"set back after it": {0, -jump}, "set back before it, and right again after it": {-jump, jump}} {
		t.Run(name, func(t *testing.T) {
			w := newClocked(t, func(c *ledger.Contract) { c.RequireIntentTime = false })
			clock := ledger.NewClock(func() time.Duration { return w.clock.Sub(shelfBegins) }, nil)
			w.service.Watching(clock)
			for _, set := range []time.Duration{0, sets[0]} {
				w.set += set
				if err := clock.Look(t.Context(), shows{time: w.clock.Add(w.set)}); err != nil {
					t.Fatal(err)
				}
			}
			claim := func(id string) ledger.Answer {
				return w.do(ledger.Claim{
					Key: modelKey, ClaimID: claimID(id), WorkerID: "worker", Actor: scriptWorker, Fingerprint: scriptFingerprint("request"), ToolAllowed: true,
				})
			}
			w.set += ahead
			claim("first")
			w.set += sets[1] - ahead
			if a := claim("first"); a.Grant != nil && a.Grant.SendWithin > 30*time.Second+ahead { // a window that the clock shows to be over stays so
				t.Errorf("shown again after the clock was set: %+v, want at most 30s", a.Grant)
			}
			if a := claim("second"); a.Outcome != ledger.OutcomeInProgress {
				t.Errorf("claimed by another at once: %s, want IN_PROGRESS", a.Outcome)
			}
		})
	}
}

func TestNothingExpiresOrIsRetiredEarly(t *testing.T) {
	w := newClocked(t, func(c *ledger.Contract) { c.RetryWindow, c.RetainCompleted = time.Hour, time.Hour })
	w.claim("first")
	w.do(ledger.Complete{ClaimID: claimID("first"), Actor: scriptWorker, NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent, RetryAfter: time.Minute}})
	w.set += 2 * time.Hour
	if a := w.claim("second"); a.Outcome != ledger.OutcomeWaiting || a.Wait.RetryAfter != time.Minute {
		t.Errorf("%s for %s, want WAITING for a minute", a.Outcome, a.Wait.RetryAfter)
	}
	w.do(ledger.Expire{Actor: scriptLoop})
	if w.state() != ledger.Received {
		t.Fatalf("%s an hour before it may expire", w.state())
	}
	w.advance(time.Hour)
	w.do(ledger.Expire{Actor: scriptLoop})
	if w.state() != ledger.Failed {
		t.Fatalf("%s, want FAILED: it has expired", w.state())
	}
	w.set += 2 * time.Hour
	w.do(ledger.Retire{Actor: scriptLoop})
	if w.state() != ledger.Failed {
		t.Fatalf("%s an hour before it may be retired", w.state())
	}
	w.advance(time.Hour)
	w.do(ledger.Retire{Actor: scriptLoop})
	if w.state() != ledger.Retired {
		t.Errorf("%s, want RETIRED", w.state())
	}
}

// TestAClockThatIsSetAgainAndAgain: what is remembered is bounded, and nothing is over early.
func TestAClockThatIsSetAgainAndAgain(t *testing.T) {
	w := newClocked(t, func(c *ledger.Contract) { c.LeaseDefault, c.LeaseMax, c.LeaseTotal = time.Hour, time.Hour, time.Hour })
	w.claim("first")
	for range 59 {
		w.advance(time.Minute)
		w.set += jump
		if a := w.claim("second"); a.Outcome != ledger.OutcomeInProgress {
			t.Fatalf("%s after %s", a.Outcome, w.clock.Sub(shelfBegins))
		}
	}
	w.advance(time.Minute + drifted)
	if a := w.claim("second"); a.Outcome != ledger.OutcomeUnknown {
		t.Errorf("when the lease is over: %s, want UNKNOWN", a.Outcome)
	}
}
