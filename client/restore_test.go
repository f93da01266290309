// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestClaimedAgain walks what a ledger that has lost the grant can say to the claim that restores the record. It is the claim of the grant, and
// nothing is executed for it.
func TestClaimedAgain(t *testing.T) {
	const (
		done    = "done T-1 value=true replayed=false redacted=false"
		unknown = "unknown recorded=true"
		nowhere = "unknown recorded=false"
	)
	for name, tt := range map[string]struct {
		answers []string // the last is the answer to all further claims, too
		subject string
		want    string
		claims  int // for one report; 0: as many as there is time for
		cause   string
	}{
		"granted":                               {answers: []string{"granted"}, want: done, claims: 1},
		"unknown":                               {answers: []string{"unknown"}, want: unknown, claims: 1},
		"unknown, and the report is not shown":  {answers: []string{"hidden"}, subject: "somebody", want: unknown, claims: 1},
		"another request":                       {answers: []string{"FINGERPRINT_CONFLICT"}, want: unknown, claims: 1},
		"away, then granted":                    {answers: []string{"away", "granted"}, want: done, claims: 2},
		"no answer, then granted":               {answers: []string{"no answer", "granted"}, want: done, claims: 2},
		"too many claims, then granted":         {answers: []string{"RATE_LIMITED", "granted"}, want: done, claims: 2},
		"paused, then granted":                  {answers: []string{"paused", "granted"}, want: done, claims: 2},
		"paused for longer":                     {answers: []string{"paused"}, want: nowhere, cause: "nothing is stored: TOOL_PAUSED"},
		"a look-alike":                          {answers: []string{"DUPLICATE_INTENT"}, want: nowhere, claims: 1, cause: "claimed again: rpc error: code = PermissionDenied"},
		"the tool was revoked":                  {answers: []string{"TOOL_NOT_ALLOWED"}, want: nowhere, claims: 1, cause: "claimed again: rpc error: code = PermissionDenied"},
		"another operation":                     {answers: []string{"another"}, want: nowhere, claims: 1, cause: "the key has become that of another operation"},
		"there, and not found once more":        {answers: []string{"lost"}, want: nowhere, cause: "not recorded: rpc error: code = NotFound"},
		"lost once more, then granted":          {answers: []string{"lost", "granted"}, want: done, claims: 2},
		"hidden, but not from who names no one": {answers: []string{"hidden"}, want: nowhere, cause: "not recorded: rpc error: code = NotFound"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := func(reason string) *errdetails.ErrorInfo {
				return &errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}
			}
			lost := refusal(t, codes.NotFound, info("OPERATION_NOT_FOUND"))
			f := &fakeLedger{}
			there := "" // what the claims have made of the record
			f.claim = func(ctx context.Context, _ *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				n := len(f.claims) - 2
				if n < 0 {
					return granted(time.Minute), nil
				}
				switch there = tt.answers[min(n, len(tt.answers)-1)]; there {
				case "granted":
					return granted(time.Minute), nil
				case "unknown", "hidden", "lost":
					return &opsledgerv1.ClaimResponse{
						Operation: operation(opsledgerv1.State_STATE_UNKNOWN), Outcome: &opsledgerv1.ClaimResponse_Unknown{Unknown: &opsledgerv1.Wait{}},
					}, nil
				case "away":
					return nil, refusal(t, codes.DeadlineExceeded)
				case "no answer":
					f.mu.Unlock()
					<-ctx.Done()
					f.mu.Lock()
					return nil, status.FromContextError(ctx.Err()).Err()
				case "paused":
					return &opsledgerv1.ClaimResponse{Outcome: &opsledgerv1.ClaimResponse_Blocked{
						Blocked: &opsledgerv1.Wait{Reason: opsledgerv1.WaitReason_WAIT_REASON_TOOL_PAUSED},
					}}, nil
				case "another":
					r := granted(time.Minute)
					r.Operation.Id = "5f3c9a1e-0000-8000-8000-000000000002"
					return r, nil
				case "RATE_LIMITED":
					return nil, refusal(t, codes.ResourceExhausted, info(there))
				case "FINGERPRINT_CONFLICT":
					return nil, refusal(t, codes.AlreadyExists, info(there))
				default:
					return nil, refusal(t, codes.PermissionDenied, info(there))
				}
			}
			f.complete = func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				switch there {
				case "granted":
					return completed(opsledgerv1.State_STATE_COMPLETED, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
				case "unknown", "FINGERPRINT_CONFLICT":
					return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_OBSERVED), nil
				default:
					return nil, lost
				}
			}
			l := serve(t, f)
			l.reportTimeout, l.callTimeout = 2*time.Second, 300*time.Millisecond
			var runs atomic.Int32
			e := creating(&runs, fine)
			intent := intent
			intent.Subject = tt.subject
			out, err := Do(t.Context(), l, e, intent, request{"disk full"})
			if err != nil {
				t.Fatal(err)
			}
			if got := variant(out); got != tt.want || runs.Load() != 1 {
				t.Errorf("%q after %d executions, want %q", got, runs.Load(), tt.want)
			}
			if v, ok := out.Returned(); !ok || v.ID != "T-1" {
				t.Errorf("the value is %q", v.ID)
			}
			cause := Match(out, func(Done[ticket]) string { return "" }, func(Rejection) string { return "" }, func(u Unknown) string {
				if kept := u.Disposition == opsledgerv1.Disposition_DISPOSITION_OBSERVED; kept != u.Recorded {
					t.Errorf("recorded %v, as %v", u.Recorded, u.Disposition)
				}
				if u.Cause == nil {
					return ""
				}
				return u.Cause.Error()
			})
			if !strings.Contains(cause, tt.cause) || tt.cause == "" && cause != "" {
				t.Errorf("the cause is %q, want one of %q", cause, tt.cause)
			}
			if n := len(f.claims) - 1; tt.claims > 0 && n != tt.claims || n < 1 {
				t.Errorf("claimed again %d times, want %d", n, tt.claims)
			}
			for _, again := range f.claims[1:] {
				if diff := cmp.Diff(f.claims[0], again, protocmp.Transform()); diff != "" {
					t.Errorf("it is another claim (-first +again):\n%s", diff)
				}
			}
			for _, r := range f.completes[1:] {
				if !proto.Equal(f.completes[0], r) {
					t.Error("it is another report")
				}
			}
		})
	}
}
