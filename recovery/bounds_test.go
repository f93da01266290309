// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// busy is a target that counts who asks it at a time.
type busy struct {
	now, most, asked atomic.Int64
	says             func(n int64) Verdict
}

func (b *busy) ask(_ context.Context, _ *ledger.Operation) Verdict {
	now := b.now.Add(1)
	defer b.now.Add(-1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
	n := b.asked.Add(1)
	timer := time.NewTimer(2 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	return b.says(n)
}

// counted counts what is written to gates.
type counted struct {
	Store
	writes, reads atomic.Int64
}

func (c *counted) Gate(ctx context.Context, tool ledger.Tool, decide func(time.Time, []byte) ([]byte, error)) error {
	return c.Store.Gate(ctx, tool, func(now time.Time, was []byte) ([]byte, error) {
		next, err := decide(now, was)
		if c.reads.Add(1); next != nil {
			c.writes.Add(1)
		}
		return next, err
	})
}

// limited sets a tool's limits.
func (s *site) limited(tool ledger.Tool, atOnce, perSecond int) {
	c := s.contracts[tool]
	c.CheckConcurrency, c.ChecksPerSecond = atOnce, perSecond
	s.contracts[tool] = c
}

// running runs loops until a condition holds.
func running(t *testing.T, holds func() bool, loops ...*Loop) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, l := range loops {
		group.Go(func() { l.Run(ctx, t.Context()) })
	}
	defer group.Wait()
	defer stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline.C:
			t.Fatal("it has not come to that")
		}
	}
}

// Loops ask no more at a time than the contract says, all together, and each question costs about one change of the gate.
func TestLoopsShareALimit(t *testing.T) {
	for _, limit := range []int{1, 3} {
		s := newSite(t)
		s.limited("charge", limit, 1000)
		const many = 60
		for range many {
			s.granted(t, "charge")
		}
		s.advance(time.Hour)
		target := &busy{says: func(int64) Verdict { return found(`{"amount":5}`) }}
		var loops []*Loop
		var stores []*counted
		for range 3 {
			l := s.loop(t, target.ask, Options{Interval: 5 * time.Millisecond})
			stores = append(stores, &counted{Store: s.store})
			l.gates = stores[len(stores)-1]
			loops = append(loops, l)
		}
		running(t, func() bool { return target.asked.Load() == many && target.now.Load() == 0 }, loops...)
		if target.most.Load() > int64(limit) {
			t.Errorf("%d asked at a time, want at most %d", target.most.Load(), limit)
		}
		var writes, reads int64
		for _, c := range stores {
			writes, reads = writes+c.writes.Load(), reads+c.reads.Load()
		}
		if writes > many*3/2 {
			t.Errorf("%d questions took %d changes of the gate", many, writes)
		}
		t.Logf("limit %d: %d questions took %d changes of the gate, which was decided on %d times", limit, many, writes, reads)
		all, err := Standings(t.Context(), s.store)
		if err != nil || all["charge"] != (Standing{}) {
			t.Errorf("when all is done, the gate stands at %+v, %v", all["charge"], err)
		}
	}
}

// The pace is that of all loops together.
func TestLoopsShareAPace(t *testing.T) {
	s := newSite(t)
	s.limited("charge", 4, 20)
	const many = 12
	for range many {
		s.granted(t, "charge")
	}
	s.advance(time.Hour)
	target := &busy{says: func(int64) Verdict { return found(`{"amount":5}`) }}
	store := &counted{Store: s.store}
	loops := []*Loop{
		s.loop(t, target.ask, Options{Interval: 5 * time.Millisecond}), s.loop(t, target.ask, Options{Interval: 5 * time.Millisecond}),
	}
	for _, l := range loops {
		l.gates = store
	}
	began := time.Now()
	running(t, func() bool { return target.asked.Load() == many && target.now.Load() == 0 }, loops...)
	if took := time.Since(began); took < (many-1)*50*time.Millisecond-ahead {
		t.Errorf("%d questions took %v, at 20 per second", many, took)
	}
	t.Logf("%d questions took %d changes of the gate", many, store.writes.Load())
}

// Nobody asks a target before it wants to be asked again, and what waits for it is not touched; others are.
func TestWhatATargetWantsHoldsForAllLoops(t *testing.T) {
	s := newSite(t)
	var ids []ledger.OperationID
	for range 8 {
		ids = append(ids, s.granted(t, "charge"))
		s.advance(time.Second)
	}
	s.advance(time.Hour)
	target := &busy{says: func(n int64) Verdict {
		if n == 1 {
			v := silent(ledger.QueryThrottled)
			v.Evidence.RetryAfter = time.Minute
			return v
		}
		return found(`{"amount":5}`)
	}}
	s.limited("charge", 1, 1000)
	one, other := s.loop(t, target.ask, Options{}), s.loop(t, target.ask, Options{})
	if done := once(t, one); len(done) != 1 || done[0].Cause != ledger.QueryThrottled {
		t.Errorf("the first loop did %+v", done)
	}
	s.advance(59 * time.Second)
	quick := s.granted(t, "refund")
	s.advance(time.Millisecond)
	for _, l := range []*Loop{one, other} {
		if done := once(t, l); len(done) != 0 {
			t.Errorf("while it wants to be left alone: %+v", done)
		}
	}
	for _, id := range ids[1:] {
		if op := s.op(t, id); op.Sequence != 1 {
			t.Errorf("an operation that waits was written: %d events", op.Sequence)
		}
	}
	if n := target.asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	s.advance(2 * time.Minute)
	if done := once(t, other); len(done) != 9 {
		t.Errorf("then it did %d of 9", len(done))
	}
	s.wants(t, quick, ledger.Completed, ledger.Automation, 0)
	for _, id := range ids {
		s.wants(t, id, ledger.Completed, ledger.Automation, 0)
	}
}

// A target is down for 30 hours: nobody is asked for want of answers, nothing is written about what can't be asked, and when it is back
// all is found out. It is down in three ways: it can't be reached, it does not answer, or it wants to be left alone.
func TestATargetThatIsDown(t *testing.T) {
	for name, cause := range map[string]ledger.IndeterminateCause{
		"unavailable": ledger.QueryUnavailable, "silent": ledger.QueryTimeout, "throttling": ledger.QueryThrottled,
	} {
		for _, many := range []int{1, 30} {
			t.Run(fmt.Sprint(name, ", operations: ", many), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				c := s.contracts["charge"]
				c.KeyRetention = 0 // longer than the outage, or a repeat would be forbidden in the end
				s.contracts["charge"] = c
				var ids []ledger.OperationID
				for range many {
					ids = append(ids, s.granted(t, "charge"))
				}
				var up atomic.Bool
				asked := 0
				var mu sync.Mutex
				ask := asking(func(_ context.Context, op *ledger.Operation) Verdict {
					mu.Lock()
					defer mu.Unlock()
					if asked++; op.Tool == "refund" || up.Load() {
						return found(`{"amount":5}`)
					}
					return silent(cause)
				})
				loops := []*Loop{s.loop(t, ask, Options{}), s.loop(t, ask, Options{})}
				const outage, step = 30 * time.Hour, 2 * time.Minute
				for at := time.Duration(0); at < outage; at += step {
					s.advance(step)
					once(t, loops[int(at/step)%2])
				}
				// One question in five minutes, or each operation each ten minutes; a check makes two events.
				if most := int(outage/longestOpen)*3/2 + 10; asked > most {
					t.Errorf("it was asked %d times, want no more than %d", asked, most)
				}
				events := uint64(0)
				for _, id := range ids {
					s.wants(t, id, ledger.Unknown, ledger.Automation, 0)
					events += s.op(t, id).Sequence
				}
				t.Logf("it was asked %d times in %v, which made %d events of %d operations", asked, outage, events, many)
				quick := s.granted(t, "refund")
				s.advance(10 * time.Minute)
				once(t, loops[0])
				s.wants(t, quick, ledger.Completed, ledger.Automation, 0)
				up.Store(true)
				for range 12 {
					s.advance(2 * time.Minute)
					once(t, loops[1])
				}
				for _, id := range ids {
					s.wants(t, id, ledger.Completed, ledger.Automation, 0)
				}
			})
		}
	}
}

// gone is a store without gates.
type gone struct{ Store }

func (gone) Gate(context.Context, ledger.Tool, func(time.Time, []byte) ([]byte, error)) error {
	return ledger.ErrStoreUnavailable
}

// Where it can't be known whose turn it is, nothing is asked; neither where a newer release says so.
func TestWithoutAGateNothingIsAsked(t *testing.T) {
	s := newSite(t)
	id := s.granted(t, "charge")
	s.advance(time.Hour)
	target := &busy{says: func(int64) Verdict { return found(`{"amount":5}`) }}
	l := s.loop(t, target.ask, Options{})
	l.gates = gone{s.store}
	if done := once(t, l); len(done) != 0 {
		t.Errorf("without gates: %+v", done)
	}
	l.gates = s.store
	write := func(document string) {
		t.Helper()
		err := s.store.Gate(t.Context(), "charge", func(time.Time, []byte) ([]byte, error) { return []byte(document), nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	write(`{"version":2}`)
	if done := once(t, l); len(done) != 0 {
		t.Errorf("behind a newer release's gate: %+v", done)
	}
	if n := target.asked.Load(); n != 0 || s.op(t, id).Sequence != 1 {
		t.Errorf("the target was asked %d times, and the operation has %d events", n, s.op(t, id).Sequence)
	}
	write(`{"version":1}`)
	if done := once(t, l); len(done) != 1 {
		t.Errorf("then it did %+v", done)
	}
}

// A loop that has died with all turns stops the others no longer than its turns last.
func TestTheTurnsOfTheDead(t *testing.T) {
	s := newSite(t)
	s.limited("charge", 2, 1000)
	id := s.granted(t, "charge")
	s.advance(time.Hour)
	l := s.loop(t, asking(func(context.Context, *ledger.Operation) Verdict { return found(`{"amount":5}`) }), Options{})
	if k := l.knock(t.Context(), "charge", l.wish("charge", 3)); k.err != nil || len(k.given.turns) != 2 || !k.given.full {
		t.Fatalf("the first loop got %+v, %v", k.given, k.err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if done, err := l.RunOnce(ctx); len(done) != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while they last: %+v, %v", done, err)
	}
	s.advance(s.contracts["charge"].CheckTimeout + turnMargin)
	if done := once(t, l); len(done) != 1 {
		t.Errorf("then it did %+v", done)
	}
	s.wants(t, id, ledger.Completed, ledger.Automation, 0)
}

// Operations that became unknown together, and about which nothing was found together, are not due together again; none later than its contract says.
func TestChecksAreSpread(t *testing.T) {
	s := newSite(t)
	var ids []ledger.OperationID
	for range 20 {
		ids = append(ids, s.granted(t, "charge"))
	}
	s.advance(time.Hour)
	l := s.loop(t, func(context.Context, *ledger.Operation) Verdict { return silent(ledger.QueryNotUnderstood) }, Options{})
	first := s.contracts["charge"].FirstCheck
	waits := map[time.Duration]int{}
	if done := once(t, l); len(done) != len(ids) {
		t.Fatalf("it did %d", len(done))
	}
	for _, id := range ids {
		op := s.op(t, id)
		wait := op.NextCheckTime.Sub(op.UpdateTime)
		if waits[wait]++; wait > first || wait < first*4/5 {
			t.Errorf("the next check is after %v, want up to a fifth less than %v", wait, first)
		}
	}
	if len(waits) < len(ids)/2 {
		t.Errorf("of %d next checks %d are at different times", len(ids), len(waits))
	}
}
