// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// differs says which categories of card.charge's contract the rows of different.jsonl differ in; the others differ in other.
var differs = map[string]string{
	"D01": "amount", "D02": "recipient", "D03": "amount", "D17": "other,recipient", "D18": "amount,other", "D31": "recipient", "D45": "other",
}

// Spellings of one request are one request, and other requests are others: through Claim, and through the canonicaliser alone. A second
// spelling is told that the first is at work, then what came of it; another request is told in which categories it differs, before and after.
func TestC43(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		id := func(kind string) func(pair) string { return func(p pair) string { return kind + " " + p.ID } }
		eachRow(t, e, "equal.jsonl", id("equal"), func(t *testing.T, p pair) {
			first := request(rowTool(t, "card.charge", p.Fields, p.Exclude), unique(t), "K", p.A)
			g := w.grant(t, first)
			was := e.snapshot(t, g.GetOperationId())
			answer, err := w.tryClaim(t, sameKey(first, p.B))
			if err != nil || outcome(answer) != "IN_PROGRESS" || answer.GetOperation().GetId() != g.GetOperationId() {
				t.Errorf("%s: %v, %v; want in progress", p.Reason, answer, err)
			}
			e.wantUnchanged(t, g.GetOperationId(), was)
			w.applied(t, completion(g.GetOperationId(), first.GetClaimId(), "thing", "T-"+p.ID))
			for _, body := range []string{p.A, p.B} {
				wantResource(t, w, sameKey(first, body), "T-"+p.ID)
			}
			reorderings(t, p.A)
		})
		eachRow(t, e, "different.jsonl", id("different"), func(t *testing.T, p pair) {
			first := request(rowTool(t, "card.charge", p.Fields, p.Exclude), unique(t), "K", p.A)
			categories := []string{"other"}
			if named := differs[p.ID]; named != "" {
				categories = strings.Split(named, ",")
			}
			g := w.grant(t, first)
			conflicts := func() {
				was := e.snapshot(t, g.GetOperationId())
				_, err := w.tryClaim(t, sameKey(first, p.B))
				if got := wantConflict(t, err, categories...).GetOperationId(); got != g.GetOperationId() {
					t.Errorf("%s: the conflict is about %q, want %s", p.Reason, got, g.GetOperationId())
				}
				e.wantUnchanged(t, g.GetOperationId(), was)
			}
			conflicts()
			w.applied(t, completion(g.GetOperationId(), first.GetClaimId(), "thing", "T-"+p.ID))
			conflicts()
			reorderings(t, p.A)
		})
	})
}

// reorderings canonicalises a request whose objects' members come in 1,000 random orders, at every depth.
func reorderings(t *testing.T, request string) {
	t.Helper()
	want, err := fingerprint.Text([]byte(request), fingerprint.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(4, 3))
	for range 1000 {
		text := reorder(t, rng, json.RawMessage(request))
		got, err := fingerprint.Text([]byte(text), fingerprint.Rules{})
		if err != nil || string(got) != string(want) {
			t.Fatalf("%s became %s, %v; want %s", text, got, err, want)
		}
	}
}

// reorder writes a value with the members of all its objects in random order; what is no object or array stays byte for byte.
func reorder(t *testing.T, rng *rand.Rand, value json.RawMessage) string {
	t.Helper()
	var members map[string]json.RawMessage
	var elements []json.RawMessage
	decode := func(into any) {
		if err := json.Unmarshal(value, into); err != nil {
			t.Fatal(err)
		}
	}
	var parts []string
	switch text := strings.TrimSpace(string(value)); text[0] {
	case '{':
		decode(&members)
		names := slices.Sorted(maps.Keys(members))
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			quoted, err := json.Marshal(name)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, string(quoted)+":"+reorder(t, rng, members[name]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case '[':
		decode(&elements)
		for _, element := range elements {
			parts = append(parts, reorder(t, rng, element))
		}
		return "[" + strings.Join(parts, ",") + "]"
	default:
		return text
	}
}
