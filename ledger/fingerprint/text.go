// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
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

// key stands for a text that children are sorted by: 8 bytes of it.
type key struct {
	text  uint64
	child int32
}

// many are so many children that it is quicker to sort them by keys.
const many = 32

// order sorts children by their texts. rank turns a byte into one that sorts as
// compare does; compare decides where the 8 bytes do not.
func (p *parser) order(children []child, text func(child) []byte, rank func(byte) byte, compare func(a, b child) int) {
	if len(children) < many {
		slices.SortFunc(children, compare)
		return
	}
	// A key is what follows on what all texts begin with.
	first := text(children[0])
	common := len(first)
	for _, c := range children[1:] {
		t := text(c)
		common = min(common, len(t))
		if !bytes.Equal(t[:common], first[:common]) {
			for common = 0; t[common] == first[common]; {
				common++
			}
		}
	}
	for i, c := range children {
		k := key{child: int32(i)}
		for j, t := 0, text(c)[common:]; j < 8; j++ {
			k.text <<= 8
			if j < len(t) {
				k.text |= uint64(rank(t[j]))
			}
		}
		p.keys = append(p.keys, k)
	}
	p.sortKeys()
	for begin, i := 0, 1; i <= len(p.keys); i++ {
		if i == len(p.keys) || p.keys[i].text != p.keys[begin].text {
			slices.SortFunc(p.keys[begin:i], func(a, b key) int { return compare(children[a.child], children[b.child]) })
			begin = i
		}
	}
	p.unsorted = append(p.unsorted[:0], children...)
	for i, k := range p.keys {
		children[i] = p.unsorted[k.child]
	}
	p.keys = p.keys[:0]
}

// sortKeys sorts by the texts of the keys alone, byte by byte from the last on: its
// work grows with their number, and no faster.
func (p *parser) sortKeys() {
	p.other = slices.Grow(p.other[:0], len(p.keys))[:len(p.keys)]
	for shift := 0; shift < 64; shift += 8 {
		var ends [256]int
		for _, k := range p.keys {
			ends[byte(k.text>>shift)]++
		}
		if ends[byte(p.keys[0].text>>shift)] == len(p.keys) {
			continue // all the same
		}
		end := 0
		for i, n := range ends {
			ends[i], end = end, end+n
		}
		for _, k := range p.keys {
			b := byte(k.text >> shift)
			p.other[ends[b]] = k
			ends[b]++
		}
		p.keys, p.other = p.other, p.keys
	}
}

func sameByte(c byte) byte { return c }
