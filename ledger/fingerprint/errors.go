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

// Error says why a request was refused. It belongs to INVALID_ARGUMENT on the
// field that carried the JSON. It never holds a value or a field name that the
// [Rules] do not declare: a caller may choose a name to carry a value.
type Error struct {
	// Pointer (RFC 6901) names the declared top-level field in which the rule
	// was broken; empty where there is none or it is not declared.
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
	// ErrSecretMismatch: two fingerprints under different secrets or specs say
	// nothing about each other; the caller has to digest with the record's.
	ErrSecretMismatch = errors.New("fingerprints were made with different secrets or specs")
)
