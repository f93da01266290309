// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// strictRules have something of every type.
func strictRules(t testing.TB) Rules {
	return mustRules(t, map[string]Field{
		"amount":            {Type: TypeMoney, Currency: "/meta/currency", Category: "amount"},
		"/order/at":         {Type: TypeTimestamp, Category: "order"},
		"/lines/*/price":    {Type: TypeMoney, Currency: "/lines/*/currency", Category: "amount"},
		"/lines/*/ids/*":    {Type: TypeUUID},
		"/lines/*/total":    {Type: TypeMoney},
		"/grid/*/*":         {Type: TypeDecimal},
		"/a~1b/c~0d/*/note": {Type: TypeText},
		"tags":              {Type: TypeSet},
		"/tags/*/n":         {Type: TypeDecimal},
		"/deep/a/b":         {Type: TypeMoney, Currency: "/deep/a/c", Default: "1.5"},
	}, "trace")
}

func TestMisfitsNameTheField(t *testing.T) {
	tests := []struct {
		name, request, pointer string
		rule                   Rule
	}{
		{"a field", `{"meta":{"currency":"EUR"},"amount":"1,0"}`, "/amount", RuleDecimal},
		{"a nested field", `{"x":1,"order":{"y":2,"at":"tomorrow"}}`, "/order/at", RuleTimestamp},
		{"an element's field", `{"lines":[{},{"currency":"EUR","price":1},{"price":"x"}]}`, "/lines/2/price", RuleDecimal},
		{"an element of an element", `{"lines":[{"ids":[]},{"ids":["7b1f0c9e-2f63-4a6c-9b8e-51d0c2a4e7aa",null,"x"]}]}`, "/lines/1/ids/2", RuleUUID},
		{"a number in a grid", `{"grid":[[1,2],[3,"4"],[5,"six"]]}`, "/grid/2/1", RuleDecimal},
		{"a name with escapes", `{"a/b":{"c~d":[{},{"note":1}]}}`, "/a~1b/c~0d/1/note", RuleText},
		{"a name that is escaped in the request", `{"\u0061/b":{"c~d":[{"note":[]}]}}`, "/a~1b/c~0d/0/note", RuleText},
		{"an object for a number", `{"amount":{"amount":1,"currency":"EUR"}}`, "/amount", RuleDecimal},
		{"a currency that is missing", `{"amount":1}`, "/amount", RuleNoCurrency},
		{"a currency that is null", `{"amount":1,"meta":{"currency":null}}`, "/amount", RuleNoCurrency},
		{"a currency that is none", `{"amount":1,"meta":{"currency":"eur"}}`, "/meta/currency", RuleCurrency},
		{"a currency that is a number", `{"amount":1,"meta":{"currency":978}}`, "/meta/currency", RuleCurrency},
		{"a currency that is an object", `{"amount":1,"meta":{"currency":{}}}`, "/meta/currency", RuleCurrency},
		{"a line's currency", `{"lines":[{"price":1,"currency":"EUR"},{"price":1,"currency":"XXX"}]}`, "/lines/1/currency", RuleCurrency},
		{"a line's places", `{"lines":[{"currency":"JPY","price":1},{"currency":"JPY","price":"0.1"}]}`, "/lines/1/price", RuleMinorUnits},
		{"places in an exponent", `{"lines":[{"currency":"KWD","price":1e-3},{"currency":"KWD","price":"1e-4"}]}`, "/lines/1/price", RuleMinorUnits},
		{"an object of money that has more", `{"lines":[{"total":{"amount":1,"currency":"EUR","canary":1}}]}`, "/lines/0/total", RuleMoney},
		{"an object of money without an amount", `{"lines":[{"total":{"currency":"EUR","canary":1}}]}`, "/lines/0/total", RuleMoney},
		{"an amount in money", `{"lines":[{"total":{"amount":"x","currency":"EUR"}}]}`, "/lines/0/total/amount", RuleDecimal},
		{"a currency in money", `{"lines":[{"total":{"amount":1,"currency":"euro"}}]}`, "/lines/0/total/currency", RuleCurrency},
		{"places in money", `{"lines":[{"total":{"amount":0.5,"currency":"JPY"}}]}`, "/lines/0/total/amount", RuleMinorUnits},
		{"a repeated element", `{"tags":[1,{"n":"2.0"},"x",{"n":2},{"n":2.00}]}`, "/tags/3", RuleRepeat},
		{"a default that its currency does not bear", `{"deep":{"a":{"c":"JPY"}}}`, "/deep/a/b", RuleMinorUnits},
		{"a default without a currency, in an object", `{"deep":{"a":{}}}`, "/deep/a/b", RuleNoCurrency},
		{"a default without a currency, in an object that is made", `{"deep":{}}`, "/deep/a/b", RuleNoCurrency},
		{"a number beyond the bounds", `{"grid":[[1,1e401]]}`, "/grid/0/1", RuleExponent},
		{"too deep", `{"tags":[1,` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `]}`, "/tags/1", RuleDepth},
		{"a duplicate in an element", `{"lines":[{},{"canary":1,"canary":2}]}`, "/lines/1", RuleDuplicate},
		{"a duplicate field of an element", `{"lines":[{"price":1,"price":2}]}`, "/lines/0/price", RuleDuplicate},
		{"no JSON in an element", `{"lines":[{"ids":[nul]}]}`, "/lines/0/ids/0", RuleSyntax},
		{"a number beyond the bounds in what is ignored", `{"trace":{"canary":1e999}}`, "/trace", RuleExponent},
	}
	rules := strictRules(t)
	deep := mustRules(t, map[string]Field{"/deep/a/b": {Type: TypeMoney, Currency: "/deep/a/c", Default: "1.5"}})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request := tt.request
			rules := rules
			if strings.HasPrefix(tt.name, "a default") {
				rules = deep
			} else if !strings.Contains(request, `"deep"`) {
				request = `{"deep":{"a":{"b":null}},` + strings.TrimPrefix(request, "{")
			}
			_, err := Canonicalize([]byte(request), rules)
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			if refused.Pointer != tt.pointer || refused.Rule != tt.rule {
				t.Errorf("%s at %q, want %s at %q", refused.Rule, refused.Pointer, tt.rule, tt.pointer)
			}
			if refused.Offset > int64(len(request)) {
				t.Errorf("offset %d of %d", refused.Offset, len(request))
			}
			if !strings.Contains(err.Error(), "in "+tt.pointer) {
				t.Errorf("%v does not name the field", err)
			}
		})
	}
}

// Whatever a caller puts where a type is declared, and whatever it calls what is
// not: none of it is in the error.
func TestMisfitsShowNothingOfTheRequest(t *testing.T) {
	const canary = "canary9b1d"
	rules := strictRules(t)
	values := []string{`"` + canary + `"`, `{"` + canary + `":1}`, `["` + canary + `"]`, `{"amount":"` + canary + `","currency":"EUR"}`, `{"amount":1,"currency":"` + canary + `"}`}
	refusals := 0
	for _, v := range values {
		for _, request := range []string{
			`{"amount":` + v + `}`, `{"amount":1,"meta":{"` + canary + `":1,"currency":` + v + `}}`, `{"order":{"` + canary + `":1,"at":` + v + `}}`,
			`{"lines":[{"` + canary + `":1,"price":` + v + `}]}`, `{"lines":[{"ids":[` + v + `]}]}`, `{"lines":[{"total":` + v + `}]}`, `{"grid":[[` + v + `]]}`,
			`{"tags":[` + v + `,` + v + `]}`, `{"tags":{"` + canary + `":` + v + `}}`, `{"a/b":{"c~d":[{"note":[` + v + `]}]}}`, `{"` + canary + `":{"price":1e999,"x":` + v + `}}`,
			`{"lines":{"` + canary + `":{"price":` + v + `}},"lines":1}`,
		} {
			_, err := Canonicalize([]byte(request), rules)
			if err == nil {
				t.Errorf("%s was accepted", request)
				continue
			}
			refusals++
			if strings.Contains(err.Error(), canary) {
				t.Errorf("%s: %v", request, err)
			}
		}
	}
	if refusals == 0 {
		t.Error("nothing was refused")
	}
}

func TestDefaultsAreBounded(t *testing.T) {
	value := strings.Repeat("x", MaxDefault-2)
	rules := mustRules(t, map[string]Field{"/l/*/d": {Default: `"` + value + `"`}})
	member := len(`"d":""`) + len(value)
	request := func(n int) []byte { return []byte(`{"l":[{}` + strings.Repeat(",{}", n-1) + `]}`) }
	most := MaxSize / member
	if _, err := Canonicalize(request(most), rules); err != nil {
		t.Error(err)
	}
	var refused *Error
	if _, err := Canonicalize(request(most+1), rules); !errors.As(err, &refused) || refused.Rule != RuleDefaults || refused.Pointer != "/l/"+strconv.Itoa(most) {
		t.Errorf("one more: %v", err)
	}
	// What is there needs no default, and an observation gets none.
	if _, err := Canonicalize([]byte(`{"l":[`+strings.TrimSuffix(strings.Repeat(`{"d":1},`, 4*most), ",")+`]}`), rules); err != nil {
		t.Error(err)
	}
	if _, err := CanonicalizeObserved(request(most+1), rules); err != nil {
		t.Error(err)
	}
}
