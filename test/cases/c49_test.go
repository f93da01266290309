// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// Money is an amount of a currency, in the request and in what a target shows: a target that has multiplied an amount by 100 has another
// one, and a person looks at it.
func TestC49(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		claim := func(body string) *pb.ClaimRequest {
			tool := "account.debit" // whose money is a number beside its currency
			if strings.HasPrefix(body, `{"p"`) {
				tool = "account.topup" // whose money is an object
			}
			return request(tool, unique(t), "K", body)
		}

		t.Run("requests", func(t *testing.T) {
			for _, c := range []struct{ a, b string }{
				{`{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"currency":"JPY","amount":80.0}}`},
				{`{"p":{"amount":"80.00","currency":"USD"}}`, `{"p":{"amount":8e1,"currency":"USD"}}`},
				{`{"p":{"amount":"1.250","currency":"KWD"}}`, `{"p":{"amount":"1.25","currency":"KWD"}}`},
				{`{"amount":"12.5","currency":"EUR"}`, `{"currency":"EUR","amount":12.50}`},
			} {
				first := claim(c.a)
				w.grant(t, first)
				wantOutcome(t, w.claim(t, sameKey(first, c.b)), "IN_PROGRESS")
			}
			for _, c := range []struct{ a, b string }{
				{`{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":"8000","currency":"JPY"}}`},
				{`{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":"80","currency":"USD"}}`},
				{`{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":"0.80","currency":"USD"}}`},
				{`{"amount":"1.250","currency":"KWD"}`, `{"amount":"1250","currency":"KWD"}`},
				{`{"amount":"80","currency":"JPY"}`, `{"amount":"80","currency":"USD"}`},
			} {
				first := claim(c.a)
				w.grant(t, first)
				_, err := w.tryClaim(t, sameKey(first, c.b))
				wantConflict(t, err, "amount")
			}
			for body, pointer := range map[string]string{
				`{"p":{"amount":"80.5","currency":"JPY"}}`: "/p/amount", `{"p":{"amount":"80.005","currency":"USD"}}`: "/p/amount",
				`{"p":{"amount":"1.2505","currency":"KWD"}}`: "/p/amount", `{"amount":80.5,"currency":"JPY"}`: "/amount",
				`{"amount":80,"currency":"jpy"}`: "/currency", `{"amount":80}`: "/amount",
			} {
				e.storesNothing(t, func() {
					_, err := w.tryClaim(t, claim(body))
					if rule := wantInvalid(t, err, "request_json"); pointerIn(rule) != pointer || strings.Contains(rule, "80") {
						t.Errorf("%s: the rule is %q, want one about %s", body, rule, pointer)
					}
				})
			}
		})

		// What the target shows is compared as money, not as text.
		for _, c := range []struct {
			name, request, observed string
			reason                  pb.QueueReason // 0: it completes
		}{
			{"another spelling", `{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":80.0,"currency":"JPY"}}`, 0},
			{"100 times as much", `{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":8000,"currency":"JPY"}}`, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH},
			{"as much of another", `{"p":{"amount":"80","currency":"JPY"}}`, `{"p":{"amount":"80","currency":"USD"}}`, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH},
			{"minor units", `{"amount":"12.50","currency":"EUR"}`, `{"amount":1250,"currency":"EUR"}`, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH},
			{"the same number", `{"amount":"12.50","currency":"EUR"}`, `{"amount":12.5,"currency":"EUR"}`, 0},
			{"no currency", `{"amount":"12.50","currency":"EUR"}`, `{"amount":12.5}`, pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE},
		} {
			t.Run("evidence: "+c.name, func(t *testing.T) {
				r := claim(c.request)
				g := w.grant(t, r)
				w.markUnknown(t, g.GetOperationId(), r.GetClaimId())
				op := e.node.dial(t, reconciler).reconcile(t, g.GetOperationId(), 0, found("topup", "T-1", c.observed, time.Now())).GetOperation()
				if c.reason == 0 {
					wantState(t, op, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
					return
				}
				wantState(t, op, pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, c.reason)
			})
		}
	})
}

// The same by recovery: the target has multiplied the amount by 100 without anybody seeing it, and a person looks at it; one that only spells it otherwise has completed.
func TestC49Recovered(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			for _, c := range []struct {
				name, amount string
				knobs        []target.Knob
				state        pb.State
				custody      pb.Custody
				reason       pb.QueueReason
				shows        target.Amount
			}{
				{
					"100 times as much", "80",
					[]target.Knob{target.AcceptReset().Times(1), target.ScaleBug().Times(1)},
					pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH, "8000",
				},
				{"another spelling", "80.0", []target.Knob{target.AcceptReset().Times(1)}, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0, "80.0"},
			} {
				t.Run(c.name, func(t *testing.T) {
					if err := r.ft.Server.SetKnobs(target.Payments, c.knobs...); err != nil {
						t.Fatal(err)
					}
					w, claim := r.node.dial(t, billing), request("card.charge", unique(t), "K", `{"amount":80,"currency":"JPY","to":"A"}`)
					g := w.grant(t, claim)
					_, err := r.ft.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{Amount: target.Amount(c.amount), Currency: "JPY", To: "A"})
					if target.ClassOf(err) != target.Unknown {
						t.Fatalf("the charge ended with %v", err)
					}
					w.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
					r.settles(t, g.GetOperationId(), c.state, c.custody, c.reason)
					charges, err := r.ft.FindCharges(within(t), g.GetDownstreamKey())
					if err != nil || len(charges) != 1 || charges[0].Amount != c.shows {
						t.Errorf("the target shows %v, %v; want one charge of %s", charges, err, c.shows)
					}
					r.ft.wantAccount(t, target.Payments, g.GetDownstreamKey(), 1, 1)
				})
			}
		})
	}
}
