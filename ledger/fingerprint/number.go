// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"strconv"
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

// appendNumber appends the canonical form of a number that is valid JSON, for
// which most need no more than plain. It looks at each byte once and writes nothing before the bounds hold, so that
// neither a long significand nor a huge exponent costs memory.
func appendNumber(dst, text []byte) ([]byte, Rule) {
	negative := text[0] == '-'
	if negative {
		text = text[1:]
	}
	// The significant digits, k of them; zeros of which it is not known yet whether
	// one follows that is none; and n, how many digits stand before the point,
	// counted from the first significant one: negative, if zeros stand between.
	var digits [MaxDigits]byte
	k, zeros, n := 0, 0, 0
	fraction, tooMany := false, false
	i := 0
	for ; i < len(text) && text[i] != 'e' && text[i] != 'E'; i++ {
		c := text[i]
		switch {
		case c == '.':
			fraction = true
			continue
		case c == '0' && k == 0:
			if fraction {
				n--
			}
			continue
		case c == '0':
			zeros++
		case k+zeros >= MaxDigits:
			tooMany = true
		default:
			for ; zeros > 0; zeros-- {
				digits[k] = '0'
				k++
			}
			digits[k] = c
			k++
		}
		if !fraction {
			n++
		}
	}
	exponent, ok := boundedExponent(text[min(i+1, len(text)):])
	switch {
	case !ok:
		return dst, RuleExponent
	case tooMany:
		return dst, RuleDigits
	case k == 0:
		return append(dst, '0'), noRule
	}
	if n += exponent; n-1 > MaxExponent || n-1 < -MaxExponent {
		return dst, RuleExponent
	}
	if negative {
		dst = append(dst, '-')
	}
	switch {
	case k <= n && n <= plainDigits:
		dst = append(dst, digits[:k]...)
		dst = appendZeros(dst, n-k)
	case 0 < n && n <= plainDigits:
		dst = append(dst, digits[:n]...)
		dst = append(dst, '.')
		dst = append(dst, digits[n:k]...)
	case -leadingZeros <= n && n <= 0:
		dst = append(dst, '0', '.')
		dst = appendZeros(dst, -n)
		dst = append(dst, digits[:k]...)
	default:
		dst = append(dst, digits[0])
		if k > 1 {
			dst = append(dst, '.')
			dst = append(dst, digits[1:k]...)
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
func boundedExponent(text []byte) (int, bool) {
	negative := len(text) > 0 && text[0] == '-'
	value := 0
	for _, c := range text {
		if isDigit(c) {
			value = value*10 + int(c-'0')
		}
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
	const zeros = "000000000000000000000000"
	return append(dst, zeros[:n]...) // fewer than plainDigits
}

// plain is how many bytes of a text that is a number as JSON writes it are its
// canonical form, which then lacks no more than zeros at the end of a fraction:
// what most numbers are. 0: it takes a closer look, also whether it is a number.
func plain(text []byte) int {
	begin := 0
	if len(text) > 0 && text[0] == '-' {
		begin++
	}
	i := begin
	for i < len(text) && isDigit(text[i]) {
		i++
	}
	digits := i - begin
	zero := digits > 0 && text[begin] == '0'
	switch {
	case digits == 0 || digits > plainDigits || zero && (digits > 1 || begin > 0):
		return 0
	case i == len(text):
		return i
	case text[i] != '.' || i+1 == len(text) || len(text) > MaxDigits || zero && text[i+1] == '0':
		return 0
	}
	end := i // behind the last digit that is not 0
	for i++; i < len(text); i++ {
		switch c := text[i]; {
		case !isDigit(c):
			return 0
		case c != '0':
			end = i + 1
		}
	}
	return end
}

// isNumber reports whether a text is a number by the grammar of RFC 8259
// section 6.
func isNumber(text []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(text) && isDigit(text[n]) {
			n++
		}
		text = text[n:]
		return n > 0
	}
	text, _ = bytes.CutPrefix(text, []byte("-"))
	switch {
	case len(text) > 0 && text[0] == '0':
		text = text[1:]
	case !digits():
		return false
	}
	if rest, point := bytes.CutPrefix(text, []byte(".")); point {
		if text = rest; !digits() {
			return false
		}
	}
	if len(text) > 0 && (text[0] == 'e' || text[0] == 'E') {
		if text = text[1:]; len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		if !digits() {
			return false
		}
	}
	return len(text) == 0
}
