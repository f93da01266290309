// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"cmp"
	"encoding/binary"
)

// appendQuoted writes a string as RFC 8785 section 3.2.2.2 has it.
func appendQuoted(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	begin := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[begin:i]...)
		begin = i + 1
		switch c {
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '"', '\\':
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	return append(append(dst, s[begin:]...), '"')
}

// compareUTF16 orders two valid UTF-8 strings by their UTF-16 code units (RFC
// 8785 section 3.2.3). That is the order of their bytes, except that characters
// above U+FFFF, being surrogate pairs there, come before U+E000 to U+FFFF.
func compareUTF16(a, b []byte) int {
	shorter := min(len(a), len(b))
	i := 0
	for i+8 <= shorter && binary.NativeEndian.Uint64(a[i:]) == binary.NativeEndian.Uint64(b[i:]) {
		i += 8
	}
	for ; i < shorter; i++ {
		if a[i] != b[i] {
			return cmp.Compare(utf16Rank(a[i]), utf16Rank(b[i]))
		}
	}
	return cmp.Compare(len(a), len(b))
}

// lessUTF16 is that order. Most names differ in their first letters already.
func lessUTF16(a, b []byte) bool {
	if len(a) > 0 && len(b) > 0 && a[0] != b[0] && a[0]|b[0] < 0x80 {
		return a[0] < b[0]
	}
	return compareUTF16(a, b) < 0
}

// utf16Rank moves the first bytes of U+E000 to U+FFFF (0xee and 0xef) behind
// those of the characters above (0xf0 to 0xf4, the last that UTF-8 has). Bytes
// inside a character are all below 0xc0.
func utf16Rank(c byte) byte {
	switch {
	case c >= 0xf0:
		return c - 2
	case c >= 0xee:
		return c + 5
	}
	return c
}
