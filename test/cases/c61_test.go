// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/target"
)

// person is somebody who settles by hand.
type person struct{ pb.OperatorServiceClient }

func (n *node) person(t testing.TB, principal string) person {
	t.Helper()
	return person{pb.NewOperatorServiceClient(n.dial(t, principal).conn)}
}

// look is the whole view of an operation.
func (p person) look(t testing.TB, operation string) *pb.GetOperationResponse {
	t.Helper()
	view, err := p.GetOperation(within(t), &pb.GetOperationRequest{OperationId: operation})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// take takes an operation over at the version that it has now.
func (p person) take(t testing.TB, operation string) *pb.TakeOverResponse {
	t.Helper()
	answer, err := p.TakeOver(within(t), &pb.TakeOverRequest{
		OperationId: operation, CommandId: uuid.NewString(), ExpectedVersion: p.look(t, operation).GetOperation().GetVersion(), Reason: "PAY-221",
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// A person takes over while recovery waits for the target's answer. What that says is kept as a remark; no claim, no report and no timer moves the operation until
// the person hands it back. Then recovery asks afresh.
func TestC61(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) { takenOver(t, store) })
	}
}

func takenOver(t *testing.T, store string) {
	ft := startTarget(t, target.Payments)
	proxy, err := faultproxy.Start("tcp", strings.TrimPrefix(ft.URL(), "http://"), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	patient := strings.NewReplacer("URL", "http://"+proxy.Addr().String(), "timeout: 2s", fmt.Sprint("timeout: ", patience))
	r := recoveringAt(t, store, ft, patient.Replace(askedContracts), nodeOptions{})
	proxy.Pause(faultproxy.ServerToClient)

	// The worker's charge is at the target; it has not seen the answer, and says so. The query has been sent, and is not answered.
	w := r.node.dial(t, billing)
	claim := request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)
	g := w.grant(t, claim)
	id, key := g.GetOperationId(), g.GetDownstreamKey()
	w.markUnknown(t, id, claim.GetClaimId())
	eventually(t, "the target was asked", func() bool { return ft.account(t).Queries(target.Payments, key) == 1 })

	first, second := r.node.person(t, operator), r.node.person(t, operator2)
	seen := first.look(t, id).GetOperation()
	taken := first.take(t, id)
	if op := taken.GetOperation(); op.GetCustody() != pb.Custody_CUSTODY_OPERATOR || op.GetCustodian() != operator || op.GetState() != pb.State_STATE_UNKNOWN {
		t.Errorf("taken over: %v", op)
	}
	if !taken.GetQuietTime().AsTime().After(time.Now()) {
		t.Error("the query that is under way is not told of")
	}
	_, err = second.TakeOver(within(t), &pb.TakeOverRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: seen.GetVersion(), Reason: "mine"})
	wantRefusal(t, err, codes.Aborted, pb.ErrorReason_ERROR_REASON_STALE_VERSION)
	if got := detail[*errdetails.ErrorInfo](err).GetMetadata(); got["version"] != fmt.Sprint(taken.GetOperation().GetVersion()) || got["state"] != "UNKNOWN" {
		t.Errorf("the second take was told %v", got)
	}

	// The question is cut off, although the target has not answered; what it would have said is kept as a remark, whoever says it.
	eventually(t, "recovery has cut its question off", func() bool {
		return r.node.metric(t, "ledger_evidence_queries_total", `ledger_tool_name="card.charge"`, `ledger_evidence_result="cut_off"`) == 1
	})
	proxy.Resume(faultproxy.ServerToClient)
	remark, err := r.node.dial(t, reconciler).Reconcile(within(t), &pb.ReconcileRequest{
		Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(),
		Evidence: &pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}},
	})
	if err != nil || remark.GetDisposition() != pb.Disposition_DISPOSITION_OBSERVED {
		t.Errorf("a finding while a person has it: %v, %v", remark, err)
	}
	held := first.look(t, id)
	if op := held.GetOperation(); op.GetVersion() != taken.GetOperation().GetVersion() || op.GetState() != pb.State_STATE_UNKNOWN || op.GetCustodian() != operator {
		t.Errorf("the answer of a query has moved it: %v", op)
	}
	answer := w.claim(t, again(claim))
	wantOutcome(t, answer, "UNKNOWN")
	if got := answer.GetUnknown().GetReason(); got != pb.WaitReason_WAIT_REASON_HELD_BY_OPERATOR {
		t.Errorf("a claim waits for %v", got)
	}
	// A worker that wakes up says what it knows, and then what it found out.
	charge, err := ft.Charge(within(t), key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"})
	if err != nil {
		t.Fatal(err)
	}
	late := w.complete(t, completion(id, claim.GetClaimId(), "charge", charge.ID))
	if late.GetDisposition() != pb.Disposition_DISPOSITION_OBSERVED || late.GetOperation().GetState() != pb.State_STATE_UNKNOWN {
		t.Errorf("a late success: %v", late)
	}
	asked := ft.account(t).Queries(target.Payments, key)
	stands := r.snapshot(t, id)
	// Longer than the lease, the settle time and the largest pause between two checks; another operation shows that recovery is at work.
	other := request("card.charge", unique(t), "K", `{"amount":"1.00","currency":"EUR","to":"B"}`)
	otherID := w.grant(t, other).GetOperationId()
	w.markUnknown(t, otherID, other.GetClaimId())
	r.settles(t, otherID, pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_AUTOMATION, 0)
	if _, err := second.CheckNow(within(t), &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_Tool{Tool: "card.charge"}, CommandId: uuid.NewString(), Reason: "all of them"}); err != nil {
		t.Fatal(err)
	}
	_, err = second.CheckNow(within(t), &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(), Reason: "this one"})
	wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_HELD_BY_OPERATOR)
	r.wantUnchanged(t, id, stands)
	if n := ft.account(t).Queries(target.Payments, key); n != asked {
		t.Errorf("the target was asked %d times while a person had it", n-asked)
	}

	view := first.look(t, id)
	if got := view.GetReportedResult().GetResource().GetId(); got != charge.ID || !view.GetChainVerified() {
		t.Errorf("the person sees the report of %q, chain verified %v", got, view.GetChainVerified())
	}
	if _, err := first.HandBack(within(t), &pb.HandBackRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: view.GetOperation().GetVersion(), Reason: "the worker knows"}); err != nil {
		t.Fatal(err)
	}
	r.settles(t, id, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	ft.wantAccount(t, target.Payments, key, 1, 1)
	t.Logf("C61 %s, with a late success: effects %d, sends %d, queries %d", store, ft.account(t).Effects(target.Payments, key), ft.account(t).Sends(target.Payments, key),
		ft.account(t).Queries(target.Payments, key))

	// Without a report, handing it back is followed by a fresh question.
	claim = request("card.charge", unique(t), "K", `{"amount":"2.00","currency":"EUR","to":"C"}`)
	g = w.grant(t, claim)
	id, key = g.GetOperationId(), g.GetDownstreamKey()
	w.markUnknown(t, id, claim.GetClaimId())
	first.take(t, id)
	if _, err := ft.Charge(within(t), key, target.ChargeRequest{Amount: "2.00", Currency: "EUR", To: "C"}); err != nil {
		t.Fatal(err)
	}
	asked = ft.account(t).Queries(target.Payments, key)
	if _, err := first.HandBack(within(t), &pb.HandBackRequest{
		OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: first.look(t, id).GetOperation().GetVersion(), Reason: "nothing to see for me",
	}); err != nil {
		t.Fatal(err)
	}
	r.settles(t, id, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	if n := ft.account(t).Queries(target.Payments, key); n <= asked {
		t.Errorf("the target was not asked again after it was handed back: %d queries", n)
	}
	ft.wantAccount(t, target.Payments, key, 1, 1)
	kinds := []string{}
	for _, e := range first.look(t, id).GetHistory() {
		kinds = append(kinds, strings.TrimPrefix(e.GetKind().String(), "EVENT_KIND_"))
	}
	if i := slices.Index(kinds, "HANDED_BACK"); i < 0 || !slices.Contains(kinds[i:], "CHECK_TAKEN") || !slices.Contains(kinds[i:], "EVIDENCE") {
		t.Errorf("the history %v", kinds)
	}
	t.Logf("C61 %s, handed back: effects %d, sends %d, queries %d; %v", store, ft.account(t).Effects(target.Payments, key), ft.account(t).Sends(target.Payments, key),
		ft.account(t).Queries(target.Payments, key), kinds)
}
