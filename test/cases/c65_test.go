// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// undoneContracts: charges and tickets can be undone. Windows are as short as a test can wait.
const undoneContracts = `tools:
  card.charge:
    effect: keyed
    lease: {default: 2s, max: 2s, total: 2s}
    request: {fields: {amount: {type: money, currency: currency, category: amount}, currency: {category: amount}}}
    recovery:
      method: probe
      probe: external
      key_retention: 24h
      effect_within: 2s
      verify: []
      inspect: {http: {url: "URL/charges/{resource.id}", version: "string(body.revision)", gone: "status == 404"}}
    compensation: {tool: card.refund}
  card.refund:
    effect: keyed
    lease: {default: 2s, max: 4s, total: 4s}
    request: {fields: {amount: {type: decimal, category: amount}}}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 4s
      probe:
        http:
          url: "URL/refunds?idempotency_key={downstream_key}"
          found: "status == 200 && size(body.data) == 1"
          not_found: "status == 200 && size(body.data) == 0"
          observed: {amount: "body.data[0].amount"}
          result: {id: "body.data[0].id", type: "'refund'"}
      verify: [amount]
      checks: {first: 1s, max_interval: 2s, give_up_after: 1h, timeout: 2s}
  ticket.create:
    effect: unsafe
    lease: {default: 2s, max: 2s, total: 2s}
    recovery:
      effect_within: 2s
      inspect: {http: {url: "URL/tickets/{resource.id}", version: "string(body.revision)", gone: "status == 404"}}
    compensation: {tool: ticket.close}
  ticket.close: {effect: unsafe}
`

// made completes an operation that left a resource in its first version.
func (w *worker) made(t *testing.T, claim *pb.ClaimRequest, kind, id string) {
	t.Helper()
	done := completion(w.grant(t, claim).GetOperationId(), claim.GetClaimId(), kind, id)
	done.GetSucceeded().Resource.Version = "1"
	w.applied(t, done)
}

// undoing is a Claim that compensates an operation.
func undoing(tool, task, key, body, original string) *pb.ClaimRequest {
	claim := request(tool, task, key, body)
	claim.Relation = &pb.ClaimRequest_Compensates{Compensates: original}
	return claim
}

// finally claims until the answer is no longer that the original, or its resource, is still being waited for.
func (w *worker) finally(t *testing.T, claim *pb.ClaimRequest) *pb.ClaimResponse {
	t.Helper()
	var answer *pb.ClaimResponse
	eventually(t, "the compensation is not waited for any more", func() bool {
		next := again(claim)
		next.Relation = claim.GetRelation()
		answer = w.claim(t, next)
		claim.ClaimId = next.GetClaimId()
		return answer.GetBlocked() == nil && answer.GetWaiting().GetReason() != pb.WaitReason_WAIT_REASON_RESOURCE_CHECK
	})
	return answer
}

// A refund has its own record: it is refused beside the wrong original, waits until its original can land no more and its target has been asked, is unknown and found by
// evidence, and its original stays what it is.
func TestC65(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecoveringBy(t, store, undoneContracts, nodeOptions{})
			w := r.node.dial(t, billing)
			task := unique(t)
			charge := request("card.charge", task, "r-4:charge", `{"amount":"10.00","currency":"EUR"}`)
			made, err := r.ft.Charge(within(t), "key", target.ChargeRequest{Amount: "10.00", Currency: "EUR"})
			if err != nil {
				t.Fatal(err)
			}
			w.made(t, charge, "charge", made.ID)
			original := operationID(billing, "card.charge", task, "r-4:charge")

			refund := undoing("card.refund", task, "r-4:refund", `{"amount":"10.00"}`, original)
			if got := w.claim(t, refund).GetBlocked().GetReason(); got != pb.WaitReason_WAIT_REASON_ORIGINAL_UNSETTLED {
				t.Errorf("before the original can land no more: %v", got)
			}
			_, err = w.tryClaim(t, undoing("card.undo", task, "r-4:undo", `{"amount":"10.00"}`, original))
			wantInvalid(t, err, "compensates")

			g := w.finally(t, refund).GetGranted()
			if g.GetPrecondition().GetId() != made.ID || g.GetPrecondition().GetVersion() != "1" {
				t.Fatalf("granted with the precondition %v", g.GetPrecondition())
			}
			if err := r.ft.Server.SetKnobs(target.Payments, target.LateCommit(0).Times(1), target.QueryDown().Times(3)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.ft.Refund(within(t), g.GetDownstreamKey(), target.RefundRequest{Charge: made.ID, Amount: "10.00"}); target.ClassOf(err) != target.Answered {
				t.Fatal(err)
			}
			w.markUnknown(t, g.GetOperationId(), refund.GetClaimId())
			x := w.view(t, original)
			if x.GetState() != pb.State_STATE_COMPLETED || len(x.GetCompensatedBy()) != 1 || x.GetCompensatedBy()[0] != g.GetOperationId() {
				t.Errorf("while its refund is unknown, the charge is %v, compensated by %v", x.GetState(), x.GetCompensatedBy())
			}
			wantState(t, w.view(t, g.GetOperationId()), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_AUTOMATION, 0)
			second := undoing("card.refund", task+":other", "r-4:refund-again", `{"amount":"10.00"}`, original)
			_, err = w.tryClaim(t, second)
			wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_DUPLICATE_INTENT)
			more := sameKey(refund, `{"amount":"11.00"}`)
			more.Relation = refund.GetRelation()
			_, err = w.tryClaim(t, more)
			wantConflict(t, err, "amount")

			op := r.settles(t, g.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			if op.GetCompensates() != original {
				t.Errorf("the refund compensates %s", op.GetCompensates())
			}
			if n := r.ft.account(t).Queries(target.Payments, g.GetDownstreamKey()); n < 4 {
				t.Errorf("the target was asked %d times, of which 3 had no answer", n)
			}
			r.ft.wantAccount(t, target.Payments, g.GetDownstreamKey(), 1, 1)
			if x := w.view(t, original); x.GetState() != pb.State_STATE_COMPLETED || x.GetNeedsAttention() {
				t.Errorf("the charge is %v in the end", x.GetState())
			}
			_, err = w.tryClaim(t, second)
			wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_DUPLICATE_INTENT)
		})
	}
}

// Somebody has changed the ticket since: nothing closes it, and a person is asked.
func TestC65ChangedSince(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecoveringBy(t, store, undoneContracts, nodeOptions{})
			w := r.node.dial(t, billing)
			task := unique(t)
			ticket, err := r.ft.CreateTicket(within(t), "key", target.TicketRequest{Title: "disk full"})
			if err != nil {
				t.Fatal(err)
			}
			w.made(t, request("ticket.create", task, "K", `{"title":"disk full"}`), "ticket", ticket.ID)
			title := "disk replaced"
			if _, err := r.ft.ChangeTicket(within(t), "another", ticket.ID, 1, target.TicketChange{Title: &title}); err != nil {
				t.Fatal(err)
			}
			original := operationID(billing, "ticket.create", task, "K")
			answer := w.finally(t, undoing("ticket.close", task, "close", `{}`, original))
			if got := answer.GetWaiting().GetReason(); got != pb.WaitReason_WAIT_REASON_QUEUED {
				t.Errorf("answered %v", answer)
			}
			wantState(t, answer.GetOperation(), pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_RESOURCE_CHANGED)
		})
	}
}

// 64 refunds of one charge under as many keys, at once and through two processes where the store allows it: one is taken.
func TestC65Racing(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecoveringBy(t, store, undoneContracts, nodeOptions{})
			nodes := []*node{r.node}
			if store != "sqlite" {
				nodes = append(nodes, r.start(t, nodeOptions{args: r.args}))
			}
			w := r.node.dial(t, billing)
			task := unique(t)
			w.made(t, request("card.charge", task, "K", `{"amount":"10.00","currency":"EUR"}`), "charge", "ch_1")
			original := operationID(billing, "card.charge", task, "K")
			eventually(t, "the charge can land no more", func() bool {
				return r.row(t, original).instant(t, "grant_send_until").Add(2*time.Second + time.Second/2).Before(time.Now())
			})
			const many = 64
			workers, requests := make([]*worker, many), make([]*pb.ClaimRequest, many)
			for i := range many {
				workers[i] = nodes[i%len(nodes)].dial(t, billing)
				requests[i] = undoing("card.refund", task, fmt.Sprint("refund-", i), `{"amount":"10.00"}`, original)
			}
			counts := tally(together(t, workers, requests))
			if counts["WAITING"] != 1 || counts[codes.FailedPrecondition.String()] != many-1 {
				t.Errorf("answered %v", counts)
			}
			if got := w.view(t, original).GetCompensatedBy(); len(got) != 1 {
				t.Errorf("the charge names %d compensations", len(got))
			}
		})
	}
}
