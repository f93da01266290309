// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// laterPolicies are the policies of rows that need declared types or ignored
// fields. They come with those; until then the rows are named in the output.
var laterPolicies = []string{"typed", "exclude"}

type pair struct {
	ID     string `json:"id"`
	Policy string `json:"policy"`
	A      string `json:"a"`
	B      string `json:"b"`
	Reason string `json:"reason"`
}

func TestSpellingsOfOneRequestAreEqual(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	eachPair(t, "testdata/equal.jsonl", func(t *testing.T, p pair) {
		a := Digest(mustCanonicalize(t, p.A, Rules{}), Relations{}, secret)
		b := Digest(mustCanonicalize(t, p.B, Rules{}), Relations{}, secret)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s: %s", p.Reason, diff)
		}
	})
}

func TestOtherRequestsAreDifferent(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	eachPair(t, "testdata/different.jsonl", func(t *testing.T, p pair) {
		a := Digest(mustCanonicalize(t, p.A, Rules{}), Relations{}, secret)
		b := Digest(mustCanonicalize(t, p.B, Rules{}), Relations{}, secret)
		if diff := cmp.Diff([]string{CategoryOther}, differ(a, b)); diff != "" {
			t.Errorf("%s: %s", p.Reason, diff)
		}
	})
}

func TestReorderingsAreEqual(t *testing.T) {
	const orders = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, file := range []string{"testdata/equal.jsonl", "testdata/different.jsonl"} {
		eachPair(t, file, func(t *testing.T, p pair) {
			want := string(mustCanonicalize(t, p.A, Rules{}).Text())
			for range orders {
				shuffled := reorder(t, rng, p.A)
				if got := string(mustCanonicalize(t, shuffled, Rules{}).Text()); got != want {
					t.Fatalf("%q became %q, want %q", shuffled, got, want)
				}
			}
		})
	}
}

func eachPair(t *testing.T, file string, check func(*testing.T, pair)) {
	t.Helper()
	for _, p := range readLines[pair](t, file) {
		if slices.Contains(laterPolicies, p.Policy) {
			t.Logf("%s left out: policy %s comes with declared types", p.ID, p.Policy)
			continue
		}
		t.Run(p.ID, func(t *testing.T) { check(t, p) })
	}
}

// reorder writes a request again with the members of every object in random
// order. It keeps numbers as they are written.
func reorder(t *testing.T, rng *rand.Rand, request string) string {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(request))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		t.Fatal(err)
	}
	var write func(v any) string
	write = func(v any) string {
		switch v := v.(type) {
		case map[string]any:
			names := slices.Sorted(maps.Keys(v))
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			members := make([]string, 0, len(names))
			for _, name := range names {
				members = append(members, write(name)+":"+write(v[name]))
			}
			return "{" + strings.Join(members, ",") + "}"
		case []any:
			elements := make([]string, 0, len(v))
			for _, e := range v {
				elements = append(elements, write(e))
			}
			return "[" + strings.Join(elements, ",") + "]"
		default:
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
	}
	return write(root)
}

func TestRefusedRows(t *testing.T) {
	type row struct {
		ID     string            `json:"id"`
		Raw    string            `json:"raw"`
		RawB64 []byte            `json:"raw_b64"`
		Fields map[string]string `json:"fields"`
		Reason string            `json:"reason"`
	}
	want := map[string]Rule{
		"R01": RuleDuplicate, "R03": RuleDuplicate, "R05": RuleSurrogate, "R08": RuleUTF8, "R11": RuleBOM,
		"R12": RuleTrailing, "R13": RuleSyntax, "R14": RuleSyntax, "R15": RuleSyntax, "R16": RuleSyntax,
		"R17": RuleSyntax, "R18": RuleSyntax, "R22": RuleEmpty,
	}
	for _, r := range readLines[row](t, "testdata/reject.jsonl") {
		if r.Fields != nil {
			t.Logf("%s left out: comes with declared types", r.ID)
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			input := r.RawB64
			if input == nil {
				input = []byte(r.Raw)
			}
			_, err := Canonicalize(input, Rules{})
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("%s: error %v (input %s)", r.Reason, err, base64.StdEncoding.EncodeToString(input))
			}
			if refused.Rule != want[r.ID] {
				t.Errorf("%s: rule %q, want %q", r.Reason, refused.Rule, want[r.ID])
			}
		})
	}
}
