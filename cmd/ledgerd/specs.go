// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// laterSpecs are the versions of the canonical form that this binary knows besides spec 1.
var laterSpecs []fingerprint.Spec

// specs are all that this binary knows, of which new records get one.
func specs(write int) (fingerprint.Specs, error) {
	all, err := fingerprint.NewSpecs(write, laterSpecs...)
	if err != nil {
		known := []string{fmt.Sprint(fingerprint.Spec1)}
		for _, s := range laterSpecs {
			known = append(known, fmt.Sprint(s.Number))
		}
		return fingerprint.Specs{}, ruleError("fingerprint-write-spec", "must be a spec that this binary knows: "+strings.Join(known, ", "))
	}
	return all, nil
}
