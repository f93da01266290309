// SPDX-License-Identifier: Apache-2.0

// Package fingerprint turns a business request into keyed digests, so that two
// requests under one key can be compared without keeping either of them.
//
// It guarantees: the same request, however it is spelled, has the same
// fingerprint; another request has another one, and a category that says where;
// a record is judged by the spec, contract and secret that it was made with, or
// not at all; and no error, log line or printed value of this package shows a
// field value, an undeclared field name or a secret. All functions are safe for
// concurrent use; their cost is linear in the size of the request.
//
// docs/fingerprint.md is the specification of what it computes: the canonical
// form, the types of declared fields, categories and digests. [Rules] are what a
// contract declares. [NewRequest] makes of a request what the core compares; who
// works on fingerprints alone uses [Canonicalize] and [Digest].
//
// A request is read in three passes. The tokeniser, which refuses what
// encoding/json hides, says whether it is good JSON; the parser, which relies on
// that, writes the canonical text, and sees names that come twice when it sorts
// them; the partition, which relies on the parser, divides it into the parts of the
// categories.
//
// It depends on the standard library, jsontext (the tokeniser), x/text (Form C),
// go.yaml.in/yaml (the file of secrets) and, for requests, on the values of
// package ledger.
package fingerprint
