// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// TestTamperedHistory: who looks is told, and shown the rest.
func TestTamperedHistory(t *testing.T) {
	for name, statement := range map[string]string{
		"an event was changed":     "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'agent-a', 'agent-b') AS BLOB) WHERE operation_id = ? AND sequence = 2",
		"an event was removed":     "DELETE FROM events WHERE operation_id = ? AND sequence = 2",
		"the last one was removed": "DELETE FROM events WHERE operation_id = ? AND sequence = 3",
		"the row was changed":      "UPDATE operations SET last_hash = key_hash WHERE id = ?",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			if err := store.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			w := charges(t, setup{store: store})
			id := w.unknown(t, "mail.send", "k").GetOperationId()
			w.take(t, "ops-a", id)
			if view := w.look(t, "auditor", id); !view.GetChainVerified() || len(view.GetHistory()) != 3 {
				t.Fatalf("verified %v, %d events", view.GetChainVerified(), len(view.GetHistory()))
			}
			op, err := ledger.ParseOperationID(id)
			if err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(2000)")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if _, err := db.ExecContext(t.Context(), statement, op[:]); err != nil {
				t.Fatal(err)
			}
			view := w.look(t, "auditor", id)
			want := 2
			if name == "the row was changed" {
				want = 3
			}
			if view.GetChainVerified() || len(view.GetHistory()) != want || view.GetOperation().GetCustodian() != "ops-a" {
				t.Errorf("verified %v, %d events, want %d: %v", view.GetChainVerified(), len(view.GetHistory()), want, view.GetOperation())
			}
		})
	}
}
