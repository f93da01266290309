// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
)

const (
	// Spec1 is spec version 1, the package comment.
	Spec1 = 1
	// LatestSpec is the newest spec that this release can compare.
	LatestSpec = Spec1
)

// CheckSpec says whether this release knows a stored spec: nil,
// [ErrSpecTooNew] or [ErrSpecInvalid].
func CheckSpec(spec int) error {
	switch {
	case spec > LatestSpec:
		return ErrSpecTooNew
	case spec < Spec1:
		return ErrSpecInvalid
	}
	return nil
}

// Domain labels: no digest of one kind can be taken for one of another.
const (
	labelRequest  = "opsledger/fingerprint/1/request"
	labelCategory = "opsledger/fingerprint/1/category"
	labelRelation = "opsledger/fingerprint/1/relation"
	labelSubject  = "opsledger/subject/1"
)

// Relations are the parts of a request that tie it to other operations. The
// zero value is a request without any.
type Relations struct {
	// DependsOn has one text for each resource (or operation) that the request
	// uses. Order and repetition do not count. The caller writes each in one
	// canonical way.
	DependsOn []string
	// Compensates and Corrects are operation ids in canonical text; at most one
	// of them is set.
	Compensates, Corrects string
}

func (r Relations) empty() bool {
	return len(r.DependsOn) == 0 && r.Compensates == "" && r.Corrects == ""
}

func (r Relations) encode() []byte {
	set := slices.Compact(slices.Sorted(slices.Values(r.DependsOn)))
	b := binary.BigEndian.AppendUint64(nil, uint64(len(set)))
	for _, text := range set {
		b = appendPart(b, text)
	}
	return appendPart(appendPart(b, r.Compensates), r.Corrects)
}

func appendPart(b []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
}

// Fingerprint is what a record keeps of a request. It never changes; a later
// request under the key is digested with the record's spec, rules and secret.
type Fingerprint struct {
	// Spec is the version of the canonical form, [Spec1].
	Spec int
	// SecretID names the secret in the ring.
	SecretID string
	// Digest is the keyed digest of the whole request.
	Digest [32]byte
	// Categories has one short keyed digest for each category that the request
	// has fields of, and [CategoryRelation] if it has a relation.
	Categories map[string][8]byte
}

// Prefix is the first 8 hex digits of the digest, for logs and people.
func (f Fingerprint) Prefix() string { return hex.EncodeToString(f.Digest[:4]) }

// Digest makes the fingerprint of a canonical request and its relations. It
// panics on a zero Canonical or Secret: strangers would share a fingerprint.
func Digest(c Canonical, relations Relations, s Secret) Fingerprint {
	request, encoded := c.content(), relations.encode()
	f := Fingerprint{
		Spec:       Spec1,
		SecretID:   s.id,
		Digest:     s.digest(labelRequest, request.digest[:], encoded),
		Categories: make(map[string][8]byte, len(request.categories)+1),
	}
	for name, part := range request.categories {
		f.Categories[name] = s.categoryDigest(name, part)
	}
	if !relations.empty() {
		f.Categories[CategoryRelation] = short(s.digest(labelRelation, encoded))
	}
	return f
}

// SubjectDigest is the keyed digest of a subject, so that records can be
// matched to it without naming it. It panics on a zero Secret.
func SubjectDigest(subject string, s Secret) [32]byte {
	return s.digest(labelSubject, []byte(subject))
}

func (s Secret) categoryDigest(name string, part []byte) [8]byte {
	return short(s.digest(labelCategory, []byte(name), part))
}

func (s Secret) digest(label string, parts ...[]byte) (sum [32]byte) {
	mac := hmac.New(sha256.New, s.key())
	writePart(mac, []byte(label))
	for _, part := range parts {
		writePart(mac, part)
	}
	mac.Sum(sum[:0])
	return sum
}

func writePart(mac hash.Hash, part []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(part)))
	mac.Write(length[:])
	mac.Write(part)
}

func short(sum [32]byte) [8]byte { return [8]byte(sum[:8]) }

// Verification is what evidence says about a request, by category, sorted.
type Verification struct {
	// Different has the categories whose fields the target has otherwise.
	Different []string
	// Missing has the categories that the evidence does not settle: it has no
	// field of them, or it differs while it lacks a declared one of them.
	Missing []string
}

// OK says that every category asked for is there and equal.
func (v Verification) OK() bool { return len(v.Different) == 0 && len(v.Missing) == 0 }

// VerifyObserved compares what a target has (a JSON object in the request's own
// field names, under the same rules and limits as a request) with the
// fingerprint of what was asked, for the categories that the contract lists in
// verify. Fields of other categories do not matter. An error is an *[Error]
// about observedJSON, or says that nothing can be compared: [ErrSpecTooNew],
// [ErrSpecInvalid], [ErrSecretMismatch].
func VerifyObserved(stored Fingerprint, observedJSON []byte, rules Rules, s Secret, verify []string) (Verification, error) {
	if err := CheckSpec(stored.Spec); err != nil {
		return Verification{}, err
	}
	if stored.SecretID != s.id {
		return Verification{}, ErrSecretMismatch
	}
	observed, err := Canonicalize(observedJSON, rules)
	if err != nil {
		return Verification{}, err
	}
	var v Verification
	for _, category := range slices.Compact(slices.Sorted(slices.Values(verify))) {
		part, there := observed.content().categories[category]
		if !there {
			v.Missing = append(v.Missing, category)
			continue
		}
		got := s.categoryDigest(category, part)
		want, asked := stored.Categories[category]
		switch {
		case asked && hmac.Equal(got[:], want[:]):
		case asked && observed.declaredIn(rules, category) < rules.fieldsOf(category):
			v.Missing = append(v.Missing, category)
		default:
			v.Different = append(v.Different, category)
		}
	}
	return v, nil
}

// declaredIn counts the declared fields of a category that the request has.
func (c Canonical) declaredIn(rules Rules, category string) int {
	n := 0
	for name := range c.content().fields {
		if rules.category(name) == category {
			n++
		}
	}
	return n
}
