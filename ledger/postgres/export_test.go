// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// InTxAt is InTx with a clock that a test moves.
func InTxAt(tx pgx.Tx, now func(database time.Time) time.Time) *TxStore {
	return &TxStore{tx: tx, clock: now}
}
