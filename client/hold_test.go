// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// leased grants a lease and a send window of different lengths.
func leased(lease, sendWithin time.Duration) func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
	return func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		r := granted(sendWithin)
		r.GetGranted().Lease = durationpb.New(lease)
		return r, nil
	}
}

// TestRenewal: what the ledger says to a renewal, and what becomes of the execution.
func TestRenewal(t *testing.T) {
	const reasonOver = opsledgerv1.WaitReason_WAIT_REASON_LEASE_OVER
	stop := func(lease time.Duration, reason opsledgerv1.WaitReason) *opsledgerv1.RenewResponse {
		return &opsledgerv1.RenewResponse{Lease: durationpb.New(lease), Stop: true, StopReason: reason}
	}
	for name, tt := range map[string]struct {
		answers []*opsledgerv1.RenewResponse
		err     error // after the answers
		want    error // the cause of the end
		renews  int32
	}{
		"extended three times, and no more": {
			[]*opsledgerv1.RenewResponse{
				{Lease: durationpb.New(300 * time.Millisecond)}, {Lease: durationpb.New(300 * time.Millisecond)}, stop(100*time.Millisecond, reasonOver),
			}, nil, ErrLeaseOver, 3,
		},
		"a person has it": {
			[]*opsledgerv1.RenewResponse{stop(time.Minute, opsledgerv1.WaitReason_WAIT_REASON_HELD_BY_OPERATOR)},
			nil,
			&StoppedError{opsledgerv1.WaitReason_WAIT_REASON_HELD_BY_OPERATOR}, 1,
		},
		"the lease was over already": {[]*opsledgerv1.RenewResponse{stop(0, reasonOver)}, nil, &StoppedError{reasonOver}, 1},
		"another grant exists": {
			nil, refusal(t, codes.Aborted, &errdetails.ErrorInfo{Domain: "opsledger", Reason: "STALE_GRANT"}),
			&StoppedError{opsledgerv1.WaitReason_WAIT_REASON_SUPERSEDED}, 1,
		},
		"not understood": {nil, status.Error(codes.Internal, ""), ErrLeaseOver, 1},
		"the grant is lost": {
			nil, refusal(t, codes.NotFound, &errdetails.ErrorInfo{Domain: "opsledger", Reason: "OPERATION_NOT_FOUND"}), ErrLeaseOver, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var renews atomic.Int32
			var passed atomic.Int64 // stands still until the last answer
			f := &fakeLedger{claim: leased(400*time.Millisecond, 400*time.Millisecond)}
			f.renew = func(r *opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
				n := int(renews.Add(1))
				if r.GetOperationId() != operationID || r.GetLease().AsDuration() != 3*time.Second {
					t.Error("the renewal does not say what it is for")
				}
				if n >= len(tt.answers) && errors.Is(tt.want, ErrLeaseOver) {
					passed.Store(int64(time.Hour))
				}
				if n <= len(tt.answers) {
					return tt.answers[n-1], nil
				}
				return nil, tt.err
			}
			var runs atomic.Int32
			e := creating(&runs, func(ctx context.Context, c Call) (ticket, error) {
				if err := c.Sending(); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				if diff := cmp.Diff(tt.want, context.Cause(ctx), cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() })); diff != "" {
					t.Errorf("ended by (-want +got):\n%s", diff)
				}
				return ticket{ID: "T-1"}, nil // what it knows
			})
			e.Lease = 3 * time.Second
			l := serve(t, f)
			l.now = func() time.Duration { return time.Duration(passed.Load()) }
			out, err := Do(t.Context(), l, e, intent, request{})
			if err != nil {
				t.Fatal(err)
			}
			if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" || renews.Load() != tt.renews {
				t.Errorf("%q after %d renewals, want %d", got, renews.Load(), tt.renews)
			}
		})
	}
}

// TestStoppedBeforeTheSend: nothing may be sent any more, and the caller is told that nothing was.
func TestStoppedBeforeTheSend(t *testing.T) {
	f := &fakeLedger{claim: leased(400*time.Millisecond, 400*time.Millisecond)}
	f.renew = func(*opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
		return &opsledgerv1.RenewResponse{Stop: true, StopReason: opsledgerv1.WaitReason_WAIT_REASON_SUPERSEDED}, nil
	}
	l := serve(t, f)
	l.now = func() time.Duration { return 0 }
	var runs atomic.Int32
	_, err := Do(t.Context(), l, creating(&runs, func(ctx context.Context, c Call) (ticket, error) {
		<-ctx.Done()
		return ticket{}, NotSent(c.Sending())
	}), intent, request{})
	var stopped *StoppedError
	if !errors.As(err, &stopped) || err.Error() != "nothing was sent: stopped by the ledger: SUPERSEDED" {
		t.Errorf("error %v", err)
	}
}

// TestNothingLeavesUnderALostGrant: no connection that comes after the ledger has lost the grant is written to, and no body read.
func TestNothingLeavesUnderALostGrant(t *testing.T) {
	h := newHold(func() time.Duration { return 0 })
	h.begin(granted(time.Minute).GetGranted(), 0, true)
	h.ctx, h.stop = context.WithCancelCause(t.Context())
	if err := h.sending(underWay); err != nil {
		t.Fatal(err)
	}
	h.seeking()
	h.lose()
	if err := h.connected(false, true); !errors.Is(err, ErrGrantLost) {
		t.Errorf("a connection: %v", err)
	}
	if err := h.mayRead(); !errors.Is(err, ErrGrantLost) {
		t.Errorf("a body: %v", err)
	}
	if !h.lost(true) || h.ctx.Err() != nil {
		t.Error("it has left, or the execution was ended")
	}
}

// TestAttributes: they go to the ledger at once, again if that failed, and with the report of an unknown outcome.
func TestAttributes(t *testing.T) {
	said := make(chan map[string]string, 10)
	f := &fakeLedger{}
	f.renew = func(r *opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
		said <- r.GetTargetAttributes()
		if len(said) == 1 {
			return nil, status.Error(codes.DeadlineExceeded, "")
		}
		return &opsledgerv1.RenewResponse{Lease: durationpb.New(400 * time.Millisecond)}, nil
	}
	var runs atomic.Int32
	_, err := Do(t.Context(), serve(t, f), creating(&runs, func(ctx context.Context, c Call) (ticket, error) {
		c.SetAttribute("job_id", "j-1")
		for len(said) < 2 {
			if !pause(ctx, 5*time.Millisecond) {
				return ticket{}, ctx.Err()
			}
		}
		c.SetAttribute("request_id", "r-1")
		return ticket{}, Unclear(opsledgerv1.UnknownCause_UNKNOWN_CAUSE_SERVER_ERROR, errors.New("504"))
	}), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	job := map[string]string{"job_id": "j-1"}
	if first, second := <-said, <-said; !cmp.Equal(first, job) || !cmp.Equal(second, job) {
		t.Errorf("the renewals said %v, %v", first, second)
	}
	if got := f.markUnknowns[0].GetTargetAttributes(); !cmp.Equal(got, map[string]string{"job_id": "j-1", "request_id": "r-1"}) {
		t.Errorf("reported %v", got)
	}
}

// TestHeldByAPerson: an unknown outcome that a person has in hand is waited for; the decision is told.
func TestHeldByAPerson(t *testing.T) {
	held := &opsledgerv1.Wait{Reason: opsledgerv1.WaitReason_WAIT_REASON_HELD_BY_OPERATOR}
	var claims, looks atomic.Int32
	f := &fakeLedger{
		claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
			if claims.Add(1) > 1 {
				return &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Failed{Failed: &opsledgerv1.Failure{Code: "given_up"}}}, nil
			}
			return &opsledgerv1.ClaimResponse{
				Operation: operation(opsledgerv1.State_STATE_UNKNOWN), NextAction: opsledgerv1.NextAction_NEXT_ACTION_WAIT_FOR_PERSON,
				Outcome: &opsledgerv1.ClaimResponse_Unknown{Unknown: held},
			}, nil
		},
		lookup: func(*opsledgerv1.LookupRequest) (*opsledgerv1.LookupResponse, error) {
			switch looks.Add(1) {
			case 1:
				return &opsledgerv1.LookupResponse{
					NextAction: opsledgerv1.NextAction_NEXT_ACTION_WAIT_FOR_PERSON, Outcome: &opsledgerv1.LookupResponse_Waiting{Waiting: held},
				}, nil
			case 2:
				return nil, status.Error(codes.DeadlineExceeded, "")
			default:
				return &opsledgerv1.LookupResponse{NextAction: opsledgerv1.NextAction_NEXT_ACTION_STOP}, nil
			}
		},
	}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, fine), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "rejected given_up replayed=true" || looks.Load() != 3 || runs.Load() != 0 {
		t.Errorf("%q after %d lookups, %d executions", got, looks.Load(), runs.Load())
	}
}

// TestBlockedNewKey: where nothing is stored there is nothing to look up; the same claim is made again.
func TestBlockedNewKey(t *testing.T) {
	var claims atomic.Int32
	f := &fakeLedger{}
	f.claim = func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		if claims.Add(1) < 3 {
			return &opsledgerv1.ClaimResponse{
				NextAction: opsledgerv1.NextAction_NEXT_ACTION_WAIT,
				Outcome:    &opsledgerv1.ClaimResponse_Blocked{Blocked: &opsledgerv1.Wait{Reason: opsledgerv1.WaitReason_WAIT_REASON_TOOL_PAUSED}},
			}, nil
		}
		return granted(time.Minute), nil
	}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, fine), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" || f.claims[0].GetClaimId() != f.claims[2].GetClaimId() {
		t.Errorf("%q, or the claims do not share their id", got)
	}
}

// TestUsedUpClaimID: a claim id that the ledger calls over is drawn anew, a bounded number of times.
func TestUsedUpClaimID(t *testing.T) {
	for reason, want := range map[string]int{"STALE_GRANT": 3, "LEASE_OVER": 3, "COMMAND_REUSED": 1} {
		f := &fakeLedger{}
		f.claim = func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
			return nil, refusal(t, codes.Aborted, &errdetails.ErrorInfo{Domain: "opsledger", Reason: reason})
		}
		var runs atomic.Int32
		_, err := Do(t.Context(), serve(t, f), creating(&runs, fine), intent, request{})
		ids := map[string]bool{}
		for _, c := range f.claims {
			ids[c.GetClaimId()] = true
		}
		if err == nil || len(ids) != want || len(f.claims) != want {
			t.Errorf("%s: %v after %d claims under %d ids, want %d", reason, err, len(f.claims), len(ids), want)
		}
	}
}

// What the ledger would refuse for want of time is not asked: refusals are logged there, and look like a fault.
func TestNothingIsAskedAtTheVeryEnd(t *testing.T) {
	waiting := &opsledgerv1.Wait{Reason: opsledgerv1.WaitReason_WAIT_REASON_LEASE_HELD}
	f := &fakeLedger{
		claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
			return &opsledgerv1.ClaimResponse{
				Operation: operation(opsledgerv1.State_STATE_PROCESSING), Outcome: &opsledgerv1.ClaimResponse_InProgress{InProgress: waiting},
			}, nil
		},
		lookup: func(*opsledgerv1.LookupRequest) (*opsledgerv1.LookupResponse, error) { // at once, as one that drains
			return &opsledgerv1.LookupResponse{
				Operation: operation(opsledgerv1.State_STATE_PROCESSING), NextAction: opsledgerv1.NextAction_NEXT_ACTION_WAIT,
				Outcome: &opsledgerv1.LookupResponse_Waiting{Waiting: waiting},
			}, nil
		},
	}
	var asked, late atomic.Int32
	l := serve(t, f, grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == opsledgerv1.LedgerService_Lookup_FullMethodName {
			asked.Add(1)
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < leastLookup/2 {
				late.Add(1)
			}
		}
		return handler(ctx, req)
	}))
	var runs atomic.Int32
	e := creating(&runs, fine)
	e.Wait = 320 * time.Millisecond
	if _, err := Do(t.Context(), l, e, intent, request{}); err != nil || runs.Load() != 0 {
		t.Fatal(err)
	}
	if asked.Load() == 0 || late.Load() > 0 {
		t.Errorf("asked %d times, of which %d with hardly any time left", asked.Load(), late.Load())
	}
}
