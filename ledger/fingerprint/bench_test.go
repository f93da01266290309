// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// shapes build requests of about n bytes that are costly in different ways.
var shapes = []struct {
	name  string
	build func(n int) string
}{
	{"typical", func(n int) string {
		return repeated(n, `{"lines":[`, `{"sku":"A-17","quantity":2,"price":"12.50","note":"left at the \"door\""}`, `]}`)
	}},
	{"small numbers", func(n int) string { return repeated(n, `{"a":[`, `0`, `]}`) }},
	{"exponents", func(n int) string { return repeated(n, `{"a":[`, `1e20`, `]}`) }},
	{"escapes", func(n int) string { return `{"a":"` + strings.Repeat(`\u001f`, (n-8)/6) + `"}` }},
	{"deep", func(n int) string {
		return repeated(n, `{"a":[`, strings.Repeat("[", MaxDepth-2)+strings.Repeat("]", MaxDepth-2), `]}`)
	}},
	{"names with a common prefix", func(n int) string {
		var b strings.Builder
		for i := 0; b.Len() < n-80; i++ {
			fmt.Fprintf(&b, `,"%s%06d":0`, strings.Repeat("p", 50), (i*7919)%1_000_000)
		}
		return "{" + b.String()[1:] + "}"
	}},
}

func repeated(n int, begin, element, end string) string {
	count := (n - len(begin) - len(end) + 1) / (len(element) + 1)
	return begin + strings.Repeat(element+",", count-1) + element + end
}

// BenchmarkCanonicalize shows linear work: MB/s of a shape must not fall with
// the size.
func BenchmarkCanonicalize(b *testing.B) {
	for _, shape := range shapes {
		for _, kib := range []int{4, 64, 256} {
			input := []byte(shape.build(kib << 10))
			b.Run(fmt.Sprintf("%s/%dKiB", shape.name, kib), func(b *testing.B) {
				b.SetBytes(int64(len(input)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Canonicalize(input, Rules{}); err != nil {
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
	for b.Loop() {
		Digest(c, Relations{}, secret)
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
