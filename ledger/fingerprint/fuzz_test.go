// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// FuzzCanonicalize: whatever comes in, the answer is a typed refusal or a
// canonical text that is JSON, accepted again, and its own canonical text.
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
		`{"amount":[-0.00,1e400,1e-400,1E+21,123456789e-15,0.0000001]}`, `{"a":1e99999999999}`,
		strings.Repeat(`{"a":[`, 40) + strings.Repeat(`]}`, 40),
	} {
		f.Add([]byte(seed))
	}
	rules := rulesOf(map[string]string{"amount": "amount"})
	f.Fuzz(func(t *testing.T, input []byte) {
		c, err := Canonicalize(input, rules)
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || refused.Rule == noRule || refused.Offset < offsetUnplaced || refused.Offset > int64(len(input)) {
				t.Fatalf("error %#v", err)
			}
			if refused.Pointer != "" && refused.Pointer != "/amount" {
				t.Fatal("the pointer names a field that is not declared")
			}
			return
		}
		text := c.Text()
		if !json.Valid(input) || !json.Valid(text) {
			t.Fatalf("not JSON: %q became %q", input, text)
		}
		if len(text) > MaxSize {
			return // exponents spelled out
		}
		again, err := Canonicalize(text, rules)
		if err != nil {
			t.Fatalf("%q is refused: %v", text, err)
		}
		if string(again.Text()) != string(text) {
			t.Fatalf("%q became %q", text, again.Text())
		}
	})
}
