// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"time"

	"golang.org/x/text/unicode/norm"
)

// refuses says what is wrong with an object or array at a place. Whether an
// object is money is seen at its end.
func (p *place) refuses(begins byte) Rule {
	switch {
	case p == nil || p.typ == TypeNone:
		return noRule
	case p.typ == TypeSet && begins == '[' || p.typ == TypeMoney && begins == '{':
		return noRule
	}
	return typeRules[p.typ]
}

// typeRules are what values of the types must be.
var typeRules = map[Type]Rule{
	TypeDecimal: RuleDecimal, TypeMoney: RuleMoney, TypeTimestamp: RuleTimestamp, TypeUUID: RuleUUID, TypeSet: RuleSet, TypeText: RuleText,
}

// typed writes the scalar of a declared field that begins here in its one
// spelling.
func (p *parser) typed(at *place, first byte) Rule {
	begin, scratch := p.at, len(p.scratch)
	isText := first == '"'
	var text []byte
	switch {
	case isText:
		text = p.text(p.string())
	case first == 't' || first == 'f':
		return typeRules[at.typ]
	default:
		text = p.number()
	}
	var rule Rule
	switch {
	case at.typ == TypeDecimal:
		rule = p.decimal(at, begin, text, isText)
	case !isText || at.typ == TypeSet || at.typ == TypeMoney:
		rule = typeRules[at.typ]
	default:
		rule = p.respell(at, begin, text)
	}
	p.scratch = p.scratch[:scratch]
	return rule
}

// respell writes the text of a string that began at begin in the one spelling of
// its type.
func (p *parser) respell(at *place, begin int, text []byte) Rule {
	switch {
	case at.typ == TypeText && norm.NFC.IsNormal(text):
		if len(text) != p.at-begin-2 { // it has escapes
			p.instead(begin)
			p.out = appendQuoted(p.out, text)
		}
		return noRule
	}
	p.instead(begin)
	if at.typ == TypeText {
		composed, rule := appendNFC(p.moved[:0], text)
		p.moved = composed
		p.out = appendQuoted(p.out, composed)
		return rule
	}
	write := appendUUID
	if at.typ == TypeTimestamp {
		write = appendTimestamp
	}
	var rule Rule
	p.out, rule = write(append(p.out, '"'), text)
	p.out = append(p.out, '"')
	return rule
}

// decimal writes a number, or what a string holds that is written as JSON writes
// numbers. It is also the amount of money.
func (p *parser) decimal(at *place, begin int, text []byte, isText bool) Rule {
	p.instead(begin)
	number := len(p.out)
	var rule Rule
	if n := plain(text); n > 0 {
		p.out = append(p.out, text[:n]...)
	} else if isText && !isNumber(text) {
		return RuleDecimal
	} else {
		p.out, rule = appendNumber(p.out, text)
	}
	if isText && rule != noRule {
		return RuleBounds // without its type it could be a text like any other
	}
	if at.anchor != nil && rule == noRule {
		p.pending = append(p.pending, amount{at: at, places: decimalPlaces(p.out[number:]), offset: begin})
	}
	return rule
}

// appendTimestamp reads a time as RFC 3339 section 5.6 writes it, and writes it
// in UTC without trailing zeros. Seconds end with 59: a leap second is no time
// that the clocks of callers and targets agree on.
func appendTimestamp(dst, text []byte) ([]byte, Rule) {
	const form = "dddd-dd-ddTdd:dd:dd"
	if len(text) < len(form)+1 {
		return dst, RuleTimestamp
	}
	for i := range len(form) {
		c := text[i]
		if form[i] == 'd' && !isDigit(c) || form[i] != 'd' && c != form[i] && !(i == 10 && c == 't') {
			return dst, RuleTimestamp
		}
	}
	n := func(from, digits int) (v int) {
		for _, c := range text[from : from+digits] {
			v = v*10 + int(c-'0')
		}
		return v
	}
	year, month, day, hour, minute, second := n(0, 4), n(5, 2), n(8, 2), n(11, 2), n(14, 2), n(17, 2)
	rest := text[len(form):]
	nanos := 0
	if rest[0] == '.' {
		digits := 0
		for rest = rest[1:]; digits < len(rest) && isDigit(rest[digits]); digits++ {
			nanos = nanos*10 + int(rest[digits]-'0')
			if digits >= 9 {
				return dst, RuleTimestamp
			}
		}
		if digits == 0 {
			return dst, RuleTimestamp
		}
		for range 9 - digits {
			nanos *= 10
		}
		rest = rest[digits:]
	}
	east := 0
	switch {
	case len(rest) == 1 && (rest[0] == 'Z' || rest[0] == 'z'):
	case len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && isDigit(rest[1]) && isDigit(rest[2]) && rest[3] == ':' && isDigit(rest[4]) && isDigit(rest[5]):
		hours, minutes := int(rest[1]-'0')*10+int(rest[2]-'0'), int(rest[4]-'0')*10+int(rest[5]-'0')
		if hours > 23 || minutes > 59 {
			return dst, RuleTimestamp
		}
		if east = hours*60 + minutes; rest[0] == '-' {
			east = -east
		}
	default:
		return dst, RuleTimestamp
	}
	local := time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	// What is not as it was given was no date or no time of a day.
	if local.Month() != time.Month(month) || local.Day() != day || local.Hour() != hour || local.Minute() != minute || local.Second() != second {
		return dst, RuleTimestamp
	}
	utc := local.Add(-time.Duration(east) * time.Minute)
	if utc.Year() < 0 || utc.Year() > 9999 {
		return dst, RuleTimestamp
	}
	return utc.AppendFormat(dst, "2006-01-02T15:04:05.999999999Z"), noRule
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// appendUUID reads the form of RFC 9562 section 4, in either case.
func appendUUID(dst, text []byte) ([]byte, Rule) {
	const form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	if len(text) != len(form) {
		return dst, RuleUUID
	}
	for i, c := range text {
		if 'A' <= c && c <= 'F' {
			c += 'a' - 'A'
		}
		hex := isDigit(c) || 'a' <= c && c <= 'f'
		if form[i] == 'x' && !hex || form[i] == '-' && c != '-' {
			return dst, RuleUUID
		}
		dst = append(dst, c)
	}
	return dst, noRule
}

// appendNFC writes Normalization Form C (UAX #15). The library keeps to the
// Stream-Safe Text Format there: into a run of more than 30 characters that may
// combine with what is before them it inserts a U+034F. Such a run is refused, so
// that the form is that of the standard.
func appendNFC(dst, text []byte) ([]byte, Rule) {
	joiner := []byte("\u034f")
	begin := len(dst)
	dst = norm.NFC.Append(dst, text...)
	if bytes.Count(dst[begin:], joiner) != bytes.Count(text, joiner) {
		return dst, RuleCombining
	}
	return dst, noRule
}
