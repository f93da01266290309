// SPDX-License-Identifier: Apache-2.0

package ledger

import "context"

// SecretCheck is the check value of a secret that keys fingerprints: it tells two secrets apart that have one id, and shows neither.
type SecretCheck [8]byte

// KeptSecret is what a store knows of an id of a secret.
type KeptSecret struct {
	Check SecretCheck
	// Used: it was the primary of a server, so that records may name it.
	Used bool
}

// SecretStore is what servers that share a store keep there of the secrets that their records are made with, so that one with another
// secret under an id, or without one that records need, is found out before it judges a record. No secret is ever in it.
//
// Its errors are ErrStoreUnavailable.
type SecretStore interface {
	// KeptSecrets are those that were kept, by their ids.
	KeptSecrets(ctx context.Context) (map[string]KeptSecret, error)
	// KeepSecrets keeps the check value of each id that has none yet, and leaves the others as they are; the primary is used from now on,
	// unless another secret is kept under its id. Who reads what is kept after that sees who was first.
	KeepSecrets(ctx context.Context, checks map[string]SecretCheck, primary string) error
	// ForgetSecret takes an id out. One that is not there is no error.
	ForgetSecret(ctx context.Context, id string) error
	// SecretRecords counts operations by the id of the secret that they were made with. It reads all of them, and is not bounded like other
	// calls: it takes as long as ctx lets it.
	SecretRecords(ctx context.Context) (map[string]int64, error)
}
