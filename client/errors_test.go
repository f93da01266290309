// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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
			calls: 1,
		},
		{
			name: "a field is refused",
			claim: refusal(t, codes.InvalidArgument,
				&errdetails.ErrorInfo{Domain: "opsledger", Reason: "VALIDATION"},
				&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "key.task", Description: "too long"}}}),
			want: Error{
				Reason: opsledgerv1.ErrorReason_ERROR_REASON_VALIDATION, Code: codes.InvalidArgument,
				Fields: map[string]string{"key.task": "too long"},
			},
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
			shown.err = nil
			if diff := cmp.Diff(tt.want, shown, cmp.AllowUnexported(Error{})); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
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
