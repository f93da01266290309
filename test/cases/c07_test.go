// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/test/target"
)

// One idempotency id for all orders, or a fresh one per call: content alone never makes two intents one, and a key does.
func TestC07(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)

		t.Run("the same key for another order is a conflict", func(t *testing.T) {
			first := request("card.charge", unique(t), "K", `{"amount":"10.00","to":"A"}`)
			g := w.grant(t, first)
			was := e.snapshot(t, g.GetOperationId())
			_, err := w.tryClaim(t, sameKey(first, `{"amount":"25.00","to":"B"}`))
			wantConflict(t, err, "amount", "recipient")
			e.wantUnchanged(t, g.GetOperationId(), was)
		})

		t.Run("two keys for one body are two effects", func(t *testing.T) {
			ft, err := target.Start(t.Context(), target.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ft.Close() })
			task, ids := unique(t), []string{}
			for _, key := range []string{"r-3:topup-1", "r-3:topup-2"} {
				r := request("card.charge", task, key, `{"amount":"10.00","to":"A"}`)
				g := w.grant(t, r)
				charge, err := target.Client{BaseURL: ft.URL()}.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{
					Amount: "10.00", Currency: "EUR", To: "A",
				})
				if err != nil {
					t.Fatal(err)
				}
				w.applied(t, completion(g.GetOperationId(), r.GetClaimId(), "charge", charge.ID))
				ids = append(ids, charge.ID)
			}
			log, err := target.ReadLog(ft.LogPath())
			if err != nil {
				t.Fatal(err)
			}
			if got := log.Effects(target.Payments, target.AnyKey); got != 2 || ids[0] == ids[1] {
				t.Errorf("the target has %d effects, %v; want two", got, ids)
			}
		})

		t.Run("an empty key is refused and shared by nobody", func(t *testing.T) {
			task := unique(t)
			e.storesNothing(t, func() {
				var rules []string
				for _, principal := range []string{billing, support} {
					_, err := e.node.dial(t, principal).tryClaim(t, request("card.charge", task, "", `{"amount":"10.00","to":"A"}`))
					rules = append(rules, wantInvalid(t, err, "key.key"))
				}
				if diff := cmp.Diff(rules[0], rules[1]); diff != "" {
					t.Errorf("the two callers are told different rules: %s", diff)
				}
			})
		})
	})
}
