// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// lookAlikes is how many look-alikes of a tool the ledger has counted.
func (n *node) lookAlikes(t testing.TB, tool string) float64 {
	t.Helper()
	return n.metric(t, "ledger_claims_look_alike_total", `ledger_tool_name="`+tool+`"`)
}

// The same work under three keys: while the first is unknown the others are not granted, whatever they ask for in its place, also without
// any contract.
func TestLookAlikesAreBlockedWhileTheFirstIsUnknown(t *testing.T) {
	for _, tool := range []string{"mail.send", "card.charge"} {
		t.Run(tool, func(t *testing.T) {
			each(t, func(t *testing.T, e *env) {
				w, label := e.node.dial(t, billing), tool
				if tool == "mail.send" {
					label = "other" // it has no contract
				}
				task := unique(t)
				claim := func(key, body string) *pb.ClaimRequest { return request(tool, task, key, body) }
				first := claim("K1", `{"amount":"5.00","to":"A"}`)
				g := w.grant(t, first)
				w.markUnknown(t, g.GetOperationId(), first.GetClaimId())
				before := e.node.lookAlikes(t, label)
				e.storesNothing(t, func() {
					for key, body := range map[string]string{
						"K2": `{"to":"A","amount":"5.00"}`, "K3": `{"amount":"5.00","to":"A"}`, "K4": `{"amount":"5.01","to":"A"}`, "K5": `{}`,
					} {
						for range 2 {
							answer := w.claim(t, claim(key, body))
							blocked := answer.GetBlocked()
							if blocked.GetReason() != pb.WaitReason_WAIT_REASON_SIBLING_UNKNOWN || !slices.Equal(blocked.GetOperationIds(), []string{g.GetOperationId()}) {
								t.Errorf("%s is answered %v", key, answer)
							}
						}
					}
				})
				if got := e.node.lookAlikes(t, label) - before; got != 2 {
					t.Errorf("%v look-alikes were counted, want K2 and K3", got)
				}
				// Another task, and another subject, have their own.
				w.grant(t, request(tool, unique(t), "K2", `{"amount":"5.00","to":"A"}`))
				other := claim("K2", `{"amount":"5.00","to":"A"}`)
				other.Key.Subject = "somebody"
				w.grant(t, other)
				if got := e.node.lookAlikes(t, label) - before; got != 2 {
					t.Errorf("%v look-alikes were counted after what is none", got)
				}
				wantOutcome(t, w.claim(t, again(first)), "UNKNOWN")
			})
		})
	}
}

// Where nothing forbids the same work under another key, it is counted by tool: each further key once, whatever becomes of it.
func TestLookAlikesAreCounted(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w, task := e.node.dial(t, billing), unique(t)
		before, reads := e.node.lookAlikes(t, "card.charge"), e.node.lookAlikes(t, "ticket.get")
		for n, key := range []string{"K1", "K2", "K3"} {
			r := request("card.charge", task, key, `{"amount":"5.00","to":"A"}`)
			g := w.grant(t, r)
			w.claim(t, again(r))
			w.applied(t, completion(g.GetOperationId(), r.GetClaimId(), "charge", "C-"+key))
			w.claim(t, again(r))
			w.grant(t, request("card.charge", task, key+":other", `{"amount":"5.0`+key+`","to":"A"}`))
			if got := e.node.lookAlikes(t, "card.charge") - before; got != float64(n) {
				t.Errorf("after %s %v look-alikes were counted, want %d", key, got, n)
			}
			_, err := w.tryClaim(t, sameKey(r, `{"amount":"6.00","to":"A"}`))
			wantConflict(t, err, "amount")
			w.grant(t, request("ticket.get", task, key, `{"id":1}`))
		}
		if got := e.node.lookAlikes(t, "card.charge") - before; got != 2 {
			t.Errorf("%v look-alikes were counted, want 2", got)
		}
		if got := e.node.lookAlikes(t, "ticket.get") - reads; got != 0 {
			t.Errorf("%v reads were counted", got)
		}
	})
}
