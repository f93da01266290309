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

// handed are the files of requests and keys that others wrote down, with the
// number of their rows: one that is not read whole is a fault.
var handed = map[string]int{
	"testdata/equal.jsonl": 20, "testdata/different.jsonl": 24, "testdata/reject.jsonl": 16, "testdata/keys.jsonl": 12, "testdata/key-pairs.jsonl": 1,
}

// pair is a row of the files of equal and different requests, with what the
// tool's owner declares.
type pair struct {
	ID      string          `json:"id"`
	A       string          `json:"a"`
	B       string          `json:"b"`
	Fields  map[string]Type `json:"fields"`
	Exclude []string        `json:"exclude"`
	Reason  string          `json:"reason"`
}

func (p pair) rules(t *testing.T) Rules { return typedRules(t, p.Fields, p.Exclude) }

func typedRules(t *testing.T, types map[string]Type, ignored []string) Rules {
	fields := map[string]Field{}
	for path, typ := range types {
		fields[path] = Field{Type: typ}
	}
	return mustRules(t, fields, ignored...)
}

func (p pair) digests(t *testing.T) (a, b Fingerprint) {
	secret := testSecret(t, "k1", 0)
	a = Digest(mustCanonicalize(t, p.A, p.rules(t)), Relations{}, secret)
	return a, Digest(mustCanonicalize(t, p.B, p.rules(t)), Relations{}, secret)
}

func TestSpellingsOfOneRequestAreEqual(t *testing.T) {
	eachPair(t, "testdata/equal.jsonl", func(t *testing.T, p pair) {
		a, b := p.digests(t)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s: %s", p.Reason, diff)
		}
		// Without what is declared, spellings of types and what is ignored are differences.
		if p.Fields != nil || p.Exclude != nil {
			p.Fields, p.Exclude = nil, nil
			if a, b := p.digests(t); cmp.Equal(a, b) {
				t.Errorf("%s: equal without rules, too", p.Reason)
			}
		}
	})
}

func TestOtherRequestsAreDifferent(t *testing.T) {
	eachPair(t, "testdata/different.jsonl", func(t *testing.T, p pair) {
		a, b := p.digests(t)
		if diff := cmp.Diff([]string{CategoryOther}, differ(a, b)); diff != "" {
			t.Errorf("%s: %s", p.Reason, diff)
		}
	})
}

// A key is an opaque text: in a request, too, each is itself.
func TestKeysInRequestsStayThemselves(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	digest := func(t *testing.T, key string) (whole [32]byte) {
		t.Helper()
		request, err := json.Marshal(map[string]string{"key": key})
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ Key string }
		if err := json.Unmarshal([]byte(mustText(t, string(request), Rules{})), &back); err != nil || back.Key != key {
			t.Errorf("became %q, %v", back.Key, err)
		}
		return Digest(mustCanonicalize(t, string(request), Rules{}), Relations{}, secret).Digest
	}
	seen := map[[32]byte]string{}
	for _, row := range readLines[struct {
		ID     string  `json:"id"`
		Key    *string `json:"key"`
		KeyB64 []byte  `json:"key_b64"`
	}](t, "testdata/keys.jsonl") {
		t.Run(row.ID, func(t *testing.T) {
			if row.Key == nil {
				text := string(row.KeyB64)
				row.Key = &text
			}
			d := digest(t, *row.Key)
			if other, twice := seen[d]; twice {
				t.Errorf("has the digest of %s", other)
			}
			seen[d] = row.ID
		})
	}
	for _, row := range readLines[struct {
		ID, A, B, Expect string
	}](t, "testdata/key-pairs.jsonl") {
		t.Run(row.ID, func(t *testing.T) {
			if row.Expect != "distinct" || digest(t, row.A) == digest(t, row.B) {
				t.Errorf("%q and %q are to be %s", row.A, row.B, row.Expect)
			}
		})
	}
}

func TestReorderingsAreEqual(t *testing.T) {
	const orders = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, file := range []string{"testdata/equal.jsonl", "testdata/different.jsonl"} {
		eachPair(t, file, func(t *testing.T, p pair) {
			rules := p.rules(t)
			want := mustText(t, p.A, rules)
			for range orders {
				shuffled := reorder(t, rng, p.A)
				if got := mustText(t, shuffled, rules); got != want {
					t.Fatalf("%q became %q, want %q", shuffled, got, want)
				}
			}
		})
	}
}

func eachPair(t *testing.T, file string, check func(*testing.T, pair)) {
	t.Helper()
	for _, p := range readLines[pair](t, file) {
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
		ID     string          `json:"id"`
		Raw    string          `json:"raw"`
		RawB64 []byte          `json:"raw_b64"`
		Fields map[string]Type `json:"fields"`
		Reason string          `json:"reason"`
	}
	want := map[string]Rule{
		"R01": RuleDuplicate, "R03": RuleDuplicate, "R05": RuleSurrogate, "R08": RuleUTF8, "R11": RuleBOM,
		"R12": RuleTrailing, "R13": RuleSyntax, "R14": RuleSyntax, "R15": RuleSyntax, "R16": RuleSyntax,
		"R17": RuleSyntax, "R18": RuleSyntax, "R22": RuleEmpty, "R27": RuleMinorUnits, "R30": RuleDecimal, "R31": RuleTimestamp,
	}
	for _, r := range readLines[row](t, "testdata/reject.jsonl") {
		t.Run(r.ID, func(t *testing.T) {
			input := r.RawB64
			if input == nil {
				input = []byte(r.Raw)
			}
			_, err := Canonicalize(input, typedRules(t, r.Fields, nil))
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
