// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// What two parsers could read differently is refused before anything is stored; names that differ in case are different names.
func TestC47(t *testing.T) {
	type row struct {
		ID     string            `json:"id"`
		Raw    string            `json:"raw"`
		RawB64 []byte            `json:"raw_b64"`
		Fields map[string]string `json:"fields"`
		Reason string            `json:"reason"`
	}
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		for _, r := range lines[row](t, "reject.jsonl") {
			t.Run(r.ID, func(t *testing.T) {
				body := r.RawB64
				if body == nil {
					body = []byte(r.Raw)
				}
				claim := request(rowTool(t, "card.charge", r.Fields, nil), unique(t), "K", string(body))
				e.storesNothing(t, func() {
					_, err := w.tryClaim(t, claim)
					if rule := wantInvalid(t, err, "request_json"); len(body) > 0 && strings.Contains(rule, string(body)) {
						t.Errorf("%s: the rule repeats the request", r.Reason)
					}
				})
				_, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: claim.GetKey()}})
				wantRefusal(t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
				// The key is as free as before: nothing of the refused request sticks to it.
				w.grant(t, sameKey(claim, `{"amount":1}`))
			})
		}
		t.Run("amount and Amount", func(t *testing.T) {
			first := request("card.charge", unique(t), "K", `{"amount":5}`)
			g := w.grant(t, first)
			was := e.snapshot(t, g.GetOperationId())
			_, err := w.tryClaim(t, sameKey(first, `{"Amount":5}`))
			wantConflict(t, err, "amount", "other")
			e.wantUnchanged(t, g.GetOperationId(), was)
		})
	})
}
