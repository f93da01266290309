// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync/atomic"

	"github.com/opsledger/opsledger/ledger"
)

// MinSecretSize is the least length of a secret in bytes: HMAC-SHA-256 keys
// shorter than the digest weaken it (RFC 2104 section 3).
const MinSecretSize = 32

var secretID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

const (
	ruleSecretID   = "must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
	ruleSecretSize = "must have at least 32 bytes"

	// uniqueSecret is its key in the file of a ring.
	uniqueSecret    = "unique_secret"
	ruleUniqueStays = uniqueSecret + ": must stay as it is: under another one each slot would be free, and look-alikes would no longer be refused"
)

// UniqueID stands for the secret of slots among check values. No secret of the
// ring can have it.
const UniqueID = "/unique"

// Secret keys the digests of a deployment. Its id is stored in records and may
// be shown; the key prints as a placeholder. The zero value is not usable.
type Secret struct {
	id string
	// Behind a function: fmt calls no method on the unexported fields of the
	// struct that a Secret may be in, and follows pointers for a wrong verb.
	key func() []byte
}

// NewSecret makes a secret of an id (1 to 64 letters, digits, '.', '_', '-')
// and a key of at least [MinSecretSize] bytes, which it copies.
func NewSecret(id string, key []byte) (Secret, error) {
	switch {
	case !secretID.MatchString(id):
		return Secret{}, errors.New("secret id: " + ruleSecretID)
	case len(key) < MinSecretSize:
		return Secret{}, errors.New("secret: " + ruleSecretSize)
	}
	key = bytes.Clone(key)
	return Secret{id: id, key: func() []byte { return key }}, nil
}

// NewRandomSecret draws a secret of [MinSecretSize] bytes.
func NewRandomSecret(id string) (Secret, error) {
	key := make([]byte, MinSecretSize)
	// Never fails: the process ends if the system has no randomness.
	_, _ = rand.Read(key)
	return NewSecret(id, key)
}

// ID names the secret in records, metrics and logs.
func (s Secret) ID() string { return s.id }

// Check is the secret's check value. A store keeps that of each id, so that two
// servers with different secrets under one id are found out before the second
// one writes.
func (s Secret) Check() ledger.SecretCheck {
	return ledger.SecretCheck(short(s.mac().sum(labelCheck, []byte(s.id))))
}

// Ring is the set of secrets that a deployment's records were made with. It is
// safe for concurrent use.
type Ring struct{ current atomic.Pointer[secrets] }

// MaxSecrets is how many a ring has at most: a subject is looked for under each
// of them, and each id is a label of metrics.
const MaxSecrets = 64

// secrets are what a ring has at one time.
type secrets struct {
	primary string
	byID    map[string]Secret
	unique  Secret // of slots; the zero value where there is none
	uses    map[string]*atomic.Uint64
	// places are file and line of each id, for a ring out of a file.
	places map[string]string
}

// ringFault is what is wrong with secrets that shall be one ring.
type ringFault struct {
	entry int    // of the secrets; -1: primary
	field string // of the entry; "": the whole of it
	rule  string
}

func (f *ringFault) Error() string { return f.at() + ": " + f.rule }

func (f *ringFault) at() string {
	switch {
	case f.entry < 0:
		return "primary"
	case f.field == "":
		return fmt.Sprintf("secrets[%d]", f.entry)
	}
	return fmt.Sprintf("secrets[%d].%s", f.entry, f.field)
}

// NewRing makes a ring. Every secret must be usable, ids and keys must differ,
// primary must be one of the ids, and there are [MaxSecrets] at most.
func NewRing(primary string, all ...Secret) (*Ring, error) {
	now := &secrets{primary: primary, byID: make(map[string]Secret, len(all)), uses: make(map[string]*atomic.Uint64, len(all))}
	for i, s := range all {
		switch _, twice := now.byID[s.id]; {
		case s.key == nil:
			return nil, &ringFault{i, "", "is not set"}
		case twice:
			return nil, &ringFault{i, "id", "is there twice"}
		case i == MaxSecrets:
			return nil, &ringFault{i, "", fmt.Sprintf("is one more than the %d that a ring may have", MaxSecrets)}
		}
		for _, other := range now.byID {
			if bytes.Equal(other.key(), s.key()) {
				return nil, &ringFault{i, "secret", "is the same as another one's"}
			}
		}
		now.byID[s.id], now.uses[s.id] = s, new(atomic.Uint64)
	}
	if _, ok := now.byID[primary]; !ok {
		return nil, &ringFault{-1, "", "is not the id of one of the secrets"}
	}
	r := &Ring{}
	r.current.Store(now)
	return r, nil
}

// SetUnique gives a ring the secret that keys the slots of contracts' unique
// rules. It has no id and never rotates: under another one each slot would be
// free. It must be usable, and none of those that may be taken out of the ring.
func (r *Ring) SetUnique(key []byte) error {
	now := r.current.Load()
	switch {
	case len(key) < MinSecretSize:
		return errors.New(uniqueSecret + ": " + ruleSecretSize)
	case now.unique.key != nil && !bytes.Equal(now.unique.key(), key):
		return errors.New(ruleUniqueStays)
	}
	for _, other := range now.byID {
		if bytes.Equal(other.key(), key) {
			return errors.New(uniqueSecret + ": must be another one than those of secrets, which may rotate")
		}
	}
	next := *now
	key = bytes.Clone(key)
	next.unique = Secret{id: UniqueID, key: func() []byte { return key }}
	r.current.Store(&next)
	return nil
}

// HasUnique reports whether the ring has the secret that unique rules need.
func (r *Ring) HasUnique() bool {
	_, ok := r.unique()
	return ok
}

func (r *Ring) unique() (Secret, bool) {
	s := r.current.Load().unique
	return s, s.key != nil
}

// Replace puts the secrets of another ring in the place of this one's, for
// everybody who uses it. An id keeps its secret: another one under it would make
// conflicts of records that it has made. So does the ring its secret of slots.
// Nothing is replaced then.
func (r *Ring) Replace(next *Ring) error {
	was, given := r.current.Load(), next.current.Load()
	var changed []error
	if was.unique.key != nil && given.unique.key == nil {
		changed = append(changed, errors.New(next.Place(UniqueID)+ruleUniqueStays))
	}
	for _, id := range r.Conflicts(next.Checks()) {
		if id == UniqueID {
			changed = append(changed, errors.New(next.Place(id)+ruleUniqueStays))
			continue
		}
		changed = append(changed, fmt.Errorf("%sthe secret of the id %s is another one than before; a new secret needs a new id", next.Place(id), id))
	}
	if len(changed) > 0 {
		return errors.Join(changed...)
	}
	now := &secrets{primary: given.primary, byID: given.byID, unique: given.unique, uses: maps.Clone(given.uses), places: given.places}
	for id, uses := range was.uses {
		if _, kept := now.uses[id]; kept {
			now.uses[id] = uses
		}
	}
	r.current.Store(now)
	return nil
}

// Primary is the secret for new records.
func (r *Ring) Primary() Secret {
	now := r.current.Load()
	now.uses[now.primary].Add(1)
	return now.byID[now.primary]
}

// PrimaryID is the id of the secret for new records.
func (r *Ring) PrimaryID() string { return r.current.Load().primary }

// Place begins an error about an id with the file and line that it came from;
// empty for a ring that is not out of a file.
func (r *Ring) Place(id string) string {
	if place := r.current.Load().places[id]; place != "" {
		return place + ": "
	}
	return ""
}

// Secret finds the secret that a record names; else [ErrUnknownSecret].
func (r *Ring) Secret(id string) (Secret, error) {
	now := r.current.Load()
	s, ok := now.byID[id]
	if !ok {
		return Secret{}, ErrUnknownSecret
	}
	now.uses[id].Add(1)
	return s, nil
}

// Uses count, by id, how often each secret was asked for since the process
// began, for a new record or because a record names it. Which records there are
// only the store can say: a secret must outlive their tombstones.
func (r *Ring) Uses() map[string]uint64 {
	out := map[string]uint64{}
	for id, uses := range r.current.Load().uses {
		out[id] = uses.Load()
	}
	return out
}

// Checks are the check values of the secrets by their ids, and that of the
// secret of slots under [UniqueID].
func (r *Ring) Checks() map[string]ledger.SecretCheck {
	out := map[string]ledger.SecretCheck{}
	now := r.current.Load()
	for id, s := range now.byID {
		out[id] = s.Check()
	}
	if now.unique.key != nil {
		out[UniqueID] = now.unique.Check()
	}
	return out
}

// Conflicts are the sorted ids for which others have another secret than this
// ring, by their check values. Ids that only one of the two has are none.
func (r *Ring) Conflicts(others map[string]ledger.SecretCheck) []string {
	var out []string
	for id, check := range r.Checks() {
		if other, ok := others[id]; ok && other != check {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// SubjectDigests are a subject's digests under each secret of the ring, to find
// records by; none without a subject.
func (r *Ring) SubjectDigests(subject string) [][]byte {
	if subject == "" {
		return nil
	}
	now := r.current.Load()
	var all [][]byte
	for _, id := range slices.Sorted(maps.Keys(now.byID)) {
		digest := SubjectDigest(subject, now.byID[id])
		all = append(all, digest[:])
	}
	return all
}

// IDs are the sorted ids of the ring.
func (r *Ring) IDs() []string { return slices.Sorted(maps.Keys(r.current.Load().byID)) }

// LogValue returns the ids.
func (r *Ring) LogValue() slog.Value {
	return slog.GroupValue(slog.String("primary", r.current.Load().primary), slog.Any("ids", r.IDs()))
}

// RevealYAML writes the ring as a file that [ParseRing] reads. It shows the
// secrets: for a file with mode 0600, and nothing else.
func (r *Ring) RevealYAML() []byte {
	now := r.current.Load()
	var b bytes.Buffer
	fmt.Fprintf(&b, "primary: %q\nsecrets:\n", now.primary)
	for _, id := range slices.Sorted(maps.Keys(now.byID)) {
		fmt.Fprintf(&b, "  - id: %q\n    secret: %q\n", id, base64.StdEncoding.EncodeToString(now.byID[id].key()))
	}
	if now.unique.key != nil {
		fmt.Fprintf(&b, "# Does not rotate: with another one, look-alikes of earlier operations would not be recognised.\n%s: %q\n",
			uniqueSecret, base64.StdEncoding.EncodeToString(now.unique.key()))
	}
	return b.Bytes()
}
