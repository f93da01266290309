// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"time"
)

// AgedStore finds operations that have grown old, and forgets what nobody may ask for any more. The stores are AgedStores, too, and have the same errors. No
// decision is made here: what it forgets has been retired before, and retiring is a command.
type AgedStore interface {
	// Aged returns a page of the operations that have at least some age, scope by scope, in each by (create_time, id). It reads none that are
	// younger. Operations that a newer release has written are left out.
	Aged(ctx context.Context, q AgedQuery) (AgedPage, error)
	// ForgetHistories removes the events of retired operations, and returns of how many there were any.
	ForgetHistories(ctx context.Context, of []Tombstone) (int, error)
	// ForgetKeys removes retired operations, with their events and slots, and returns how many. In the same transaction it raises what
	// View.Forgotten says of their tools.
	ForgetKeys(ctx context.Context, of []Tombstone) (int, error)
}

// AgedQuery selects old operations.
type AgedQuery struct {
	// After is where to go on: the End of the page before; empty: at the beginning.
	After string
	// Age is how long ago an operation was made at least, by the store's time.
	Age   time.Duration
	Limit int
}

// AgedPage is some of what is old, all of one scope. It may be empty and not the last one.
type AgedPage struct {
	Operations []AgedOperation
	// Now is the store's time.
	Now time.Time
	// End is where the next page begins; empty: there is none.
	End string

	jumps Jumps
}

// AgedOperation is what retention looks at.
type AgedOperation struct {
	ID             OperationID
	Tool           Tool
	State          State
	Custody        Custody
	MayHaveApplied bool
	NeedsAttention bool
	CreateTime     time.Time
	FinalTime      time.Time
}

// Tombstone names a retired operation. One that is not retired, or has another final time, is another operation under the same key: it is left alone.
type Tombstone struct {
	ID        OperationID
	FinalTime time.Time
}
