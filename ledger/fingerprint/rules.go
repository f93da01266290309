// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

const (
	// CategoryOther is the category of every field without a declared one.
	CategoryOther = "other"
	// CategoryRelation is the category of the [Relations]. No
	// field can be in it.
	CategoryRelation = "relation"
)

// Type says what a field's value means, and so which spellings of it are one.
type Type string

// The types. A field without one counts as it is written, as every undeclared
// field does.
const (
	TypeNone      Type = ""
	TypeDecimal   Type = "decimal"
	TypeMoney     Type = "money"
	TypeTimestamp Type = "timestamp"
	TypeUUID      Type = "uuid"
	TypeSet       Type = "set"
	TypeText      Type = "text"
)

// Types are the types that a contract can write, in the order of the documentation.
func Types() []Type {
	return []Type{TypeDecimal, TypeMoney, TypeTimestamp, TypeUUID, TypeSet, TypeText}
}

// Field is the declaration of one field.
type Field struct {
	Type Type
	// Currency is, for money that is one number, the path of its currency. Empty:
	// money is an object that has its own.
	Currency string
	// Category groups fields for people: "amount", "recipient". Empty means that
	// of what it lies in, at the root [CategoryOther].
	Category string
	// Default is the JSON text of the value that its absence stands for; empty:
	// none.
	Default string
}

const (
	// MaxFields bounds the paths that one contract declares or ignores.
	MaxFields = 256
	// MaxDefault bounds the text of one default in bytes.
	MaxDefault = 1024
)

// Rules are what a tool's contract says about the fields of its requests, ready
// for use. The zero value is valid: every field counts as it is, in
// [CategoryOther]. Rules never change.
type Rules struct {
	root       *place
	fields     []*place // those that are declared, by their index
	categories []string // by their index; the first is CategoryOther
	marks      int
	currencies int
	monies     int
}

// place is what rules say about one path, and about those below it.
type place struct {
	path  path
	name  string // the last of the path
	names map[string]*place
	few   []*place // the same, if they are few
	each  *place
	in    *place // the place around it; nil at the root

	field    *Field // if it is declared
	index    int    // in Rules.fields, then
	typ      Type   // of what is there; of money that is a number, decimal
	ignored  bool
	category int
	// split: of what lies below something is in another category.
	split bool
	// walked: something below is split, or money that is a number.
	walked bool

	// Of money: the place of its currency, and the innermost place around both.
	currency, anchor *place
	isCurrency       int      // the number of what is such a place, from 1
	money            int      // the number of money that is one, from 1
	anchored         []*place // money whose anchor this is

	preset []byte   // the canonical text of the default, if it has one
	absent []*place // members that have a default, or something below that has, in their order
	mark   int      // of what is in such a list, or ignored: its number in Rules.marks, from 1
}

// FieldError is one declaration that cannot be used.
type FieldError struct {
	// Path of the declaration as it was given, Ignored for a path that is to be
	// ignored.
	Path    string
	Ignored bool
	// Part of the declaration: "type", "currency", "category", "default", or
	// empty for the path itself.
	Part string
	// Rule says what must be and what to write. It holds no value.
	Rule string
}

func (e *FieldError) Error() string {
	where := fmt.Sprintf("field %q", e.Path)
	if e.Ignored {
		where = fmt.Sprintf("ignored path %q", e.Path)
	}
	if e.Part != "" {
		where += ": " + e.Part
	}
	return where + ": " + e.Rule
}

var categoryName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// NewRules makes rules of the fields that a contract declares, by their path,
// and of the paths that it ignores. The error joins every fault, each a
// [*FieldError].
func NewRules(fields map[string]Field, ignored []string) (Rules, error) {
	if len(fields) == 0 && len(ignored) == 0 {
		return Rules{}, nil
	}
	b := &builder{root: &place{}, written: map[*place]string{}}
	b.rules = Rules{root: b.root, categories: []string{CategoryOther}}
	if len(fields)+len(ignored) > MaxFields {
		return Rules{}, fmt.Errorf("more than %d fields are declared or ignored", MaxFields)
	}
	// In an order, so that faults are found in the same order each time.
	for _, text := range slices.Sorted(maps.Keys(fields)) {
		b.declare(text, fields[text])
	}
	for _, text := range ignored {
		b.ignore(text)
	}
	if len(b.faults) == 0 {
		b.contradictions(b.root)
	}
	if len(b.faults) == 0 {
		b.defaults()
		b.finish(b.root)
	}
	if len(b.faults) > 0 {
		return Rules{}, errors.Join(b.faults...)
	}
	return b.rules, nil
}

// below finds the place of a member, or of an element, of the value at p; nil
// where nothing is declared.
func (p *place) below(token string, inArray bool) *place {
	switch {
	case p == nil:
		return nil
	case inArray:
		return p.each
	}
	return p.names[token]
}

// named is the place of a member.
func (p *place) named(name []byte) *place {
	if len(p.few) == 0 {
		return p.names[string(name)]
	}
	for _, below := range p.few {
		if string(name) == below.name {
			return below
		}
	}
	return nil
}

// few are so many names that it is quicker to look at each than to look one up.
const few = 8

func (p *place) hasDefault() bool { return p.field != nil && p.field.Default != "" }

// children are the places right below, the names in their order.
func (p *place) children() []*place {
	out := make([]*place, 0, len(p.names)+1)
	names := slices.SortedFunc(maps.Keys(p.names), func(a, b string) int { return compareUTF16([]byte(a), []byte(b)) })
	for _, name := range names {
		out = append(out, p.names[name])
	}
	if p.each != nil {
		out = append(out, p.each)
	}
	return out
}

// fieldsOf counts the declared fields of a category, declaredIn those of them
// that the content had.
func (r Rules) fieldsOf(category string) int {
	n := 0
	for _, p := range r.fields {
		if r.categories[p.category] == category {
			n++
		}
	}
	return n
}

func (r Rules) declaredIn(category string, c *content) int {
	n := 0
	for _, p := range r.fields {
		if r.categories[p.category] == category && c.seen[p.index] {
			n++
		}
	}
	return n
}
