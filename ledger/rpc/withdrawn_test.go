// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestReportsOutliveTheScope: what became of a grant is recorded although the policy has no scope for its holder any more. Everything else
// is refused, and who can't show the grant learns nothing.
func TestReportsOutliveTheScope(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	delete(w.policy.scopes, "agent-a")

	_, err := w.client.Claim(as(t, "agent-a"), w.claim("key-2"))
	refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID")
	_, err = w.client.Complete(as(t, "agent-a"), succeeded(grant, uuid.NewString()))
	stranger := refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID")
	absent := succeeded(grant, req.GetClaimId())
	absent.OperationId = "00000000-0000-8000-8000-000000000000"
	_, err = w.client.Complete(as(t, "agent-a"), absent)
	if other := refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID"); other.Proto().String() != stranger.Proto().String() {
		t.Errorf("an absent operation is told from one that is there: %v, %v", other.Proto(), stranger.Proto())
	}

	renewed, err := w.client.Renew(as(t, "agent-a"), &pb.RenewRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()})
	if err != nil || renewed.GetStop() {
		t.Errorf("renew: %v, %v", renewed, err)
	}
	done, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId()))
	if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Errorf("complete: %v, %v", done, err)
	}
}
