// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// One key under several tools and intents: each is a record of its own, and none answers with another's result.
func TestC11(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		task := unique(t)
		closing := task + ":close"
		records := []struct {
			name, tool, task, body, kind, resource string
		}{
			{"ticket.create", "ticket.create", task, `{"title":"a"}`, "ticket", "T-1"},
			{"card.charge under the same key", "card.charge", task, `{"amount":"5.00"}`, "charge", "C-1"},
			{"ticket.create for another intent", "ticket.create", closing, `{"id":1}`, "ticket", "T-2"},
		}
		operations := map[string]bool{}
		for _, r := range records {
			claim := request(r.tool, r.task, "K1", r.body)
			g := w.grant(t, claim)
			operations[g.GetOperationId()] = true
			w.applied(t, completion(g.GetOperationId(), claim.GetClaimId(), r.kind, r.resource))
		}
		if len(operations) != len(records) {
			t.Errorf("%d records have %d operations", len(records), len(operations))
		}

		for _, r := range records {
			t.Run(r.name, func(t *testing.T) {
				answer := w.claim(t, request(r.tool, r.task, "K1", r.body))
				wantOutcome(t, answer, "REPLAY")
				got := answer.GetCompleted().GetResult().GetResource()
				if got.GetType() != r.kind || got.GetId() != r.resource || answer.GetOperation().GetTool() != r.tool {
					t.Errorf("%s is answered with %s %s of %s", r.tool, got.GetType(), got.GetId(), answer.GetOperation().GetTool())
				}
			})
		}
		t.Run("another resource in the request is a conflict", func(t *testing.T) {
			first := request("ticket.create", closing, "K1", `{"id":1}`)
			operation := w.claim(t, first).GetOperation().GetId()
			was := e.snapshot(t, operation)
			_, err := w.tryClaim(t, sameKey(first, `{"id":2}`))
			if got := wantConflict(t, err, "other").GetOperationId(); got != operation {
				t.Errorf("the conflict is about %s, want %s", got, operation)
			}
			e.wantUnchanged(t, operation, was)
		})
	})
}
