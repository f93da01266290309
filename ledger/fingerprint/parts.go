// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"crypto/sha256"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// partition divides a canonical text into the parts of its categories. Only what
// has something declared below is read member by member; what lies in one
// category as a whole is copied as a whole.
type partition struct {
	text   []byte // the canonical text
	at     int
	copied int    // to where a part that is being written has what it has as it stands
	parts  []part // by the index of the category
	way    []container

	currencies [][]byte // in quotes, by the number of money
}

// part is what a request has of one category, as it is being written: its text,
// and how many of the containers around the present place are open in it.
type part struct {
	text []byte
	open int
}

// container is an object or array on the way down to the present place.
type container struct {
	array bool
	label []byte // name and colon, or index and colon, of the present child
	index []byte // the memory of the latter
}

// forget leaves memory, and nothing of what was written.
func (d *partition) forget() {
	for i := range d.parts {
		clear(d.parts[i].text)
		d.parts[i] = part{text: d.parts[i].text[:0]}
	}
	clear(d.currencies)
	*d = partition{parts: d.parts[:0], way: d.way[:0], currencies: d.currencies[:0]}
}

// divide fills in the digests of the categories.
func (d *partition) divide(text []byte, rules Rules, c *content) {
	d.text, d.currencies = text, append(d.currencies, make([][]byte, rules.monies)...)
	for len(d.parts) < len(rules.categories) {
		if len(d.parts) < cap(d.parts) {
			d.parts = d.parts[:len(d.parts)+1] // with its memory
		} else {
			d.parts = append(d.parts, part{})
		}
	}
	switch {
	case len(text) == len("{}"): // has nothing of any category
	case rules.root.split:
		d.split(rules.root)
	default:
		d.parts[0].text = d.whole(d.parts[0].text, rules.root)
	}
	for i, part := range d.parts {
		if len(part.text) > 0 {
			c.categories[rules.categories[i]] = sha256.Sum256(part.text)
		}
	}
}

// split writes the object or array that begins here into the parts that it has
// something of.
func (d *partition) split(at *place) {
	depth := len(d.way)
	if depth < cap(d.way) {
		d.way = d.way[:depth+1] // with the label's memory
	} else {
		d.way = append(d.way, container{})
	}
	array := d.begin(at)
	d.way[depth].array = array
	for i := int64(0); d.next(); i++ {
		here, below := &d.way[depth], at.each
		if array {
			here.index = append(strconv.AppendInt(here.index[:0], i, 10), ':')
			here.label = here.index
		} else {
			var name []byte
			here.label, name = d.name()
			below = at.named(name)
		}
		switch {
		case below == nil:
			d.copy(&d.parts[at.category], nil)
		case below.split && d.isContainer():
			d.split(below)
		default:
			d.copy(&d.parts[below.category], below)
		}
	}
	for i := range d.parts {
		if part := &d.parts[i]; part.open > depth {
			part.text = append(part.text, closing(array))
			part.open = depth
		}
	}
	d.way = d.way[:depth]
}

// copy writes the value that begins here into one part.
func (d *partition) copy(part *part, at *place) {
	if part.open > 0 {
		part.text = append(append(part.text, ','), d.way[part.open-1].label...)
	}
	for _, around := range d.way[part.open:] {
		part.text = append(append(part.text, opening(around.array)), around.label...)
	}
	part.open = len(d.way)
	part.text = d.whole(part.text, at)
}

// whole appends the value that begins here, which lies in one category. Money
// that is a number gets its currency: 80 of one is not 80 of another, also where
// the currency has another category.
func (d *partition) whole(dst []byte, at *place) []byte {
	d.copied = d.at
	dst = d.walk(dst, at)
	return append(dst, d.text[d.copied:d.at]...)
}

// walk is whole, but for what stands behind the last money.
func (d *partition) walk(dst []byte, at *place) []byte {
	switch {
	case at == nil || !at.walked:
		d.skip()
		return dst
	case at.money > 0 && d.currencies[at.money-1] != nil && isNumberStart(d.text[d.at]):
		dst = append(append(dst, d.text[d.copied:d.at]...), `{"amount":`...)
		d.copied = d.at
		d.skip()
		dst = append(append(dst, d.text[d.copied:d.at]...), `,"currency":`...)
		d.copied = d.at
		return append(append(dst, d.currencies[at.money-1]...), '}')
	case !d.isContainer():
		d.skip()
		return dst
	}
	array := d.begin(at)
	for d.next() {
		below := at.each
		if !array {
			_, name := d.name()
			below = at.named(name)
		}
		dst = d.walk(dst, below)
	}
	return dst
}

// begin enters the object or array that begins here.
func (d *partition) begin(at *place) (array bool) {
	for _, money := range at.anchored {
		if money.money > 0 { // that of an object has its own
			d.currencies[money.money-1] = d.find(money.currency.path[len(at.path):])
		}
	}
	d.at++
	return d.text[d.at-1] == '['
}

// next goes to the next member or element; false: behind the end of them.
func (d *partition) next() bool {
	switch d.text[d.at] {
	case ',':
		d.at++
		return true
	case ']', '}':
		d.at++
		return false
	}
	return true
}

// isContainer reports whether an object or array with something in it begins
// here.
func (d *partition) isContainer() bool {
	c := d.text[d.at]
	return (c == '{' || c == '[') && d.text[d.at+1] != c+2
}

// name reads the name of a member, with its colon and as it is.
func (d *partition) name() (quoted, name []byte) {
	begin, escaped, at := d.at, false, d.at+1
	for ; d.text[at] != '"'; at++ {
		if d.text[at] == '\\' {
			escaped = true
			at++
		}
	}
	d.at = at + 2
	if quoted = d.text[begin:d.at]; !escaped {
		return quoted, quoted[1 : len(quoted)-2]
	}
	name, _ = jsontext.AppendUnquote(nil, quoted[:len(quoted)-1]) // it was written by us
	return quoted, name
}

// find looks for a string by the names on the way to it from the object that
// begins here; nil if there is none.
func (d *partition) find(names path) []byte {
	here := *d
	for _, want := range names {
		if here.text[here.at] != '{' {
			return nil
		}
		for here.at++; ; {
			if here.text[here.at] == '}' {
				return nil
			}
			if here.text[here.at] == ',' {
				here.at++
			}
			if _, name := here.name(); string(name) == want {
				break
			}
			here.skip()
		}
	}
	if here.text[here.at] != '"' {
		return nil
	}
	begin := here.at
	here.skip()
	return here.text[begin:here.at]
}

// skip goes behind the value that begins here.
func (d *partition) skip() {
	at, text := d.at, d.text
	for depth := 0; ; {
		switch text[at] {
		case '"':
			for at++; text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		at++
		if depth == 0 && isEnd(text, at) {
			d.at = at
			return
		}
	}
}

// isEnd reports whether a value ends before i: at a comma, a colon or the end of
// what is around it.
func isEnd(text []byte, i int) bool {
	if i == len(text) {
		return true
	}
	switch text[i] {
	case ',', ':', '}', ']':
		return true
	}
	return false
}

func isNumberStart(c byte) bool { return c == '-' || isDigit(c) }

func opening(array bool) byte {
	if array {
		return '['
	}
	return '{'
}

func closing(array bool) byte { return opening(array) + 2 } // ] and } follow two behind in ASCII
