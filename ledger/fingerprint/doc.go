// SPDX-License-Identifier: Apache-2.0

// Package fingerprint turns a business request into keyed digests, so that two
// requests under one key can be compared without keeping either of them.
//
// It guarantees: the same request, however it is spelled, has the same
// fingerprint; another request has another one; and no error, log line or
// printed value of this package shows a field value, an undeclared field name
// or a secret. All functions are pure and safe for concurrent use; their cost
// is linear in the size of the request (n log n for sorting names).
//
// [NewRequest] makes of it what the core compares; who works on fingerprints
// alone uses [Canonicalize] and [Digest].
//
// It depends on the standard library, jsontext (a JSON tokeniser that refuses
// what encoding/json hides), go.yaml.in/yaml (the file of secrets) and, for
// NewRequest, on the values of package ledger. The rest of this page is spec version 1, complete enough to be implemented elsewhere;
// testdata/vectors.jsonl has examples made by another implementation.
//
// # Canonical form, spec version 1
//
// The input is one JSON text (RFC 8259) of at most [MaxSize] bytes, whose root
// is an object. Refused are: a byte order mark, invalid UTF-8, an escape that
// leaves a surrogate alone, two members of one object whose decoded names are
// equal (at any depth), anything but whitespace behind the root object, and
// more than [MaxDepth] objects and arrays inside each other, the root counting
// as the first.
//
// The output is UTF-8 without whitespace:
//
//   - null, true and false as such. A member that is null, a member that is
//     absent and a member that is "" stay three different things.
//   - Arrays: elements in their order, "[" "," "]".
//   - Objects: members sorted by the UTF-16 code units of their decoded names,
//     as in RFC 8785 section 3.2.3, "{" ":" "," "}".
//   - Strings as in RFC 8785 section 3.2.2.2: \b \t \n \f \r \" and \\ as these
//     two-character escapes, other characters below U+0020 as \u00xx with
//     lower-case hex digits, every other character as itself. Strings are not
//     normalised: NFC and NFD spellings are different.
//   - Numbers as exact decimals, as follows. No number ever becomes a binary
//     floating point value.
//
// Take the written significand (the digits before and behind the point) without
// its leading and trailing zeros: the digits d1 ... dk. If none is left the
// number is written 0, whatever its sign. Otherwise it must have k <= [MaxDigits];
// the written exponent must lie within ±[MaxExponent]; and so must E, where the
// value is ±d1.d2...dk × 10^E. Everything else is refused. (For zero only the
// written exponent counts.) With n = E + 1 the text is, behind a "-" for
// negative numbers:
//
//   - k <= n <= 21: the digits, then n - k zeros: 4200
//   - 0 < n < k, n <= 21: the first n digits, a point, the others: 12.5
//   - -6 < n <= 0: "0.", then -n zeros, then the digits: 0.001
//   - else d1, a point and d2...dk if k > 1, "e", the sign of E (always), and E
//     in decimal digits: 1e+21, 1.5e-7
//
// This is the layout of ECMAScript's Number::toString, which RFC 8785 uses, over
// exact digits: for a number that a double holds exactly and prints in full the
// two agree; 9007199254740993 stays itself. The canonical text of a canonical
// text is itself, as long as it is within MaxSize (an exponent spelled out can
// make it up to about five times longer than its input).
//
// # Digests
//
// The content digest is the SHA-256 of the canonical text. It is an
// intermediate value: low-entropy requests can be guessed from it, so only
// keyed digests leave this package in a [Fingerprint].
//
// lp(x) is the length of x in bytes as 8 bytes, big-endian, followed by x;
// n(i) is the number i as 8 bytes, big-endian; MAC is HMAC-SHA-256 (RFC 2104)
// under the secret. Labels and names are ASCII or UTF-8 text.
//
//	relations = n(count) lp(d1) ... lp(dcount) lp(compensates) lp(corrects)
//	            where d1 ... are depends_on as a set: sorted by bytes, each once
//	whole     = MAC( lp("opsledger/fingerprint/1/request") lp(content digest) lp(relations) )
//	category  = MAC( lp("opsledger/fingerprint/1/category") lp(name) lp(canonical part) ), first 8 bytes
//	relation  = MAC( lp("opsledger/fingerprint/1/relation") lp(relations) ), first 8 bytes;
//	            none where there is no relation at all
//	subject   = MAC( lp("opsledger/subject/1") lp(subject) )
//
// The canonical part of a category is the canonical text of an object that has
// just the top-level members of that category; a category without a member in
// the request has no digest. [Rules] say which member belongs where; what they
// do not name is in the category other. The whole digest alone decides whether
// two requests are the same; the short ones only name what differs, and check
// evidence.
package fingerprint
