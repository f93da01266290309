// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"

	"github.com/google/uuid"
)

// Distinct types for things that are all strings, so that none is taken for another.
type (
	// Scope is the namespace of keys; the policy derives it from the caller's certificate.
	Scope string
	// Principal is the caller's identity out of its verified certificate.
	Principal string
	// Tool names an action: [A-Za-z][A-Za-z0-9_.-]{0,127}.
	Tool string
	// Task names the task or intent pursued: 1 to 255 printable ASCII characters without space.
	Task string
	// ClaimID is the random UUID that a worker draws for one Claim and its resends: the proof of its grant.
	ClaimID string
	// CommandID is the random UUID of one submission by a person or a reconciler.
	CommandID string
)

// Key is a caller's stable name for one intended effect. It is never joined into one string and never stored: only its hash is.
type Key struct {
	Scope   Scope
	Tool    Tool
	Subject string
	Task    Task
	Key     string
}

// KeyHash is what the store knows of a key: SHA-256 over its length-prefixed parts.
type KeyHash [sha256.Size]byte

// Hash digests the key: for each part its length as 8 bytes big endian, then its bytes; a domain label comes first.
func (k Key) Hash() KeyHash {
	h := sha256.New()
	for _, part := range []string{"opsledger/key/1", string(k.Scope), string(k.Tool), k.Subject, string(k.Task), k.Key} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return KeyHash(h.Sum(nil))
}

// OperationID is a UUIDv8 (RFC 9562, section 5.8) made of the first 128 bits of the key's hash: one unique index serves key and id.
// Six of these bits give way to version and variant; the whole hash is stored and compared.
type OperationID [16]byte

// OperationID of the operation that has this key.
func (h KeyHash) OperationID() OperationID {
	var id OperationID
	copy(id[:], h[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// DownstreamKey is what the worker sends to the target as its idempotency key: 32 lower-case hex digits, derived from the
// key's hash alone, so that neither attempts nor the rotation of secrets change it.
func (h KeyHash) DownstreamKey() string {
	sum := sha256.Sum256(append([]byte("opsledger/downstream-key/1\x00"), h[:]...))
	return hex.EncodeToString(sum[:16])
}

// String is the id's canonical form, 36 characters.
func (id OperationID) String() string { return uuid.UUID(id).String() }

// IsZero reports whether the id is unset.
func (id OperationID) IsZero() bool { return id == OperationID{} }

// errNotAnID does not repeat what was given.
var errNotAnID = errors.New("not an operation id")

// ParseOperationID reads the canonical form of an id, and only that form.
func ParseOperationID(s string) (OperationID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return OperationID{}, errNotAnID
	}
	return OperationID(id), nil
}

// MarshalText makes ids readable in stored documents.
func (id OperationID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *OperationID) UnmarshalText(b []byte) error {
	p, err := ParseOperationID(string(b))
	if err != nil {
		return err
	}
	*id = p
	return nil
}
