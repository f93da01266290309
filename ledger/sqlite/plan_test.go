// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
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

// TestSearchThatNoIndexNarrows: where it took too long once, the next one is told how to narrow it before anything is read; who gives up early counts for nobody.
func TestSearchThatNoIndexNarrows(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	of := func(q ledger.Search) error {
		q.Visible.Every, q.Limit = true, 10
		_, err := s.Search(t.Context(), q)
		return err
	}
	broad, narrow := ledger.Search{Tool: "tool"}, ledger.Search{Tool: "tool", Scope: "scope"}
	if err := errors.Join(of(broad), of(narrow)); err != nil {
		t.Fatal(err)
	}
	hasty, end := context.WithTimeout(t.Context(), time.Nanosecond)
	defer end()
	if _, err := s.Search(hasty, broad); err == nil {
		t.Fatal("it took no time")
	}
	if err := of(broad); err != nil {
		t.Fatalf("after a caller that did not wait: %v", err)
	}
	SetBound(s, time.Nanosecond)
	if err := of(broad); !errors.Is(err, ledger.ErrValidation) {
		t.Fatalf("one that took too long: %v", err)
	}
	SetBound(s, callBound)
	var refused *ledger.Refusal
	if err := of(broad); !errors.As(err, &refused) || len(refused.Violations) != 1 || refused.Violations[0].Field != "scope" {
		t.Errorf("after one that took too long: %v", err)
	}
	if err := of(narrow); err != nil {
		t.Errorf("one that an index narrows: %v", err)
	}
}
