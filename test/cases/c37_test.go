// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// Failure reports of an earlier attempt arrive late, again and again, on both nodes: none moves what a later attempt has done, and
// each distinct report is kept once. On a settled operation MarkUnknown says nothing that is not known better: it is answered as
// applied and leaves no event.
func TestC37(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		nodes := e.nodes(t)

		t.Run("after the later attempt has completed", func(t *testing.T) {
			a := twoAttempts(t, e)
			charge, err := a.ft.Charge(within(t), a.key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"})
			if err != nil {
				t.Fatal(err)
			}
			a.w.applied(t, completion(a.operation, a.second.GetClaimId(), "charge", charge.ID))
			was := e.snapshot(t, a.operation)
			a.deliver(t, nodes, map[string]pb.Disposition{
				"declined": pb.Disposition_DISPOSITION_OBSERVED, "never sent": pb.Disposition_DISPOSITION_OBSERVED,
				"refused": pb.Disposition_DISPOSITION_APPLIED, "unknown": pb.Disposition_DISPOSITION_APPLIED,
			})
			a.wantOnlyObservations(t, e, was, 2)
			replay := a.w.claim(t, again(a.first))
			wantOutcome(t, replay, "REPLAY")
			if got := replay.GetCompleted().GetResult().GetResource().GetId(); got != charge.ID {
				t.Errorf("the replay has the charge %q, want %q", got, charge.ID)
			}
			a.ft.wantAccount(t, target.Payments, a.key, 1, 2)
		})

		t.Run("while the later attempt runs", func(t *testing.T) {
			a := twoAttempts(t, e)
			was := e.snapshot(t, a.operation)
			a.deliver(t, nodes, map[string]pb.Disposition{
				"declined": pb.Disposition_DISPOSITION_OBSERVED, "never sent": pb.Disposition_DISPOSITION_OBSERVED,
				"refused": pb.Disposition_DISPOSITION_APPLIED, "unknown": pb.Disposition_DISPOSITION_OBSERVED,
			})
			a.wantOnlyObservations(t, e, was, 3)
			wantState(t, a.w.view(t, a.operation), pb.State_STATE_PROCESSING, pb.Custody_CUSTODY_AUTOMATION, 0)
			a.w.applied(t, completion(a.operation, a.second.GetClaimId(), "charge", "C-1"))
		})
	})
}

// attempts are two grants of one operation; the first ended as refused before acceptance.
type attempts struct {
	w              *worker
	ft             double
	operation, key string
	first, second  *pb.ClaimRequest
}

func twoAttempts(t *testing.T, e *env) attempts {
	t.Helper()
	a := attempts{
		w: e.node.dial(t, billing), ft: startTarget(t, target.Payments, target.Status(429).After(time.Second).Times(1)),
		first: request("card.charge", unique(t), "K", `{"amount":"10.00","to":"A"}`),
	}
	g := a.w.grant(t, a.first)
	a.operation, a.key = g.GetOperationId(), g.GetDownstreamKey()
	if _, err := a.ft.Charge(within(t), a.key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"}); err == nil {
		t.Fatal("the target has not refused the first attempt")
	}
	a.w.applied(t, a.report("refused"))
	a.second = again(a.first)
	if later := a.w.grant(t, a.second); later.GetEpoch() <= g.GetEpoch() {
		t.Fatalf("the second attempt has the epoch %d after %d", later.GetEpoch(), g.GetEpoch())
	}
	return a
}

// report of the first attempt.
func (a attempts) report(what string) *pb.CompleteRequest {
	r := &pb.CompleteRequest{OperationId: a.operation, ClaimId: a.first.GetClaimId(), SentExactlyOnce: true}
	switch what {
	case "declined":
		r.Outcome = &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "card_declined"}}
	case "never sent":
		r.Outcome = &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT}}
	default: // the one that was applied in its time
		r.Outcome = &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_REFUSED_BEFORE_ACCEPTANCE}}
	}
	return r
}

// deliver sends each report three times to each node.
func (a attempts) deliver(t *testing.T, nodes []*node, want map[string]pb.Disposition) {
	t.Helper()
	for _, n := range nodes {
		w := n.dial(t, billing)
		for range 3 {
			for what, disposition := range want {
				var got pb.Disposition
				if what == "unknown" {
					answer, err := w.MarkUnknown(within(t), &pb.MarkUnknownRequest{
						OperationId: a.operation, ClaimId: a.first.GetClaimId(), Cause: pb.UnknownCause_UNKNOWN_CAUSE_TIMEOUT,
					})
					if err != nil {
						t.Fatalf("MarkUnknown: %v", err)
					}
					got = answer.GetDisposition()
				} else {
					got = w.complete(t, a.report(what)).GetDisposition()
				}
				if got != disposition {
					t.Errorf("the late report %q was answered %v, want %v", what, got, disposition)
				}
			}
		}
	}
}

// wantOnlyObservations fails unless so many events were added and nothing else has moved.
func (a attempts) wantOnlyObservations(t *testing.T, e *env, was snapshot, added int) {
	t.Helper()
	now := e.snapshot(t, a.operation)
	if got := len(now.History) - len(was.History); got != added {
		t.Errorf("%d events were added, want %d", got, added)
	}
	// sequence, last_hash and update_time follow the events; detail counts them.
	want := []string{"detail", "last_hash", "sequence", "update_time"}
	if diff := cmp.Diff(want, changed(was.Row, now.Row)); diff != "" {
		t.Errorf("columns that changed (-want +got):\n%s", diff)
	}
}
