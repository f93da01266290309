// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestErrors: an error means that nothing was sent.
func TestErrors(t *testing.T) {
	tests := []struct {
		name  string
		claim error
		want  Error
		text  string
		calls int
	}{
		{
			name: "another request under the key",
			claim: refusal(t, codes.FailedPrecondition,
				&errdetails.ErrorInfo{Domain: "opsledger", Reason: "FINGERPRINT_CONFLICT"},
				&opsledgerv1.FingerprintConflict{OperationId: operationID, State: opsledgerv1.State_STATE_COMPLETED, Categories: []string{"amount"}}),
			want: Error{
				Reason: opsledgerv1.ErrorReason_ERROR_REASON_FINGERPRINT_CONFLICT, Code: codes.FailedPrecondition,
				OperationID: operationID, State: opsledgerv1.State_STATE_COMPLETED, Categories: []string{"amount"},
			},
			text:  "nothing was sent: FINGERPRINT_CONFLICT: amount",
			calls: 1,
		},
		{
			name: "a field is refused",
			claim: refusal(t, codes.InvalidArgument,
				&errdetails.ErrorInfo{Domain: "opsledger", Reason: "VALIDATION"},
				&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
					{Field: "lease", Description: "must be at least 1s"}, {Field: "key.task", Description: "must be set"},
				}}),
			want: Error{
				Reason: opsledgerv1.ErrorReason_ERROR_REASON_VALIDATION, Code: codes.InvalidArgument,
				Fields: map[string]string{"lease": "must be at least 1s", "key.task": "must be set"},
			},
			text:  "nothing was sent: VALIDATION: key.task must be set; lease must be at least 1s",
			calls: 1,
		},
		{
			name: "what is retired had completed",
			claim: refusal(t, codes.FailedPrecondition,
				&errdetails.ErrorInfo{Domain: "opsledger", Reason: "KEY_RETIRED", Metadata: map[string]string{"outcome": "COMPLETED"}}),
			want: Error{
				Reason: opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED, Code: codes.FailedPrecondition, State: opsledgerv1.State_STATE_COMPLETED,
				Metadata: map[string]string{"outcome": "COMPLETED"},
			},
			text:  "nothing was sent: KEY_RETIRED: it completed long ago: don't do it again under another key",
			calls: 1,
		},
		{
			name: "what is retired had failed",
			claim: refusal(t, codes.FailedPrecondition,
				&errdetails.ErrorInfo{Domain: "opsledger", Reason: "KEY_RETIRED", Metadata: map[string]string{"outcome": "FAILED"}}),
			want: Error{
				Reason: opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED, Code: codes.FailedPrecondition, State: opsledgerv1.State_STATE_FAILED,
				Metadata: map[string]string{"outcome": "FAILED"},
			},
			text:  "nothing was sent: KEY_RETIRED: it failed long ago, and had no effect",
			calls: 1,
		},
		{
			name:  "what is retired was another request, or the server says no more",
			claim: refusal(t, codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: "opsledger", Reason: "KEY_RETIRED"}),
			want:  Error{Reason: opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED, Code: codes.FailedPrecondition},
			calls: 1,
		},
		{name: "somebody else's reason", claim: refusal(t, codes.FailedPrecondition,
			&errdetails.ErrorInfo{Domain: "example.com", Reason: "VALIDATION"}), want: Error{Code: codes.FailedPrecondition}, calls: 1},
		{name: "not allowed", claim: status.Error(codes.PermissionDenied, ""), want: Error{Code: codes.PermissionDenied}, calls: 1},
		{name: "exhausted", claim: status.Error(codes.ResourceExhausted, ""), want: Error{Code: codes.ResourceExhausted}, calls: 1},
		{name: "the ledger is away", claim: status.Error(codes.Unavailable, ""), want: Error{Code: codes.Unavailable}, calls: 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
				return nil, tt.claim
			}}
			var runs atomic.Int32
			_, err := Do(t.Context(), serve(t, f), creating(&runs, fine), intent, request{})
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("not an Error: %v", err)
			}
			shown := *got
			shown.call, shown.err = "", nil
			if diff := cmp.Diff(tt.want, shown, cmp.AllowUnexported(Error{})); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if tt.text != "" && err.Error() != tt.text {
				t.Errorf("it reads %q, want %q", err, tt.text)
			}
			if ReasonOf(err) != tt.want.Reason || status.Code(err) != tt.want.Code {
				t.Error("the error does not carry its reason and status")
			}
			if runs.Load() != 0 || len(f.completes)+len(f.markUnknowns) != 0 {
				t.Error("an error, but something was executed or reported")
			}
			if len(f.claims) != tt.calls {
				t.Errorf("%d sends of the claim, want %d", len(f.claims), tt.calls)
			}
		})
	}
}

// TestErrorsOfContexts: a claim that ended with the caller's context is such an error, as those of other packages are.
func TestErrorsOfContexts(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	for _, tt := range []struct {
		ctx       context.Context
		want, not error
	}{{gone, context.Canceled, context.DeadlineExceeded}, {late, context.DeadlineExceeded, context.Canceled}} {
		var runs atomic.Int32
		_, err := Do(tt.ctx, serve(t, &fakeLedger{}), creating(&runs, fine), intent, request{})
		if !errors.Is(err, tt.want) || errors.Is(err, tt.not) || runs.Load() != 0 {
			t.Errorf("%v is not %v", err, tt.want)
		}
	}
}

// TestErrorNamesItsCall: by what was asked, where the ledger gave no reason.
func TestErrorNamesItsCall(t *testing.T) {
	l := serve(t, &fakeLedger{}) // which does not have these calls
	var runs atomic.Int32
	e := creating(&runs, fine)
	e.Prepare = func(_ context.Context, _ Call, r request) (request, error) { return r, nil }
	l.service = reserves{l.service}
	_, start := Do(t.Context(), l, e, intent, request{})
	_, tool := l.Tool(t.Context(), "tickets.create")
	for want, err := range map[string]error{"nothing was sent: start: ": start, "get tool: ": tool} {
		if err == nil || !strings.HasPrefix(err.Error(), want+"rpc error: code = Unimplemented") {
			t.Errorf("%v does not begin with %q", err, want)
		}
	}
}

// reserves grants reservations.
type reserves struct {
	opsledgerv1.LedgerServiceClient
}

func (reserves) Claim(context.Context, *opsledgerv1.ClaimRequest, ...grpc.CallOption) (*opsledgerv1.ClaimResponse, error) {
	r := granted(time.Minute)
	r.NextAction = opsledgerv1.NextAction_NEXT_ACTION_START_THEN_EXECUTE
	return r, nil
}

// TestRefusedBeforeClaiming: what has no intent, no tool, or no JSON form never gets to the ledger.
func TestRefusedBeforeClaiming(t *testing.T) {
	f := &fakeLedger{}
	l := serve(t, f)
	var runs atomic.Int32
	good := creating(&runs, fine)
	for name, do := range map[string]func() error{
		"no task": func() error { _, err := Do(t.Context(), l, good, Intent{Step: "s"}, request{}); return err },
		"no step": func() error { _, err := Do(t.Context(), l, good, Intent{Task: "t"}, request{}); return err },
		"both relations": func() error {
			_, err := Do(t.Context(), l, good, Intent{Task: "t", Step: "s", Compensates: "a", Corrects: "b"}, request{})
			return err
		},
		"no ledger":                   func() error { _, err := Do(t.Context(), nil, good, intent, request{}); return err },
		"a ledger that nobody dialed": func() error { _, err := Do(t.Context(), &Ledger{}, good, intent, request{}); return err },
		"no tool": func() error {
			_, err := Do(t.Context(), l, Effect[request, ticket]{Execute: good.Execute}, intent, request{})
			return err
		},
		"no execute": func() error {
			_, err := Do(t.Context(), l, Effect[request, ticket]{Tool: "x"}, intent, request{})
			return err
		},
		"no JSON form": func() error {
			e := Effect[func(), ticket]{Tool: "x", Execute: func(context.Context, Call, func()) (ticket, error) { return ticket{}, nil }}
			_, err := Do(t.Context(), l, e, intent, func() {})
			return err
		},
	} {
		if do() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if runs.Load() != 0 || len(f.claims) != 0 {
		t.Error("claimed or executed")
	}
}
