// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"cmp"
	"slices"
)

// sortMembers writes the members of an object, which begins at begin, again.
func (p *parser) sortMembers(begin int32, base int) {
	if members := p.children[base:]; len(members) <= few {
		p.sortFew(members)
	} else {
		name := func(c child) []byte { return p.text(c.name) }
		p.order(members, name, utf16Rank, func(a, b child) int { return compareUTF16(name(a), name(b)) })
	}
	for i, m := range p.children[base:] {
		if i > 0 && bytes.Equal(p.text(p.children[base+i-1].name), p.text(m.name)) {
			p.fails(RuleDuplicate, int(m.offset))
			return
		}
	}
	p.rewrite(begin, base)
}

// sortFew sorts so few members that it is quicker to move each to its place.
func (p *parser) sortFew(members []child) {
	for i, m := range members {
		name := p.text(m.name)
		for ; i > 0 && lessUTF16(name, p.text(members[i-1].name)); i-- {
			members[i] = members[i-1]
		}
		members[i] = m
	}
}

// sortSet writes the elements of a set again, in the order of their bytes.
func (p *parser) sortSet(begin int32, base int) {
	p.flush()
	elements := p.children[base:]
	written := func(c child) []byte { return p.out[c.begin:c.end] }
	p.order(elements, written, sameByte, func(a, b child) int {
		return cmp.Or(bytes.Compare(written(a), written(b)), cmp.Compare(a.offset, b.offset))
	})
	repeated := int32(-1) // the first in the input
	for i, e := range elements {
		if i > 0 && bytes.Equal(written(elements[i-1]), written(e)) && (repeated < 0 || e.offset < repeated) {
			repeated = e.offset
		}
	}
	if repeated >= 0 {
		p.fails(RuleRepeat, int(repeated))
		return
	}
	p.rewrite(begin, base)
	p.children = p.children[:base]
}

// rewrite writes the children from base on in their order.
func (p *parser) rewrite(begin int32, base int) {
	p.flush()
	p.moved = append(p.moved[:0], p.out[begin:]...)
	p.out = p.out[:begin+1]
	for i, c := range p.children[base:] {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		p.out = append(p.out, p.moved[c.begin-begin:c.end-begin]...)
	}
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
