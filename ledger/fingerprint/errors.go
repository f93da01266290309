// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
)

// A Rule is what a refused request broke, as a constant sentence without any
// part of the request.
type Rule string

// The rules of spec version 1.
const (
	RuleEmpty      Rule = "must be one JSON object, not empty"
	RuleSize       Rule = "must be at most 262144 bytes (256 KiB)"
	RuleBOM        Rule = "must not begin with a byte order mark"
	RuleUTF8       Rule = "must be valid UTF-8"
	RuleObject     Rule = "must be a JSON object at the root"
	RuleSyntax     Rule = "must be valid JSON (RFC 8259)"
	RuleTrailing   Rule = "must end with its root object"
	RuleSurrogate  Rule = "must not escape a lone surrogate"
	RuleDuplicate  Rule = "must not have two members of one name in an object"
	RuleDepth      Rule = "must not be nested deeper than 64 levels"
	RuleDigits     Rule = "must not have numbers of more than 100 significant digits"
	RuleExponent   Rule = "must not have numbers with an exponent beyond ±400"
	noRule         Rule = ""
	offsetUnplaced      = -1
)

// The rules of declared types. What breaks one may be good under another version
// of the contract.
const (
	RuleDecimal    Rule = "must be a number, or a string that holds one as JSON writes it"
	RuleBounds     Rule = "must be a number of at most 100 significant digits, with an exponent within ±400"
	RuleMoney      Rule = "must be an object with an amount (a number, or a string that holds one) and a currency, and nothing else"
	RuleCurrency   Rule = "must have a currency of ISO 4217 in three capital letters, one that has a minor unit"
	RuleNoCurrency Rule = "must have its currency beside it, in the field that the contract names"
	RuleMinorUnits Rule = "must not have more decimal places than its currency"
	RuleTimestamp  Rule = "must be a time as RFC 3339 writes it, with its zone and at most 9 digits of a second"
	RuleUUID       Rule = "must be a UUID in its form of 36 characters"
	RuleSet        Rule = "must be an array"
	RuleRepeat     Rule = "must not have an element twice"
	RuleText       Rule = "must be a string"
	RuleCombining  Rule = "must not have more than 30 combining characters in a row"
	RuleDefaults   Rule = "must not lack so many fields that their defaults have more than 262144 bytes"
)

// misfit reports whether a rule is about declared types.
func (r Rule) misfit() bool {
	switch r {
	case RuleDecimal, RuleBounds, RuleMoney, RuleCurrency, RuleNoCurrency, RuleMinorUnits, RuleTimestamp, RuleUUID, RuleSet, RuleRepeat, RuleText,
		RuleCombining, RuleDefaults:
		return true
	default:
		return false
	}
}

// Error says why a request was refused. It belongs to INVALID_ARGUMENT on the
// field that carried the JSON. It never holds a value or a field name that the
// [Rules] do not declare: a caller may choose a name to carry a value.
type Error struct {
	// Pointer (RFC 6901) names the field in which the rule was broken, as far as
	// it is declared: an element by its index, and no name that is not in the
	// contract. Empty where nothing is declared.
	Pointer string
	// Rule is what was broken.
	Rule Rule
	// Offset is the byte near which it was noticed, counted from 0; -1 where
	// the rule is about the whole text.
	Offset int64
}

func (e *Error) Error() string {
	switch {
	case e.Offset < 0:
		return string(e.Rule)
	case e.Pointer == "":
		return fmt.Sprintf("%s (near byte %d)", e.Rule, e.Offset)
	}
	return fmt.Sprintf("%s (in %s, near byte %d)", e.Rule, e.Pointer, e.Offset)
}

var (
	// ErrSpecTooNew: the stored fingerprint was made by a spec that this
	// release does not know. The answer is RECORD_TOO_NEW, never "different".
	ErrSpecTooNew = errors.New("fingerprint spec is newer than this release")
	// ErrSpecInvalid: the stored spec number is none that any release wrote.
	ErrSpecInvalid = errors.New("fingerprint spec is not a known version")
	// ErrUnknownSecret: the ring has no secret of the id that a record names. A
	// secret must outlive the records made with it; this is for the operators.
	ErrUnknownSecret = errors.New("fingerprint secret of this id is not in the ring")
	// ErrNoUniqueSecret: a contract has unique rules, and the ring lacks the secret
	// that keys their slots.
	ErrNoUniqueSecret = errors.New("the ring has no unique_secret, which unique rules of contracts need")
)
