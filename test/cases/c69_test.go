// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Keys are taken unchanged or refused by a rule, the same over every store.
func TestC69(t *testing.T) {
	type row struct {
		ID     string `json:"id"`
		Key    string `json:"key"`
		KeyB64 []byte `json:"key_b64"`
		Valid  bool   `json:"valid"`
		Reason string `json:"reason"`
	}
	type keyPair struct {
		ID, A, B, Expect string
	}
	// refusals of the first store, by row: the second must give the same, byte for byte.
	refusals := map[string]string{}
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		eachRow(t, e, "keys.jsonl", func(r row) string { return r.ID }, func(t *testing.T, r row) {
			key := r.Key
			if r.KeyB64 != nil {
				key = string(r.KeyB64)
			}
			claim := request("card.charge", unique(t), key, `{"amount":1}`)
			lookup := &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: claim.GetKey()}}
			if r.Valid {
				acceptedKey(t, e, w, claim, lookup)
				return
			}
			e.storesNothing(t, func() {
				_, err := w.tryClaim(t, claim)
				wantKeyRefused(t, r.ID+" Claim", key, err, refusals)
				_, err = w.Lookup(within(t), lookup)
				wantKeyRefused(t, r.ID+" Lookup", key, err, refusals)
			})
		})
		eachRow(t, e, "key-pairs.jsonl", func(p keyPair) string { return p.ID }, func(t *testing.T, p keyPair) {
			if p.Expect != "distinct" {
				t.Fatalf("%s: this test does not know %q", p.ID, p.Expect)
			}
			task := unique(t)
			a := w.grant(t, request("card.charge", task, p.A, `{"amount":1}`))
			b := w.grant(t, request("card.charge", task, p.B, `{"amount":2}`))
			if a.GetOperationId() == b.GetOperationId() {
				t.Error("two keys are one operation")
			}
		})
	})
}

// acceptedKey claims a valid key. The operation's id is a digest of the key's own bytes: it shows that none was changed.
func acceptedKey(t *testing.T, e *env, w *worker, claim *pb.ClaimRequest, lookup *pb.LookupRequest) {
	t.Helper()
	g := w.grant(t, claim)
	k := claim.GetKey()
	if diff := cmp.Diff(operationID(billing, k.GetTool(), k.GetTask(), k.GetKey()), g.GetOperationId()); diff != "" {
		t.Errorf("the key was changed: its operation is another (-want +got):\n%s", diff)
	}
	answer, err := w.Lookup(within(t), lookup)
	if err != nil || answer.GetOperation().GetId() != g.GetOperationId() {
		t.Errorf("Lookup by the key: %v, %v", answer, err)
	}
	if again := w.claim(t, again(claim)); outcome(again) != "IN_PROGRESS" || again.GetOperation().GetId() != g.GetOperationId() {
		t.Errorf("the key again: %v", again)
	}
	if e.row(t, g.GetOperationId()) == nil {
		t.Error("there is no row")
	}
}

// wantKeyRefused fails unless the refusal names the field and the rule, never the key, and is what the other store says.
func wantKeyRefused(t *testing.T, what, key string, err error, refusals map[string]string) {
	t.Helper()
	rule := wantInvalid(t, err, "key.key")
	told, err := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
	if err != nil {
		t.Fatal(err)
	}
	// A reserved word stands in the rule that refuses it.
	if key != "" && !strings.Contains(rule, key) && strings.Contains(string(told), key) {
		t.Errorf("%s: the status holds the key", what)
	}
	if other, ok := refusals[what]; ok && other != string(told) {
		t.Errorf("%s: the two stores refuse differently", what)
	}
	refusals[what] = string(told)
}
