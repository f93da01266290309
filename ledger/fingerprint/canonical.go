// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxSize bounds a request in bytes: 256 KiB.
	MaxSize = 256 << 10
	// MaxDepth bounds how deep objects and arrays may be nested; the root
	// object is the first level.
	MaxDepth = 64
)

// Canonical is a request in its canonical form. It holds the request's content:
// it is made for digesting and then dropped, and prints as a placeholder. The
// zero value is no request at all and cannot be digested.
type Canonical struct {
	// Behind a function for the same reason as the key of a Secret.
	content func() *content
}

type content struct {
	text       []byte
	digest     [sha256.Size]byte
	fields     map[string]struct{} // declared top-level fields that are there
	categories map[string][]byte
}

// Canonicalize parses one request and brings it into the canonical form of spec
// version 1 (see the package comment), grouped by category as rules say. Every
// error is an *[Error]. It neither keeps nor changes requestJSON.
func Canonicalize(requestJSON []byte, rules Rules) (Canonical, error) {
	root, err := parse(requestJSON, rules)
	if err != nil {
		return Canonical{}, err
	}
	c := &content{
		text:       appendValue(make([]byte, 0, len(requestJSON)), root),
		fields:     make(map[string]struct{}),
		categories: make(map[string][]byte),
	}
	c.digest = sha256.Sum256(c.text)
	for i := range root.nested.members {
		m := &root.nested.members[i]
		if _, declared := rules.Fields[m.name]; declared {
			c.fields[m.name] = struct{}{}
		}
		category := rules.category(m.name)
		part := c.categories[category]
		if part == nil {
			part = append(part, '{')
		} else {
			part = append(part, ',')
		}
		c.categories[category] = appendMember(part, m)
	}
	for category, part := range c.categories {
		c.categories[category] = append(part, '}')
	}
	return Canonical{content: func() *content { return c }}, nil
}

// Text is the canonical text. It shows the request.
func (c Canonical) Text() []byte { return bytes.Clone(c.content().text) }

// ContentDigest is the SHA-256 of the canonical text, without a key: a small
// request can be guessed from it. It is an input of [Digest], not for storing.
func (c Canonical) ContentDigest() [sha256.Size]byte { return c.content().digest }

// Categories are the sorted names of the categories that the request has fields
// of.
func (c Canonical) Categories() []string {
	return slices.Sorted(maps.Keys(c.content().categories))
}

// Category is the canonical text of the object that has just the fields of one
// category; nil where the request has none. It shows the request.
func (c Canonical) Category(name string) []byte { return bytes.Clone(c.content().categories[name]) }

type parser struct {
	input   []byte
	rules   Rules
	decoder *jsontext.Decoder
	top     string // pointer of the declared top-level field being parsed, if any
	scratch []byte
	// Elements and members of what is still open, so that each array and object
	// is allocated once and at its size.
	elements []value
	members  []member
}

var byteOrderMark = []byte("\xef\xbb\xbf")

func parse(input []byte, rules Rules) (*value, error) {
	switch {
	case len(input) == 0:
		return nil, &Error{Rule: RuleEmpty, Offset: offsetUnplaced}
	case len(input) > MaxSize:
		return nil, &Error{Rule: RuleSize, Offset: offsetUnplaced}
	case bytes.HasPrefix(input, byteOrderMark):
		return nil, &Error{Rule: RuleBOM, Offset: 0}
	case !utf8.Valid(input):
		return nil, &Error{Rule: RuleUTF8, Offset: offsetUnplaced}
	}
	// A decoder reads a bytes.Buffer in place, without a copy of its own.
	p := &parser{input: input, rules: rules, decoder: jsontext.NewDecoder(bytes.NewBuffer(input))}
	token, err := p.decoder.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return nil, &Error{Rule: RuleEmpty, Offset: offsetUnplaced}
	case err != nil:
		return nil, p.syntaxError(err)
	case token.Kind() != jsontext.KindBeginObject:
		return nil, &Error{Rule: RuleObject, Offset: 0}
	}
	root, err := p.value(token, 1)
	if err != nil {
		return nil, err
	}
	end := p.decoder.InputOffset()
	if _, err := p.decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, &Error{Rule: RuleTrailing, Offset: end}
	}
	return &root, nil
}

// value parses the value that begins with token; depth is its own if it is an
// object or array.
func (p *parser) value(token jsontext.Token, depth int) (value, error) {
	switch token.Kind() {
	case jsontext.KindNull:
		return value{kind: kindNull}, nil
	case jsontext.KindFalse:
		return value{kind: kindFalse}, nil
	case jsontext.KindTrue:
		return value{kind: kindTrue}, nil
	case jsontext.KindString:
		return value{kind: kindString, text: token.String()}, nil
	case jsontext.KindNumber:
		text, rule := appendNumber(p.scratch[:0], token.String())
		if rule != noRule {
			return value{}, p.errorAt(rule)
		}
		p.scratch = text
		return value{kind: kindNumber, text: string(text)}, nil
	}
	if depth > MaxDepth {
		return value{}, p.errorAt(RuleDepth)
	}
	if token.Kind() == jsontext.KindBeginArray {
		return p.array(depth)
	}
	return p.object(depth)
}

func (p *parser) array(depth int) (value, error) {
	base := len(p.elements)
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return value{}, p.syntaxError(err)
		}
		if token.Kind() == jsontext.KindEndArray {
			elements := slices.Clone(p.elements[base:])
			p.elements = p.elements[:base]
			return value{kind: kindArray, nested: &nested{elements: elements}}, nil
		}
		element, err := p.value(token, depth+1)
		if err != nil {
			return value{}, err
		}
		p.elements = push(p.elements, element)
	}
}

func (p *parser) object(depth int) (value, error) {
	base := len(p.members)
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return value{}, p.syntaxError(err)
		}
		if token.Kind() == jsontext.KindEndObject {
			members := slices.Clone(p.members[base:])
			p.members = p.members[:base]
			sortMembers(members)
			return value{kind: kindObject, nested: &nested{members: members}}, nil
		}
		name := token.String()
		if depth == 1 {
			p.top = p.declared(name)
		}
		if token, err = p.decoder.ReadToken(); err != nil {
			return value{}, p.syntaxError(err)
		}
		member := member{name: name}
		if member.value, err = p.value(token, depth+1); err != nil {
			return value{}, err
		}
		p.members = push(p.members, member)
	}
}

// push appends and doubles when full: append alone grows long slices by a
// quarter and copies them more often.
func push[T any](stack []T, v T) []T {
	if len(stack) == cap(stack) {
		stack = slices.Grow(stack, max(len(stack), 16))
	}
	return append(stack, v)
}

// declared is the pointer of a top-level field, empty if it is not declared.
func (p *parser) declared(name string) string {
	if _, ok := p.rules.Fields[name]; !ok {
		return ""
	}
	return string(jsontext.Pointer("").AppendToken(name))
}

func (p *parser) errorAt(rule Rule) error {
	return &Error{Pointer: p.top, Rule: rule, Offset: p.decoder.InputOffset()}
}

// syntaxError says in our words what the tokeniser met; its own text may quote
// names and values.
func (p *parser) syntaxError(err error) error {
	e := &Error{Rule: RuleSyntax, Offset: p.decoder.InputOffset()}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return e // the text ended too early
	}
	e.Offset = syntax.ByteOffset
	for name := range syntax.JSONPointer.Tokens() {
		e.Pointer = p.declared(name)
		break
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		e.Rule = RuleDuplicate
	case p.acceptsSurrogates(e.Offset):
		e.Rule = RuleSurrogate
	}
	return e
}

// acceptsSurrogates reports whether a tokeniser that lets malformed characters
// pass gets beyond offset. As the input is valid UTF-8, the malformed character
// can only be an escaped surrogate.
func (p *parser) acceptsSurrogates(offset int64) bool {
	lenient := jsontext.NewDecoder(bytes.NewBuffer(p.input), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	for {
		if _, err := lenient.ReadToken(); err != nil {
			return lenient.InputOffset() > offset
		}
		if lenient.InputOffset() > offset {
			return true
		}
	}
}
