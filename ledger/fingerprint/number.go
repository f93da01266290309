// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"strconv"
	"strings"
)

const (
	// MaxDigits bounds the significant digits of a number: those of the written
	// significand without leading and trailing zeros.
	MaxDigits = 100
	// MaxExponent bounds, in both directions, the written exponent of a number
	// and the exponent of its value in scientific notation.
	MaxExponent = 400

	// plainDigits is the longest integer part that is written out; leadingZeros
	// the most zeros behind "0." (ECMAScript Number::toString).
	plainDigits  = 21
	leadingZeros = 5
)

// appendNumber appends the canonical form of a number that the tokeniser has
// found to be valid JSON. It looks at each byte a constant number of times and
// copies nothing before the bounds hold, so that neither a long significand nor
// a huge exponent costs memory.
func appendNumber(dst []byte, text string) ([]byte, Rule) {
	text, negative := strings.CutPrefix(text, "-")
	significand, exponentText := text, ""
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		significand, exponentText = text[:i], text[i+1:]
	}
	exponent, ok := boundedExponent(exponentText)
	if !ok {
		return dst, RuleExponent
	}
	integer, fraction, _ := strings.Cut(significand, ".")

	// Of the significant digits find how many stand before the point, counted
	// from the first one; negative: so many zeros stand between.
	var beforePoint int
	integer = strings.TrimLeft(integer, "0")
	fraction = strings.TrimRight(fraction, "0")
	if integer != "" {
		beforePoint = len(integer)
		if fraction == "" {
			integer = strings.TrimRight(integer, "0")
		}
	} else {
		zeros := len(fraction)
		fraction = strings.TrimLeft(fraction, "0")
		beforePoint = len(fraction) - zeros
	}
	k := len(integer) + len(fraction)
	if k == 0 {
		return append(dst, '0'), noRule
	}
	if k > MaxDigits {
		return dst, RuleDigits
	}
	n := beforePoint + exponent
	if n-1 > MaxExponent || n-1 < -MaxExponent {
		return dst, RuleExponent
	}
	var buf [MaxDigits]byte
	digits := append(append(buf[:0], integer...), fraction...)

	if negative {
		dst = append(dst, '-')
	}
	switch {
	case k <= n && n <= plainDigits:
		dst = append(dst, digits...)
		dst = appendZeros(dst, n-k)
	case 0 < n && n <= plainDigits:
		dst = append(dst, digits[:n]...)
		dst = append(dst, '.')
		dst = append(dst, digits[n:]...)
	case -leadingZeros <= n && n <= 0:
		dst = append(dst, '0', '.')
		dst = appendZeros(dst, -n)
		dst = append(dst, digits...)
	default:
		dst = append(dst, digits[0])
		if k > 1 {
			dst = append(dst, '.')
			dst = append(dst, digits[1:]...)
		}
		dst = append(dst, 'e')
		if n-1 >= 0 {
			dst = append(dst, '+')
		}
		dst = strconv.AppendInt(dst, int64(n-1), 10)
	}
	return dst, noRule
}

// boundedExponent reads an exponent of any length; not ok beyond MaxExponent.
// No exponent is 0.
func boundedExponent(text string) (int, bool) {
	text, negative := strings.CutPrefix(text, "-")
	text = strings.TrimLeft(strings.TrimPrefix(text, "+"), "0")
	value := 0
	for _, c := range []byte(text) {
		value = value*10 + int(c-'0')
		if value > MaxExponent {
			return 0, false
		}
	}
	if negative {
		value = -value
	}
	return value, true
}

func appendZeros(dst []byte, n int) []byte {
	for range n {
		dst = append(dst, '0')
	}
	return dst
}
