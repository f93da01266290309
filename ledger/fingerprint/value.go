// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"cmp"
	"slices"
)

// value is one parsed JSON value. The tree keeps decoded strings and exact
// number texts, which is where rules by declared type find what they normalise.
// It is small, since a request can have one of them for every two bytes.
type value struct {
	text   string // of a string its characters, of a number its canonical text
	nested *nested
	kind   kind
}

// nested are the elements of an array or the members of an object.
type nested struct {
	elements []value
	members  []member
}

type member struct {
	name  string
	value value
}

type kind byte

const (
	kindNull kind = iota
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

// appendValue appends the canonical text. Members must be sorted already.
func appendValue(dst []byte, v *value) []byte {
	switch v.kind {
	case kindNull:
		return append(dst, "null"...)
	case kindFalse:
		return append(dst, "false"...)
	case kindTrue:
		return append(dst, "true"...)
	case kindNumber:
		return append(dst, v.text...)
	case kindString:
		return appendString(dst, v.text)
	case kindArray:
		dst = append(dst, '[')
		for i := range v.nested.elements {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, &v.nested.elements[i])
		}
		return append(dst, ']')
	default:
		dst = append(dst, '{')
		for i := range v.nested.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendMember(dst, &v.nested.members[i])
		}
		return append(dst, '}')
	}
}

func appendMember(dst []byte, m *member) []byte {
	dst = append(appendString(dst, m.name), ':')
	return appendValue(dst, &m.value)
}

// appendString writes a string as RFC 8785 section 3.2.2.2 has it.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	begin := 0
	for i := range len(s) {
		c := s[i]
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

func sortMembers(members []member) {
	slices.SortFunc(members, func(a, b member) int { return compareUTF16(a.name, b.name) })
}

// compareUTF16 orders two valid UTF-8 strings by their UTF-16 code units (RFC
// 8785 section 3.2.3). That is the order of their bytes, except that characters
// above U+FFFF, being surrogate pairs there, come before U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return cmp.Compare(utf16Rank(a[i]), utf16Rank(b[i]))
		}
	}
	return cmp.Compare(len(a), len(b))
}

// utf16Rank moves the first bytes of U+E000 to U+FFFF (0xee and 0xef) behind
// those of the characters above. Bytes inside a character are all below 0xc0.
func utf16Rank(c byte) int {
	if c == 0xee || c == 0xef {
		return int(c) + 0x100
	}
	return int(c)
}
