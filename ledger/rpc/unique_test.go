// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// uniquePayment refuses the same payment to the same recipient.
func uniquePayment(override ledger.Override) ledger.Contract {
	c := typed("v1", payment)
	c.Unique = []ledger.UniqueRule{{By: []string{"amount", "recipient"}, Within: 10 * time.Minute}}
	c.Override = override
	return c
}

func TestADuplicateIntentNamesTheOtherOperation(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": uniquePayment(ledger.OverrideCaller)}})
	const canary = "canary-recipient"
	first := w.charge("key-1", `{"amount":"20.00","currency":"EUR","to":"`+canary+`"}`)
	grant := w.granted(t, "fleet-1", first)
	alike := func(key, task string) *pb.ClaimRequest {
		req := w.charge(key, `{"amount":20,"currency":"EUR","to":"`+canary+`","priority":"high","lines":[]}`)
		req.Key.Task = task
		return req
	}
	for _, who := range []string{"fleet-1", "fleet-2"} { // of one scope
		_, err := w.client.Claim(as(t, who), alike("key-2", "task-2"))
		s := refused(t, err, codes.FailedPrecondition, "DUPLICATE_INTENT")
		if got := detail[*errdetails.ErrorInfo](s).GetMetadata()["operation_ids"]; got != grant.GetOperationId() {
			t.Errorf("%s: it names %q, want %s", who, got, grant.GetOperationId())
		}
		if strings.Contains(s.Proto().String(), canary) {
			t.Errorf("it shows something of a request: %v", s)
		}
	}
	_, err := w.client.Lookup(as(t, "fleet-1"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: alike("key-2", "task-2").GetKey()}})
	refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")

	// Another scope has nothing to do with it, and learns nothing of it.
	w.granted(t, "agent-b", alike("key-2", "task-2"))

	// Its own key, and who says that it is another.
	if again, err := w.client.Claim(as(t, "fleet-1"), first); err != nil || !again.GetGranted().GetResent() {
		t.Errorf("its own key: %v, %v", again, err)
	}
	distinct := alike("key-2", "task-2")
	distinct.DistinctFrom = []string{grant.GetOperationId()}
	w.granted(t, "fleet-1", distinct)
}

// A contract that gets a rule does not refuse what is there already.
func TestARuleIsNoReasonToRefuseAKnownKey(t *testing.T) {
	before := uniquePayment(ledger.OverrideApproval)
	before.Unique = nil
	all := contracts{"charge": before}
	w := newWorld(t, setup{contracts: all})
	const request = `{"amount":"20.00","currency":"EUR","to":"A"}`
	older := w.charge("key-1", request)
	grant := w.granted(t, "agent-a", older)
	never := &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT}
	_, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: grant.GetOperationId(), ClaimId: older.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{NotExecuted: never},
	})
	if err != nil {
		t.Fatal(err)
	}
	all["charge"] = uniquePayment(ledger.OverrideApproval)
	w.granted(t, "agent-a", w.charge("key-2", request))
	w.granted(t, "agent-a", w.charge("key-1", request)) // a claim_id of its own
	_, err = w.client.Claim(as(t, "agent-a"), w.charge("key-3", request))
	refused(t, err, codes.FailedPrecondition, "DUPLICATE_INTENT")
	// Nor one whose request does not fit any more.
	all["charge"] = typed("v2", payment)
	misfit := w.charge("key-1", request)
	if again, err := w.client.Claim(as(t, "agent-a"), misfit); err != nil || again.GetInProgress() == nil {
		t.Errorf("%v, %v", again, err)
	}
}
