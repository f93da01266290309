// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"strings"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Outcome is exactly one of [Done], [Rejection] and [Unknown]; [Match] tells which. The zero Outcome, which comes with an error,
// is unknown.
type Outcome[Res any] struct {
	done     *Done[Res]
	rejected *Rejection
	unknown  *Unknown

	returned *Res // what Execute returned, where it is unknown all the same
}

// Returned is what Execute has returned in this call, which executed for that. It is there also where the outcome is unknown, because the
// ledger could not record it or has kept it as evidence only: the effect exists, and the next one to ask may not be told so yet.
func (o Outcome[Res]) Returned() (value Res, ok bool) {
	switch {
	case o.returned != nil:
		return *o.returned, true
	case o.done != nil && !o.done.Replayed:
		return o.done.Value, o.done.HasValue
	default:
		return value, false
	}
}

// Done says that the effect exists, once.
type Done[Res any] struct {
	// Value is what Execute returned, or what the ledger kept of it.
	Value Res
	// HasValue is false where a replay shows no value: the ledger kept none, or the caller may not see it (Redacted).
	HasValue bool
	// Replayed: this call did not execute; an earlier one did.
	Replayed bool
	// Redacted: the caller may know that it completed, and no more.
	Redacted bool
	// WithoutLedger: the tool only reads, the ledger could not be reached, and knows nothing of it.
	WithoutLedger bool
	// Result as recorded; of a redacted replay, and without the ledger, nil.
	Result *opsledgerv1.Result
	// Operation as the ledger sees it; nil without the ledger.
	Operation *opsledgerv1.Operation
}

// Rejection says that no effect exists, for certain, and that the same request is pointless.
type Rejection struct {
	Failure  *opsledgerv1.Failure
	Replayed bool
	// WithoutLedger is as in Done.
	WithoutLedger bool
	Operation     *opsledgerv1.Operation
}

// Err is the rejection as an error, for callers that have no other use for it.
func (r Rejection) Err() error {
	return fmt.Errorf("rejected: %s: %s", r.Failure.GetKind(), r.Failure.GetCode())
}

// Unknown says that the effect may exist, may come to exist, or still waited for something when the time to wait was over; never that
// it may be tried again under another key. Where Execute returned a value all the same, [Outcome.Returned] has it. Keep OperationID, and ask
// with [Do] for the same intent later.
type Unknown struct {
	// OperationID is the ledger's name for it; empty where nothing is stored yet (a new key that is blocked).
	OperationID string
	Reason      Reason
	// Wait says what it waits for and when to ask again, where the ledger said so.
	Wait *opsledgerv1.Wait
	// NextAction as the ledger advises; unspecified if it could not be asked.
	NextAction opsledgerv1.NextAction
	// Recorded is false if this call executed and the ledger does not know what became of it: it finds out when the lease ends, if it still has
	// the grant.
	Recorded bool
	// Disposition is what the ledger made of this call's report of its execution: applied, or kept as evidence only, because somebody else has
	// the operation or has decided it, or because the ledger has lost this call's grant. Unspecified: this call did not execute, or it
	// is not recorded.
	Disposition opsledgerv1.Disposition
	// WithoutLedger is as in Done: nothing was changed, and the read may be tried again.
	WithoutLedger bool
	// Operation as the ledger last showed it; nil if it did not.
	Operation *opsledgerv1.Operation
	// Cause wraps what went wrong in this call: Execute's error, a [PanicError], and why the execution was ended, if it was
	// ([StoppedError], [ErrLeaseOver]); nil where this call did not execute. It may hold what Execute's error held.
	Cause error
}

// Quarantined says that nobody knows whether it was ever sent: it is new to the ledger, whose store may have lost what came before it. That is
// no failure. The target is asked, or a person looks.
func (u Unknown) Quarantined() bool {
	return u.Operation.GetQueueReason() == opsledgerv1.QueueReason_QUEUE_REASON_QUARANTINE ||
		u.Operation.GetState() == opsledgerv1.State_STATE_UNKNOWN && u.Operation.GetAttempts() == 0
}

// String says it in one line, for people and logs. It holds nothing of the request, and nothing of Cause.
func (u Unknown) String() string {
	text := u.Reason.String()
	if reason := u.Wait.GetReason(); reason != opsledgerv1.WaitReason_WAIT_REASON_UNSPECIFIED {
		text += " (" + strings.TrimPrefix(reason.String(), "WAIT_REASON_") + ")"
	}
	switch {
	case u.Quarantined():
		text += ": it may have happened: the store may have lost what came before it"
	case u.Reason == ReasonUnknown && !u.WithoutLedger:
		text += ": it may have happened"
	}
	switch {
	case !u.Recorded && !u.WithoutLedger:
		text += "; what this call did is not recorded"
	case u.Disposition > opsledgerv1.Disposition_DISPOSITION_APPLIED:
		text += "; what this call did is kept as evidence"
	}
	return text
}

// Reason says why an outcome is unknown.
type Reason int

// The reasons.
const (
	// ReasonUnknown: it was sent, and what became of it is not known yet.
	ReasonUnknown Reason = iota
	// ReasonInProgress: another worker holds it.
	ReasonInProgress
	// ReasonAwaitingApproval: it was not sent; a person has to approve it first.
	ReasonAwaitingApproval
	// ReasonBlocked: it was not sent, for a reason outside of this operation.
	ReasonBlocked
	// ReasonWaiting: free, but not now: a person has to look at it first, or the target asked for a pause.
	ReasonWaiting
	// ReasonNotUnderstood: the ledger gave an answer that this release does not know.
	ReasonNotUnderstood
)

// String names the reason.
func (r Reason) String() string {
	switch r {
	case ReasonUnknown:
		return "unknown"
	case ReasonInProgress:
		return "in progress"
	case ReasonAwaitingApproval:
		return "awaiting approval"
	case ReasonBlocked:
		return "blocked"
	case ReasonWaiting:
		return "waiting"
	default:
		return "not understood"
	}
}

// Match calls the function of the variant and returns what it returns.
func Match[Res, Ret any](
	out Outcome[Res], done func(Done[Res]) Ret, rejected func(Rejection) Ret, unknown func(Unknown) Ret,
) Ret {
	switch {
	case out.done != nil:
		return done(*out.done)
	case out.rejected != nil:
		return rejected(*out.rejected)
	case out.unknown != nil:
		return unknown(*out.unknown)
	default:
		return unknown(Unknown{Reason: ReasonNotUnderstood})
	}
}
