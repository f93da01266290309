// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"sync"

	"github.com/opsledger/opsledger/ledger"
)

// Options are what requests are compared with besides the ring and the contract
// in force. The zero value knows spec 1 and the contract in force.
type Options struct {
	Specs Specs
	// Versions are those of contracts that are not in force any more, or not in
	// this process; nil: none is known, and rules are made anew for each request.
	Versions *Versions
}

// Request is what one key stands for, as the core compares it: a
// [ledger.Request]. It is judged by what the record under its key was made with
// (spec, contract, secret), and else by what new records get. It is safe for
// concurrent use, and keeps the text that it was made of.
type Request struct {
	ring      *Ring
	options   Options
	contract  ledger.Contract
	rules     Rules // of the contract in force
	text      []byte
	relations Relations
	key       ledger.Key

	mu    sync.Mutex
	forms map[form]canonicalForm // that were needed so far
}

// form is what decides how a request is canonicalised.
type form struct {
	spec     int
	contract string // its version
}

// canonicalForm is a request in one form, or why it does not fit it.
type canonicalForm struct {
	canonical Canonical
	misfit    *Error
}

var _ ledger.Request = (*Request)(nil)

// NewRequest makes the request of a claim: its subject and the operations that
// it names belong to it. requestJSON is what the claim is about, without what
// is another at each try, such as a time; the contract in force says what its
// fields mean. An error is an [*Error] about requestJSON, or says that the
// contract's declarations can't be used.
//
// A request that does not fit the declared types is no error here: the record
// under its key may be of another version of the contract. Fingerprint refuses
// it where it counts.
func NewRequest(ring *Ring, claim ledger.Claim, contract ledger.Contract, requestJSON []byte) (*Request, error) {
	return Options{}.NewRequest(ring, claim, contract, requestJSON)
}

// NewRequest is [NewRequest] with what is known besides.
func (o Options) NewRequest(ring *Ring, claim ledger.Claim, contract ledger.Contract, requestJSON []byte) (*Request, error) {
	rules, err := o.Versions.inForce(contract)
	if err != nil {
		return nil, err
	}
	r := &Request{
		ring: ring, options: o, contract: contract, rules: rules, text: requestJSON, key: claim.Key,
		relations: Relations{Compensates: relation(claim.Compensates), Corrects: relation(claim.Corrects)},
		forms:     map[form]canonicalForm{},
	}
	for _, id := range claim.DependsOn {
		r.relations.DependsOn = append(r.relations.DependsOn, id.String())
	}
	if err := r.Misfit(); err != nil && !isMisfit(err) {
		return nil, err
	}
	return r, nil
}

func relation(id ledger.OperationID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

func isMisfit(err error) bool {
	var broken *Error
	return errors.As(err, &broken) && broken.Rule.misfit()
}

// RulesOf are a contract's rules for the requests of its tool. The error joins
// every declaration that can't be used, each a [*FieldError].
func RulesOf(contract ledger.Contract) (Rules, error) {
	fields := make(map[string]Field, len(contract.Fields))
	for path, f := range contract.Fields {
		fields[path] = Field{Type: Type(f.Type), Currency: f.Currency, Category: f.Category, Default: f.Default}
	}
	return NewRules(fields, contract.Ignored)
}

// in brings the request into a form, once for each.
func (r *Request) in(f form, rules Rules) (Canonical, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made, ok := r.forms[f]
	if !ok {
		canonical, err := r.options.Specs.canonicalize(f.spec, r.text, rules, false)
		if err != nil && !errors.As(err, &made.misfit) {
			return Canonical{}, err
		}
		if err == nil {
			made.canonical = canonical
		}
		r.forms[f] = made
	}
	if made.misfit != nil {
		return Canonical{}, made.misfit
	}
	return made.canonical, nil
}

// Misfit says what of the request does not fit the types that the contract in
// force declares: nil, or an [*Error].
func (r *Request) Misfit() error {
	_, err := r.in(form{r.options.Specs.Write(), r.contract.Version}, r.rules)
	return err
}

// Fingerprint digests the request as a record was, or with nil as new records
// are. A spec or contract that is not known here, or a secret that the ring
// lacks, is [ledger.ErrRecordTooNew]: nothing can be said then, least of all
// "different". A [*ledger.Lacking] is a contract that has to be fetched first. An
// [*Error] is a request that does not fit the declared types.
func (r *Request) Fingerprint(like *ledger.Fingerprint) (ledger.Fingerprint, error) {
	want := form{r.options.Specs.Write(), r.contract.Version}
	if like != nil {
		want = form{int(like.Spec), like.Contract}
	}
	secret, err := r.ring.secretOf(like)
	if err != nil || r.options.Specs.Check(want.spec) != nil {
		return ledger.Fingerprint{}, ledger.ErrRecordTooNew
	}
	rules, err := r.options.Versions.rulesOf(want.contract, r.contract, r.rules)
	if err != nil {
		return ledger.Fingerprint{}, err
	}
	canonical, err := r.in(want, rules)
	if err != nil {
		return ledger.Fingerprint{}, err
	}
	f := Digest(canonical, r.relations, secret)
	return ledger.Fingerprint{
		Spec: uint16(f.Spec), SecretID: f.SecretID, Contract: want.contract, Digest: f.Digest, Categories: f.Categories,
	}, nil
}

// secretOf a record, or with nil of new records.
func (r *Ring) secretOf(like *ledger.Fingerprint) (Secret, error) {
	if like == nil {
		return r.Primary(), nil
	}
	return r.Secret(like.SecretID)
}

// SubjectDigest is keyed with the secret that a fingerprint names; empty
// without a subject.
func (r *Request) SubjectDigest(f ledger.Fingerprint) ([]byte, error) {
	if r.key.Subject == "" {
		return nil, nil
	}
	secret, err := r.ring.Secret(f.SecretID)
	if err != nil {
		return nil, ledger.ErrRecordTooNew
	}
	digest := SubjectDigest(r.key.Subject, secret)
	return digest[:], nil
}

// SubjectDigests are those under each secret of the ring.
func (r *Request) SubjectDigests() [][]byte { return r.ring.SubjectDigests(r.key.Subject) }

// Slots are what the unique rules of the contract in force ask for, under the
// secret of the ring that does not rotate: [ErrNoUniqueSecret] where it has
// none. A request that does not fit the declared types has none.
func (r *Request) Slots() ([]ledger.UniqueSlot, error) {
	if len(r.contract.Unique) == 0 {
		return nil, nil
	}
	canonical, err := r.in(form{r.options.Specs.Write(), r.contract.Version}, r.rules)
	if isMisfit(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	secret, ok := r.ring.unique()
	if !ok {
		return nil, ErrNoUniqueSecret
	}
	slots := make([]ledger.UniqueSlot, len(r.contract.Unique))
	for i, rule := range r.contract.Unique {
		slots[i] = ledger.UniqueSlot{Slot: slot(canonical, r.key, rule.By, secret), Within: rule.Within}
	}
	return slots, nil
}

// VerifyObserved compares what a target shows, a JSON object in the request's
// own field names, with what a record's request asked for, in the categories
// that the contract in force lists in verify. It is read under the record's own
// spec and contract. An error is an [*Error] about observedJSON,
// [ledger.ErrRecordTooNew] if nothing can be compared, a [*ledger.Lacking] if the
// record's contract has to be fetched first, or says that the contract's
// declarations can't be used.
func (o Options) VerifyObserved(ring *Ring, stored ledger.Fingerprint, contract ledger.Contract, observedJSON []byte) (Verification, error) {
	inForce, err := o.Versions.inForce(contract)
	if err != nil {
		return Verification{}, err
	}
	secret, err := ring.Secret(stored.SecretID)
	if err != nil || o.Specs.Check(int(stored.Spec)) != nil {
		return Verification{}, ledger.ErrRecordTooNew
	}
	rules, err := o.Versions.rulesOf(stored.Contract, contract, inForce)
	if err != nil {
		return Verification{}, err
	}
	observed, err := o.Specs.canonicalize(int(stored.Spec), observedJSON, rules, true)
	if err != nil {
		return Verification{}, fmt.Errorf("observed: %w", err)
	}
	return verify(stored, observed, rules, secret, contract.Verify), nil
}
