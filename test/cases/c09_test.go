// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const (
	storedBody = `{"amount":100}`
	otherBody  = `{"amount":1000}`
)

// settled is one record that was brought into a state.
type settled struct {
	name string
	// state and queued are what the record must be in.
	state  pb.State
	queued bool
	// category of the field that the other body changes.
	category string
	request  *pb.ClaimRequest
	id       string
}

// recordsInEachState brings one record into each state that a conflicting Claim can meet.
func recordsInEachState(t *testing.T, e *env, n *node) []settled {
	t.Helper()
	w, loop := n.dial(t, billing), n.dial(t, reconciler)
	notExecuted := func(r *pb.ClaimRequest, id string) {
		w.applied(t, &pb.CompleteRequest{OperationId: id, ClaimId: r.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{
			NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT},
		}})
	}
	unknown := func(r *pb.ClaimRequest, id string) { w.markUnknown(t, id, r.GetClaimId()) }
	declined := func(r *pb.ClaimRequest, id string) {
		w.applied(t, &pb.CompleteRequest{OperationId: id, ClaimId: r.GetClaimId(), SentExactlyOnce: true, Outcome: &pb.CompleteRequest_Rejected{
			Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "card_declined"},
		}})
	}
	completed := func(r *pb.ClaimRequest, id string) { w.applied(t, completion(id, r.GetClaimId(), "charge", "C-1")) }
	found := func(r *pb.ClaimRequest, id string) {
		unknown(r, id)
		answer, err := loop.Reconcile(within(t), &pb.ReconcileRequest{
			Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(),
			Evidence: &pb.Evidence{Source: "test", Finding: &pb.Evidence_Found{Found: &pb.Found{
				Result: result("charge", "C-2"), ObservedJson: []byte(storedBody), CreateTime: timestamppb.Now(),
			}}},
		})
		if err != nil || answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
			t.Fatalf("Reconcile: %v, %v", answer, err)
		}
	}
	nothing := func(*pb.ClaimRequest, string) {}
	lapsed := func(_ *pb.ClaimRequest, id string) { e.age(t, id, time.Hour) }
	reserve := func(r *pb.ClaimRequest) { r.Reserve = true }
	var all []settled
	for _, s := range []struct {
		name    string
		tool    string
		ask     func(*pb.ClaimRequest)
		bring   func(*pb.ClaimRequest, string)
		state   pb.State
		queued  bool
		changes string
	}{
		{name: "received", tool: "card.charge", bring: notExecuted, state: pb.State_STATE_RECEIVED, changes: "amount"},
		{name: "reserved", tool: "card.charge", ask: reserve, bring: nothing, state: pb.State_STATE_RECEIVED, changes: "amount"},
		{name: "processing", tool: "card.charge", bring: nothing, state: pb.State_STATE_PROCESSING, changes: "amount"},
		{name: "processing, lease over", tool: "card.charge", bring: lapsed, state: pb.State_STATE_PROCESSING, changes: "amount"},
		{name: "unknown", tool: "card.charge", bring: unknown, state: pb.State_STATE_UNKNOWN, changes: "amount"},
		{name: "queued for a person", tool: "mail.send", bring: unknown, state: pb.State_STATE_UNKNOWN, queued: true, changes: "other"},
		{name: "failed", tool: "card.charge", bring: declined, state: pb.State_STATE_FAILED, changes: "amount"},
		{name: "completed", tool: "card.charge", bring: completed, state: pb.State_STATE_COMPLETED, changes: "amount"},
		{name: "completed by recovery", tool: "card.charge", bring: found, state: pb.State_STATE_COMPLETED, changes: "amount"},
	} {
		r := request(s.tool, unique(t), "K", storedBody)
		if s.ask != nil {
			s.ask(r)
		}
		id := w.grant(t, r).GetOperationId()
		s.bring(r, id)
		all = append(all, settled{name: s.name, state: s.state, queued: s.queued, category: s.changes, request: r, id: id})
	}
	return all
}

// The same key with another request is a conflict on every path and in every state, and changes not one byte.
func TestC09(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		nodes := e.nodes(t)
		records := recordsInEachState(t, e, e.node)
		before := map[string]snapshot{}
		for _, r := range records {
			before[r.id] = e.snapshot(t, r.id)
		}
		conflictAt := func(path string, n *node) {
			w := n.dial(t, billing)
			for _, r := range records {
				t.Run(r.name+", "+path, func(t *testing.T) {
					had := n.metric(t, "ledger_claims_total", `="conflict"`)
					_, err := w.tryClaim(t, sameKey(r.request, otherBody))
					conflict := wantConflict(t, err, r.category)
					if conflict.GetState() != r.state || conflict.GetOperationId() != r.id {
						t.Errorf("the conflict is about %s in %v, want %s in %v", conflict.GetOperationId(), conflict.GetState(), r.id, r.state)
					}
					e.wantUnchanged(t, r.id, before[r.id])
					if got := n.metric(t, "ledger_claims_total", `="conflict"`) - had; got != 1 {
						t.Errorf("the metric of conflicts grew by %v, want 1", got)
					}
				})
			}
		}

		t.Run("each record is in its state", func(t *testing.T) {
			w := e.node.dial(t, billing)
			for _, r := range records {
				answer, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: r.id}})
				if err != nil {
					t.Fatal(err)
				}
				queued := answer.GetOperation().GetCustody() == pb.Custody_CUSTODY_QUEUED
				if got := answer.GetOperation().GetState(); got != r.state || queued != r.queued {
					t.Errorf("%s: state %v, queued %t", r.name, got, queued)
				}
			}
		})
		for i, n := range nodes {
			conflictAt(fmt.Sprintf("at node %d", i+1), n)
		}
		e.node.restart(t)
		conflictAt("after kill -9 and a start", e.node)
		t.Run("the first inserts race", func(t *testing.T) { insertRace(t, e, nodes) })
	})
}

// insertRace lets callers with two bodies meet at a key that is not there yet, on every node.
func insertRace(t *testing.T, e *env, nodes []*node) {
	const callers, rounds = 16, 10
	workers := make([]*worker, callers)
	for i := range workers {
		workers[i] = nodes[i/2%len(nodes)].dial(t, billing)
	}
	conflicts := func() (sum float64) {
		for _, n := range nodes {
			sum += n.metric(t, "ledger_claims_total", `="conflict"`)
		}
		return sum
	}
	for round := range rounds {
		task, had := unique(t), conflicts()
		ask := func() []*pb.ClaimRequest {
			requests := make([]*pb.ClaimRequest, callers)
			for i := range requests {
				requests[i] = request("card.charge", task, "K", []string{storedBody, otherBody}[i%2])
			}
			return requests
		}
		all := together(t, workers, ask())
		if diff := cmp.Diff(map[string]int{"EXECUTE": 1, "IN_PROGRESS": callers/2 - 1, "CONFLICT": callers / 2}, tally(all)); diff != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, diff)
		}
		id := operationID(billing, "card.charge", task, "K")
		was := e.snapshot(t, id)
		if len(was.History) != 1 || was.Row["sequence"] != "1" {
			t.Fatalf("round %d: %d events, sequence %s", round, len(was.History), was.Row["sequence"])
		}
		if got := tally(together(t, workers, ask())); got["IN_PROGRESS"] != callers/2 || got["CONFLICT"] != callers/2 {
			t.Fatalf("round %d, again: %v", round, got)
		}
		e.wantUnchanged(t, id, was)
		if got := conflicts() - had; got != callers {
			t.Errorf("round %d: the metric of conflicts grew by %v, want %d", round, got, callers)
		}
	}
}
