// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"

	"github.com/opsledger/opsledger/ledger"

	"github.com/opsledger/opsledger/guard"
)

// Domain labels: no digest of one kind, or of one spec, can be taken for one of
// another.
const (
	labelSpec     = "opsledger/fingerprint/" // spec number, "/" and one of the next three
	labelRequest  = "request"
	labelCategory = "category"
	labelRelation = "relation"
	labelSubject  = "opsledger/subject/1"
	labelSlot     = "opsledger/slot/1"
	labelCheck    = "opsledger/secret-check/1"
)

// Relations are the parts of a request that tie it to other operations. The
// zero value is a request without any.
type Relations struct {
	// DependsOn are the operations whose resources the request uses, as operation
	// ids in canonical text. Order and repetition do not count.
	DependsOn []string
	// Compensates and Corrects are operation ids in canonical text; at most one
	// of them is set.
	Compensates, Corrects string
}

func (r Relations) empty() bool {
	return len(r.DependsOn) == 0 && r.Compensates == "" && r.Corrects == ""
}

func (r Relations) encode() []byte {
	set := slices.Clone(r.DependsOn)
	slices.Sort(set)
	set = slices.Compact(set)
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 24+(8+36)*len(set)), uint64(len(set)))
	for _, text := range set {
		b = appendPart(b, text)
	}
	return appendPart(appendPart(b, r.Compensates), r.Corrects)
}

// appendPart appends a text behind its length.
func appendPart[T string | []byte](b []byte, part T) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
}

// Fingerprint is what a record keeps of a request. It never changes; a later
// request under the key is digested with the record's spec, rules and secret.
type Fingerprint struct {
	// Spec is the version of the canonical form, such as [Spec1].
	Spec int
	// SecretID names the secret in the ring.
	SecretID string
	// Digest is the keyed digest of the whole request.
	Digest [32]byte
	// Categories has one short keyed digest for each category that the request
	// has fields of, and [CategoryRelation] if it has a relation.
	Categories map[string]ledger.CategoryDigest
}

// Prefix is the first 8 hex digits of the digest, for logs and people.
func (f Fingerprint) Prefix() string { return hex.EncodeToString(f.Digest[:4]) }

// Digest makes the fingerprint of a canonical request and its relations. It
// panics on a zero Canonical or Secret: strangers would share a fingerprint.
func Digest(c Canonical, relations Relations, s Secret) Fingerprint {
	if guard.Relations.Off() {
		relations = Relations{}
	}
	request, encoded := c.content(), relations.encode()
	mac := s.mac()
	f := Fingerprint{
		Spec:       request.spec,
		SecretID:   s.id,
		Digest:     mac.of(request.spec, labelRequest, request.digest[:], encoded),
		Categories: make(map[string]ledger.CategoryDigest, len(request.categories)+1),
	}
	for name, part := range request.categories {
		f.Categories[name] = mac.category(request.spec, name, part)
	}
	if !relations.empty() {
		f.Categories[CategoryRelation] = short(mac.of(request.spec, labelRelation, encoded))
	}
	return f
}

// SubjectDigest is the keyed digest of a subject, so that records can be
// matched to it without naming it. It panics on a zero Secret.
func SubjectDigest(subject string, s Secret) [32]byte {
	return s.mac().sum(labelSubject, []byte(subject))
}

// slot is the keyed digest of what a unique rule compares: the categories that
// it names, in a request of this scope, subject and tool. What the request lacks
// is a value, too. Neither spec nor contract is in it: it outlives both.
func slot(c Canonical, key ledger.Key, by []string, s Secret) ledger.Slot {
	parts := [][]byte{[]byte(key.Scope), []byte(key.Subject), []byte(key.Tool)}
	for _, category := range slices.Compact(slices.Sorted(slices.Values(by))) {
		digest, there := c.CategoryDigest(category)
		if !there {
			parts = append(parts, []byte(category), nil)
			continue
		}
		parts = append(parts, []byte(category), digest[:])
	}
	return s.mac().sum(labelSlot, parts...)
}

// mac makes keyed digests, one after the other.
type mac struct {
	hash  hash.Hash
	text  []byte // what is digested, behind which the digest comes
	label []byte
}

func (s Secret) mac() *mac {
	const most = 256 // of nearly all that is digested
	return &mac{hash: hmac.New(sha256.New, s.key()), text: make([]byte, 0, most)}
}

func (m *mac) category(spec int, name string, part [sha256.Size]byte) ledger.CategoryDigest {
	return short(m.of(spec, labelCategory, []byte(name), part[:]))
}

// of digests under a label of a spec.
func (m *mac) of(spec int, kind string, parts ...[]byte) [32]byte {
	m.label = strconv.AppendInt(append(m.label[:0], labelSpec...), int64(spec), 10)
	m.label = append(append(m.label, '/'), kind...)
	return m.digest(appendPart(m.text[:0], m.label), parts)
}

func (m *mac) sum(label string, parts ...[]byte) [32]byte {
	return m.digest(appendPart(m.text[:0], label), parts)
}

func (m *mac) digest(text []byte, parts [][]byte) [32]byte {
	for _, part := range parts {
		text = appendPart(text, part)
	}
	m.hash.Reset()
	m.hash.Write(text)
	m.text = m.hash.Sum(text)
	return [32]byte(m.text[len(text):])
}

func short(sum [32]byte) ledger.CategoryDigest { return ledger.CategoryDigest(sum[:8]) }

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

// verify compares what was observed with the fingerprint of what was asked, by
// category. What was observed is of the fingerprint's spec and rules.
func verify(stored ledger.Fingerprint, observed Canonical, rules Rules, secret Secret, categories []string) Verification {
	var v Verification
	mac := secret.mac()
	for _, category := range slices.Compact(slices.Sorted(slices.Values(categories))) {
		part, there := observed.CategoryDigest(category)
		if !there {
			if guard.Observed.On() {
				v.Missing = append(v.Missing, category)
			}
			continue
		}
		got := mac.category(int(stored.Spec), category, part)
		want, asked := stored.Categories[category]
		switch {
		case asked && hmac.Equal(got[:], want[:]):
		case asked && rules.declaredIn(category, observed.content()) < rules.fieldsOf(category):
			v.Missing = append(v.Missing, category)
		default:
			v.Different = append(v.Different, category)
		}
	}
	return v
}
