// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"testing"
	"time"
)

// SetBound sets how long a call may take. No call may be under way.
func SetBound(s *Store, bound time.Duration) { s.bound = bound }

// Waiting is how many calls wait for a batch.
func Waiting(s *Store) int { return s.queue.Waiting() }

// Pragma reads a setting of a connection of each kind.
func Pragma(t *testing.T, s *Store, name string) []any {
	t.Helper()
	var values []any
	ask := func(c *conn) error {
		found, err := query(t.Context(), c, func(r *row) (any, error) { return r.next(), nil }, "PRAGMA "+name)
		values = append(values, found...)
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := ask(s.writer); err != nil {
		t.Fatal(err)
	}
	if err := s.readers.use(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	return values
}
