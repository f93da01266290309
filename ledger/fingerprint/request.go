// SPDX-License-Identifier: Apache-2.0

package fingerprint

import "github.com/opsledger/opsledger/ledger"

// Request is what one key stands for, as the core compares it: a
// [ledger.Request]. It is canonicalised once, and can be digested under every
// secret of its ring. It is safe for concurrent use.
type Request struct {
	ring      *Ring
	content   Canonical
	relations Relations
	subject   string
}

var _ ledger.Request = (*Request)(nil)

// NewRequest makes the request of a claim: its subject and the operations that
// it names belong to it. requestJSON is what the claim is about, without what
// is another at each try, such as a time; the contract says which of its fields
// belong together. An error is an [*Error] about requestJSON.
func NewRequest(ring *Ring, claim ledger.Claim, contract ledger.Contract, requestJSON []byte) (*Request, error) {
	content, err := Canonicalize(requestJSON, RulesOf(contract))
	if err != nil {
		return nil, err
	}
	r := &Request{ring: ring, content: content, subject: claim.Key.Subject, relations: Relations{
		Compensates: relation(claim.Compensates), Corrects: relation(claim.Corrects),
	}}
	for _, id := range claim.DependsOn {
		r.relations.DependsOn = append(r.relations.DependsOn, id.String())
	}
	return r, nil
}

func relation(id ledger.OperationID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// RulesOf are a contract's rules for the requests of its tool.
func RulesOf(contract ledger.Contract) Rules {
	rules := Rules{Fields: make(map[string]Field, len(contract.Categories))}
	for field, category := range contract.Categories {
		rules.Fields[field] = Field{Category: category}
	}
	return rules
}

// Fingerprint digests the request as a record was, or with nil as new records
// are. A spec that this release lacks, or a secret that the ring lacks, is
// [ledger.ErrRecordTooNew]: nothing can be said then, least of all "different".
func (r *Request) Fingerprint(like *ledger.Fingerprint) (ledger.Fingerprint, error) {
	secret, contract := r.ring.Primary(), ""
	if like != nil {
		if CheckSpec(int(like.Spec)) != nil {
			return ledger.Fingerprint{}, ledger.ErrRecordTooNew
		}
		var err error
		if secret, err = r.ring.Secret(like.SecretID); err != nil {
			return ledger.Fingerprint{}, ledger.ErrRecordTooNew
		}
		contract = like.Contract
	}
	f := Digest(r.content, r.relations, secret)
	return ledger.Fingerprint{
		Spec: uint16(f.Spec), SecretID: f.SecretID, Contract: contract, Digest: f.Digest, Categories: f.Categories,
	}, nil
}

// SubjectDigest is keyed with the secret that a fingerprint names; empty
// without a subject.
func (r *Request) SubjectDigest(f ledger.Fingerprint) ([]byte, error) {
	if r.subject == "" {
		return nil, nil
	}
	secret, err := r.ring.Secret(f.SecretID)
	if err != nil {
		return nil, ledger.ErrRecordTooNew
	}
	digest := SubjectDigest(r.subject, secret)
	return digest[:], nil
}

// SubjectDigests are those under each secret of the ring.
func (r *Request) SubjectDigests() [][]byte { return r.ring.SubjectDigests(r.subject) }

// SubjectDigests are a subject's digests under each secret of the ring, to find
// records by; none without a subject.
func (r *Ring) SubjectDigests(subject string) [][]byte {
	if subject == "" {
		return nil
	}
	var all [][]byte
	for _, id := range r.IDs() {
		digest := SubjectDigest(subject, r.secrets[id])
		all = append(all, digest[:])
	}
	return all
}
