// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/opsledger/opsledger/guard"
)

// Outcome says what a caller who wants an operation executed, or looks at it, learns.
type Outcome uint8

// The outcomes. State is an answer, never an error.
const (
	OutcomeGranted          Outcome = 1
	OutcomeCompleted        Outcome = 2
	OutcomeFailed           Outcome = 3
	OutcomeInProgress       Outcome = 4
	OutcomeUnknown          Outcome = 5
	OutcomeAwaitingApproval Outcome = 6
	OutcomeBlocked          Outcome = 7
	OutcomeWaiting          Outcome = 8
)

func (o Outcome) String() string {
	return name(o, "", "GRANTED", "COMPLETED", "FAILED", "IN_PROGRESS", "UNKNOWN", "AWAITING_APPROVAL", "BLOCKED", "WAITING")
}

// Answer is what a command's sender learns.
type Answer struct {
	// Operation as it stands after the command; nil: nothing is stored.
	Operation *Operation
	// Now is the store's time of the decision.
	Now time.Time
	// Again: the command is to be decided once more, on a fresh read.
	Again bool

	// Hidden: what was reported is kept, but the reporter may not learn that the operation exists.
	Hidden bool

	// Of Claim, and of Start:
	Outcome Outcome
	Wait    Wait
	Grant   *Granted

	// Of reports:
	Disposition Disposition
	// Dropped: not kept, because the history has no room for more that moves nothing.
	Dropped bool

	// Of Renew: what is left, or why the holder must stop.
	Lease      time.Duration
	SendWithin time.Duration
	Stop       WaitReason

	// Of BeginCheck: 0, not taken.
	CheckNumber uint64
	CheckLease  time.Duration
}

// Wait says why not now, and when to ask again.
type Wait struct {
	Reason     WaitReason
	RetryAfter time.Duration
	Operations []OperationID
}

// Granted is a grant as its holder sees it: times are what is left.
type Granted struct {
	Epoch uint64
	Lease time.Duration
	// SendWithin is 0 for a reservation, and once the window is over.
	SendWithin time.Duration
	Reserved   bool
	// Resent: the same grant again.
	Resent       bool
	Precondition *ResourceRef
}

func (d *decision) granted(resent bool) Answer {
	n := &d.next
	g := &Granted{Epoch: n.Grant.Epoch, Lease: left(n.Grant.LeaseUntil, d.now), Reserved: !n.Grant.Started, Resent: resent, Precondition: n.Detail.Precondition}
	if n.Grant.Started {
		g.SendWithin = d.sendLeft()
		if resent && guard.WhatIsLeft.Off() {
			g.SendWithin = left(n.Grant.SendUntil, n.Grant.Time)
		}
	}
	return Answer{Outcome: OutcomeGranted, Grant: g}
}

// Standing is how an operation stands for somebody who holds no grant of it.
type Standing struct {
	Outcome Outcome
	Wait    Wait
	// SettleTime: before it absence at the target proves nothing; zero: never, or nothing was ever sent.
	SettleTime time.Time
	// Effect is the strictest class it is judged by.
	Effect Effect
	// Now is the store's time at which it stands so.
	Now time.Time
}

// Stand tells how an operation stands at a time, under the contract in force. It is what Lookup answers: it writes nothing.
func Stand(op *Operation, c Contract, now time.Time) Standing {
	d := &decision{was: op, next: *op, c: c, now: now, terms: c.judged(op.Terms, 0)}
	s := Standing{SettleTime: d.settleTime(), Effect: d.terms.Effect, Now: now}
	s.Outcome, s.Wait = d.stand()
	return s
}

func (d *decision) stand() (Outcome, Wait) {
	n := &d.next
	switch n.State {
	case Completed:
		return OutcomeCompleted, Wait{}
	case Failed:
		return OutcomeFailed, Wait{}
	case Retired:
		if n.Detail.RetiredFrom == Failed {
			return OutcomeFailed, Wait{}
		}
		return OutcomeCompleted, Wait{}
	case Received:
		reason, until := d.receivedWait()
		wait := Wait{Reason: reason, RetryAfter: until}
		switch reason {
		case LeaseHeld:
			return OutcomeInProgress, wait
		case ApprovalPending:
			return OutcomeAwaitingApproval, wait
		default:
			return OutcomeWaiting, wait
		}
	}
	switch { // PROCESSING or UNKNOWN
	case d.held():
		return OutcomeUnknown, Wait{Reason: HeldByOperator}
	case n.Custody == Queued:
		return OutcomeUnknown, Wait{Reason: InQueue}
	case n.State == Processing && d.leaseAlive():
		return OutcomeInProgress, Wait{Reason: LeaseHeld, RetryAfter: d.leaseLeft()}
	default:
		return OutcomeUnknown, Wait{Reason: CheckScheduled, RetryAfter: left(n.NextCheckTime, d.now)}
	}
}

// receivedWait says why a RECEIVED operation can't be claimed now, and until when, as far as it is its own affair; 0: it can.
func (d *decision) receivedWait() (WaitReason, time.Duration) {
	n := &d.next
	switch {
	case d.held():
		return HeldByOperator, 0
	case n.Custody == Queued && guard.FoundWaits.On():
		return InQueue, 0
	case d.reserved():
		return LeaseHeld, d.leaseLeft()
	case n.Detail.Approval != nil && !n.Detail.Approval.Granted:
		return ApprovalPending, 0
	case d.needsInspection():
		return ResourceCheck, left(n.NextCheckTime, d.now)
	case !d.over(n.Detail.NotBefore, n.Detail.Freed):
		return NotBefore, d.wait(n.Detail.NotBefore, n.Detail.Freed)
	case n.MayHaveApplied && d.terms.Effect == Idempotent && !d.over(d.settleTime(), n.sentSince()):
		return NotBefore, d.wait(d.settleTime(), n.sentSince())
	default:
		return 0, 0
	}
}

// needsInspection: a compensation goes out only while the resource is as its original left it, or a person has waived that once. Its
// own first send may have changed the resource, so a repeat in doubt is excepted.
func (d *decision) needsInspection() bool {
	n := &d.next
	return !n.Compensates.IsZero() && d.c.RequireUnchanged && !n.MayHaveApplied && !n.Detail.Waived &&
		!d.open(n.Detail.ClearedUntil, n.Detail.ClearedUntil.Add(-d.c.FreshFor))
}

// NextAction says what to do about an outcome.
func (s Standing) NextAction() NextAction { return nextAction(s.Outcome, s.Wait.Reason) }

// NextAction says what the sender of a Claim should do.
func (a Answer) NextAction() NextAction {
	if a.Outcome == OutcomeGranted && a.Grant.Reserved {
		return StartThenExecute
	}
	return nextAction(a.Outcome, a.Wait.Reason)
}

func nextAction(o Outcome, r WaitReason) NextAction {
	switch o {
	case OutcomeGranted:
		return Execute
	case OutcomeCompleted:
		return UseResult
	case OutcomeFailed:
		return Stop
	}
	switch r {
	case InQueue, HeldByOperator, ApprovalPending:
		return WaitForPerson
	case 0:
		return ClaimAgain
	default:
		return WaitThen
	}
}
