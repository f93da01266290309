// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// String returns a placeholder.
func (Canonical) String() string { return redacted }

// GoString returns a placeholder.
func (Canonical) GoString() string { return redacted }

// Format prints a placeholder, whatever the verb.
func (Canonical) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue returns a placeholder.
func (Canonical) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON returns a placeholder.
func (Canonical) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// String returns a placeholder.
func (Secret) String() string { return redacted }

// GoString returns a placeholder.
func (Secret) GoString() string { return redacted }

// Format prints a placeholder, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue returns the secret's id.
func (s Secret) LogValue() slog.Value { return slog.GroupValue(slog.String("id", s.id)) }

// MarshalJSON returns a placeholder.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue returns what may be logged of a fingerprint: its prefix, its spec
// and the id of its secret.
func (f Fingerprint) LogValue() slog.Value {
	return slog.GroupValue(slog.String("prefix", f.Prefix()), slog.Int("spec", f.Spec), slog.String("secret_id", f.SecretID))
}
