// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPlans looks at what the statements read: each by an index of its own. SQLite plans without looking at the rows.
func TestPlans(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const byID = "sqlite_autoindex_operations_1"
	for name, tt := range map[string]struct{ sql, index string }{
		"selectRow":          {selectRow, byID},
		"selectView":         {selectView, byID},
		"selectDue":          {selectDue, "operations_due"},
		"selectSiblings":     {selectSiblings, "operations_unknown"}, // a task may have thousands of others
		"listByCreate":       {listByCreate, "operations_by_create"},
		"listByTask":         {listByTask, "operations_by_task"},
		"listByUpdate":       {listByUpdate, "operations_by_update"},
		"selectAged":         {selectAged, "operations_by_create"},
		"selectScopeAfter":   {selectScopeAfter, "operations_by_"},
		"deleteSlots":        {deleteSlots, "slots_by_operation"},
		"selectByDownstream": {selectByDownstream, "operations_downstream_key"},
	} {
		t.Run(name, func(t *testing.T) {
			args := make([]any, 10)
			if name == "selectSiblings" {
				args = args[:6]
			} else {
				args = args[:strings.Count(tt.sql, "?")]
			}
			var plan []string
			err := s.readers.use(t.Context(), func(c *conn) (err error) {
				plan, err = query(t.Context(), c, func(r *row) (string, error) {
					r.at = 3 // id, parent, not used, detail
					return r.text(), nil
				}, "EXPLAIN QUERY PLAN "+tt.sql, args...)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			plan = slices.DeleteFunc(plan, func(line string) bool { // meta has one row, and a routine reads nothing
				return strings.Contains(line, "meta") || strings.HasPrefix(line, "CO-ROUTINE")
			})
			if len(plan) == 0 || !strings.Contains(plan[0], tt.index) {
				t.Errorf("does not read by %s:\n%s", tt.index, strings.Join(plan, "\n"))
			}
		})
	}
}
