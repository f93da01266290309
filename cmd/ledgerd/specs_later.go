// SPDX-License-Identifier: Apache-2.0

//go:build laterspec

package main

import (
	"bytes"

	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// A release has none of this: it is a binary of the future, for the tests of two builds on one store. It reads strings without their case.
func init() {
	laterSpecs = append(laterSpecs, fingerprint.Spec{
		Number: 2,
		Canonicalize: func(text []byte, rules fingerprint.Rules) (fingerprint.Canonical, error) {
			return fingerprint.Canonicalize(bytes.ToLower(text), rules)
		},
		Observed: func(text []byte, rules fingerprint.Rules) (fingerprint.Canonical, error) {
			return fingerprint.CanonicalizeObserved(bytes.ToLower(text), rules)
		},
	})
}
