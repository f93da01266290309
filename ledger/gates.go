// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"time"
)

// GateStore keeps one small record per tool, in which all that ask its target agree about whose turn it is. What a record says is its users' matter: like the
// ledger's own rows it is changed by compare-and-swap on a decision that does no I/O. Beside the operations, no decision of the ledger reads it,
// and losing one loses no more than turns.
//
// The stores are GateStores, too. Errors are ErrStoreUnavailable or what the decide function returned.
type GateStore interface {
	// Gate reads a tool's record with the store's time and calls decide with both, was being nil where there is none. What that returns is
	// written if the record is still what was read, byte by byte; else it is read and decided again, a bounded number of times. nil: nothing is written.
	//
	// decide may run several times, also after a write of its own whose outcome could not be seen: it must know what it has written when it
	// reads it again. After an error it is not known whether something was written.
	Gate(ctx context.Context, tool Tool, decide func(now time.Time, was []byte) (next []byte, err error)) error
	// Gates returns the records of all tools that have one, with the store's time.
	Gates(ctx context.Context) (map[Tool][]byte, time.Time, error)
}
