// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// shape builds requests of about n bytes that are costly in their own way.
type shape struct {
	name  string
	build func(n int) string
	rules Rules
}

func shapes(t testing.TB) []shape {
	return []shape{
		// What a payment's contract declares, and the lines of an order.
		{"payment", func(n int) string {
			return repeated(n, `{"trace_id":"7b1f","amount":"1249.50","currency":"EUR","recipient":"acct-1","due":"2026-03-01T10:00:00+01:00","lines":[`,
				`{"sku":"A-17","quantity":2,"price":"12.50","note":"left at the \"door\""}`, `]}`)
		}, mustRules(t, map[string]Field{
			"amount": {Type: TypeMoney, Currency: "currency", Category: "amount"}, "recipient": {Category: "recipient"},
			"due": {Type: TypeTimestamp}, "priority": {Default: `"normal"`}, "/lines/*/price": {Type: TypeDecimal},
		}, "trace_id", "requested_at")},
		{"undeclared", func(n int) string {
			return repeated(n, `{"lines":[`, `{"sku":"A-17","quantity":2,"price":"12.50","note":"left at the \"door\""}`, `]}`)
		}, Rules{}},
		{"small numbers", func(n int) string { return repeated(n, `{"a":[`, `0`, `]}`) }, Rules{}},
		{"exponents", func(n int) string { return repeated(n, `{"a":[`, `1e20`, `]}`) }, Rules{}},
		{"escapes", func(n int) string { return `{"a":"` + strings.Repeat(`\u001f`, (n-8)/6) + `"}` }, Rules{}},
		{"deep", func(n int) string {
			return repeated(n, `{"a":[`, strings.Repeat("[", MaxDepth-2)+strings.Repeat("]", MaxDepth-2), `]}`)
		}, Rules{}},
		{"unsorted at each depth", func(n int) string {
			const levels = 60
			padding := strings.Repeat("x", (n-levels*14)/levels)
			return strings.Repeat(`{"b":`, levels) + "0" + strings.Repeat(`,"a":"`+padding+`"}`, levels)
		}, Rules{}},
		{"names with a common prefix", func(n int) string {
			var b strings.Builder
			for i := 0; b.Len() < n-80; i++ {
				fmt.Fprintf(&b, `,"%s%06d":0`, strings.Repeat("p", 50), (i*7919)%1_000_000)
			}
			return "{" + b.String()[1:] + "}"
		}, Rules{}},
		{"a set", func(n int) string {
			var b strings.Builder
			for i := 0; b.Len() < n-40; i++ {
				fmt.Fprintf(&b, `,"%06d"`, (i*7919)%1_000_000)
			}
			return `{"a":[` + b.String()[1:] + "]}"
		}, mustRules(t, map[string]Field{"a": {Type: TypeSet}})},
		{"every line in three categories", func(n int) string {
			return repeated(n, `{"lines":[`, `{"sku":"A-17","quantity":2,"price":"12.50","note":"left at the \"door\""}`, `]}`)
		}, mustRules(t, map[string]Field{"/lines/*/price": {Type: TypeDecimal, Category: "amount"}, "/lines/*/sku": {Category: "body"}, "/lines/*/x": {Default: "1"}})},
		{"money in every line", func(n int) string {
			return repeated(n, `{"lines":[`, `{"fee":"0.50","price":1200,"currency":"JPY"}`, `],"currency":"EUR"}`)
		}, mustRules(t, map[string]Field{
			"/lines/*/price": {Type: TypeMoney, Currency: "/lines/*/currency"}, "/lines/*/fee": {Type: TypeMoney, Currency: "currency"},
		})},
	}
}

func repeated(n int, begin, element, end string) string {
	count := (n - len(begin) - len(end) + 1) / (len(element) + 1)
	return begin + strings.Repeat(element+",", count-1) + element + end
}

// BenchmarkCanonicalize shows linear work: MB/s of a shape must not fall with
// the size.
func BenchmarkCanonicalize(b *testing.B) {
	for _, shape := range shapes(b) {
		for _, kib := range []int{2, 32, 256} {
			input := []byte(shape.build(kib << 10))
			b.Run(fmt.Sprintf("%s/%dKiB", shape.name, kib), func(b *testing.B) {
				b.SetBytes(int64(len(input)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Canonicalize(input, shape.rules); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	secret := testSecret(b, "k1", 0)
	c := mustCanonicalize(b, `{"amount":"12.50","currency":"EUR","to":"acct-1"}`, paymentRules)
	b.ReportAllocs()
	for b.Loop() {
		Digest(c, Relations{}, secret)
	}
}

// Rules are made anew for each request, of what a contract declares.
func BenchmarkNewRules(b *testing.B) {
	fields := map[string]Field{
		"amount": {Type: TypeMoney, Currency: "currency", Category: "amount"}, "recipient": {Category: "recipient"},
		"due": {Type: TypeTimestamp}, "priority": {Default: `"normal"`}, "/lines/*/price": {Type: TypeDecimal},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewRules(fields, []string{"trace_id", "requested_at"}); err != nil {
			b.Fatal(err)
		}
	}
}

// A request that is refused for a number must not cost memory by what the
// number claims to be.
func TestHostileNumbersCostLittle(t *testing.T) {
	for name, input := range map[string]string{
		"long significand": `{"a":` + strings.Repeat("7", MaxSize-7) + `}`,
		"long exponent":    `{"a":1e` + strings.Repeat("9", MaxSize-9) + `}`,
		"large exponent":   `{"a":1e999999999}`,
		"long zero":        `{"a":0.` + strings.Repeat("0", MaxSize-10) + `1}`,
	} {
		t.Run(name, func(t *testing.T) {
			const runs = 10
			text := []byte(input)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range runs {
				if _, err := Canonicalize(text, Rules{}); err == nil {
					t.Fatal("accepted")
				}
			}
			runtime.ReadMemStats(&after)
			used := (after.TotalAlloc - before.TotalAlloc) / runs
			if limit := uint64(2*len(text) + 16<<10); used > limit {
				t.Errorf("%d bytes allocated for %d bytes of input", used, len(text))
			}
		})
	}
}
