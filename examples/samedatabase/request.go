// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// request is what one key stands for, so that another request under it is refused. The ledger keeps keyed digests of it only.
type request struct {
	ring    *fingerprint.Ring
	content fingerprint.Canonical
}

var _ ledger.Request = request{}

// newRequest takes what the order depends on: not when it was decided, which is another at each try.
func newRequest(ring *fingerprint.Ring, l *ledger.Ledger, o order) (request, error) {
	text, err := json.Marshal(map[string]any{"item": o.Item, "cents": o.Cents})
	if err != nil {
		return request{}, err
	}
	declared, _ := l.Contract(o.key().Tool)
	rules := fingerprint.Rules{Fields: map[string]fingerprint.Field{}}
	for field, category := range declared.Categories {
		rules.Fields[field] = fingerprint.Field{Category: category}
	}
	content, err := fingerprint.Canonicalize(text, rules)
	return request{ring: ring, content: content}, err
}

// Fingerprint digests it under a record's secret, or for a new record under the primary one.
func (r request) Fingerprint(like *ledger.Fingerprint) (ledger.Fingerprint, error) {
	secret, contract := r.ring.Primary(), ""
	if like != nil {
		var err error
		if secret, err = r.ring.Secret(like.SecretID); err != nil || fingerprint.CheckSpec(int(like.Spec)) != nil {
			return ledger.Fingerprint{}, ledger.ErrRecordTooNew
		}
		contract = like.Contract
	}
	f := fingerprint.Digest(r.content, fingerprint.Relations{}, secret)
	return ledger.Fingerprint{
		Spec: uint16(f.Spec), SecretID: f.SecretID, Contract: contract, Digest: f.Digest, Categories: f.Categories,
	}, nil
}

// SubjectDigest is empty: the shop acts for itself.
func (request) SubjectDigest(ledger.Fingerprint) ([]byte, error) { return nil, nil }

// SubjectDigests are none.
func (request) SubjectDigests() [][]byte { return nil }
