// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
)

// Spec1 is spec version 1: docs/fingerprint.md.
const Spec1 = 1

// Spec is one version of the canonical form. A release has those of all records
// that it may meet.
type Spec struct {
	// Number is kept in records; from 1.
	Number int
	// Canonicalize brings a request into this version's form, Observed what a
	// target shows, as [Canonicalize] and [CanonicalizeObserved] do. An error is an
	// *[Error].
	Canonicalize, Observed func(text []byte, rules Rules) (Canonical, error)
}

// Specs are the versions that this process knows, and the one that new records
// get. The zero value knows and writes spec 1.
type Specs struct {
	write int
	known map[int]Spec
}

// NewSpecs adds versions to spec 1, and says which of all new records get: after
// a roll-out only, when each process knows it.
func NewSpecs(write int, more ...Spec) (Specs, error) {
	s := Specs{write: write, known: map[int]Spec{}}
	for _, spec := range more {
		switch _, twice := s.known[spec.Number]; {
		case spec.Number <= Spec1 || spec.Number > 1<<15-1 || twice: // a store keeps 16 bits
			return Specs{}, fmt.Errorf("spec %d: is there already, or is no version", spec.Number)
		case spec.Canonicalize == nil || spec.Observed == nil:
			return Specs{}, fmt.Errorf("spec %d: lacks a function", spec.Number)
		}
		s.known[spec.Number] = spec
	}
	if err := s.Check(write); err != nil {
		return Specs{}, errors.New("the spec of new records is not one of those that are known")
	}
	return s, nil
}

// Write is the spec that new records get.
func (s Specs) Write() int { return max(s.write, Spec1) }

// Check says whether a stored spec is known: nil, [ErrSpecTooNew] or
// [ErrSpecInvalid].
func (s Specs) Check(number int) error {
	_, known := s.known[number]
	switch {
	case number < Spec1:
		return ErrSpecInvalid
	case number != Spec1 && !known:
		return ErrSpecTooNew
	}
	return nil
}

// canonicalize under one version.
func (s Specs) canonicalize(number int, text []byte, rules Rules, observed bool) (Canonical, error) {
	if err := s.Check(number); err != nil {
		return Canonical{}, err
	}
	spec := Spec{Canonicalize: Canonicalize, Observed: CanonicalizeObserved}
	if number != Spec1 {
		spec = s.known[number]
	}
	make := spec.Canonicalize
	if observed {
		make = spec.Observed
	}
	c, err := make(text, rules)
	if err != nil {
		return Canonical{}, err
	}
	return c.as(number), nil
}
