// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestPaths(t *testing.T) {
	for text, want := range map[string]string{
		"amount": "/amount", "/amount": "/amount", "/a/b": "/a/b", "/lines/*/sku": "/lines/*/sku", "a~1b~0c": "/a~1b~0c", "/a~1b/~0": "/a~1b/~0",
		"e-mail to": "/e-mail to", "über": "/über", "/": "/", "/a/": "/a/", "~01": "/~01", "/0/*/*": "/0/*/*",
		"": "", "a/b": "", "/*": "", "*": "", "a~b": "", "~": "", "/a~2": "", strings.Repeat("/a", MaxDepth+1): "",
	} {
		got, ok := Pointer(text)
		if got != want || ok != (want != "") {
			t.Errorf("%q became %q, %v; want %q", text, got, ok, want)
		}
	}
	if p, ok := parsePath(strings.Repeat("/a", MaxDepth)); !ok || len(p) != MaxDepth {
		t.Error("the deepest path is refused")
	}
	if p, _ := parsePath("/a~1b~01"); !slices.Equal(p, path{"a/b~1"}) {
		t.Errorf("read as %q", p)
	}
}

func TestDeclarationsThatContradict(t *testing.T) {
	type fields = map[string]Field
	decimal := Field{Type: TypeDecimal}
	tests := []struct {
		name    string
		fields  fields
		ignored []string
		want    string // of the only fault
	}{
		{"no path", fields{"": decimal}, nil, `field "": must be the name of a member`},
		{"a path without its first slash", fields{"a/b": decimal}, nil, `field "a/b": must be the name of a member`},
		{"ignored without its first slash", nil, []string{"a/b"}, `ignored path "a/b": must be the name of a member`},
		{"two spellings of one path", fields{"a": decimal, "/a": {}}, nil, `field "a": is declared twice`},
		{"declared and ignored", fields{"a": decimal}, []string{"/a"}, `ignored path "/a": is declared as a field, too`},
		{"ignored twice", nil, []string{"a", "/a"}, `ignored path "/a": is ignored twice`},
		{"below what is ignored", fields{"/a/b": decimal}, []string{"a"}, `field "/a/b": lies inside of a path that is ignored`},
		{"ignored below what is ignored", nil, []string{"a", "/a/b/c"}, `ignored path "/a/b/c": lies inside of a path that is ignored`},
		{"every element ignored", nil, []string{"/a/*"}, `ignored path "/a/*": would leave an array of nothing`},
		{"an unknown type", fields{"a": {Type: "number"}}, nil, `field "a": type: must be one of [decimal money timestamp uuid set text]`},
		{"a set for each element", fields{"/a/*": {Type: TypeSet}}, nil, `field "/a/*": type: must not be set for each element`},
		{"below one value", fields{"a": decimal, "/a/b": {}}, nil, `field "/a/b": lies inside of a field of type decimal`},
		{"below money", fields{"a": {Type: TypeMoney}, "/a/amount": {Category: "x"}}, nil, `field "/a/amount": lies inside of a field of type money`},
		{"ignored below one value", fields{"a": {Type: TypeText}}, []string{"/a/b"}, `ignored path "/a/b": lies inside of a field of type text`},
		{"a name in a set", fields{"a": {Type: TypeSet}, "/a/b": {}}, nil, `field "/a/b": lies inside of a set, whose elements are declared by /*`},
		{"a category in a set", fields{"a": {Type: TypeSet}, "/a/*/b": {Category: "x"}}, nil, `field "/a/*/b": category: must not be given inside of a set`},
		{"a category that is reserved", fields{"a": {Category: "relation"}}, nil, `field "a": category: must not be relation`},
		{"a category in capitals", fields{"a": {Category: "Amount"}}, nil, `field "a": category: must be 1 to 32 of a to z`},
		{"a long category", fields{"a": {Category: strings.Repeat("a", 33)}}, nil, `field "a": category: must be 1 to 32 of a to z`},
		{"a currency of no money", fields{"a": {Type: TypeDecimal, Currency: "b"}}, nil, `field "a": currency: must not be given for what is no money`},
		{"a currency that is no path", fields{"a": {Type: TypeMoney, Currency: "b/c"}}, nil, `field "a": currency: must be the name of a member`},
		{"money that is its own currency", fields{"a": {Type: TypeMoney, Currency: "/a"}}, nil, `field "a": currency: must be another field`},
		{"a currency inside of the money", fields{"a": {Type: TypeMoney, Currency: "/a/currency"}}, nil, `field "a": currency: must be another field`},
		{"a currency around the money", fields{"/a/b": {Type: TypeMoney, Currency: "a"}}, nil, `field "/a/b": currency: must be another field`},
		{"currencies for one money", fields{"a": {Type: TypeMoney, Currency: "/c/*"}}, nil, `field "a": currency: must be one field for each money`},
		{"currencies of other lines", fields{"/l/*/a": {Type: TypeMoney, Currency: "/m/*/c"}}, nil, `field "/l/*/a": currency: must be one field for each money`},
		{"a currency beside the elements", fields{"/l/*/a": {Type: TypeMoney, Currency: "/l/c"}}, nil, `field "/l/*/a": currency: must be one field for each money`},
		{"an ignored currency", fields{"a": {Type: TypeMoney, Currency: "c"}}, []string{"c"}, `field "a": currency: must not lie in a path that is ignored`},
		{"a currency in what is ignored", fields{"a": {Type: TypeMoney, Currency: "/o/c"}}, []string{"o"}, `field "a": currency: must not lie in a path that is ignored`},
		{"a currency that is a decimal", fields{"a": {Type: TypeMoney, Currency: "c"}, "c": decimal}, nil, `field "a": currency: must be a field without a type`},
		{"a currency in money", fields{"a": {Type: TypeMoney, Currency: "/m/currency"}, "m": {Type: TypeMoney}}, nil, `field "a": currency: must be a field without a type`},
		{"a currency in a set", fields{"a": {Type: TypeMoney, Currency: "/s/c"}, "s": {Type: TypeSet}}, nil, `field "a": currency: must be a field without a type`},
		{"a default that is no currency", fields{"a": {Type: TypeMoney, Currency: "c"}, "c": {Default: `"eur"`}}, nil, `field "c": default: must be a currency of ISO 4217`},
		{"a default around the currency", fields{"a": {Type: TypeMoney, Currency: "/o/c"}, "o": {Default: `{}`}}, nil, `field "o": default: must not be given around the currency`},
		{"a default for elements", fields{"/a/*": {Default: "1"}}, nil, `field "/a/*": default: must not be given for elements`},
		{"a default in a default", fields{"a": {Default: "{}"}, "/a/b": {Default: "1"}}, nil, `field "/a/b": lies inside of a field that has a default`},
		{"something in a default that is not empty", fields{"a": {Default: `{"b":1}`}, "/a/b": decimal}, nil, `field "/a/b": lies inside of a field that has a default`},
		{"a default of another type", fields{"a": {Type: TypeDecimal, Default: `"x"`}}, nil, `field "a": default: must be of the field's type: it must be a number`},
		{"a default with repeats", fields{"a": {Type: TypeSet, Default: "[1,1.0]"}}, nil, `field "a": default: must be of the field's type: it must not have an element twice`},
		{"money by default without a currency", fields{"a": {Type: TypeMoney, Default: "1"}}, nil, `field "a": default: must be of the field's type: it must be an object with an amount`},
		{"money by default with too many places", fields{"a": {Type: TypeMoney, Default: `{"amount":0.5,"currency":"JPY"}`}}, nil, `field "a": default: must be of the field's type: it must not have more`},
		{"a default that is no JSON", fields{"a": {Default: "normal"}}, nil, `field "a": default: must be one JSON value`},
		{"two defaults", fields{"a": {Default: `1,"b":2`}}, nil, `field "a": default: must be one JSON value`},
		{"a default beyond the numbers", fields{"a": {Default: "1e999"}}, nil, `field "a": default: must keep to the bounds of a request`},
		{"a long default", fields{"a": {Default: `"` + strings.Repeat("x", MaxDefault) + `"`}}, nil, `field "a": default: must have at most 1024 bytes`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewRules(tt.fields, tt.ignored)
			if err == nil {
				t.Fatal("accepted")
			}
			if strings.Count(err.Error(), "\n") != 0 || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %q, want %q", err, tt.want)
			}
			var fault *FieldError
			if !errors.As(err, &fault) {
				t.Errorf("no *FieldError in %v", err)
			}
		})
	}
}

func TestAllFaultsOfRulesAreToldInOrder(t *testing.T) {
	_, err := NewRules(map[string]Field{"b": {Type: "x"}, "a": {Category: "X"}, "c": {Type: TypeSet}}, []string{"a/b", "d", "d"})
	want := []string{`field "a": category`, `field "b": type`, `ignored path "a/b"`, `ignored path "d"`}
	got := strings.Split(fmt.Sprint(err), "\n")
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got %q", got)
	}
	many := map[string]Field{}
	for i := range MaxFields {
		many[fmt.Sprint(i)] = Field{}
	}
	if _, err := NewRules(many, nil); err != nil {
		t.Error(err)
	}
	if _, err := NewRules(many, []string{"one more"}); err == nil {
		t.Error("more than MaxFields are accepted")
	}
}

func TestDeclarationsThatGoTogether(t *testing.T) {
	rules := mustRules(t, map[string]Field{
		"/l/*/price":     {Type: TypeMoney, Currency: "/l/*/c", Category: "amount"},
		"/l/*/fee":       {Type: TypeMoney, Currency: "/meta/currency"},
		"/meta":          {Category: "meta"},
		"/meta/currency": {Type: TypeText, Default: ` "EUR" `, Category: CategoryOther},
		"s":              {Type: TypeSet, Default: "[]"}, "/s/*/ids": {Type: TypeSet}, "/s/*/ids/*": {Type: TypeUUID},
		"/x/0": {Type: TypeUUID}, "/x/*": {Type: TypeDecimal}, // it may be an object, or an array
		"o": {Default: "null"}, "/o/at": {Type: TypeTimestamp},
	}, "/meta/trace")
	got := mustText(t, `{"l":[{"price":"1.50","c":"USD","fee":1}],"x":["1.0"],"s":[{"ids":["7B1F0C9E-2F63-4A6C-9B8E-51D0C2A4E7AA"]}],"meta":{"trace":1}}`, rules)
	want := `{"l":[{"c":"USD","fee":1,"price":1.5}],"meta":{"currency":"EUR"},"o":null,"s":[{"ids":["7b1f0c9e-2f63-4a6c-9b8e-51d0c2a4e7aa"]}],"x":[1]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The page is what others implement: it has the table that we use.
func TestTheDocumentationHasTheCurrencies(t *testing.T) {
	data, err := os.ReadFile("../../docs/fingerprint.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(data)), " ")
	if !strings.Contains(words, "published it on "+currenciesPublished) {
		t.Error("the page names another date")
	}
	for digits, codes := range currenciesByDigits {
		if codes != "" && !strings.Contains(words, fmt.Sprintf("* %d digits: %s ", digits, codes)) {
			t.Errorf("the page lacks the codes with %d digits, in their order", digits)
		}
	}
	for code, want := range map[string]int{"JPY": 0, "USD": 2, "EUR": 2, "KWD": 3, "CLF": 4} {
		if got, ok := minorUnits[code]; got != want || !ok {
			t.Errorf("%s has %d digits, %v", code, got, ok)
		}
	}
	for _, code := range []string{"XXX", "XAU", "XDR", "XTS", "BGN", "usd", "", "US"} {
		if _, ok := minorUnits[code]; ok {
			t.Errorf("%s is a currency", code)
		}
	}
	if n := len(minorUnits); n != 165 {
		t.Errorf("%d codes", n)
	}
}
