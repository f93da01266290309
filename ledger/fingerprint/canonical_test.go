// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestRefusals(t *testing.T) {
	rules := mustRules(t, map[string]Field{"amount": {Category: "amount"}, "a~1b~0c": {Category: "body"}})
	digits101 := strings.Repeat("7", MaxDigits+1)
	nested := func(n int) string {
		return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + "}"
	}
	objects := func(n int) string {
		return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n)
	}
	tests := []struct {
		name    string
		input   string
		rule    Rule
		pointer string
	}{
		{"nothing", "", RuleEmpty, ""},
		{"only whitespace", " \n", RuleEmpty, ""},
		{"one byte over the size", `{"a":"` + strings.Repeat("x", MaxSize-7) + `"}`, RuleSize, ""},
		{"byte order mark", "\ufeff{}", RuleBOM, ""},
		{"UTF-16", "{\x00}\x00", RuleSyntax, ""},
		{"overlong UTF-8", "{\"a\":\"\xc0\x80\"}", RuleUTF8, ""},
		{"surrogate as UTF-8", "{\"a\":\"\xed\xa0\x80\"}", RuleUTF8, ""},
		{"array at the root", "[]", RuleObject, ""},
		{"string at the root", `"x"`, RuleObject, ""},
		{"null at the root", "null", RuleObject, ""},
		{"lone low surrogate", `{"a":"\udc00"}`, RuleSurrogate, ""},
		{"pair the wrong way round", `{"a":"\udc00\ud800"}`, RuleSurrogate, ""},
		{"lone surrogate in a name", `{"\ud800":1}`, RuleSurrogate, ""},
		{"lone surrogate before another error", `{"a":"\ud800","a":1}`, RuleSurrogate, ""},
		{"lone surrogate in a declared field", `{"amount":["\ud800x"]}`, RuleSurrogate, "/amount"},
		{"duplicate by decoded name", `{"a":1,"\u0061":1}`, RuleDuplicate, ""},
		{"duplicate declared name", `{"amount":1,"x":2,"amount":1}`, RuleDuplicate, "/amount"},
		{"duplicate in an array in a declared field", `{"amount":[0,{"x":1,"x":1}]}`, RuleDuplicate, "/amount"},
		{"pointer of a declared name is escaped", `{"a/b~c":{"x":1,"x":1}}`, RuleDuplicate, "/a~1b~0c"},
		{"declared name at another depth is not the field", `{"x":{"amount":1e999}}`, RuleExponent, ""},
		{"pointer ends with its field", `{"amount":1,"x":1e999}`, RuleExponent, ""},
		{"trailing object", `{}{}`, RuleTrailing, ""},
		{"trailing garbage", `{} x`, RuleTrailing, ""},
		{"trailing NUL", "{}\x00", RuleTrailing, ""},
		{"comment", "{} // x", RuleTrailing, ""},
		{"cut short", `{"a":"b`, RuleSyntax, ""},
		{"cut short behind a member", `{"a":1`, RuleSyntax, ""},
		{"raw control character", "{\"a\":\"\t\"}", RuleSyntax, ""},
		{"name that is no string", `{1:1}`, RuleSyntax, ""},
		{"single quotes", `{'a':1}`, RuleSyntax, ""},
		{"capital literal", `{"a":True}`, RuleSyntax, ""},
		{"hexadecimal", `{"a":0x10}`, RuleSyntax, ""},
		{"point without digits", `{"a":1.}`, RuleSyntax, ""},
		{"65 levels of arrays", nested(MaxDepth + 1), RuleDepth, ""},
		{"65 levels of objects", objects(MaxDepth + 1), RuleDepth, ""},
		{"very deep", nested(100_000), RuleDepth, ""},
		{"101 digits", `{"amount":` + digits101 + `}`, RuleDigits, "/amount"},
		{"101 digits around the point", `{"n":7.` + digits101[1:] + `}`, RuleDigits, ""},
		{"101 digits with zeros inside", `{"n":1` + strings.Repeat("0", MaxDigits-1) + `1}`, RuleDigits, ""},
		{"written exponent over", `{"n":1e401}`, RuleExponent, ""},
		{"written exponent under", `{"n":1e-401}`, RuleExponent, ""},
		{"written exponent over on zero", `{"n":0e401}`, RuleExponent, ""},
		{"value over though the written exponent is not", `{"n":10e400}`, RuleExponent, ""},
		{"value under though the written exponent is not", `{"n":0.1e-400}`, RuleExponent, ""},
		{"value over without an exponent", `{"n":1` + strings.Repeat("0", 401) + `}`, RuleExponent, ""},
		{"exponent beyond 64 bits", `{"n":1e` + strings.Repeat("9", 5000) + `}`, RuleExponent, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Canonicalize([]byte(tt.input), rules)
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			if refused.Rule != tt.rule || refused.Pointer != tt.pointer {
				t.Errorf("got %q at %q, want %q at %q", refused.Rule, refused.Pointer, tt.rule, tt.pointer)
			}
			if refused.Offset > int64(len(tt.input)) {
				t.Errorf("offset %d in %d bytes", refused.Offset, len(tt.input))
			}
		})
	}
}

func TestAcceptedAtTheBounds(t *testing.T) {
	for name, input := range map[string]string{
		"size":            `{"a":"` + strings.Repeat("x", MaxSize-8) + `"}`,
		"64 arrays":       `{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + "}",
		"64 objects":      strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64),
		"100 digits":      `{"n":` + strings.Repeat("7", 100) + `}`,
		"exponent":        `{"n":[1e400,1e-400,1E+0400,-9.99e-400]}`,
		"surrogate pair":  `{"a":"\ud83d\ude00"}`,
		"replacement":     `{"a":"\ufffd"}`,
		"mark in a value": `{"a":"\ufeff"}`,
		"empty name":      `{"":1}`,
		"whitespace":      "\r\n\t {} \r\n\t",
	} {
		t.Run(name, func(t *testing.T) { mustCanonicalize(t, input, Rules{}) })
	}
}

func TestErrorsShowNothingOfTheRequest(t *testing.T) {
	const canary = "canary-9b1d"
	rules := mustRules(t, map[string]Field{"amount": {Category: "amount"}})
	for _, input := range []string{
		`{"` + canary + `":1,"` + canary + `":2}`,
		`{"amount":{"` + canary + `":1,"` + canary + `":2}}`,
		`{"` + canary + `":"\ud800"}`,
		`{"` + canary + `":{"` + canary + `":` + canary + `}}`,
		`{"amount":"` + canary + `" "` + canary + `"}`,
		`{"` + canary + `":1e999}`,
		`{"a":1}` + canary,
		`"` + canary + `"`,
		canary,
	} {
		_, err := Canonicalize([]byte(input), rules)
		if err == nil {
			t.Errorf("%s was accepted", input)
			continue
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", input, err)
		}
	}
}

func TestInputIsLeftAlone(t *testing.T) {
	input := []byte(`{"b":"\u0041","a":[1.0,{"y":1,"x":2}]}`)
	before := string(input)
	text, err := Text(input, Rules{})
	if err != nil || string(input) != before {
		t.Fatalf("input became %q, error %v", input, err)
	}
	clear(input)
	if got := string(text); got != `{"a":[1,{"x":2,"y":1}],"b":"A"}` {
		t.Errorf("the canonical form shares the input: %q", got)
	}
}

// Two members of one name are refused wherever they stand, however they are spelled, whatever rules say of them, and before what else is wrong.
func TestMembersOfOneNameAreRefused(t *testing.T) {
	rules := mustRules(t, map[string]Field{"n": {Type: TypeDecimal}, "d": {Default: "1"}, "m": {Type: TypeMoney}, "s": {Type: TypeSet}}, "trace", "/o/trace")
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, `"%03d":0,`, (i*37)%100)
	}
	for _, input := range []string{
		`{"a":1,"a":1}`, `{"b":1,"a":1,"b":2}`, `{"a":1,"\u0061":2}`, `{"":1,"":2}`, `{"a":{"b":[{"c":1,"c":2}]}}`,
		`{"trace":1,"trace":2}`, `{"trace":1,"a":2,"tr\u0061ce":2}`, `{"o":{"trace":1,"trace":2}}`, `{"trace":{"x":1,"x":2}}`,
		`{"d":1,"d":1}`, `{"n":"x","a":1,"a":2}`, `{"a":1,"a":2,"n":"x"}`, `{"m":{"amount":1,"currency":"EUR","amount":1}}`,
		`{"s":[{"a":1,"a":2}]}`, `{` + many.String() + `"a":0,"042":0}`, `{"\ud83d\ude00":1,"😀":2}`,
	} {
		_, err := Canonicalize([]byte(input), rules)
		var refused *Error
		if !errors.As(err, &refused) || refused.Rule != RuleDuplicate {
			t.Errorf("%s: %v", input, err)
		}
		if _, err := CanonicalizeObserved([]byte(input), rules); !errors.As(err, &refused) || refused.Rule != RuleDuplicate {
			t.Errorf("%s, observed: %v", input, err)
		}
	}
	// Names of one object are no matter to another one.
	mustCanonicalize(t, `{"trace":1,"o":{"trace":{"trace":1}},"a":[{"trace":1},{"trace":2}]}`, rules)
}
