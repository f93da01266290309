// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// The members of money that is an object.
const (
	nameAmount   = "amount"
	nameCurrency = "currency"
)

// amount is a number of money whose currency has not been seen yet.
type amount struct {
	at     *place
	places int  // behind its point
	offset int  // in the input; of the object, if the amount is its default
	preset bool // it is a default
}

// currency is what stood last where rules say that a currency is.
type currency struct {
	places int // of its minor unit
	ok     bool
	at     int // one more than its offset in the input, or that of the object which it was added to as a default
}

// currency notes the value that was read last; it begins at offset.
func (p *parser) currency(at *place, offset int) {
	switch p.input[offset] {
	case 'n':
		return // there is none
	case '"':
		p.currencyText(at, p.input[offset:p.at], offset)
	default:
		p.currencies[at.isCurrency-1] = currency{at: offset + 1}
	}
}

func (p *parser) currencyText(at *place, quoted []byte, offset int) {
	text := quoted[1 : len(quoted)-1]
	if len(text) != len("EUR") { // as long as it is with escapes
		text, _ = jsontext.AppendUnquote(nil, quoted) // the tokeniser has accepted it
	}
	places, known := minorUnits[string(text)]
	p.currencies[at.isCurrency-1] = currency{places: places, ok: known, at: offset + 1}
}

// findCurrencies looks in a complete object, which begins at offset, for the
// currencies of the amounts in it, as far as they have them here. Those that came
// before pending lie outside of it.
func (p *parser) findCurrencies(anchor *place, offset, pending int) {
	if len(anchor.anchored) == 0 {
		return
	}
	waiting := pending
	for _, m := range p.pending[pending:] {
		if m.at.anchor != anchor {
			p.pending[waiting] = m // its currency is further out
			waiting++
			continue
		}
		if p.findCurrency(m, offset); p.fault != nil {
			return
		}
	}
	p.pending = p.pending[:waiting]
}

func (p *parser) findCurrency(m amount, anchor int) {
	c := p.currencies[m.at.currency.isCurrency-1]
	there := c.at > anchor // the last of its place, and of those in the anchor the only one
	switch {
	case !there && p.observed && m.at.field != nil:
		p.seen[m.at.index] = false // without its currency it says nothing
	case !there:
		p.fault = p.errorOfMoney(RuleNoCurrency, m, nil)
	case !c.ok:
		p.fault = p.errorOfMoney(RuleCurrency, m, m.at.currency)
	case m.places > c.places:
		p.fault = p.errorOfMoney(RuleMinorUnits, m, nil)
	}
}

// errorOfMoney names the money, or its currency if that is given.
func (p *parser) errorOfMoney(rule Rule, m amount, currency *place) *Error {
	way := p.wayTo(m.offset)
	if m.preset { // the object is there that the default was added to
		way = slices.Concat(way, m.at.path[len(way):])
	}
	if currency != nil {
		n := len(m.at.anchor.path)
		way = slices.Concat(way[:n], currency.path[n:])
	}
	return &Error{Pointer: way.String(), Rule: rule, Offset: int64(m.offset)}
}

// decimalPlaces is how many digits a canonical number has behind its point.
func decimalPlaces(number []byte) int {
	point, end, exponent := -1, len(number), 0
	for i, c := range number {
		if c == '.' {
			point = i
		} else if c == 'e' {
			end = i
			exponent, _ = boundedExponent(number[i+1:]) // it is ours, and so within the bounds
			break
		}
	}
	if point < 0 {
		point = end - 1
	}
	return max(end-1-point-exponent, 0)
}
