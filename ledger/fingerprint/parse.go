// SPDX-License-Identifier: Apache-2.0

package fingerprint

import "github.com/go-json-experiment/json/jsontext"

// parser reads a request once and writes its canonical text as it goes, each
// value by what rules say of its place. The tokeniser has found the input good
// before: what is read here is not checked again.
//
// What is canonical as it stands is not copied value by value: out lacks the
// input from copied to at.
type parser struct {
	input    []byte
	rules    Rules
	observed bool

	at, copied int
	out        []byte
	scratch    []byte // names without their escapes, of the objects that are open
	children   []child
	moved      []byte // what is being put into another order
	keys       []key
	other      []key // the same memory again
	unsorted   []child
	pending    []amount
	currencies []currency // by the number of their place
	added      int        // bytes that defaults have added
	seen       []bool
	marks      []int  // by the mark of a place: one more than the offset of the last object that had it
	fault      *Error // the first
	parts      partition
}

// child is a member or element of a container that is open.
type child struct {
	name       span
	begin, end int32 // in out
	offset     int32 // in the input
}

// span is a text in the input, or in the scratch. It is small, as there can be
// many.
type span struct {
	begin, end int32
	scratch    bool
}

func spanOf(begin, end int, scratch bool) span { return span{int32(begin), int32(end), scratch} }

func (p *parser) text(s span) []byte {
	if s.scratch {
		return p.scratch[s.begin:s.end]
	}
	return p.input[s.begin:s.end]
}

// forget leaves memory for the next request, and nothing of this one.
func (p *parser) forget() {
	clear(p.out)
	clear(p.scratch)
	clear(p.moved)
	clear(p.pending)
	clear(p.currencies)
	p.parts.forget()
	*p = parser{
		out: p.out[:0], scratch: p.scratch[:0], children: p.children[:0], moved: p.moved[:0], keys: p.keys[:0], other: p.other[:0], unsorted: p.unsorted[:0], pending: p.pending[:0],
		currencies: p.currencies[:0], marks: p.marks[:0], parts: p.parts,
	}
}

// parse writes the root. That no object has two members of one name is seen when
// they are sorted: the tokeniser would keep a table of names for that.
func (p *parser) parse() {
	if len(p.input) > MaxSize || !jsontext.Value(p.input).IsValid(jsontext.AllowDuplicateNames(true)) {
		p.fault = p.explain()
		return
	}
	p.root()
	if p.fault != nil && !jsontext.Value(p.input).IsValid() { // what is no good JSON is not judged by rules
		p.fault = p.explain()
	}
}

func (p *parser) root() {
	for isSpace(p.input[p.at]) {
		p.at++
	}
	p.copied = p.at
	p.marks = append(p.marks, make([]int, p.rules.marks)...)
	p.currencies = append(p.currencies, make([]currency, p.rules.currencies)...)
	if p.input[p.at] != '{' {
		p.fault = &Error{Rule: RuleObject, Offset: 0}
		return
	}
	p.object(p.rules.root, 1)
	p.flush()
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// flush copies what is canonical as it stands.
func (p *parser) flush() {
	p.out = append(p.out, p.input[p.copied:p.at]...)
	p.copied = p.at
}

// instead leaves out the input from begin to here: something else is written.
func (p *parser) instead(begin int) {
	p.out = append(p.out, p.input[p.copied:begin]...)
	p.copied = p.at
}

// written is where in out the next byte comes.
func (p *parser) written() int32 { return int32(len(p.out) + p.at - p.copied) }

// space skips white space.
func (p *parser) space() {
	begin := p.at
	for p.at++; isSpace(p.input[p.at]); p.at++ { // the root's end follows
	}
	p.instead(begin)
}

// value reads the value that begins here; depth is its own if it is an object or
// array. After a fault nothing more is read.
func (p *parser) value(at *place, depth int) {
	c := p.input[p.at]
	if c != '{' && c != '[' {
		p.scalar(at, c)
		return
	}
	rule := at.refuses(c)
	if depth > MaxDepth {
		rule = RuleDepth
	}
	switch {
	case rule != noRule:
		p.fails(rule, p.at)
	case c == '{':
		p.object(at, depth)
	default:
		p.array(at, depth)
	}
}

// fails notes what is wrong with the value at an offset.
func (p *parser) fails(rule Rule, offset int) { p.fault = p.errorAt(rule, offset) }

func (p *parser) scalar(at *place, first byte) {
	begin := p.at
	switch {
	case first == 'n': // says that there is no value, whatever the type
		p.at += len("null")
	case at != nil && at.typ != TypeNone:
		if rule := p.typed(at, first); rule != noRule {
			p.fails(rule, begin)
		}
	case first == '"':
		if s := p.string(); s.scratch {
			p.instead(begin)
			p.out = appendQuoted(p.out, p.text(s))
			p.scratch = p.scratch[:s.begin]
		}
	case first == 't':
		p.at += len("true")
	case first == 'f':
		p.at += len("false")
	default:
		text := p.number()
		switch n := plain(text); {
		case n == len(text):
		case n > 0:
			p.instead(begin)
			p.out = append(p.out, text[:n]...)
		default:
			p.instead(begin)
			var rule Rule
			if p.out, rule = appendNumber(p.out, text); rule != noRule {
				p.fails(rule, begin)
			}
		}
	}
}

// string reads the string that begins here. What it says is in the input, if it
// has no escapes, and is then canonical.
func (p *parser) string() span {
	begin, escaped := p.at, false
	at, input := begin+1, p.input
	for ; input[at] != '"'; at++ {
		if input[at] == '\\' {
			escaped = true
			at++
		}
	}
	p.at = at + 1
	if !escaped {
		return spanOf(begin+1, p.at-1, false)
	}
	unquoted := len(p.scratch)
	p.scratch, _ = jsontext.AppendUnquote(p.scratch, p.input[begin:p.at]) // the tokeniser has accepted it
	return spanOf(unquoted, len(p.scratch), true)
}

// number reads the number that begins here.
func (p *parser) number() []byte {
	begin, at := p.at, p.at+1
	for ; ; at++ { // the root's end follows
		switch c := p.input[at]; {
		case isDigit(c), c == '.', c == 'e', c == 'E', c == '+', c == '-':
		default:
			p.at = at
			return p.input[begin:at]
		}
	}
}

func (p *parser) array(at *place, depth int) {
	begin, base := p.written(), len(p.children)
	var each *place
	set := false
	if at != nil {
		each, set = at.each, at.typ == TypeSet
	}
	p.at++
	for p.fault == nil {
		switch c := p.input[p.at]; c {
		case ',':
			p.at++
		case ' ', '\n', '\r', '\t':
			p.space()
		case ']':
			if set {
				p.sortSet(begin, base)
			}
			p.at++
			return
		default:
			e := child{begin: p.written(), offset: int32(p.at)}
			p.value(each, depth+1)
			if each != nil && each.field != nil {
				p.seen[each.index] = true
			}
			if set {
				e.end = p.written()
				p.children = append(p.children, e)
			}
		}
	}
}

func (p *parser) object(at *place, depth int) {
	begin, offset, base := p.written(), p.at, len(p.children)
	scratch, pending := len(p.scratch), len(p.pending)
	inOrder := true
	p.at++
	for p.fault == nil {
		switch c := p.input[p.at]; c {
		case ',':
			p.at++
		case ' ', '\n', '\r', '\t':
			p.space()
		case '"':
			if !p.member(at, depth, base, offset) {
				inOrder = false
			}
		default: // its end
			if at != nil && !p.observed && p.addDefaults(at, offset) {
				inOrder = false
			}
			if p.fault != nil {
				return
			}
			if !inOrder {
				p.sortMembers(begin, base)
			}
			if at != nil {
				p.finish(at, base, offset, pending)
			}
			p.at++
			p.children = p.children[:base]
			p.scratch = p.scratch[:scratch]
			return
		}
	}
}

// member reads a member of the object at an offset, whose members begin at base.
// False: they are not as they have to be written.
func (p *parser) member(at *place, depth, base, object int) bool {
	m := child{begin: p.written(), offset: int32(p.at)}
	begin := p.at
	m.name = p.string()
	name := p.text(m.name)
	if m.name.scratch {
		p.instead(begin)
		p.out = appendQuoted(p.out, name)
	}
	if isSpace(p.input[p.at]) {
		p.space()
	}
	p.at++ // the colon
	if isSpace(p.input[p.at]) {
		p.space()
	}
	var below *place
	if at != nil {
		below = at.named(name)
	}
	if below == nil {
		p.value(nil, depth+1)
	} else if offset := p.at; below.ignored {
		if p.marks[below.mark-1] == object+1 {
			p.fails(RuleDuplicate, offset)
		}
		p.marks[below.mark-1] = object + 1
		p.value(nil, depth+1)
		p.flush()
		p.out = p.out[:m.begin]
		return false
	} else {
		if below.mark > 0 {
			p.marks[below.mark-1] = object + 1
		}
		p.value(below, depth+1)
		if below.field != nil {
			p.seen[below.index] = true
		}
		if below.isCurrency > 0 && p.fault == nil {
			p.currency(below, offset)
		}
	}
	m.end = p.written()
	inOrder := len(p.children) == base || lessUTF16(p.text(p.children[len(p.children)-1].name), name)
	p.children = append(p.children, m)
	return inOrder
}

// finish judges what is complete: an object at a place of the rules.
func (p *parser) finish(at *place, base, offset, pending int) {
	if at.typ == TypeMoney {
		members := p.children[base:] // in order
		if len(members) != 2 || string(p.text(members[0].name)) != nameAmount || string(p.text(members[1].name)) != nameCurrency ||
			len(p.pending) == pending {
			p.fails(RuleMoney, offset)
			return
		}
	}
	p.findCurrencies(at, offset, pending)
}
