// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger/contract"
)

// What the tool's owner ignores of a request (trace ids, times of the SDK) makes no other request of a retry, and which that is belongs
// to the version that the record is judged by.
func TestC12(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		first := request("order.place", unique(t), "K", `{"amount":5,"trace_id":"a","sdk":{"createdAt":1}}`)
		g := w.grant(t, first)
		was := e.snapshot(t, g.GetOperationId())
		same := []string{
			`{"amount":5,"trace_id":"b","sdk":{"createdAt":2}}`, `{"amount":5,"sdk":{}}`, `{"sdk":{"createdAt":null},"trace_id":{"a":[1]},"amount":5}`,
		}
		for _, body := range same {
			wantOutcome(t, w.claim(t, sameKey(first, body)), "IN_PROGRESS")
		}
		// Only the declared paths are ignored.
		for _, body := range []string{
			`{"amount":6,"trace_id":"a","sdk":{"createdAt":1}}`, `{"amount":5,"trace_id":"a","createdAt":1,"sdk":{"createdAt":1}}`,
			`{"amount":5,"sdk":{"createdAt":1,"trace_id":"a"}}`, `{"amount":5,"trace_id":"a"}`,
		} {
			_, err := w.tryClaim(t, sameKey(first, body))
			wantConflict(t, err, "other")
		}
		e.wantUnchanged(t, g.GetOperationId(), was)
		w.applied(t, completion(g.GetOperationId(), first.GetClaimId(), "order", "O-1"))
		for _, body := range same {
			wantResource(t, w, sameKey(first, body), "O-1")
		}

		tool, err := w.GetTool(within(t), &pb.GetToolRequest{Tool: "order.place"})
		if err != nil {
			t.Fatal(err)
		}
		if got := was.Row["fingerprint_contract"]; got == "" || got != tool.GetContractVersion() {
			t.Errorf("the record is judged by %q, the tool's contract is %q", got, tool.GetContractVersion())
		}
		for ignored, want := range map[string]bool{", /sdk/createdAt]": true, "]": false} {
			text := strings.Replace(contractsText, ", /sdk/createdAt]", ignored, 1)
			set, err := contract.Parse("contracts.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if declared, _ := set.Declared("order.place"); (declared.Version == tool.GetContractVersion()) != want {
				t.Errorf("with the paths %q the contract is version %s, that of the record %s", ignored, declared.Version, tool.GetContractVersion())
			}
		}
	})
}
