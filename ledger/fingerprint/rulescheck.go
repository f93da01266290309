// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// isCurrency reports whether a JSON text is a currency.
func isCurrency(text string) bool {
	code, err := jsontext.AppendUnquote(nil, text)
	_, ok := minorUnits[string(code)]
	return ok && err == nil
}

// builder makes rules and gathers every declaration that cannot be used.
type builder struct {
	root    *place
	rules   Rules
	written map[*place]string // the paths as they were given
	faults  []error
}

func (b *builder) fault(at *place, part, format string, args ...any) {
	b.faults = append(b.faults, &FieldError{Path: b.written[at], Ignored: at.ignored, Part: part, Rule: fmt.Sprintf(format, args...)})
}

const rulePath = "must be the name of a member of the request, or a JSON pointer (RFC 6901) to a field, such as /order/amount or /lines/*/sku, where * is each element of an array"

// at finds or makes the place of a path.
func (b *builder) at(p path) *place {
	here := b.root
	for i, token := range p {
		next := here.below(token, token == element)
		if next == nil {
			next = &place{path: p[:i+1], name: token, in: here}
			if token == element {
				here.each = next
			} else {
				if here.names == nil {
					here.names = map[string]*place{}
				}
				here.names[token] = next
			}
		}
		here = next
	}
	return here
}

func (b *builder) declare(text string, f Field) {
	p, ok := parsePath(text)
	if !ok {
		b.faults = append(b.faults, &FieldError{Path: text, Rule: rulePath})
		return
	}
	f.Default = strings.TrimSpace(f.Default)
	at := b.at(p)
	if at.field != nil {
		b.faults = append(b.faults, &FieldError{Path: text, Rule: "is declared twice, in two spellings; keep one of the two"})
		return
	}
	at.field, at.index, at.typ = &f, len(b.rules.fields), f.Type
	b.rules.fields = append(b.rules.fields, at)
	b.written[at] = text

	switch {
	case f.Type != TypeNone && !slices.Contains(Types(), f.Type):
		b.fault(at, "type", "must be one of %v", Types())
	case f.Category == CategoryRelation:
		b.fault(at, "category", "must not be %s, which is for operations that the request names", CategoryRelation)
	case f.Category != "" && !categoryName.MatchString(f.Category):
		b.fault(at, "category", "must be 1 to 32 of a to z, 0 to 9 and _, beginning with a letter")
	case f.Type == TypeSet && p.last() == element:
		b.fault(at, "type", "must not be set for each element; write type: set at the path of the array, without the last /*")
	case f.Currency != "" && f.Type != TypeMoney:
		b.fault(at, "currency", "must not be given for what is no money; write type: money, or remove it")
	case f.Default != "" && p.last() == element:
		b.fault(at, "default", "must not be given for elements, which are never absent; remove it")
	case len(f.Default) > MaxDefault:
		b.fault(at, "default", "must have at most %d bytes", MaxDefault)
	}
}

func (b *builder) ignore(text string) {
	p, ok := parsePath(text)
	if !ok {
		b.faults = append(b.faults, &FieldError{Path: text, Ignored: true, Rule: rulePath})
		return
	}
	at := b.at(p)
	switch {
	case at.ignored:
		b.faults = append(b.faults, &FieldError{Path: text, Ignored: true, Rule: "is ignored twice; keep one of the two"})
	case at.field != nil:
		b.faults = append(b.faults, &FieldError{Path: text, Ignored: true, Rule: "is declared as a field, too; keep one of the two"})
	case p.last() == element:
		b.faults = append(b.faults, &FieldError{Path: text, Ignored: true, Rule: "would leave an array of nothing; ignore the array, without the last /*"})
	default:
		at.ignored = true
		b.written[at] = text
	}
}

// contradictions looks at what lies inside of what.
func (b *builder) contradictions(at *place) {
	if at.field != nil || at.ignored {
		for around := at.in; around != nil; around = around.in {
			b.inside(at, around)
		}
	}
	if at.typ == TypeMoney && at.field.Currency != "" {
		b.currency(at)
	}
	for _, child := range at.children() {
		b.contradictions(child)
	}
}

func (b *builder) inside(at, around *place) {
	switch t := around.typ; {
	case around.ignored:
		b.fault(at, "", "lies inside of a path that is ignored; remove it, or ignore less")
	case around.field == nil:
	case t == TypeSet && at.path[len(around.path)] != element:
		b.fault(at, "", "lies inside of a set, whose elements are declared by /*; write it behind /*, or remove it")
	case t == TypeSet && at.field != nil && at.field.Category != "":
		b.fault(at, "category", "must not be given inside of a set, which is compared as a whole; give the set the category")
	case t != TypeNone && t != TypeSet:
		b.fault(at, "", "lies inside of a field of type %s, which is one value; remove it, or that type", t)
	case around.field.Default != "" && (at.hasDefault() || !slices.Contains([]string{"[]", "{}", "null"}, around.field.Default)):
		b.fault(at, "", "lies inside of a field that has a default; keep the default of one of the two, the outer one only as [], {} or null")
	}
}

// currency finds the place of a money's currency.
func (b *builder) currency(at *place) {
	p, ok := parsePath(at.field.Currency)
	switch n := at.path.common(p); {
	case !ok:
		b.fault(at, "currency", "%s", rulePath)
	case n == len(p) || n == len(at.path):
		b.fault(at, "currency", "must be another field, neither inside of the money nor around it; for an object with an amount and a currency leave currency out")
	case at.path[n] == element || slices.Contains(p[n:], element):
		b.fault(at, "currency", "must be one field for each money: begin it with the same path up to the last /* that both have, as in /lines/*/price with /lines/*/currency")
	default:
		at.currency, at.anchor = b.at(p), b.at(at.path[:n])
		for here := at.currency; here != at.anchor.in; here = here.in {
			b.aroundCurrency(at, here)
		}
	}
}

// aroundCurrency judges the place of a money's currency, and what lies around it.
func (b *builder) aroundCurrency(at, here *place) {
	is := here == at.currency
	switch t := here.typ; {
	case here.ignored:
		b.fault(at, "currency", "must not lie in a path that is ignored; ignore less")
	case t != TypeNone && !(is && t == TypeText):
		b.fault(at, "currency", "must be a field without a type, and inside of none")
	case is && here.hasDefault() && !isCurrency(here.field.Default):
		b.fault(here, "default", "must be a currency of ISO 4217 in three capital letters, because money has its currency here")
	case !is && here.hasDefault() && here != at.anchor:
		b.fault(here, "default", "must not be given around the currency of money; give it to the currency itself")
	}
}

// finish fills in what each place takes over from around it and from below.
func (b *builder) finish(at *place) {
	if at.in != nil {
		at.category = at.in.category
	}
	if at.field != nil && at.field.Category != "" {
		at.category = slices.Index(b.rules.categories, at.field.Category)
		if at.category < 0 {
			at.category = len(b.rules.categories)
			b.rules.categories = append(b.rules.categories, at.field.Category)
		}
	}
	if at.typ == TypeMoney {
		b.money(at)
	}
	if at.ignored {
		b.rules.marks++
		at.mark = b.rules.marks
	}
	if len(at.names) <= few {
		at.few = slices.Collect(maps.Values(at.names))
	}
	for _, child := range at.children() {
		b.finish(child)
		at.split = at.split || child.split || child.category != at.category
		at.walked = at.walked || at.split || child.walked
		if child != at.each && (len(child.absent) > 0 || child.hasDefault()) {
			at.absent = append(at.absent, child)
			b.rules.marks++
			child.mark = b.rules.marks
		}
	}
}

// money connects the number of money with its currency: the two that an object
// has, or itself with what the contract names.
func (b *builder) money(at *place) {
	number := at
	if at.field.Currency == "" {
		at.names = map[string]*place{}
		number = b.at(slices.Concat(at.path, path{nameAmount}))
		number.currency, number.anchor = b.at(slices.Concat(at.path, path{nameCurrency})), at
	} else {
		b.rules.monies++
		at.walked, at.money = true, b.rules.monies
	}
	number.typ = TypeDecimal
	if number.currency.isCurrency == 0 {
		b.rules.currencies++
		number.currency.isCurrency = b.rules.currencies
	}
	number.anchor.anchored = append(number.anchor.anchored, number)
}

// defaults brings each default into its canonical form, as a request would.
func (b *builder) defaults() {
	for _, at := range b.rules.fields {
		if at.field.Default == "" {
			continue
		}
		// Inside of a request of its own, with the type alone: its currency is known only beside it.
		alone := Field{Type: at.field.Type}
		if at.field.Currency != "" {
			alone.Type = TypeDecimal
		}
		if !jsontext.Value(at.field.Default).IsValid() {
			b.fault(at, "default", "must be one JSON value")
			continue
		}
		rules, err := NewRules(map[string]Field{"d": alone}, nil)
		if err != nil {
			b.fault(at, "default", "%s", err)
			continue
		}
		text, err := Text([]byte(`{"d":`+at.field.Default+`}`), rules)
		var broken *Error
		switch {
		case errors.As(err, &broken) && broken.Rule.misfit():
			b.fault(at, "default", "must be of the field's type: it %s", broken.Rule)
		case err != nil:
			b.fault(at, "default", "must keep to the bounds of a request: it %s", broken.Rule)
		default:
			at.preset = text[len(`{"d":`) : len(text)-1]
		}
	}
}
