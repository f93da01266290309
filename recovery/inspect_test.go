// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// looking is a target that is asked about resources.
type looking struct {
	asking
	tool  ledger.Tool
	look  func(original *ledger.Operation) (ledger.Inspection, ledger.ResourceRef)
	looks int
	fails func() Look // before look, if it says anything
}

func (l *looking) Inspector(tool ledger.Tool) Inspector {
	if tool != l.tool {
		return nil
	}
	return l
}

func (l *looking) Inspect(_ context.Context, original *ledger.Operation) Look {
	l.looks++
	if l.fails != nil {
		if look := l.fails(); look.Why != "" {
			return look
		}
	}
	outcome, current := l.look(original)
	return Look{Outcome: outcome, Current: current}
}

// settled makes an operation that left a resource, and can take effect no more.
func (s *site) settled(t *testing.T, tool ledger.Tool) ledger.OperationID {
	t.Helper()
	id := s.granted(t, tool)
	op := s.op(t, id)
	resource := ledger.ResourceRef{ID: "R-1", Type: "resource", Version: "1"}
	_, err := s.Do(t.Context(), id, string(op.Grant.ClaimID), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Complete{ClaimID: op.Grant.ClaimID, Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "w"}, SentExactlyOnce: true, Succeeded: &ledger.Result{Resource: resource}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.advance(time.Hour)
	return id
}

// undo claims a compensation of the original.
func (s *site) undo(t *testing.T, tool ledger.Tool, original ledger.OperationID, key string) (ledger.Answer, error) {
	t.Helper()
	return s.claim(t, s.compensation(tool, original, key))
}

func (s *site) compensation(tool ledger.Tool, original ledger.OperationID, key string) ledger.Claim {
	return ledger.Claim{
		Key:     ledger.Key{Scope: "s", Tool: tool, Task: "undo", Key: key},
		ClaimID: ledger.ClaimID(uuid.NewString()), WorkerID: "w", Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "w"}, ToolAllowed: true,
		IntentTime: time.Now().Add(time.Duration(s.ahead.Load())), Compensates: original,
	}
}

func (s *site) claim(t *testing.T, claim ledger.Claim) (ledger.Answer, error) {
	t.Helper()
	c, _ := s.contracts.Contract(claim.Key.Tool)
	request, err := fingerprint.NewRequest(s.ring, claim, c, []byte(`{"amount":5}`))
	if err != nil {
		t.Fatal(err)
	}
	return s.Claim(t.Context(), claim, request)
}

// A compensation waits until its original's target has been asked, whatever the method of its own tool; then it is granted as long as the look is fresh, with what was seen as
// the precondition, or a person is asked.
func TestACompensationIsLookedAtFirst(t *testing.T) {
	seen := func(o ledger.Inspection, version string) func(*ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
		return func(original *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
			r := original.Result.Resource
			r.Version = version
			return o, r
		}
	}
	for name, c := range map[string]struct {
		tool  ledger.Tool
		look  func(*ledger.Operation) (ledger.Inspection, ledger.ResourceRef)
		asked int
		want  ledger.WaitReason // 0: granted
	}{
		"unchanged":             {"refund", seen(ledger.InspectUnchanged, "1"), 1, 0},
		"unchanged, by regrant": {"again", seen(ledger.InspectUnchanged, "1"), 1, 0},
		"unchanged, by nobody":  {"undeclared", seen(ledger.InspectUnchanged, "1"), 1, 0},
		"changed":               {"refund", seen(ledger.InspectChanged, "2"), 1, ledger.InQueue},
		"gone":                  {"refund", seen(ledger.InspectGone, ""), 1, ledger.InQueue},
		"not to be had":         {"refund", seen(ledger.InspectIndeterminate, ""), 1, ledger.ResourceCheck},
		"nobody to be asked":    {"refund", nil, 0, ledger.InQueue},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			original := s.settled(t, "charge")
			target := &looking{tool: "charge", look: c.look}
			if c.look == nil {
				target.tool = ""
			}
			l, err := New(s.Ledger, s.store, target, s.ring, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if answer, err := s.undo(t, c.tool, original, "k"); err != nil || answer.Wait.Reason != ledger.ResourceCheck {
				t.Fatalf("before the look: %v, %v", answer.Wait.Reason, err)
			}
			if _, err := l.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			answer, err := s.undo(t, c.tool, original, "k")
			if err != nil || answer.Wait.Reason != c.want || (answer.Outcome == ledger.OutcomeGranted) != (c.want == 0) || target.looks != c.asked {
				t.Fatalf("after it: %v %v, %v; it was asked %d times", answer.Outcome, answer.Wait.Reason, err, target.looks)
			}
			if c.want == 0 && (answer.Grant.Precondition == nil || answer.Grant.Precondition.Version != "1") {
				t.Errorf("it is granted with the precondition %v", answer.Grant.Precondition)
			}
			if got := s.op(t, original); got.State != ledger.Completed || len(got.CompensatedBy) != 1 {
				t.Errorf("the original is %v, and names %d", got.State, len(got.CompensatedBy))
			}
		})
	}
}

// What was seen counts for a while: nobody claims it, and it is looked at again.
func TestALookAtAResourceGrowsOld(t *testing.T) {
	s := newSite(t)
	original := s.settled(t, "charge")
	target := &looking{tool: "charge", look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
		return ledger.InspectUnchanged, o.Result.Resource
	}}
	l, err := New(s.Ledger, s.store, target, s.ring, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= 2; want++ {
		if answer, err := s.undo(t, "refund", original, "k"); err != nil || answer.Wait.Reason != ledger.ResourceCheck {
			t.Fatalf("before look %d: %v, %v", want, answer.Wait.Reason, err)
		}
		if _, err := l.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if target.looks != want {
			t.Fatalf("it was asked %d times, want %d", target.looks, want)
		}
		s.advance(31 * time.Second)
	}
}

// Of many compensations of one original that are claimed at once one is taken.
func TestOneOriginalHasOneCompensation(t *testing.T) {
	s := newSite(t)
	original := s.settled(t, "charge")
	const many = 16
	answers := make(chan error, many)
	for range many {
		go func() {
			_, err := s.undo(t, "refund", original, uuid.NewString())
			answers <- err
		}()
	}
	taken := 0
	for range many {
		switch err := <-answers; {
		case err == nil:
			taken++
		case !errors.Is(err, ledger.ErrDuplicateIntent):
			t.Errorf("refused with %v", err)
		}
	}
	if got := len(s.op(t, original).CompensatedBy); taken != 1 || got != 1 {
		t.Errorf("%d were taken, and the original names %d", taken, got)
	}
}

// A look at a resource has its turn at the target like a question about an operation: where nobody may ask, it waits, and nothing is written.
func TestALookAtAResourceHasItsTurn(t *testing.T) {
	s := newSite(t)
	original := s.settled(t, "charge")
	target := &looking{tool: "charge", look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
		if all, err := Standings(t.Context(), s.store); err != nil || all["charge"].Asking != 1 {
			t.Errorf("while it is asked, the gate stands at %+v, %v", all["charge"], err)
		}
		return ledger.InspectUnchanged, o.Result.Resource
	}}
	l, err := New(s.Ledger, s.store, target, s.ring, Options{})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.undo(t, "refund", original, "k")
	if err != nil {
		t.Fatal(err)
	}
	k := l.knock(t.Context(), "charge", l.wish("charge", 1))
	w := l.wish("charge", 0)
	w.ended = []ended{{id: k.given.turns[0].id, how: throttled, after: time.Minute}}
	if k = l.knock(t.Context(), "charge", w); k.err != nil {
		t.Fatal(k.err)
	}
	done := once(t, l)
	if len(done) != 1 || !done[0].Left || done[0].Err != nil || target.looks != 0 || s.op(t, answer.Operation.ID).Sequence != answer.Operation.Sequence {
		t.Errorf("while the target wants to be left alone: %+v, asked %d times", done, target.looks)
	}
	s.advance(2 * time.Minute)
	l.putOff.forget(answer.Operation.ID)
	if once(t, l); target.looks != 1 {
		t.Errorf("then it was asked %d times", target.looks)
	}
	if all, err := Standings(t.Context(), s.store); err != nil || all["charge"] != (Standing{}) {
		t.Errorf("after that the gate stands at %+v, %v", all["charge"], err)
	}
}

// What has been seen before somebody else moved the operation, or long ago, does not clear it.
func TestAnOldLookAtAResourceClearsNothing(t *testing.T) {
	person := ledger.Actor{Kind: ledger.ActorPerson, Name: "ops"}
	for name, meanwhile := range map[string]func(t *testing.T, s *site, id ledger.OperationID){
		"a person has had it meanwhile": func(t *testing.T, s *site, id ledger.OperationID) {
			for n, command := range []func(version uint64) ledger.Command{
				func(version uint64) ledger.Command {
					return ledger.TakeOver{CommandID: "1", Actor: person, ExpectedVersion: version, Reason: "r"}
				},
				func(version uint64) ledger.Command {
					return ledger.HandBack{CommandID: "2", Actor: person, ExpectedVersion: version, Reason: "r"}
				},
			} {
				_, err := s.Do(t.Context(), id, fmt.Sprint(n+1), func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
					return command(op.Version), nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		},
		"it took long to tell": func(_ *testing.T, s *site, _ ledger.OperationID) { s.advance(31 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			original := s.settled(t, "charge")
			answer, err := s.undo(t, "refund", original, "k")
			if err != nil || answer.Wait.Reason != ledger.ResourceCheck {
				t.Fatalf("before the look: %v, %v", answer.Wait.Reason, err)
			}
			id := answer.Operation.ID
			target := &looking{tool: "charge", look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
				meanwhile(t, s, id)
				return ledger.InspectUnchanged, o.Result.Resource
			}}
			l, err := New(s.Ledger, s.store, target, s.ring, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if answer, err := s.undo(t, "refund", original, "k"); err != nil || answer.Wait.Reason != ledger.ResourceCheck {
				t.Errorf("after a look that is old: %v %v, %v", answer.Outcome, answer.Wait.Reason, err)
			}
		})
	}
}

// A look that finds no turn free is tried again when there may be one: many of them are done at the pace of the target.
func TestLooksAtResourcesWaitForTheirTurns(t *testing.T) {
	s := newSite(t)
	s.limited("charge", 1, 50)
	const many = 6
	for n := range many {
		if answer, err := s.undo(t, "refund", s.settled(t, "charge"), fmt.Sprint(n)); err != nil || answer.Wait.Reason != ledger.ResourceCheck {
			t.Fatalf("%v, %v", answer.Wait.Reason, err)
		}
	}
	var now, most, looks atomic.Int64
	target := &looking{tool: "charge", look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		until(t.Context(), time.Now().Add(2*time.Millisecond))
		looks.Add(1)
		return ledger.InspectUnchanged, o.Result.Resource
	}}
	l, err := New(s.Ledger, s.store, target, s.ring, Options{Interval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	running(t, func() bool { return looks.Load() >= many && now.Load() == 0 }, l) // bounded: fewer than three times leftFor
	if took := time.Since(began); took < (many-1)*20*time.Millisecond-ahead || looks.Load() != many || most.Load() != 1 {
		t.Errorf("%d looks took %v, at 50 per second; at most %d at a time", looks.Load(), took, most.Load())
	}
}

// A reservation outlives the look that it was given by; what is sent under it has to be as fresh as any other.
func TestAReservationDoesNotKeepALookFresh(t *testing.T) {
	s := newSite(t)
	c := s.contracts["refund"]
	c.LeaseDefault, c.LeaseMax, c.LeaseTotal, c.FreshFor = time.Minute, time.Minute, time.Minute, 10*time.Second
	s.contracts["refund"] = c
	original := s.settled(t, "charge")
	target := &looking{tool: "charge", look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
		return ledger.InspectUnchanged, o.Result.Resource
	}}
	l, err := New(s.Ledger, s.store, target, s.ring, Options{})
	if err != nil {
		t.Fatal(err)
	}
	claim := s.compensation("refund", original, "k")
	claim.Reserve = true
	if _, err := s.claim(t, claim); err != nil {
		t.Fatal(err)
	}
	once(t, l)
	answer, err := s.claim(t, claim)
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatalf("%v, %v", answer.Outcome, err)
	}
	start := func() error {
		_, err := s.Start(t.Context(), answer.Operation.ID, claim.ClaimID, func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
			return ledger.Start{ClaimID: claim.ClaimID, Actor: claim.Actor, ToolAllowed: true}, nil
		})
		return err
	}
	s.advance(11 * time.Second)
	var refused *ledger.Refusal
	if err := start(); !errors.As(err, &refused) || !errors.Is(err, ledger.ErrBlocked) || refused.Reason != ledger.ResourceCheck {
		t.Errorf("started on an old look: %v", err)
	}
	s.advance(time.Minute)
	once(t, l)
	claim.ClaimID = ledger.ClaimID(uuid.NewString())
	if answer, err := s.claim(t, claim); err != nil || answer.Outcome != ledger.OutcomeGranted || target.looks != 2 {
		t.Errorf("after another look: %v %v, %v, %d looks", answer.Outcome, answer.Wait.Reason, err, target.looks)
	}
	if err := start(); err != nil {
		t.Errorf("at once: %v", err)
	}
}

// A target that can't be looked at is what one is that can't be asked: it counts for the breaker of its tool, it is left alone as long as it wants, and it is told once.
func TestALookThatFailsIsTheTargetsFailure(t *testing.T) {
	for name, c := range map[string]struct {
		fails Look
		looks int // until it is left alone
		want  func(Standing) bool
	}{
		"it is down": {
			Look{Cause: ledger.QueryUnavailable, Why: "it can't be reached"},
			failuresInARow,
			func(s Standing) bool { return s.Breaker == BreakerOpen && s.Failures == failuresInARow },
		},
		"it throttles": {
			Look{Cause: ledger.QueryThrottled, RetryAfter: 100 * time.Hour, Why: "it wants to be asked later"},
			1,
			func(s Standing) bool { return s.Breaker == BreakerOpen && !s.LeftUntil.IsZero() },
		},
		"it lets nobody ask": {
			Look{Cause: ledger.QueryNotAuthorized, Why: "a header can't be read"},
			10,
			func(s Standing) bool { return s == Standing{} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			original := s.settled(t, "charge")
			fails := c.fails
			target := &looking{tool: "charge", fails: func() Look { return fails }, look: func(o *ledger.Operation) (ledger.Inspection, ledger.ResourceRef) {
				return ledger.InspectUnchanged, o.Result.Resource
			}}
			var told warned
			l, err := New(s.Ledger, s.store, target, s.ring, Options{Log: told.log()})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := s.undo(t, "refund", original, "k")
			if err != nil {
				t.Fatal(err)
			}
			begin := s.ahead.Load()
			for range c.looks {
				once(t, l)
				s.advance(s.contracts["refund"].MaxInterval)
			}
			s.ahead.Store(begin) // the gate's times go on from there
			all, err := Standings(t.Context(), s.store)
			if got := all["charge"]; err != nil || target.looks != c.looks || !c.want(got) {
				t.Errorf("after %d looks of %d: %+v, %v", target.looks, c.looks, got, err)
			}
			if n := told.lines("could not be asked", fails.Why); n != 1 {
				t.Errorf("it was told %d times that it can't be asked:\n%s", n, &told.text)
			}
			s.advance(time.Duration(c.looks)*s.contracts["refund"].MaxInterval + time.Hour + 2*mostJitter)
			fails = Look{}
			l.putOff.forget(answer.Operation.ID)
			once(t, l)
			if answer, err := s.undo(t, "refund", original, "k"); err != nil || answer.Outcome != ledger.OutcomeGranted {
				t.Errorf("after it has answered: %v %v, %v", answer.Outcome, answer.Wait.Reason, err)
			}
		})
	}
}

// A turn that would be over before the target has to answer is given back unused: others may have it then.
func TestALookThatComesTooLateForItsTurn(t *testing.T) {
	s := newSite(t)
	l := s.loop(t, nil, Options{})
	c := s.contracts["charge"]
	back, _ := l.borrow(t.Context(), "charge", c.CheckTimeout+turnMargin)
	if back != nil {
		t.Error("a turn was borrowed for longer than it lasts")
	}
	if all, err := Standings(t.Context(), s.store); err != nil || all["charge"].Asking != 0 {
		t.Errorf("the gate stands at %+v, %v", all["charge"], err)
	}
	if back, _ = l.borrow(t.Context(), "charge", c.CheckTimeout); back == nil {
		t.Fatal("there was no turn")
	}
	back(answered, 0)
}
