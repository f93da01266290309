// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// What fields are called, where they lie and what they say, so that drawn
// contracts and drawn requests often meet.
var (
	poolNames = []string{"a", "b", "c", "l", "é", `q"`}
	poolPaths = []string{
		"a", "b", "c", "l", "é", `q"`, "/a/b", "/a/c", "/a/b/c", "/a/l", "/l/*", "/l/*/a", "/l/*/b", "/l/*/c", "/l/*/l", "/l/*/l/*",
		"/l/*/l/*/a", "/a/l/*/b", "/a/l/*/a", "/b/c", "/c/a/b",
	}
	poolDefaults = []string{"", "", "", "1", `"EUR"`, `"x"`, "null", "[]", "{}", `["b","a"]`, `{"b":1,"a":2}`}
	poolTexts    = []string{
		"", "x", "EUR", "JPY", "KWD", "12.50", "12.5", "1e2", "1,0", "80", "-0", "é", "e\u0301", "\u212b", `"\`, "2026-03-01T10:00:00+01:00",
		"2026-03-01t09:00:00.000z", "2026-03-01T09:00:00", "7B1F0C9E-2F63-4A6C-9B8E-51D0C2A4E7AA", "7b1f0c9e-2f63-4a6c-9b8e-51d0c2a4e7aa",
	}
)

// drawContract draws what NewRules accepts.
func drawContract(t *rapid.T) (*vectorContract, Rules) {
	c := &vectorContract{Fields: map[string]vectorField{}}
	fields := map[string]Field{}
	var rules Rules
	for range rapid.IntRange(0, 8).Draw(t, "fields") {
		path := rapid.SampledFrom(poolPaths).Draw(t, "path")
		if _, twice := fields[path]; twice {
			continue
		}
		if rapid.IntRange(0, 5).Draw(t, "ignored") == 0 {
			if r, err := NewRules(fields, append(slices.Clone(c.Ignore), path)); err == nil {
				c.Ignore, rules = append(c.Ignore, path), r
			}
			continue
		}
		f := Field{
			Type:     rapid.SampledFrom(append(Types(), "", "", "money")).Draw(t, "type"),
			Category: rapid.SampledFrom([]string{"", "", "one", "two"}).Draw(t, "category"),
			Default:  rapid.SampledFrom(poolDefaults).Draw(t, "default"),
		}
		if f.Type == TypeMoney {
			f.Currency = rapid.SampledFrom(append([]string{"", "c"}, poolPaths...)).Draw(t, "currency")
		}
		fields[path] = f
		if r, err := NewRules(fields, c.Ignore); err == nil {
			rules = r
			c.Fields[path] = vectorField{Type: f.Type, Currency: f.Currency, Category: f.Category, Default: json.RawMessage(f.Default)}
		} else {
			delete(fields, path)
		}
	}
	return c, rules
}

// drawPooled draws a request that a drawn contract may say something about.
func drawPooled(t *rapid.T, depth int) model {
	kinds := []string{"number", "string", "string", "string", "null", "array", "object", "object"}
	if depth > 3 {
		kinds = kinds[:4]
	}
	m := model{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	if depth == 0 {
		m.kind = "object"
	}
	switch m.kind {
	case "number":
		m.digits = rapid.SampledFrom([]string{"", "1", "8", "125"}).Draw(t, "digits")
		m.exp = rapid.IntRange(-3, 1).Draw(t, "exponent")
	case "string":
		m.text = rapid.SampledFrom(poolTexts).Draw(t, "text")
	case "array":
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			m.children = append(m.children, drawPooled(t, depth+1))
		}
	case "object":
		for _, name := range poolNames {
			if rapid.Bool().Draw(t, "there") {
				m.names, m.children = append(m.names, name), append(m.children, drawPooled(t, depth+1))
			}
		}
	}
	return m
}

func TestBothImplementationsAgree(t *testing.T) {
	ask := python(t)
	accepted, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		contract, rules := drawContract(rt)
		v := vector{Request: spell(rt, drawPooled(rt, 0)), Contract: contract}
		theirs, ours := ask(v), v.result(t)
		theirs.Contract = contract // as it was sent, but for empty lists
		if ours.Refused != nil {
			refused++
			// With more than one thing wrong, either may be told.
			if theirs.Refused == nil {
				rt.Fatalf("%s under %+v: refused as %+v", v.Request, contract, ours.Refused)
			}
			return
		}
		accepted++
		if diff := cmp.Diff(theirs, ours, cmp.Transformer("json", func(m json.RawMessage) string { return string(m) })); diff != "" {
			rt.Fatalf("%s (-python +go):\n%s", v.Request, diff)
		}
		again, err := partsOf([]byte(ours.Canonical), rules, false)
		if err != nil || !cmp.Equal(again, ours.Parts) || mustText(t, ours.Canonical, rules) != ours.Canonical {
			rt.Fatalf("%s: its canonical text %s is not its own: %v, %v", v.Request, ours.Canonical, again, err)
		}
	})
	if !t.Failed() && (accepted == 0 || refused == 0) {
		t.Errorf("%d requests were accepted and %d refused: too few of one to say anything", accepted, refused)
	}
}

// Whatever is declared: spellings of a request are one, and where two requests
// differ, some category does.
func TestSpellingsAndCategoriesUnderRules(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	rapid.Check(t, func(rt *rapid.T) {
		_, rules := drawContract(rt)
		m := drawPooled(rt, 0)
		other := change(rt, m)
		one, two, three := spell(rt, m), spell(rt, m), spell(rt, other)
		first, err := Canonicalize([]byte(one), rules)
		second, errAgain := Canonicalize([]byte(two), rules)
		if (err == nil) != (errAgain == nil) {
			rt.Fatalf("%s: %v; %s: %v", one, err, two, errAgain)
		}
		if err != nil {
			return
		}
		a := Digest(first, Relations{}, secret)
		if diff := cmp.Diff(a, Digest(second, Relations{}, secret)); diff != "" {
			rt.Fatalf("%s and %s: %s", one, two, diff)
		}
		third, err := Canonicalize([]byte(three), rules)
		if err != nil {
			return
		}
		same := mustText(t, one, rules) == mustText(t, three, rules)
		categories := differ(a, Digest(third, Relations{}, secret))
		if same != (len(categories) == 0) {
			rt.Fatalf("%s and %s have one text: %v; they differ in %v", one, three, same, categories)
		}
	})
}

// The oracle counts character by character, each decomposed alone.
func TestRunsOfCombiningCharacters(t *testing.T) {
	rules := mustRules(t, map[string]Field{"s": {Type: TypeText}})
	// Classes of characters: marks, one that is two, vowels with class 0, jamo; and starters, some with marks or jamo in them.
	runes := []rune("\u0301\u0323\u0344\u093c\u09be\u09cb\u1161\u11a8\u0e31\u0e33\uff9e\ufdfaa\u034fé\u0958\uac00\uac01\u1100")
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		run, longest := 0, 0
		for range rapid.IntRange(1, 12).Draw(rt, "runs") {
			r := rapid.SampledFrom(runes).Draw(rt, "character")
			for range rapid.SampledFrom([]int{1, 1, 2, 13, 14, 15, 26, 27, 28, 29, 30, 31}).Draw(rt, "times") {
				b.WriteRune(r)
				for _, d := range norm.NFKD.String(string(r)) {
					if norm.NFC.PropertiesString(string(d)).BoundaryBefore() {
						run = 0
						continue
					}
					run++
					longest = max(longest, run)
				}
			}
		}
		text, err := json.Marshal(map[string]string{"s": b.String()})
		if err != nil {
			rt.Fatal(err)
		}
		if _, err := Canonicalize(text, rules); (err == nil) != (longest <= 30) {
			rt.Fatalf("%+q: %d in a row: %v", b.String(), longest, err)
		}
	})
}
