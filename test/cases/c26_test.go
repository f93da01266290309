// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// A call takes five times its lease: nobody else is ever told to execute, whether the holder renews or not.
func TestC26(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		t.Run("without renewal", func(t *testing.T) {
			t.Parallel() // with the other one: both only wait
			c := startLongCall(t, e)
			lapsed := false
			for range 5 {
				c.pass(t, 800*time.Millisecond)
				got := outcome(e.node.dial(t, billing).claim(t, again(c.claim)))
				switch {
				case got == "UNKNOWN":
					lapsed = true
				case got != "IN_PROGRESS" || lapsed:
					t.Errorf("a Claim during the call was answered %s (lapsed before: %v)", got, lapsed)
				}
			}
			if !lapsed {
				t.Error("the lease of 1s was over and no Claim said so")
			}
			wantState(t, c.w.view(t, c.operation), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_AUTOMATION, 0)
			c.finish(t, e)
		})
		t.Run("with renewal", func(t *testing.T) {
			t.Parallel()
			c := startLongCall(t, e)
			for range 5 {
				for range 3 {
					c.pass(t, 300*time.Millisecond)
					kept, err := c.w.Renew(within(t), &pb.RenewRequest{
						OperationId: c.operation, ClaimId: c.claim.GetClaimId(), Lease: durationpb.New(time.Second),
					})
					if err != nil || kept.GetStop() || kept.GetLease().AsDuration() < 500*time.Millisecond {
						t.Fatalf("the renewal was answered %v, %v", kept, err)
					}
				}
				wantOutcome(t, e.node.dial(t, billing).claim(t, again(c.claim)), "IN_PROGRESS")
			}
			wantState(t, c.w.view(t, c.operation), pb.State_STATE_PROCESSING, pb.Custody_CUSTODY_AUTOMATION, 0)
			c.finish(t, e)
		})
	})
}

// longCall is a grant for one second, whose holder is in a call that takes five.
type longCall struct {
	w              *worker
	ft             double
	claim          *pb.ClaimRequest
	operation, key string
	ended          chan error
	charge         target.Charge
}

func startLongCall(t *testing.T, e *env) *longCall {
	t.Helper()
	c := &longCall{
		w: e.node.dial(t, billing), ft: startTarget(t, target.Payments, target.AcceptHang(5*time.Second)),
		claim: request("card.charge", unique(t), "K", `{"amount":"10.00","to":"A"}`), ended: make(chan error, 1),
	}
	c.claim.Lease = durationpb.New(time.Second)
	g := c.w.grant(t, c.claim)
	c.operation, c.key = g.GetOperationId(), g.GetDownstreamKey()
	ctx := within(t)
	go func() {
		var err error
		c.charge, err = c.ft.Charge(ctx, c.key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"})
		c.ended <- err
	}()
	return c
}

// pass lets time go by. The call must still be running then: what is seen is seen during it.
func (c *longCall) pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case err := <-c.ended:
		t.Fatalf("the call has ended before the Claims: %v", err)
	}
}

// finish reports the call's success, and shows that everybody is told of it.
func (c *longCall) finish(t *testing.T, e *env) {
	t.Helper()
	select {
	case err := <-c.ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-within(t).Done():
		t.Fatal("the call has not ended")
	}
	c.w.applied(t, completion(c.operation, c.claim.GetClaimId(), "charge", c.charge.ID))
	replay := e.node.dial(t, billing).claim(t, again(c.claim))
	wantOutcome(t, replay, "REPLAY")
	if got := replay.GetCompleted().GetResult().GetResource().GetId(); got != c.charge.ID {
		t.Errorf("the replay has the charge %q, want %q", got, c.charge.ID)
	}
	if attempts := replay.GetOperation().GetAttempts(); attempts != 1 {
		t.Errorf("there were %d grants, want one", attempts)
	}
	c.ft.wantAccount(t, target.Payments, c.key, 1, 1)
	if n := c.ft.account(t).Queries(target.Payments, target.AnyKey); n != 0 {
		t.Errorf("the target was queried %d times", n)
	}
}
