// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// pointers are the fields that the refusals of reject.jsonl name. Those of the other rows lie outside of every field, or in one that the
// contract does not declare: its name is the caller's, who may have put a value there.
var pointers = map[string]string{"R01": "/amount", "R27": "/p/amount", "R30": "/p/amount", "R31": "/at"}

// pointerIn is the field that a rule names; empty if it names none.
func pointerIn(rule string) string {
	_, behind, _ := strings.Cut(rule, " (in ")
	pointer, _, _ := strings.Cut(behind, ",")
	return pointer
}

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
		eachRow(t, e, "reject.jsonl", func(r row) string { return r.ID }, func(t *testing.T, r row) {
			body := r.RawB64
			if body == nil {
				body = []byte(r.Raw)
			}
			claim := request(rowTool(t, "card.charge", r.Fields, nil), unique(t), "K", string(body))
			e.storesNothing(t, func() {
				_, err := w.tryClaim(t, claim)
				rule := wantInvalid(t, err, "request_json")
				if len(body) > 0 && strings.Contains(rule, string(body)) {
					t.Errorf("%s: the rule repeats the request", r.Reason)
				}
				if got := pointerIn(rule); got != pointers[r.ID] {
					t.Errorf("%s: %q names the field %q, want %q", r.Reason, rule, got, pointers[r.ID])
				}
			})
			_, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: claim.GetKey()}})
			wantRefusal(t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
			// The key is as free as before: nothing of the refused request sticks to it.
			w.grant(t, sameKey(claim, `{"amount":1}`))
		})
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
