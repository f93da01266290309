// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// model is a JSON value as the properties see it: numbers are digits × 10^exp.
type model struct {
	kind     string // null, false, true, number, string, array, object
	negative bool
	digits   string // without leading or trailing zeros; "" is zero
	exp      int
	text     string
	names    []string
	children []model
}

var (
	leafKinds = []string{"null", "false", "true", "number", "number", "string"}
	anyKinds  = append(slices.Clone(leafKinds), "array", "object", "object")
	// Both sides of every border: escapes, UTF-8 lengths, the UTF-16 order.
	runes = []rune("abAB\"\\/\b\t\n\f\r\x00\x1f\x7fé\u0301€\ud7ff\ue000\ufb33\ufeff\uffff\U00010000\U0001f600\U0010ffff")
)

func drawText(t *rapid.T) string {
	return string(rapid.SliceOfN(rapid.SampledFrom(runes), 0, 6).Draw(t, "text"))
}

func drawModel(t *rapid.T, depth int) model {
	kinds := anyKinds
	if depth >= 4 {
		kinds = leafKinds
	}
	m := model{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch m.kind {
	case "number":
		drawNumber(t, &m)
	case "string":
		m.text = drawText(t)
	case "array", "object":
		fill(t, &m, depth)
	}
	return m
}

func drawNumber(t *rapid.T, m *model) {
	m.digits = strings.Trim(rapid.StringMatching(`[0-9]{0,30}`).Draw(t, "digits"), "0")
	if m.digits != "" {
		m.negative = rapid.Bool().Draw(t, "negative")
		m.exp = rapid.IntRange(-60, 60).Draw(t, "exponent")
	}
}

func fill(t *rapid.T, m *model, depth int) {
	for range rapid.IntRange(0, 4).Draw(t, "children") {
		if m.kind == "object" {
			name := drawText(t)
			if slices.Contains(m.names, name) {
				continue
			}
			m.names = append(m.names, name)
		}
		m.children = append(m.children, drawModel(t, depth+1))
	}
}

func drawRoot(t *rapid.T) model {
	root := model{kind: "object"}
	fill(t, &root, 1)
	return root
}

// spell writes a model in one of its many ways.
func spell(t *rapid.T, m model) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", "", " ", "\n\t", "\r"}).Draw(t, "space") }
	switch m.kind {
	case "number":
		return spellNumber(t, m)
	case "string":
		return spellString(t, m.text)
	case "array":
		parts := make([]string, 0, len(m.children))
		for _, child := range m.children {
			parts = append(parts, space()+spell(t, child)+space())
		}
		return "[" + space() + strings.Join(parts, ",") + "]"
	case "object":
		parts := make([]string, 0, len(m.children))
		for i, child := range m.children {
			parts = append(parts, space()+spellString(t, m.names[i])+space()+":"+space()+spell(t, child)+space())
		}
		return "{" + space() + strings.Join(rapid.Permutation(parts).Draw(t, "order"), ",") + "}"
	default:
		return m.kind
	}
}

func spellString(t *rapid.T, s string) string {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '/': `\/`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		how := rapid.IntRange(0, 2).Draw(t, "escape")
		switch escape, ok := short[r]; {
		case how == 0 && r >= ' ' && r != '"' && r != '\\':
			b.WriteRune(r)
		case how == 1 && ok:
			b.WriteString(escape)
		default:
			format := rapid.SampledFrom([]string{`\u%04x`, `\u%04X`}).Draw(t, "hex")
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, format, unit)
			}
		}
	}
	return b.String() + `"`
}

func spellNumber(t *rapid.T, m model) string {
	digits, exp := m.digits, m.exp
	// More zeros behind, then the point somewhere, maybe left of all digits.
	zeros := rapid.IntRange(0, 5).Draw(t, "zeros")
	digits, exp = digits+strings.Repeat("0", zeros), exp-zeros
	fraction := rapid.IntRange(0, len(digits)+5).Draw(t, "fraction digits")
	exp += fraction
	if len(digits) <= fraction {
		digits = strings.Repeat("0", fraction-len(digits)+1) + digits
	}
	integer, rest := digits[:len(digits)-fraction], digits[len(digits)-fraction:]
	text := strings.TrimLeft(integer, "0")
	if text == "" {
		text = "0" // JSON has no other leading zeros
	}
	if rest != "" {
		text += "." + rest
	}
	if m.negative || m.digits == "" && rapid.Bool().Draw(t, "negative zero") {
		text = "-" + text
	}
	if exp == 0 && rapid.Bool().Draw(t, "no exponent") {
		return text
	}
	text += rapid.SampledFrom([]string{"e", "E"}).Draw(t, "e")
	switch {
	case exp < 0:
		text += "-"
	case rapid.Bool().Draw(t, "plus"):
		text += "+"
	}
	return text + strings.Repeat("0", rapid.IntRange(0, 2).Draw(t, "exponent zeros")) + strconv.Itoa(max(exp, -exp))
}

// change makes another request of a model: one place in it differs.
func change(t *rapid.T, m model) model {
	m.names, m.children = slices.Clone(m.names), slices.Clone(m.children)
	if len(m.children) > 0 && rapid.Bool().Draw(t, "descend") {
		i := rapid.IntRange(0, len(m.children)-1).Draw(t, "child")
		m.children[i] = change(t, m.children[i])
		return m
	}
	switch m.kind {
	case "number":
		if m.digits == "" {
			m.digits = "1"
		} else {
			m.exp++
		}
	case "string":
		m.text += "x"
	case "array":
		m.children = append(m.children, model{kind: "null"})
	case "object":
		name := "added"
		for slices.Contains(m.names, name) {
			name += "x"
		}
		m.names, m.children = append(m.names, name), append(m.children, model{kind: "null"})
	default:
		m = model{kind: "string", text: m.kind}
	}
	return m
}

func TestSpellingsKeepAndChangesChangeTheDigest(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	rules := mustRules(t, map[string]Field{"a": {Category: "one"}, "b": {Category: "two"}, "é": {Category: "two"}})
	digest := func(t *rapid.T, text string) Fingerprint {
		c, err := Canonicalize([]byte(text), rules)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return Digest(c, Relations{}, secret)
	}
	rapid.Check(t, func(t *rapid.T) {
		root := drawRoot(t)
		one, two, other := spell(t, root), spell(t, root), spell(t, change(t, root))
		first := digest(t, one)
		if categories := differ(first, digest(t, two)); categories != nil {
			t.Fatalf("%q and %q differ in %v", one, two, categories)
		}
		if categories := differ(first, digest(t, other)); len(categories) != 1 {
			t.Fatalf("%q and %q differ in %v", one, other, categories)
		}
	})
}

// The oracle is arithmetic: math/big's rationals.
func TestNumbersAreEqualAsDecimals(t *testing.T) {
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][-+]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		canonicalA, ruleA := appendNumber(nil, []byte(a))
		canonicalB, ruleB := appendNumber(nil, []byte(b))
		if ruleA != noRule || ruleB != noRule {
			t.Fatalf("refused: %q %q", ruleA, ruleB)
		}
		ratA, ratB, ratCanonical := rational(t, a), rational(t, b), rational(t, string(canonicalA))
		if ratA.Cmp(ratCanonical) != 0 {
			t.Fatalf("%s became %s", a, canonicalA)
		}
		if equal := string(canonicalA) == string(canonicalB); equal != (ratA.Cmp(ratB) == 0) {
			t.Fatalf("%s and %s: equal %t", a, b, equal)
		}
	})
}

// What is told at a glance is what the closer look says, and is a number.
func TestPlainNumbersAreCanonical(t *testing.T) {
	text := rapid.StringMatching(`-?[0-9]{0,23}\.?[0-9]{0,4}0{0,90}[-+.eE0]?[0-9]?`)
	check := func(t rapid.TB, s string) (plainly bool) {
		n := plain([]byte(s))
		if n == 0 {
			return false
		}
		canonical, rule := appendNumber(nil, []byte(s))
		if !isNumber([]byte(s)) || rule != noRule || string(canonical) != s[:n] {
			t.Fatalf("%q became %q at a glance, %q by a closer look", s, s[:n], canonical)
		}
		return true
	}
	for s, want := range map[string]bool{
		"0": true, "7": true, "-7": true, "120": true, "12.50": true, "1.00": true, "0.5": true, "0.50": true,
		"": false, "-": false, "-0": false, "-0.5": false, "0.05": false, "0.0": false, "00": false, "01": false, "1.": false, ".5": false,
		"1.5.2": false, "1e2": false, "1.5e2": false, "+1": false, "1 ": false, "x": false, strings.Repeat("9", plainDigits): true,
		strings.Repeat("9", plainDigits+1): false, "1." + strings.Repeat("0", MaxDigits): false,
	} {
		if got := check(t, s); got != want {
			t.Errorf("%q is told at a glance: %t, want %t", s, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, text.Draw(t, "text")) })
}

func TestDecimalPlaces(t *testing.T) {
	for number, want := range map[string]int{
		"0": 0, "12": 0, "12.5": 1, "-0.005": 3, "1e+21": 0, "1.5e+21": 0, "1e-7": 7, "1.25e-7": 9, "1.23456789012345678901234e+22": 1,
	} {
		if got := decimalPlaces([]byte(number)); got != want {
			t.Errorf("%s has %d decimal places, want %d", number, got, want)
		}
	}
}

func rational(t *rapid.T, text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("not a number: %q", text)
	}
	return r
}

func TestNamesSortAsUTF16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawText(t), drawText(t)
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := compareUTF16([]byte(a), []byte(b)); got != want {
			t.Fatalf("%q and %q: %d, want %d", a, b, got, want)
		}
	})
}

// Many members and elements are sorted by keys: what the keys do not tell apart, and names of which one begins another, come out right as well.
func TestManyAreSortedAsFewAre(t *testing.T) {
	rules := mustRules(t, map[string]Field{"s": {Type: TypeSet}})
	letters := []rune("ab\x00\"é\ue000\uffff\U00010000")
	rapid.Check(t, func(rt *rapid.T) {
		prefix := string(rapid.SliceOfN(rapid.SampledFrom(letters), 0, 12).Draw(rt, "prefix"))
		var names []string
		for range rapid.IntRange(many, 3*many).Draw(rt, "names") {
			name := prefix + string(rapid.SliceOfN(rapid.SampledFrom(letters), 0, 12).Draw(rt, "name"))
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		members, elements := make([]string, 0, len(names)), make([]string, 0, len(names))
		for _, name := range names {
			quoted := string(appendQuoted(nil, []byte(name)))
			members, elements = append(members, quoted+":0"), append(elements, quoted)
		}
		request := `{"s":[` + strings.Join(elements, ",") + `],"o":{` + strings.Join(members, ",") + `}}`
		slices.Sort(elements)
		slices.SortFunc(names, func(a, b string) int { return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) })
		for i, name := range names {
			members[i] = string(appendQuoted(nil, []byte(name))) + ":0"
		}
		want := `{"o":{` + strings.Join(members, ",") + `},"s":[` + strings.Join(elements, ",") + `]}`
		if got := mustText(t, request, rules); got != want {
			rt.Fatalf("%q became\n%q, want\n%q", request, got, want)
		}
	})
}
