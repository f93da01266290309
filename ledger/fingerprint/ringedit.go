// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// What an operator does to a ring, step by step, makes a new one of it: first a
// secret is added, then it becomes the primary, and the old one goes when no
// record names it any more.

// With is the ring with one more secret.
func (r *Ring) With(s Secret) (*Ring, error) {
	now := r.current.Load()
	if _, ok := now.byID[s.id]; ok {
		return nil, fmt.Errorf("%sthe id %s is there already; a new secret needs a new id", r.Place(s.id), s.id)
	}
	return now.ring(now.primary, append(now.list(), s))
}

// WithPrimary is the ring with another primary.
func (r *Ring) WithPrimary(id string) (*Ring, error) {
	now := r.current.Load()
	if _, ok := now.byID[id]; !ok {
		return nil, errors.New("the ring has no secret of that id")
	}
	return now.ring(id, now.list())
}

// Without is the ring without one of its secrets, which is not the primary.
// Whether records name it only the store can say.
func (r *Ring) Without(id string) (*Ring, error) {
	now := r.current.Load()
	switch _, ok := now.byID[id]; {
	case !ok:
		return nil, errors.New("the ring has no secret of that id")
	case id == now.primary:
		return nil, fmt.Errorf("%sthe id %s is the primary", r.Place(id), id)
	}
	return now.ring(now.primary, slices.DeleteFunc(now.list(), func(s Secret) bool { return s.id == id }))
}

// ring is one of other secrets, with the same secret of slots.
func (s *secrets) ring(primary string, all []Secret) (*Ring, error) {
	r, err := NewRing(primary, all...)
	if err != nil || s.unique.key == nil {
		return r, err
	}
	return r, r.SetUnique(s.unique.key())
}

// list is in the order of ids.
func (s *secrets) list() []Secret {
	var all []Secret
	for _, id := range slices.Sorted(maps.Keys(s.byID)) {
		all = append(all, s.byID[id])
	}
	return all
}
