// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// TestDecisionWhoseGroundsMove: what a decision was taken on, other rows included, is as it was when it is written, or it is taken again.
func TestDecisionWhoseGroundsMove(t *testing.T) {
	for _, tt := range []struct {
		name string
		move func(*testing.T, data, ledger.Store) error
		// runs of the decision that are wanted, seen is what the last one must have seen.
		runs int
		seen func(ledger.View) bool
	}{
		{
			"a sibling becomes unknown",
			func(t *testing.T, _ data, s ledger.Store) error {
				return s.Update(t.Context(), ledger.ReadSet{ID: idOf("sibling")}, changing("unknown", func(o *ledger.Operation) { o.State = ledger.Unknown }))
			},
			2, func(v ledger.View) bool { return len(v.UnknownSiblings) == 1 },
		},
		{
			"a dependency changes",
			func(t *testing.T, _ data, s ledger.Store) error { return change(t.Context(), s, "dependency", "again") },
			2, func(v ledger.View) bool { return v.Related[idOf("dependency")].Sequence == 2 },
		},
		{
			"a dependency appears",
			func(t *testing.T, _ data, s ledger.Store) error { return create(t.Context(), s, "absent") },
			2, func(v ledger.View) bool { return v.Related[idOf("absent")].Sequence == 1 },
		},
		{
			"the ledger begins another life",
			func(t *testing.T, d data, _ ledger.Store) error {
				db := d.raw(t)
				defer func() { _ = db.Close() }()
				_, err := db.ExecContext(t.Context(), "UPDATE meta SET timeline = 2, watermark_time = 1, watermark_lost_since = 1")
				return err
			},
			2, func(v ledger.View) bool { return v.Timeline == 2 && !v.Watermark.At.IsZero() },
		},
		{
			"something else changes",
			func(t *testing.T, _ data, s ledger.Store) error { return create(t.Context(), s, "somebody else's") },
			1, func(v ledger.View) bool { return len(v.UnknownSiblings) == 0 },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := harness{}.new(t)
			s := d.open(t, sqlite.Options{})
			for _, name := range []string{"sibling", "dependency"} {
				if err := create(t.Context(), s, name); err != nil {
					t.Fatal(err)
				}
			}
			k := key("k")
			runs, seen := 0, false
			err := s.Update(t.Context(), ledger.ReadSet{
				ID: idOf("k"), Related: []ledger.OperationID{idOf("dependency"), idOf("absent")},
				Siblings: &ledger.Siblings{Scope: k.Scope, Tool: k.Tool, Task: k.Task},
			}, func(v ledger.View) (ledger.Change, error) {
				if runs++; runs == 1 {
					if err := tt.move(t, d, s); err != nil {
						t.Error(err)
					}
				}
				seen = tt.seen(v)
				return inserting("k", "create")(v)
			})
			if err != nil || runs != tt.runs || !seen {
				t.Errorf("decided %d times, want %d; the last one saw what holds now: %t; %v", runs, tt.runs, seen, err)
			}
		})
	}
}
