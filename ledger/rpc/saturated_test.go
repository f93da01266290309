// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func TestASaturatedToolGetsNoGrants(t *testing.T) {
	bounded := declared("charge")
	bounded.MaxUnknown = 1
	w := newWorld(t, setup{contracts: contracts{"charge": bounded}})
	claim := func(key string) *pb.ClaimRequest {
		req := w.charge(key, `{}`)
		req.Key.Task = "task-of-" + key
		return req
	}
	reserved := claim("reserved")
	reserved.Reserve = true
	reservation := w.granted(t, "agent-a", reserved)
	first := claim("first")
	grant := w.granted(t, "agent-a", first)
	if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: first.GetClaimId()}); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"agent-a", "agent-b"} { // the tool's, not a scope's
		answer, err := w.client.Claim(as(t, who), claim("second"))
		if err != nil || answer.GetBlocked().GetReason() != pb.WaitReason_WAIT_REASON_TOOL_SATURATED || answer.GetOperation() != nil ||
			answer.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT || len(answer.GetBlocked().GetOperationIds()) != 0 {
			t.Errorf("%s: %v, %v", who, answer, err)
		}
	}
	start := &pb.StartRequest{OperationId: reservation.GetOperationId(), ClaimId: reserved.GetClaimId()}
	_, err := w.client.Start(as(t, "agent-a"), start)
	if got := detail[*errdetails.ErrorInfo](refused(t, err, codes.FailedPrecondition, "BLOCKED")).GetMetadata()["waiting_for"]; got != "TOOL_SATURATED" {
		t.Errorf("Start waits for %q", got)
	}
	if answer, err := w.client.Claim(as(t, "agent-a"), first); err != nil || answer.GetUnknown() == nil {
		t.Errorf("a known key: %v, %v", answer, err)
	}
	_, err = w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: grant.GetOperationId(), ClaimId: first.GetClaimId(), Outcome: &pb.CompleteRequest_Succeeded{
			Succeeded: &pb.Result{Resource: &pb.ResourceRef{Type: "charge", Id: "ch_1"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.granted(t, "agent-b", claim("second"))
	if _, err := w.client.Start(as(t, "agent-a"), start); err != nil {
		t.Error(err)
	}
}
