// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package rpc_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestLostAnswerIsFoundOutBySendingAgain: executed, then failed, for each step of one operation's life.
func TestLostAnswerIsFoundOutBySendingAgain(t *testing.T) {
	w := newWorld(t, setup{})
	claim := w.claim("key-1")
	claim.Reserve = true
	lost := func(name failpoint.Name, call func() error) {
		t.Helper()
		t.Cleanup(failpoint.Enable(name, failpoint.Error().Times(1)))
		refused(t, call(), codes.Unavailable, "STORE_UNAVAILABLE")
		if err := call(); err != nil {
			t.Fatalf("%s: sent again: %v", name, err)
		}
	}
	var grant *pb.Grant
	lost(failpoint.RPCClaimAfterCommit, func() error {
		answer, err := w.client.Claim(as(t, "agent-a"), claim)
		grant = answer.GetGranted()
		return err
	})
	if !grant.GetResent() {
		t.Errorf("grant: %v", grant)
	}
	lost(failpoint.RPCStartAfterCommit, func() error {
		_, err := w.client.Start(as(t, "agent-a"), &pb.StartRequest{OperationId: grant.GetOperationId(), ClaimId: claim.GetClaimId()})
		return err
	})
	var before, after *pb.CompleteResponse
	lost(failpoint.RPCCompleteAfterCommit, func() error {
		var err error
		before, err = w.client.Complete(as(t, "agent-a"), succeeded(grant, claim.GetClaimId()))
		return err
	})
	after, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, claim.GetClaimId()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after, transform); diff != "" || after.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Error(diff, after)
	}
}
