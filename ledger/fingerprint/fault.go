// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// errorAt is about the value at an offset of an input that is good JSON.
func (p *parser) errorAt(rule Rule, offset int) *Error {
	return &Error{Pointer: p.wayTo(offset).String(), Rule: rule, Offset: int64(offset)}
}

// wayTo reads the input again up to the value at an offset: where the values lie
// is not kept.
func (p *parser) wayTo(offset int) path {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(p.input))
	for decoder.InputOffset() <= int64(offset) {
		if _, err := decoder.ReadToken(); err != nil {
			break
		}
	}
	return p.rules.shown(decoder, decoder.StackPointer())
}

// shown is the beginning of a pointer that consists of declared names and of
// indexes of declared elements, or of those of a set: it shows no name that a caller has chosen. The
// decoder is where the pointer points to.
func (r Rules) shown(decoder *jsontext.Decoder, pointer jsontext.Pointer) path {
	var out path
	at, level := r.root, 0
	for token := range pointer.Tokens() {
		if level++; level > decoder.StackDepth() {
			break // in an object that was not begun
		}
		kind, _ := decoder.StackIndex(level)
		inArray := kind == jsontext.KindBeginArray
		inSet := inArray && at != nil && at.typ == TypeSet
		if at = at.below(token, inArray); at == nil && !inSet {
			break
		}
		if inArray {
			if _, err := strconv.ParseUint(token, 10, 32); err != nil {
				break
			}
		}
		out = append(out, token)
	}
	return out
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// explain says why the input is not good JSON, or too much of it.
func (p *parser) explain() *Error {
	switch {
	case len(p.input) == 0:
		return &Error{Rule: RuleEmpty, Offset: offsetUnplaced}
	case len(p.input) > MaxSize:
		return &Error{Rule: RuleSize, Offset: offsetUnplaced}
	case bytes.HasPrefix(p.input, byteOrderMark):
		return &Error{Rule: RuleBOM, Offset: 0}
	case !utf8.Valid(p.input):
		return &Error{Rule: RuleUTF8, Offset: offsetUnplaced}
	}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(p.input))
	token, err := decoder.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return &Error{Rule: RuleEmpty, Offset: offsetUnplaced}
	case err == nil && token.Kind() != jsontext.KindBeginObject:
		return &Error{Rule: RuleObject, Offset: 0}
	}
	for err == nil {
		switch decoder.StackDepth() {
		case MaxDepth + 1:
			return &Error{Pointer: p.rules.shown(decoder, decoder.StackPointer()).String(), Rule: RuleDepth, Offset: decoder.InputOffset()}
		case 0:
			return &Error{Rule: RuleTrailing, Offset: decoder.InputOffset()}
		}
		_, err = decoder.ReadToken()
	}
	return p.syntaxError(decoder, err)
}

// syntaxError says in our words what the tokeniser met; its own text may quote
// names and values.
func (p *parser) syntaxError(decoder *jsontext.Decoder, err error) *Error {
	e := &Error{Rule: RuleSyntax, Offset: decoder.InputOffset()}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return e // the text ended too early
	}
	e.Offset = syntax.ByteOffset
	e.Pointer = p.rules.shown(decoder, syntax.JSONPointer).String()
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
