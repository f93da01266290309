// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"database/sql"
	"testing"
)

// Pragma reads a setting of a connection of each kind.
func Pragma(t *testing.T, s *Store, name string) []string {
	t.Helper()
	var values []string
	for _, db := range []*sql.DB{s.writer, s.readers} {
		var v string
		if err := db.QueryRowContext(t.Context(), "PRAGMA "+name).Scan(&v); err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	return values
}
