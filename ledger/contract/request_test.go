// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// requestPart is a contract with a request part, whose first line is the fifth.
func requestPart(body, want string, form bool) badContract {
	return badContract{"effect: unsafe\nrequest:\n  " + strings.ReplaceAll(body, "\n", "\n  "), want, form}
}

func requestFile(body string) string { return requestPart(body, "", false).file() }

func TestWhatFieldsOfRequestsMeanReachesTheContract(t *testing.T) {
	set := parsed(t, requestFile(`fields:
  amount:         {type: money, currency: currency, category: amount}
  currency:       {category: amount, default: EUR}
  /order/at:      {type: timestamp, default: 2026-03-01T10:00:00+01:00}
  "e-mail to":    {category: recipient}
  über:           {type: text}
  /lines/*/price: {type: decimal, default: 0.50}
  tags:           {type: set, default: [b, "1", 1, 1e2, true, ~, {y: [], x: null}]}
  id:             {type: uuid}
  note:           {default: "null"}
  gone:           {default: null}
ignore: [trace_id, "/sdk/createdAt"]`))
	c, _ := set.Contract("t")
	want := map[string]ledger.RequestField{
		"amount":         {Type: "money", Currency: "currency", Category: "amount"},
		"currency":       {Category: "amount", Default: `"EUR"`},
		"/order/at":      {Type: "timestamp", Default: `"2026-03-01T10:00:00+01:00"`},
		"e-mail to":      {Category: "recipient"},
		"über":           {Type: "text"},
		"/lines/*/price": {Type: "decimal", Default: "0.5"},
		"tags":           {Type: "set", Default: `["b","1",1,100,true,null,{"x":null,"y":[]}]`},
		"id":             {Type: "uuid"},
		"note":           {Default: `"null"`},
		"gone":           {Default: "null"},
	}
	if diff := cmp.Diff(want, c.Fields); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/sdk/createdAt", "trace_id"}, c.Ignored); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"amount", "recipient"}, c.Categories()); diff != "" {
		t.Error(diff)
	}
	rules, err := fingerprint.RulesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fingerprint.Text([]byte(`{"amount":"1.50","trace_id":7,"lines":[{}],"order":{}}`), rules)
	if want := `{"amount":1.5,"currency":"EUR","gone":null,"lines":[{"price":0.5}],"note":"null","order":{"at":"2026-03-01T09:00:00Z"},` +
		`"tags":["1","b",1,100,null,true,{"x":null,"y":[]}]}`; err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

// badRequestParts are refused like the other bad contracts; their bodies begin at line 5.
var badRequestParts = map[string]badContract{
	"request: unknown key":                  requestPart("field: {}", "5: t: unknown key field in request; write one of fields, ignore", true),
	"request: fields that are a list":       requestPart("fields: [amount]", "5: t: request.fields must be a mapping of fields to what they are; write fields: {amount: {category: amount}}", true),
	"request: no fields":                    requestPart("fields: {}", "5: t: request.fields must be a mapping of fields", true),
	"request: a field that is a text":       requestPart("fields:\n  a: decimal", `6: t: request.fields."a" must be a mapping with type, currency, category, default`, true),
	"request: a field that says nothing":    requestPart("fields:\n  a: {}", `6: t: request.fields."a" must be a mapping with type, currency, category, default`, true),
	"request: a number for a name":          requestPart("fields:\n  1: {category: x}", "6: t: request.fields must be named by texts of at most 128 bytes; put the name in quotes", true),
	"request: field twice":                  requestPart("fields:\n  a: {category: x}\n  a: {category: y}", "7: t: request.fields has a field twice; keep one of the two", true),
	"request: field twice, spelled anew":    requestPart("fields:\n  /a: {category: x}\n  a: {category: y}", "7: t: request.fields has a field twice; keep one of the two", false),
	"request: unknown key of a field":       requestPart("fields:\n  a: {typ: decimal}", `6: t: unknown key typ in request.fields."a"; write one of type, currency, category, default`, true),
	"request: unknown type":                 requestPart("fields:\n  a:\n    category: x\n    type: number", `8: t: request.fields."a".type must be one of decimal, money, timestamp, uuid, set, text`, true),
	"request: category is reserved":         requestPart("fields:\n  a: {category: relation}", `6: t: request.fields."a".category must not be relation`, true),
	"request: category of the rest":         requestPart("fields:\n  a: {category: other}", `6: t: request.fields."a".category must not be other, which is for fields without a category`, true),
	"request: category in capitals":         requestPart("fields:\n  a: {category: Amount}", `6: t: request.fields."a".category must be 1 to 32 of a to z`, true),
	"request: category that is a number":    requestPart("fields:\n  a: {category: 1}", `6: t: request.fields."a".category must be a text of at most 128 bytes; put it in quotes, or remove it`, true),
	"request: a path without its slash":     requestPart("fields:\n  a/b: {category: x}", `6: t: request.fields."a/b" must be the name of a member of the request, or a JSON pointer (RFC 6901)`, true),
	"request: a set for each element":       requestPart("fields:\n  /a/*:\n    type: set", `7: t: request.fields."/a/*".type must not be set for each element; write type: set at the path of the array, without the last /*`, false),
	"request: a currency of no money":       requestPart("fields:\n  a:\n    type: decimal\n    currency: c", `8: t: request.fields."a".currency must not be given for what is no money`, false),
	"request: a currency to nowhere":        requestPart("fields:\n  /l/*/a:\n    type: money\n    currency: /m/*/c", `8: t: request.fields."/l/*/a".currency must be one field for each money`, false),
	"request: an ignored currency":          requestPart("fields:\n  a:\n    type: money\n    currency: c\nignore: [c]", `8: t: request.fields."a".currency must not lie in a path that is ignored; ignore less`, false),
	"request: money without a currency":     requestPart("fields:\n  a:\n    type: money\n    default: 5", `8: t: request.fields."a".default must be of the field's type: it must be an object with an amount`, false),
	"request: a default of another type":    requestPart("fields:\n  a:\n    type: timestamp\n    default: 2026-03-01", `8: t: request.fields."a".default must be of the field's type: it must be a time as RFC 3339 writes it`, false),
	"request: a default in hexadecimal":     requestPart("fields:\n  a:\n    default: 0x10", `7: t: request.fields."a".default must be a value that JSON can write`, false),
	"request: a default that is no number":  requestPart("fields:\n  a: {default: .nan}", `6: t: request.fields."a".default must be a value that JSON can write`, false),
	"request: a default with a number key":  requestPart("fields:\n  a: {default: {1: x}}", `6: t: request.fields."a".default must be a value that JSON can write`, false),
	"request: a default with a name twice":  requestPart("fields:\n  a: {default: {x: 1, \"x\": 2}}", `6: t: request.fields."a".default must be a value that JSON can write`, true),
	"request: a long default":               requestPart("fields:\n  a: {default: "+strings.Repeat("x", 1025)+"}", `6: t: request.fields."a".default must have at most 1024 bytes`, false),
	"request: inside of what is ignored":    requestPart("fields:\n  /sdk/a/b: {category: x}\nignore: [sdk]", `6: t: request.fields."/sdk/a/b" lies inside of a path that is ignored; remove it, or ignore less`, false),
	"request: inside of one value":          requestPart("fields:\n  a: {type: money}\n  /a/amount: {category: x}", `7: t: request.fields."/a/amount" lies inside of a field of type money, which is one value`, false),
	"request: a category inside of a set":   requestPart("fields:\n  a: {type: set}\n  /a/*/b:\n    category: x", `8: t: request.fields."/a/*/b".category must not be given inside of a set`, false),
	"request: a list that is a text":        requestPart("ignore: trace_id", "5: t: request.ignore must be a list of at least one field; write for example [trace_id]", true),
	"request: an ignored number":            requestPart("ignore: [1]", "5: t: each entry of request.ignore must be a text of at most 128 bytes, the name or path of a field; put it in quotes", true),
	"request: ignored twice":                requestPart("ignore:\n  - a\n  - /a", "7: t: request.ignore has an entry twice; keep one of the two", false),
	"request: ignored and declared":         requestPart("fields: {a: {category: x}}\nignore: [a]", "6: t: entry 1 of request.ignore is declared as a field, too; keep one of the two", false),
	"request: every element ignored":        requestPart("ignore: [/a/*]", "5: t: entry 1 of request.ignore would leave an array of nothing; ignore the array, without the last /*", false),
	"request: an ignored path that is none": requestPart("ignore: [\"a/b\"]", "5: t: entry 1 of request.ignore must be the name of a member of the request, or a JSON pointer", true),
	"request: an empty list":                requestPart("ignore: []", "5: t: request.ignore must be a list of at least one field", true),
	"request: an empty default":             requestPart("fields:\n  a: {default: }", `6: t: request.fields."a".default is empty; write a value, or remove the key`, false),
	"request: a long name":                  requestPart("fields:\n  "+strings.Repeat("x", 129)+": {category: x}", "6: t: request.fields must be named by texts of at most 128 bytes", true),
}

func init() { maps.Copy(badContracts, badRequestParts) }

func TestFaultsOfTheRequestPartShowNoValue(t *testing.T) {
	const canary = "canary4711"
	for _, field := range []string{
		"{type: " + canary + "}", "{category: " + canary + "X}", "{type: money, currency: /l/*/" + canary + "}", "{type: decimal, default: " + canary + "}",
		"{type: set, default: [" + canary + ", " + canary + "]}", "{type: money, currency: c, default: [" + canary + "]}",
		"{type: money, default: {amount: 1, currency: " + canary + "}}",
	} {
		_, err := Parse("c.yaml", []byte(requestFile("fields: {a: "+field+"}")))
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestTooManyFieldsAreRefused(t *testing.T) {
	body := "ignore: [x"
	for i := range fingerprint.MaxFields {
		body += fmt.Sprint(", y", i)
	}
	_, err := Parse("c.yaml", []byte(requestFile(body+"]")))
	if err == nil || !strings.HasPrefix(err.Error(), "c.yaml:5: t: request: more than 256 fields are declared or ignored") {
		t.Error(err)
	}
}

func TestSpellingsOfTheRequestPartAreOneVersion(t *testing.T) {
	version := func(body string) string {
		t.Helper()
		c, _ := parsed(t, requestFile(body)).Contract("t")
		return c.Version
	}
	base := version("fields: {amount: {type: money, currency: currency, category: amount}, /a~1b/c: {default: 1.50}}\nignore: [x, y]")
	same := version("ignore:\n  - /y\n  - x\nfields:\n  /a~1b/c: {\"default\": 15e-1}\n  /amount: {category: \"amount\", currency: /currency, type: 'money'}")
	if base != same {
		t.Errorf("the same declaration has the versions %s and %s", base, same)
	}
	seen := map[string]string{base: "base"}
	for name, body := range map[string]string{
		"another type":     "fields: {amount: {type: decimal, category: amount}, /a~1b/c: {default: 1.50}}\nignore: [x, y]",
		"another currency": "fields: {amount: {type: money, currency: cur, category: amount}, /a~1b/c: {default: 1.50}}\nignore: [x, y]",
		"no currency":      "fields: {amount: {type: money, category: amount}, /a~1b/c: {default: 1.50}}\nignore: [x, y]",
		"another category": "fields: {amount: {type: money, currency: currency, category: price}, /a~1b/c: {default: 1.50}}\nignore: [x, y]",
		"another default":  "fields: {amount: {type: money, currency: currency, category: amount}, /a~1b/c: {default: \"1.50\"}}\nignore: [x, y]",
		"another path":     "fields: {amount: {type: money, currency: currency, category: amount}, /a/b/c: {default: 1.50}}\nignore: [x, y]",
		"less ignored":     "fields: {amount: {type: money, currency: currency, category: amount}, /a~1b/c: {default: 1.50}}\nignore: [x]",
		"nothing ignored":  "fields: {amount: {type: money, currency: currency, category: amount}, /a~1b/c: {default: 1.50}}",
	} {
		v := version(body)
		if other, ok := seen[v]; ok {
			t.Errorf("%s has the version of %s", name, other)
		}
		seen[v] = name
	}
}
