// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/test/pgtest"
)

// TestReportsTouchNoIndex: a change of a row that only automation deals with is written into no index, whatever people may search by.
func TestReportsTouchNoIndex(t *testing.T) {
	server := pgtest.Get(t)
	dsn := server.DSN(server.Database(t))
	s, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const many = 40
	for i := range many {
		k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: fmt.Sprint(i)}
		contract := ledger.DefaultContract(k.Tool)
		for range 2 {
			err := s.Update(t.Context(), ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: "c"}, func(v ledger.View) (ledger.Change, error) {
				if v.Current == nil {
					return claimed(t, k, v), nil
				}
				report := ledger.Complete{ClaimID: "c", Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: "r"}}}
				change, _, err := ledger.Decide(v.Current, ledger.Related{Timeline: v.Timeline, Prior: v.Prior}, report, contract, v.Now)
				return change, err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = s.Close() // the server counts what a session did when that ends, at the latest
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var updates, hot int
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && updates < many; {
		err := conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'operations'").Scan(&updates, &hot)
		if err != nil {
			t.Fatal(err)
		}
	}
	if updates != many || hot != many {
		t.Errorf("%d of %d updates touch no index, want %d", hot, updates, many)
	}
}
