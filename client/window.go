// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// clock tells the time that has passed since some moment; it never goes back.
type clock func() time.Duration

var start = time.Now()

// uptime counts suspension where the system has a clock for that, else it is Go's monotonic clock.
func uptime() time.Duration {
	if t, ok := boot(); ok {
		return t
	}
	return time.Since(start)
}

// Why an execution may not send, or no longer; causes of the end of its context, and of the error of a [Do] that sent nothing.
var (
	// ErrWindowOver: the send window of the grant is over, and the request was not known to have left.
	ErrWindowOver = errors.New("the send window of the grant is over")
	// ErrLeaseOver: the lease could not be extended in time, or as far as the execution took.
	ErrLeaseOver = errors.New("the lease of the grant is over")
	// ErrGrantLost: the ledger has said that it does not know the grant any more, as after a failover that has lost it, and nothing
	// had left yet.
	ErrGrantLost = errors.New("the ledger has lost the grant")
	// ErrSentAlready: a grant permits one send.
	ErrSentAlready = errors.New("something was sent under this grant already")
	// ErrNotStarted: the operation is reserved; only Execute may send.
	ErrNotStarted = errors.New("the grant is a reservation that has not started")
	// ErrNoGrant: the context or call is not the one that Execute was given, or Execute has ended.
	ErrNoGrant = errors.New("there is no grant in this context")

	errNoConnection = errors.New("the one send under this grant found no connection")
)

// StoppedError is the cause of the end of an execution that the ledger wants to stop: a newer grant exists, a person has the operation,
// it has settled. Execute returns what it knows.
type StoppedError struct{ Reason opsledgerv1.WaitReason }

// Error names the reason.
func (e *StoppedError) Error() string {
	return fmt.Sprintf("stopped by the ledger: %s", strings.TrimPrefix(e.Reason.String(), "WAIT_REASON_"))
}
