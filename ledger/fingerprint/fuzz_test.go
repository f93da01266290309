// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzCanonicalize: whatever comes in, the answer is a typed refusal, or a canonical text that is JSON, not much longer, its own canonical
// text, and that of the request with its members in another order, but not
// with another value somewhere.
func FuzzCanonicalize(f *testing.F) {
	for _, v := range readLines[vector](f, "testdata/vectors.jsonl") {
		f.Add([]byte(v.Request))
	}
	for _, p := range append(readLines[pair](f, "testdata/equal.jsonl"), readLines[pair](f, "testdata/different.jsonl")...) {
		f.Add([]byte(p.A))
		f.Add([]byte(p.B))
	}
	for _, seed := range []string{
		"", "{", "[]", "\ufeff{}", `{"a":1}{}`, `{"a":"\ud800"}`, "{\"\xff\":1}", `{"a":1,"\u0061":2}`,
		`{"amount":[-0.00,1e400,1e-400,1E+21,123456789e-15,0.0000001]}`, `{"a":1e99999999999}`, " {\t\"a\" :\r[ 1 ,\n2 ] , \"b\":{ } } ",
		strings.Repeat(`{"a":[`, 40) + strings.Repeat(`]}`, 40),
	} {
		f.Add([]byte(seed))
	}
	rules := mustRules(f, map[string]Field{"amount": {Category: "amount"}})
	f.Fuzz(func(t *testing.T, input []byte) {
		text, err := Text(input, rules)
		if err != nil {
			wantRefusal(t, err, rules, input)
			return
		}
		if !json.Valid(input) || !jsontext.Value(input).IsValid() || !json.Valid(text) {
			t.Fatalf("not JSON: %q became %q", input, text)
		}
		if len(text) > 6*len(input) { // exponents that are spelled out
			t.Fatalf("%d bytes became %d", len(input), len(text))
		}
		sameCanonically(t, string(text), string(text), rules)
		sameCanonically(t, reordered(t, input), string(text), rules)
		if other, ok := changed(t, input); ok {
			if again, err := Text(other, rules); err == nil && string(again) == string(text) {
				t.Fatalf("%q and %q are one request", input, other)
			}
		}
	})
}

// changed is a request with another value in one place, by turns; false if it has none.
func changed(t *testing.T, request []byte) (other []byte, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(request))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		t.Fatal(err)
	}
	left := len(request) % 7
	var change func(v any) any
	change = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				v[name] = change(v[name])
			}
			return v
		case []any:
			for i := range v {
				v[i] = change(v[i])
			}
			return v
		}
		if left--; left >= 0 || ok {
			return v
		}
		ok = true
		switch v := v.(type) {
		case string:
			return v + "x"
		case json.Number:
			return v.String()
		case bool:
			return !v
		default:
			return 0
		}
	}
	other, err := json.Marshal(change(root))
	if err != nil {
		t.Fatal(err)
	}
	return other, ok
}

// FuzzRules does the same under contracts, and compares digests: of another order the same ones, of another request others in some
// category.
func FuzzRules(f *testing.F) {
	for _, v := range readLines[vector](f, "testdata/vectors.jsonl") {
		if v.Contract != nil {
			contract, err := json.Marshal(v.Contract)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(contract, []byte(v.Request))
		}
	}
	secret := testSecret(f, "k1", 0)
	f.Fuzz(func(t *testing.T, contract, input []byte) {
		var c vectorContract
		if json.Unmarshal(contract, &c) != nil {
			return
		}
		fields := map[string]Field{}
		for path, field := range c.Fields {
			fields[path] = Field{Type: field.Type, Currency: field.Currency, Category: field.Category, Default: string(field.Default)}
		}
		rules, err := NewRules(fields, c.Ignore)
		if err != nil {
			return
		}
		canonical, err := Canonicalize(input, rules)
		if err != nil {
			wantRefusal(t, err, rules, input)
			return
		}
		text := mustText(t, string(input), rules)
		if !jsontext.Value(input).IsValid() || !json.Valid([]byte(text)) || len(text) > 6*len(input)+MaxSize {
			t.Fatalf("%q became %q", input, text)
		}
		parts, err := partsOf(input, rules, false)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, part := range parts {
			size += len(part)
		}
		// Each leaf is in one part, behind what is around it; an amount has its currency there.
		if size > (MaxDepth+8)*(len(text)+1) {
			t.Fatalf("%d bytes have parts of %d", len(text), size)
		}
		digest := Digest(canonical, Relations{}, secret)
		again := reordered(t, input)
		sameCanonically(t, again, text, rules)
		if categories := differ(digest, Digest(mustCanonicalize(t, again, rules), Relations{}, secret)); categories != nil {
			t.Fatalf("%q and %q differ in %v", input, again, categories)
		}
		sameCanonically(t, text, text, rules)

		other, err := Canonicalize([]byte(`{"changed by the test":1,`+strings.TrimLeft(string(input), " \t\r\n{")), rules)
		if err != nil {
			return
		}
		if categories := differ(digest, Digest(other, Relations{}, secret)); len(categories) == 0 && !strings.Contains(string(contract), "changed") {
			t.Fatalf("%q with another member differs in nothing", input)
		}
	})
}

// wantRefusal: an error is typed, lies in the input, and points to nothing that is not declared.
func wantRefusal(t *testing.T, err error, rules Rules, input []byte) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || refused.Rule == noRule || refused.Offset < offsetUnplaced || refused.Offset > int64(len(input)) {
		t.Fatalf("error %#v", err)
	}
	if refused.Pointer == "" {
		return
	}
	at := rules.root
	way := path(strings.Split(refused.Pointer[1:], "/"))
	for i, token := range way {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		index := token != "" && strings.Trim(token, "0123456789") == ""
		switch next := at.below(token, false); {
		case next != nil:
			at = next
		case index && at.below(element, true) != nil:
			at = at.each
		case index && at != nil && at.typ == TypeSet && i == len(way)-1:
		default:
			t.Fatalf("the pointer %q names what is not declared", refused.Pointer)
		}
	}
}

// sameCanonically: a text that keeps to the bounds has this canonical text.
func sameCanonically(t *testing.T, request, want string, rules Rules) {
	t.Helper()
	if len(request) > MaxSize {
		return
	}
	if got := mustText(t, request, rules); got != want {
		t.Fatalf("%q became %q, want %q", request, got, want)
	}
}

// reordered writes a request again, with the members of every object in another order, and strings as encoding/json escapes them.
func reordered(t *testing.T, request []byte) string {
	return reorder(t, rand.New(rand.NewPCG(uint64(len(request)), 7)), string(request))
}

func TestReorderedIsAnotherText(t *testing.T) {
	texts := []string{reordered(t, []byte(`{"a":1,"b":{"c":2,"d":3}}`)), reordered(t, []byte(`{"a":1,"b":{"c":2,"d":3}} `)), reordered(t, []byte(`{"a":1,"b":{"c":2,"d":3}}  `))}
	slices.Sort(texts)
	if len(slices.Compact(texts)) < 2 {
		t.Errorf("always %s", texts[0])
	}
}
