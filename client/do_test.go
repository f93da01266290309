// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

type request struct {
	Title string `json:"title"`
}

type ticket struct {
	ID string `json:"id"`
}

var intent = Intent{Task: "task-1", Step: "open-incident", Time: time.Unix(1_700_000_000, 0)}

// creating is an effect that runs f, and counts how often.
func creating(runs *atomic.Int32, f func(context.Context, Call) (ticket, error)) Effect[request, ticket] {
	return Effect[request, ticket]{
		Tool: "tickets.create",
		Execute: func(ctx context.Context, c Call, _ request) (ticket, error) {
			runs.Add(1)
			return f(ctx, c)
		},
		Resource: func(t ticket) *opsledgerv1.ResourceRef { return &opsledgerv1.ResourceRef{Type: "ticket", Id: t.ID} },
		Schema:   "ticket/1",
	}
}

func fine(context.Context, Call) (ticket, error) { return ticket{ID: "T-1"}, nil }

// variant is an outcome in one line.
func variant(out Outcome[ticket]) string {
	return Match(out,
		func(d Done[ticket]) string {
			return fmt.Sprintf("done %s value=%v replayed=%v redacted=%v", d.Value.ID, d.HasValue, d.Replayed, d.Redacted)
		},
		func(r Rejection) string {
			return fmt.Sprintf("rejected %s replayed=%v", r.Failure.GetCode(), r.Replayed)
		},
		func(u Unknown) string { return fmt.Sprintf("%v recorded=%v", u.Reason, u.Recorded) })
}

// TestExecution walks what Execute can end with, and what the ledger can say to it.
func TestExecution(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "the store is away")
	declined := Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
	tests := []struct {
		name     string
		execute  func(context.Context, Call) (ticket, error)
		complete func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error)
		mark     func(*opsledgerv1.MarkUnknownRequest) (*opsledgerv1.MarkUnknownResponse, error)
		gone     bool   // the ledger is, when the report arrives, and stays away
		want     string // the variant, or the error's text
		reported string
	}{
		{name: "it answers", execute: fine, want: "done T-1 value=true replayed=false redacted=false", reported: "succeeded T-1"},
		{
			name: "it answers, a person has the operation", execute: fine,
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_OBSERVED), nil
			},
			want: "unknown recorded=true", reported: "succeeded T-1",
		},
		{
			name: "it answers, the report contradicts what is recorded", execute: fine,
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_COMPLETED, opsledgerv1.Disposition_DISPOSITION_CONTRADICTION), nil
			},
			want: "unknown recorded=true", reported: "succeeded T-1",
		},
		{
			name: "it answers, the ledger has gone", execute: fine, gone: true,
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) { return nil, unavailable },
			want:     "unknown recorded=false", reported: "succeeded T-1",
		},
		{
			name: "it answers, the ledger refuses the report", execute: fine,
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return nil, status.Error(codes.NotFound, "")
			},
			want: "unknown recorded=false", reported: "succeeded T-1",
		},
		{
			name: "it is rejected",
			execute: func(_ context.Context, c Call) (ticket, error) {
				return ticket{}, errors.Join(c.Sending(), fmt.Errorf("charge: %w", declined))
			},
			want: "rejected card_declined replayed=false", reported: "rejected card_declined once=true",
		},
		{
			name:    "it is rejected, and nobody knows how often it was sent",
			execute: func(context.Context, Call) (ticket, error) { return ticket{}, declined },
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
			},
			want: "unknown recorded=true", reported: "rejected card_declined once=false",
		},
		{
			name: "it is refused before acceptance, and nobody knows how often it was sent",
			execute: func(context.Context, Call) (ticket, error) {
				return ticket{}, RefusedBeforeAcceptance(errors.New("429"), time.Second)
			},
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
			},
			want: "unknown recorded=true", reported: "not executed REFUSED_BEFORE_ACCEPTANCE once=false",
		},
		{
			name: "it says why nobody knows",
			execute: func(context.Context, Call) (ticket, error) {
				return ticket{}, Unclear(opsledgerv1.UnknownCause_UNKNOWN_CAUSE_SERVER_ERROR, errors.New("504"))
			},
			want: "unknown recorded=true", reported: "unknown SERVER_ERROR",
		},
		{
			name:    "it is rejected while an earlier attempt may have been applied",
			execute: func(_ context.Context, c Call) (ticket, error) { return ticket{}, errors.Join(c.Sending(), declined) },
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
			},
			want: "unknown recorded=true", reported: "rejected card_declined once=true",
		},
		{
			name: "it calls a rejection what no worker can know",
			execute: func(context.Context, Call) (ticket, error) {
				return ticket{}, Rejected(opsledgerv1.FailureKind_FAILURE_KIND_UNSPECIFIED, "x", "")
			},
			want: "unknown recorded=true", reported: "unknown UNCLASSIFIED",
		},
		{
			name: "it was not sent",
			execute: func(context.Context, Call) (ticket, error) {
				return ticket{}, NotSent(errors.New("connection refused"))
			},
			want: "nothing was sent: connection refused", reported: "not executed NEVER_SENT once=false",
		},
		{
			name: "it was not sent, the ledger has gone", gone: true,
			execute: func(context.Context, Call) (ticket, error) {
				return ticket{}, NotSent(errors.New("connection refused"))
			},
			complete: func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) { return nil, unavailable },
			want:     "nothing was sent: connection refused", reported: "not executed NEVER_SENT once=false",
		},
		{
			name:    "it fails in a way that says nothing",
			execute: func(context.Context, Call) (ticket, error) { return ticket{}, errors.New("502") },
			want:    "unknown recorded=true", reported: "unknown UNCLASSIFIED",
		},
		{
			name: "it fails in a way that says nothing, the ledger has gone", gone: true,
			execute: func(context.Context, Call) (ticket, error) { return ticket{}, errors.New("502") },
			mark: func(*opsledgerv1.MarkUnknownRequest) (*opsledgerv1.MarkUnknownResponse, error) {
				return nil, unavailable
			},
			want: "unknown recorded=false", reported: "unknown UNCLASSIFIED",
		},
		{
			name:    "its connection breaks",
			execute: func(context.Context, Call) (ticket, error) { return ticket{}, io.ErrUnexpectedEOF },
			want:    "unknown recorded=true", reported: "unknown CONNECTION_LOST",
		},
		{
			name:    "it times out",
			execute: func(context.Context, Call) (ticket, error) { return ticket{}, context.DeadlineExceeded },
			want:    "unknown recorded=true", reported: "unknown TIMEOUT",
		},
		{
			name:    "it panics",
			execute: func(context.Context, Call) (ticket, error) { panic("a canary") },
			want:    "unknown recorded=true", reported: "unknown UNCLASSIFIED",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fakeLedger{complete: tt.complete, mark: tt.mark}
			l := serve(t, f)
			if tt.gone {
				l.reportTimeout = time.Second
			}
			var runs atomic.Int32
			out, err := Do(t.Context(), l, creating(&runs, tt.execute), intent, request{"disk full"})
			got := variant(out)
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("outcome %q, want %q", got, tt.want)
			}
			if got := lastReport(t, f); got != tt.reported {
				t.Errorf("reported %q, want %q", got, tt.reported)
			}
			if runs.Load() != 1 || len(f.claims) != 1 {
				t.Errorf("%d executions of %d claims, want one of one", runs.Load(), len(f.claims))
			}
		})
	}
}

// lastReport is the last report in one line; reports of two kinds fail the test.
func lastReport(t *testing.T, f *fakeLedger) string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.completes) > 0 && len(f.markUnknowns) > 0 {
		t.Error("an outcome was completed and marked unknown")
	}
	for _, r := range f.completes {
		if r.GetClaimId() != f.claims[0].GetClaimId() || r.GetOperationId() != operationID {
			t.Error("a report does not show the claim id or the operation")
		}
	}
	switch {
	case len(f.completes) > 0:
		r := f.completes[len(f.completes)-1]
		switch {
		case r.GetSucceeded() != nil:
			return "succeeded " + r.GetSucceeded().GetResource().GetId()
		case r.GetRejected() != nil:
			return fmt.Sprintf("rejected %s once=%v", r.GetRejected().GetCode(), r.GetSentExactlyOnce())
		default:
			kind := strings.TrimPrefix(r.GetNotExecuted().GetKind().String(), "NOT_EXECUTED_KIND_")
			return fmt.Sprintf("not executed %s once=%v", kind, r.GetSentExactlyOnce())
		}
	case len(f.markUnknowns) > 0:
		return "unknown " + strings.TrimPrefix(f.markUnknowns[len(f.markUnknowns)-1].GetCause().String(), "UNKNOWN_CAUSE_")
	default:
		return ""
	}
}

// TestClaimNotGranted walks the answers that do not let this call execute.
func TestClaimNotGranted(t *testing.T) {
	wait := &opsledgerv1.Wait{Reason: opsledgerv1.WaitReason_WAIT_REASON_LEASE_HELD}
	result := &opsledgerv1.Result{Schema: "ticket/1", Payload: []byte(`{"id":"T-9"}`)}
	tests := []struct {
		name   string
		answer *opsledgerv1.ClaimResponse
		want   string
	}{
		{"completed", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Completed{
			Completed: &opsledgerv1.Replay{Result: result},
		}}, "done T-9 value=true replayed=true redacted=false"},
		{"completed, in another schema", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Completed{
			Completed: &opsledgerv1.Replay{Result: &opsledgerv1.Result{Schema: "ticket/2", Payload: []byte(`{"id":"T-9"}`)}},
		}}, "done  value=false replayed=true redacted=false"},
		{"completed, not to be seen", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Completed{
			Completed: &opsledgerv1.Replay{Redacted: true},
		}}, "done  value=false replayed=true redacted=true"},
		{"failed", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Failed{
			Failed: &opsledgerv1.Failure{Code: "card_declined"},
		}}, "rejected card_declined replayed=true"},
		{"in progress", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_InProgress{InProgress: wait}}, "in progress recorded=true"},
		{"unknown", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Unknown{Unknown: wait}}, "unknown recorded=true"},
		{
			"awaiting approval",
			&opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_AwaitingApproval{AwaitingApproval: wait}},
			"awaiting approval recorded=true",
		},
		{"blocked", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Blocked{Blocked: wait}}, "blocked recorded=true"},
		{"waiting", &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Waiting{Waiting: wait}}, "waiting recorded=true"},
		{"an outcome of a later release", &opsledgerv1.ClaimResponse{}, "not understood recorded=true"},
		{"granted, with an advice of a later release", func() *opsledgerv1.ClaimResponse {
			r := granted(time.Minute)
			r.NextAction = 99
			return r
		}(), "not understood recorded=true"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
				return tt.answer, nil
			}}
			var runs atomic.Int32
			e := creating(&runs, fine)
			e.Wait = NoWait
			out, err := Do(t.Context(), serve(t, f), e, intent, request{})
			if err != nil {
				t.Fatal(err)
			}
			if got := variant(out); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if runs.Load() != 0 {
				t.Error("executed without a grant")
			}
		})
	}
}

// TestClaimAnswerLost: the claim is sent again under the same id, and its grant, marked as resent, is executed once.
func TestClaimAnswerLost(t *testing.T) {
	f := &fakeLedger{}
	f.claim = func(ctx context.Context, _ *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		f.mu.Lock()
		n := len(f.claims)
		f.mu.Unlock()
		if n == 1 {
			<-ctx.Done() // granted, but nobody hears of it
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		r := granted(time.Minute)
		r.GetGranted().Resent = true
		return r, nil
	}
	l := serve(t, f)
	l.callTimeout = 100 * time.Millisecond
	var runs atomic.Int32
	out, err := Do(t.Context(), l, creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		if c.Key != "00112233445566778899aabbccddeeff" || c.Epoch != 7 || c.OperationID != operationID || !c.MaySend() {
			t.Error("the call does not show the grant")
		}
		return ticket{ID: "T-1"}, nil
	}), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" {
		t.Error(got)
	}
	if len(f.claims) != 2 || f.claims[0].GetClaimId() != f.claims[1].GetClaimId() || runs.Load() != 1 {
		t.Errorf("%d claims, %d executions: want the same claim twice, and one execution", len(f.claims), runs.Load())
	}
}

// TestWhatAClaimSays: who asks, when it was intended, and a new claim id for each call of Do.
func TestWhatAClaimSays(t *testing.T) {
	f := &fakeLedger{}
	l := serve(t, f)
	var runs atomic.Int32
	e := creating(&runs, fine)
	intent := intent
	intent.DependsOn, intent.DistinctFrom, intent.Compensates = []string{"a"}, []string{"b"}, "c"
	e.Lease, e.Hint = 7*time.Second, opsledgerv1.Effect_EFFECT_UNSAFE
	e.Summary = func(r request) string { return "ticket: " + r.Title }
	e.Attributes = func(request) map[string]string { return map[string]string{"tool_call_id": "call_1", "bad": "\xff"} }
	for range 2 {
		if _, err := Do(t.Context(), l, e, intent, request{"disk full"}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := f.claims[0], f.claims[1]
	if a.GetClaimId() == b.GetClaimId() || a.GetClaimId() == "" {
		t.Error("the claim id is not drawn anew")
	}
	if a.GetWorkerId() != workerID || b.GetWorkerId() != workerID {
		t.Error("the worker id is not the process's")
	}
	if !cmp.Equal(a.GetDependsOn(), intent.DependsOn) || !cmp.Equal(a.GetDistinctFrom(), intent.DistinctFrom) || a.GetCompensates() != "c" {
		t.Error("the relations are not sent")
	}
	if !a.GetIntentTime().AsTime().Equal(intent.Time) {
		t.Error("the intent's time is not sent")
	}
	if a.GetKey().GetKey() != intent.Key() || a.GetKey().GetTask() != intent.Task || a.GetKey().GetTool() != "tickets.create" {
		t.Error("the key is not the intent's")
	}
	if string(a.GetRequestJson()) != `{"title":"disk full"}` || a.GetReserve() {
		t.Error("the request is not sent as it is")
	}
	if a.GetLease().AsDuration() != e.Lease || a.GetWait() != nil || !cmp.Equal(a.GetAcceptSchemas(), []string{"ticket/1"}) || a.GetEffectHint() != e.Hint {
		t.Error("lease, schema or hint is not sent, or the server is asked to wait")
	}
	if a.GetTargetSummary() != "ticket: disk full" || !cmp.Equal(a.GetTargetAttributes(), map[string]string{"tool_call_id": "call_1", "bad": "\ufffd"}) {
		t.Error("summary or attributes are not sent")
	}
}

// TestGoexit: an Execute that ends its goroutine is marked unknown on the way out.
func TestGoexit(t *testing.T) {
	f := &fakeLedger{}
	l := serve(t, f)
	var runs atomic.Int32
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = Do(t.Context(), l, creating(&runs, func(context.Context, Call) (ticket, error) {
			runtime.Goexit()
			return ticket{}, nil
		}), intent, request{})
		t.Error("Do has returned")
	}()
	<-ended
	if got := lastReport(t, f); got != "unknown UNCLASSIFIED" {
		t.Errorf("reported %q", got)
	}
}

// TestPanicText: what a panic says is for the program, not for logs.
func TestPanicText(t *testing.T) {
	f := &fakeLedger{}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(context.Context, Call) (ticket, error) { panic("a canary") }), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	cause := Match(out, func(Done[ticket]) error { return nil }, func(Rejection) error { return nil }, func(u Unknown) error { return u.Cause })
	var p *PanicError
	if !errors.As(cause, &p) || p.Value != "a canary" || len(p.Stack) == 0 {
		t.Fatalf("the cause is no panic: %v", cause)
	}
	if strings.Contains(cause.Error(), "canary") {
		t.Error("the error's text holds the panic's value")
	}
}
