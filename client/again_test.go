// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestAnotherGrantAnotherClaimID: a claim id whose grant was used is never shown again in a claim.
func TestAnotherGrantAnotherClaimID(t *testing.T) {
	f := &fakeLedger{}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		if runs.Load() == 1 {
			return ticket{}, errors.Join(c.Sending(), RefusedBeforeAcceptance(errors.New("429"), time.Second))
		}
		return ticket{ID: "T-1"}, c.Sending()
	}), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" || runs.Load() != 2 {
		t.Errorf("%q after %d executions", got, runs.Load())
	}
	if len(f.claims) != 2 || f.claims[0].GetClaimId() == f.claims[1].GetClaimId() {
		t.Error("the second grant was asked for under the id of the first")
	}
	first := f.completes[0]
	if first.GetNotExecuted().GetRetryAfter().AsDuration() != time.Second || !first.GetSentExactlyOnce() || f.completes[1].GetClaimId() != f.claims[1].GetClaimId() {
		t.Error("the reports do not say what became of each grant")
	}
}

// TestUnknownIsNotRepeated: whatever the advice, only what reads is executed again after an unknown outcome.
func TestUnknownIsNotRepeated(t *testing.T) {
	for effect, want := range map[opsledgerv1.Effect]int32{
		opsledgerv1.Effect_EFFECT_READ: readTries, opsledgerv1.Effect_EFFECT_KEYED: 1, opsledgerv1.Effect_EFFECT_UNSPECIFIED: 1,
	} {
		f := &fakeLedger{mark: func(*opsledgerv1.MarkUnknownRequest) (*opsledgerv1.MarkUnknownResponse, error) {
			op := operation(opsledgerv1.State_STATE_RECEIVED)
			op.Effect = effect
			return &opsledgerv1.MarkUnknownResponse{
				Operation: op, Disposition: opsledgerv1.Disposition_DISPOSITION_APPLIED, NextAction: opsledgerv1.NextAction_NEXT_ACTION_CLAIM_AGAIN,
			}, nil
		}}
		var runs atomic.Int32
		out, err := Do(t.Context(), serve(t, f), creating(&runs, func(context.Context, Call) (ticket, error) {
			return ticket{}, errors.New("502")
		}), intent, request{})
		if err != nil {
			t.Fatal(err)
		}
		if got := variant(out); got != "unknown recorded=true" || runs.Load() != want {
			t.Errorf("%v: %q after %d executions, want %d", effect, got, runs.Load(), want)
		}
	}
}

// TestRenewalExtends: what a renewal gives is counted from before it was sent, and the execution has it.
func TestRenewalExtends(t *testing.T) {
	renewed := make(chan struct{}, 10)
	f := &fakeLedger{claim: leased(400*time.Millisecond, 400*time.Millisecond)}
	f.renew = func(*opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
		renewed <- struct{}{}
		return &opsledgerv1.RenewResponse{Lease: durationpb.New(700 * time.Millisecond), SendWithin: durationpb.New(time.Hour)}, nil
	}
	l := serve(t, f)
	l.now = func() time.Duration { return 0 }
	var runs atomic.Int32
	out, err := Do(t.Context(), l, creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		<-renewed
		<-renewed // so the first one has been taken
		if left, why := c.hold.end(); left != 400*time.Millisecond || !errors.Is(why, ErrWindowOver) {
			t.Errorf("the send window has %v left, and %v", left, why)
		}
		if err := c.Sending(); err != nil {
			t.Error(err)
		}
		if left, why := c.hold.end(); left != 700*time.Millisecond || !errors.Is(why, ErrLeaseOver) {
			t.Errorf("the lease has %v left, and %v", left, why)
		}
		return ticket{ID: "T-1"}, nil
	}), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" {
		t.Error(got)
	}
}
