// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
)

// InTxAt is InTx with a clock that a test moves.
func InTxAt(tx pgx.Tx, now func(database time.Time) time.Time) *TxStore {
	return &TxStore{tx: tx, clock: now}
}

// ManyRows has every write made by the statements for many rows, until the test ends.
func ManyRows(t *testing.T) {
	t.Helper()
	single = 0
	t.Cleanup(func() { single = 1 })
}

// ReadsWaiting is how many calls wait to be read for, WritesWaiting how many to be written.
func ReadsWaiting(s *Store) int  { return s.reads.Waiting() }
func WritesWaiting(s *Store) int { return s.writes.Waiting() }

// Turns is how many have or wait for the turn of a row.
func Turns(s *Store, op ledger.OperationID) int {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	if row := s.turns.rows[op]; row != nil {
		return row.users
	}
	return 0
}
