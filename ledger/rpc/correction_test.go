// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// What can't be undone is corrected, by an operation of its own that an operator has approved: for exactly that request, in time, and once.
func TestACorrectionWaitsForApproval(t *testing.T) {
	mail := ledger.DefaultContract("mail.send")
	mail.Version, mail.Irreversible, mail.ApproveCorrections, mail.ApprovalExpires = "0123456789abcdef", true, true, time.Hour
	mail.EffectWithin, mail.LeaseTotal = time.Minute, time.Minute
	w := charges(t, setup{contracts: contracts{"mail.send": mail}})
	claim := func(key string) *pb.ClaimRequest {
		c := w.claim(key)
		c.Key.Tool, c.Key.Task = "mail.send", "task-"+key
		return c
	}
	first := claim("first")
	g := w.granted(t, "agent-a", first)
	corrects := func(key string) *pb.ClaimRequest {
		c := claim(key)
		c.Relation = &pb.ClaimRequest_Corrects{Corrects: g.GetOperationId()}
		return c
	}
	blocked, err := w.client.Claim(as(t, "agent-a"), corrects("a"))
	if err != nil || blocked.GetBlocked().GetReason() != pb.WaitReason_WAIT_REASON_ORIGINAL_UNSETTLED {
		t.Fatalf("while the original is unsettled: %v, %v", blocked, err)
	}
	if _, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: g.GetOperationId(), ClaimId: first.GetClaimId(), SentExactlyOnce: true,
		Outcome: &pb.CompleteRequest_Succeeded{Succeeded: &pb.Result{Resource: &pb.ResourceRef{Id: "m-1"}}},
	}); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Minute)
	undo := claim("undo")
	undo.Relation = &pb.ClaimRequest_Compensates{Compensates: g.GetOperationId()}
	_, err = w.client.Claim(as(t, "agent-a"), undo)
	refused(t, err, codes.FailedPrecondition, "NOT_REVERSIBLE")

	approve := func(p string, op *pb.Operation, d pb.Decision) (*pb.Operation, error) {
		answer, err := w.people.Approve(as(t, p), &pb.ApproveRequest{
			OperationId: op.GetId(), CommandId: uuid.NewString(), ExpectedVersion: op.GetVersion(), Decision: d, Note: "read both",
		})
		return answer.GetOperation(), err
	}
	asked := func(key string) *pb.Operation {
		t.Helper()
		answer, err := w.client.Claim(as(t, "agent-a"), corrects(key))
		if err != nil || answer.GetAwaitingApproval() == nil || answer.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT_FOR_PERSON {
			t.Fatalf("a correction: %v, %v", answer, err)
		}
		return answer.GetOperation()
	}
	op := asked("a")
	if got := w.look(t, "ops-a", op.GetId()).GetApproval(); got.GetKind() != pb.ApprovalKind_APPROVAL_KIND_CORRECTION || got.GetRequester() != "agent-a" {
		t.Errorf("what is asked: %v", got)
	}
	_, err = approve("agent-a", op, pb.Decision_DECISION_APPROVE)
	refused(t, err, codes.PermissionDenied, "ROLE_REQUIRED")
	other := corrects("a")
	other.RequestJson = []byte(`{"amount":2}`)
	_, err = w.client.Claim(as(t, "agent-a"), other)
	refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	if _, err = approve("ops-a", op, pb.Decision_DECISION_APPROVE); err != nil {
		t.Fatal(err)
	}
	granted, err := w.client.Claim(as(t, "agent-a"), corrects("a"))
	if err != nil || granted.GetGranted() == nil {
		t.Fatalf("approved: %v, %v", granted, err)
	}
	if _, err = approve("ops-a", granted.GetOperation(), pb.Decision_DECISION_APPROVE); err == nil {
		t.Error("what was used up is approved once more")
	}

	rejected, err := approve("ops-a", asked("b"), pb.Decision_DECISION_REJECT)
	if err != nil || rejected.GetState() != pb.State_STATE_FAILED {
		t.Errorf("rejected: %v, %v", rejected, err)
	}
	late := asked("c")
	w.pass(2 * time.Hour)
	_, err = approve("ops-a", late, pb.Decision_DECISION_APPROVE)
	refused(t, err, codes.FailedPrecondition, "ILLEGAL_TRANSITION")
}
