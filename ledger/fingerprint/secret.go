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
)

// MinSecretSize is the least length of a secret in bytes: HMAC-SHA-256 keys
// shorter than the digest weaken it (RFC 2104 section 3).
const MinSecretSize = 32

var secretID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

const (
	ruleSecretID   = "must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
	ruleSecretSize = "must have at least 32 bytes"
)

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

// Ring is the set of secrets that a deployment's records were made with. It
// does not change; a reload makes a new one.
type Ring struct {
	primary string
	secrets map[string]Secret
}

// NewRing makes a ring. Every secret must be usable, ids and keys must differ,
// and primary must be one of the ids.
func NewRing(primary string, secrets ...Secret) (*Ring, error) {
	r := &Ring{primary: primary, secrets: make(map[string]Secret, len(secrets))}
	for i, s := range secrets {
		if s.key == nil {
			return nil, fmt.Errorf("secrets[%d]: is not set", i)
		}
		if _, ok := r.secrets[s.id]; ok {
			return nil, fmt.Errorf("secrets[%d].id: is there twice", i)
		}
		for _, other := range r.secrets {
			if bytes.Equal(other.key(), s.key()) {
				return nil, fmt.Errorf("secrets[%d].secret: is the same as another one's", i)
			}
		}
		r.secrets[s.id] = s
	}
	if _, ok := r.secrets[primary]; !ok {
		return nil, errors.New("primary: is not the id of one of the secrets")
	}
	return r, nil
}

// Primary is the secret for new records.
func (r *Ring) Primary() Secret { return r.secrets[r.primary] }

// Secret finds the secret that a record names; else [ErrUnknownSecret].
func (r *Ring) Secret(id string) (Secret, error) {
	s, ok := r.secrets[id]
	if !ok {
		return Secret{}, ErrUnknownSecret
	}
	return s, nil
}

// IDs are the sorted ids of the ring.
func (r *Ring) IDs() []string { return slices.Sorted(maps.Keys(r.secrets)) }

// LogValue returns the ids.
func (r *Ring) LogValue() slog.Value {
	return slog.GroupValue(slog.String("primary", r.primary), slog.Any("ids", r.IDs()))
}

// RevealYAML writes the ring as a file that [ParseRing] reads. It shows the
// secrets: for a file with mode 0600, and nothing else.
func (r *Ring) RevealYAML() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "primary: %q\nsecrets:\n", r.primary)
	for _, id := range r.IDs() {
		fmt.Fprintf(&b, "  - id: %q\n    secret: %q\n", id, base64.StdEncoding.EncodeToString(r.secrets[id].key()))
	}
	return b.Bytes()
}
