// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// messageLimit is that of the real server.
const messageLimit = 1 << 20

// TestPayloadBound: a value is sent up to the bound and left out, with its schema's name, beyond it.
func TestPayloadBound(t *testing.T) {
	const frame = len(`{"id":""}`)
	for name, tt := range map[string]struct {
		size int // of the JSON form
		want *opsledgerv1.Result
	}{
		"at the bound":                 {maxPayload, &opsledgerv1.Result{Schema: "ticket/1", Payload: []byte(`{"id":"` + strings.Repeat("x", maxPayload-frame) + `"}`)}},
		"one beyond":                   {maxPayload + 1, &opsledgerv1.Result{}},
		"larger than a message may be": {2 * messageLimit, &opsledgerv1.Result{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeLedger{}
			var runs atomic.Int32
			id := strings.Repeat("x", tt.size-frame)
			e := creating(&runs, func(context.Context, Call) (ticket, error) { return ticket{ID: id}, nil })
			e.Resource = nil
			out, err := Do(t.Context(), serve(t, f, grpc.MaxRecvMsgSize(messageLimit)), e, intent, request{})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := variant(out), "done "+id+" value=true replayed=false redacted=false"; got != want {
				t.Errorf("outcome of %d bytes (%.30s), want %d", len(got), got, len(want))
			}
			if len(f.completes) != 1 || !cmp.Equal(tt.want, f.completes[0].GetSucceeded(), protocmp.Transform()) {
				t.Errorf("%d reports, or not the result that was wanted", len(f.completes))
			}
		})
	}
}

// TestTooLargeForAMessage: the server refuses the full report before any handler, the barest one passes.
func TestTooLargeForAMessage(t *testing.T) {
	huge := strings.Repeat("ä", messageLimit) // two bytes each
	declined := opsledgerv1.FailureKind_FAILURE_KIND_DECLINED
	for name, tt := range map[string]struct {
		execute func(context.Context, Call) (ticket, error)
		want    *opsledgerv1.CompleteRequest
		done    bool
	}{
		"resource": {
			func(context.Context, Call) (ticket, error) { return ticket{ID: "x" + huge}, nil },
			&opsledgerv1.CompleteRequest{Outcome: &opsledgerv1.CompleteRequest_Succeeded{Succeeded: &opsledgerv1.Result{
				Resource: &opsledgerv1.ResourceRef{Type: "ticket", Id: "x" + strings.Repeat("ä", (keptResource-1)/2)},
			}}},
			true,
		},
		"message of a rejection": {
			func(context.Context, Call) (ticket, error) {
				return ticket{}, Rejected(declined, "card_declined", huge)
			},
			&opsledgerv1.CompleteRequest{Outcome: &opsledgerv1.CompleteRequest_Rejected{
				Rejected: &opsledgerv1.Failure{Kind: declined, Code: "card_declined"},
			}},
			false,
		},
		"code of a rejection": {
			func(context.Context, Call) (ticket, error) { return ticket{}, Rejected(declined, huge, "") },
			&opsledgerv1.CompleteRequest{Outcome: &opsledgerv1.CompleteRequest_Rejected{
				Rejected: &opsledgerv1.Failure{Kind: declined, Code: strings.Repeat("ä", keptCode/2)},
			}},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeLedger{}
			var runs atomic.Int32
			out, err := Do(t.Context(), serve(t, f, grpc.MaxRecvMsgSize(messageLimit)), creating(&runs, func(ctx context.Context, c Call) (ticket, error) {
				v, err := tt.execute(ctx, c)
				return v, errors.Join(c.Sending(), err)
			}), intent, request{})
			if err != nil {
				t.Fatal(err)
			}
			got := Match(out, func(Done[ticket]) string { return "done" }, func(Rejection) string { return "rejected" },
				func(u Unknown) string { return "unknown: " + u.Cause.Error() })
			if want := map[bool]string{true: "done", false: "rejected"}[tt.done]; got != want {
				t.Fatalf("outcome %.200q, want %q", got, want)
			}
			tt.want.OperationId, tt.want.ClaimId, tt.want.SentExactlyOnce = operationID, f.claims[0].GetClaimId(), true
			if diff := cmp.Diff([]*opsledgerv1.CompleteRequest{tt.want}, f.completes, protocmp.Transform()); diff != "" {
				t.Errorf("reports that arrived (-want +got):\n%.2000s", diff)
			}
		})
	}
}

// TestReportRefused: a refused report is made once more in its barest form, which is repeated only while the ledger is away.
func TestReportRefused(t *testing.T) {
	const (
		done    = "done T-1 value=true replayed=false redacted=false"
		unknown = "unknown recorded=false"
	)
	for name, tt := range map[string]struct {
		answers []codes.Code // the last is the answer to all further reports, too
		want    string
		forms   string // of the reports: f for full, b for barest
	}{
		"too large":                    {[]codes.Code{codes.ResourceExhausted, codes.OK}, done, "fb"},
		"invalid":                      {[]codes.Code{codes.InvalidArgument, codes.OK}, done, "fb"},
		"internal error":               {[]codes.Code{codes.Internal, codes.OK}, done, "fb"},
		"code without a meaning here":  {[]codes.Code{codes.DataLoss, codes.OK}, done, "fb"},
		"away, then refused":           {[]codes.Code{codes.Unavailable, codes.Internal, codes.OK}, done, "ffb"},
		"refused, then away":           {[]codes.Code{codes.Internal, codes.Unavailable, codes.OK}, done, "fbb"},
		"refused in both forms":        {[]codes.Code{codes.InvalidArgument}, unknown, "fb"},
		"refused, away, refused again": {[]codes.Code{codes.Internal, codes.Unavailable, codes.Internal}, unknown, "fbb"},
		// gRPC itself repeats what was unavailable; what was too slow is repeated here.
		"slow, then refused":           {[]codes.Code{codes.DeadlineExceeded, codes.Internal, codes.OK}, done, "ffb"},
		"refused, slow, refused again": {[]codes.Code{codes.Internal, codes.DeadlineExceeded, codes.Internal}, unknown, "fbb"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeLedger{}
			var forms strings.Builder
			var last *opsledgerv1.Result
			f.complete = func(r *opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				last = r.GetSucceeded()
				if len(last.GetPayload()) > 0 {
					forms.WriteByte('f')
				} else {
					forms.WriteByte('b')
				}
				if code := tt.answers[min(forms.Len(), len(tt.answers))-1]; code != codes.OK {
					return nil, status.Error(code, "")
				}
				return completed(opsledgerv1.State_STATE_COMPLETED, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
			}
			l := serve(t, f)
			var runs atomic.Int32
			out, err := Do(t.Context(), l, creating(&runs, fine), intent, request{})
			if err != nil {
				t.Fatal(err)
			}
			if got := variant(out); got != tt.want {
				t.Errorf("outcome %q, want %q", got, tt.want)
			}
			if got := lastReport(t, f); got != "succeeded T-1" {
				t.Errorf("reported %q", got)
			}
			if forms.String() != tt.forms {
				t.Errorf("reported in the forms %q, want %q", forms.String(), tt.forms)
			}
			shown := Match(out, func(d Done[ticket]) *opsledgerv1.Result { return d.Result },
				func(Rejection) *opsledgerv1.Result { return nil }, func(Unknown) *opsledgerv1.Result { return last })
			if diff := cmp.Diff(last, shown, protocmp.Transform()); diff != "" {
				t.Errorf("the result is not the recorded one (-recorded +shown):\n%s", diff)
			}
		})
	}
}

// TestInvalidUTF8: texts that no message can hold are made valid, so that the first report passes; the caller's resource is left alone.
func TestInvalidUTF8(t *testing.T) {
	const bad, good = "a\xff\xfez", "a\uFFFDz"
	t.Run("resource", func(t *testing.T) {
		f := &fakeLedger{}
		var runs atomic.Int32
		given := &opsledgerv1.ResourceRef{Type: bad, Id: bad, Uri: bad, Version: bad}
		e := creating(&runs, fine)
		e.Resource = func(ticket) *opsledgerv1.ResourceRef { return given }
		out, err := Do(t.Context(), serve(t, f), e, intent, request{})
		if err != nil {
			t.Fatal(err)
		}
		if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" {
			t.Fatal(got)
		}
		want := &opsledgerv1.ResourceRef{Type: good, Id: good, Uri: good, Version: good}
		if diff := cmp.Diff(want, f.completes[0].GetSucceeded().GetResource(), protocmp.Transform()); diff != "" {
			t.Errorf("resource (-want +got):\n%s", diff)
		}
		if given.GetId() != bad {
			t.Error("the caller's resource was changed")
		}
	})
	t.Run("rejection", func(t *testing.T) {
		f := &fakeLedger{}
		var runs atomic.Int32
		kind := opsledgerv1.FailureKind_FAILURE_KIND_INVALID
		out, err := Do(t.Context(), serve(t, f), creating(&runs, func(context.Context, Call) (ticket, error) {
			return ticket{}, Rejected(kind, bad, bad)
		}), intent, request{})
		if err != nil {
			t.Fatal(err)
		}
		if got := variant(out); got != "rejected "+good+" replayed=false" {
			t.Fatal(got)
		}
		want := &opsledgerv1.Failure{Kind: kind, Code: good, Message: good}
		if diff := cmp.Diff(want, f.completes[0].GetRejected(), protocmp.Transform()); diff != "" {
			t.Errorf("failure (-want +got):\n%s", diff)
		}
	})
}

// TestBarest: what is left of a report, and that a resource keeps the one name it has.
func TestBarest(t *testing.T) {
	succeeded := func(r *opsledgerv1.Result) *opsledgerv1.CompleteRequest {
		return &opsledgerv1.CompleteRequest{
			OperationId: operationID, ClaimId: "c", SentExactlyOnce: true, Outcome: &opsledgerv1.CompleteRequest_Succeeded{Succeeded: r},
		}
	}
	notExecuted := func(n *opsledgerv1.NotExecuted) *opsledgerv1.CompleteRequest {
		return &opsledgerv1.CompleteRequest{
			OperationId: operationID, ClaimId: "c", Outcome: &opsledgerv1.CompleteRequest_NotExecuted{NotExecuted: n},
		}
	}
	kind := opsledgerv1.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT
	for name, tt := range map[string]struct{ full, want *opsledgerv1.CompleteRequest }{
		"success": {
			succeeded(&opsledgerv1.Result{
				Resource: &opsledgerv1.ResourceRef{Type: "ticket", Id: "T-1", Uri: "u", Version: "v"},
				Code:     "created", Attributes: map[string]string{"a": "b"}, Schema: "ticket/1", Payload: []byte(`{}`),
			}),
			succeeded(&opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Type: "ticket", Id: "T-1"}}),
		},
		"success, the resource has no id": {
			succeeded(&opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Uri: "u", Version: "v"}}),
			succeeded(&opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Uri: "u"}}),
		},
		"success without a resource": {succeeded(&opsledgerv1.Result{Schema: "ticket/1"}), succeeded(&opsledgerv1.Result{})},
		"not executed":               {notExecuted(&opsledgerv1.NotExecuted{Kind: kind, Detail: "d"}), notExecuted(&opsledgerv1.NotExecuted{Kind: kind})},
	} {
		if diff := cmp.Diff(tt.want, barest(tt.full), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
