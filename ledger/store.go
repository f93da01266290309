// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"time"
)

// Store is a dumb, conditional store: it knows no business rule. Every store passes package storetest.
//
// Guarantees that the ledger builds on:
//   - The operation id is the primary key and the only arbiter: of two inserts one wins, the other reads again.
//   - An update is a compare-and-swap on the history (its length and last hash) and the lease's end, and must change exactly one row; the
//     change's event is appended in the same transaction, in which the slots that it takes are inserted or taken over, too.
//   - Time is the store's own, the same for all instances, cut to microseconds; one transaction has one fixed now.
//   - When the outcome of a commit is not known, the store looks whether its own event is there, by executing the same write again: then
//     it has succeeded; where nothing was committed, it decides anew on a fresh read. If that fails, too, it answers
//     ErrStoreUnavailable, and the caller may send the same call again.
//   - An answer that writes nothing, but may be the answer to a resend, is as durable as a write: a grant is told to nobody before the
//     standbys that must have it do.
//   - A write goes on when the caller hangs up; it is bounded by the store's own limit. A call that has only waited does nothing.
//   - Calls may share a transaction, but nothing else: each is decided, written and answered as if it were alone, and what is wrong with one
//     is no other's error.
//   - Byte-exact strings: nothing is folded, trimmed or normalised.
//
// Errors are ErrStoreUnavailable (because of ErrDamaged, if it is one record's fault), ErrRecordTooNew (a Refusal with the record's identity; a bare one is about an event), or what the decide
// function returned; where too many calls wait, ErrRateLimited for what would begin something and ErrStoreUnavailable for what is said of
// an operation that exists, each in a Refusal that says when to try again. Any other is a fault of the code: a change that a constraint
// refuses or that does not fit what was read, or two keys with one operation id; trying again does not help.
type Store interface {
	// Update reads what the read set names in one transaction, calls decide with it, and writes the change that it returns. A race that was
	// lost reads and decides again, a bounded number of times. A store may guess what a read would find: the write of a decision on a guess
	// succeeds only where all of it holds, and a decision that writes nothing is always taken on a fresh read. decide may run several
	// times and can do no I/O.
	Update(ctx context.Context, reads ReadSet, decide func(View) (Change, error)) error
	// Get reads one operation with the store's time; absent: ErrOperationNotFound.
	Get(ctx context.Context, id OperationID) (Operation, time.Time, error)
	// ByDownstreamKey finds an operation by what its target knows of it; absent: ErrOperationNotFound.
	ByDownstreamKey(ctx context.Context, downstreamKey string) (OperationID, error)
	// List returns a page of operations, in the order of its Listing, with the store's time. A record of a newer release has its identity
	// and times only, and state 0.
	List(ctx context.Context, q Listing) ([]Operation, time.Time, error)
	// Due returns a page of the ids of operations whose next check time has come, in the order (next_check_time, id).
	Due(ctx context.Context, q DueQuery) (DuePage, error)
	// Events returns the whole history of one operation, in order.
	Events(ctx context.Context, id OperationID) ([]Event, error)
	// Ready reports whether the store can be reached and its schema is one that this release reads and writes.
	Ready(ctx context.Context) error
	// Close releases what the store holds. Calls under way fail.
	Close() error
}

// ErrDamaged is a cause of ErrStoreUnavailable: what is stored is not what was written. It is the fault of what was read, not of the store as a
// whole: who goes through many goes on to the next.
var ErrDamaged = errors.New("stored data are damaged")

// ContractStore keeps the versions of tools' contracts, by which the records are judged that were made under them: a version that was in force
// anywhere is known wherever its records are. Beside the operations, no decision reads it. What is kept never changes, and is never
// removed. The stores are ContractStores, too, and have the same errors.
type ContractStore interface {
	// SaveContracts keeps those of the versions that are not kept yet. It may be called again, and at once from several instances. After
	// an error it is not known which of them are kept.
	SaveContracts(ctx context.Context, versions []ContractVersion) error
	// SavedContract returns a version's document, byte by byte as it was saved; nil, without an error, if it is not kept.
	SavedContract(ctx context.Context, version string) ([]byte, error)
}

// ContractVersion is one version of a contract as it is kept.
type ContractVersion struct {
	// Version is the digest by which records name it, at most 64 bytes.
	Version string
	// Document is what package contract reads. It is not empty.
	Document []byte
}

// ReadSet names what a decision needs besides the row itself.
type ReadSet struct {
	ID OperationID
	// CommandID under which earlier events are looked up; empty: none.
	CommandID string
	// Related operations: the original, the dependencies.
	Related []OperationID
	// MayCreate: the decision may make the operation, which is then most probably not there.
	MayCreate bool
	// Unknowns, if set, asks how many operations of a tool are UNKNOWN.
	Unknowns *Unknowns
	// Forgotten, if set, is the tool of which it is asked what was forgotten.
	Forgotten Tool
	// Slots whose owners are asked for.
	Slots []Slot
	// Siblings, if set, asks for UNKNOWN operations of the same scope, subject, task and tool, other than ID.
	Siblings *Siblings
}

// Siblings names operations that the same task might be repeating.
type Siblings struct {
	Scope Scope
	Tool  Tool
	Task  Task
	// SubjectDigests under each secret of the ring; empty: without a subject. One alone that is the row's own stands for its subject: as
	// that can't be told under other secrets, all subjects under those count.
	SubjectDigests [][]byte
}

// Unknowns names a tool whose UNKNOWN operations are counted, up to a limit.
type Unknowns struct {
	Tool  Tool
	Limit int
}

// View is what was read, in one transaction, at one time.
type View struct {
	// Now is what the store's clock shows; where it was set back, the rows may have later times.
	Now time.Time
	// Timeline counts the store's lives: it grows with each failover or restore that may have lost commits. From 1.
	Timeline uint32
	// Watermark is set while keys decided before it can't be told from lost ones.
	Watermark Watermark
	// Paused are the tools that get no new grant.
	Paused PausedTools
	// Current is nil when there is no such operation.
	Current *Operation
	// Prior are this operation's events under the read's command id, in order.
	Prior   []Event
	Related map[OperationID]Operation
	// Owners of the slots, for those that have one. Of what a newer release has written it has the identity only, and state 0; what is not
	// there any more is RETIRED.
	Owners map[Slot]Operation
	// Forgotten is the latest FinalTime of the operations of the tool that was asked for which ForgetKeys has removed; zero: there was none.
	Forgotten time.Time
	// Unknowns is the number that was asked for; from the limit on, the limit.
	Unknowns int
	// UnknownSiblings, at most 32 of them, oldest first.
	UnknownSiblings []OperationID
}

// Watermark is the quarantine after a failover or restore that may have lost commits. The zero value is none.
type Watermark struct {
	// At is when it was set: a key whose intent lies before it, less the skew of callers' clocks, may have been lost.
	At time.Time
	// LostSince is from when on commits may have been lost.
	LostSince time.Time
}

// Change is what a decision wants written. The zero value writes nothing.
type Change struct {
	// Next is the operation after the change. Its identity is that of the current one, or new.
	Next *Operation
	// Event to append; nil only for a Renew, which moves a deadline without one.
	Event *Event
	// Companion is a change of another operation in the same transaction: an original that gets a compensation.
	Companion *Change
	// UnlessPaused: it is a grant, which is written only while its tool is not paused.
	UnlessPaused bool
	// Slots that Next takes, in the order of their digests, each once. Each is a compare-and-swap on whose it was: where one is lost, nothing
	// is written.
	Slots []TakenSlot
}

// Listing selects operations of one scope.
type Listing struct {
	Scope Scope
	Task  Task // empty: all
	// SubjectDigests under each secret of the ring; empty: only operations without a subject.
	SubjectDigests [][]byte
	States         []State
	// UpdatedAfter, if set, makes the order (update_time, id) instead of (create_time, id).
	UpdatedAfter time.Time
	// AfterTime and AfterID are the position of the last operation of the page before.
	AfterTime time.Time
	AfterID   OperationID
	Limit     int
}

// DueQuery selects due operations.
type DueQuery struct {
	// After is the position to begin behind.
	After DuePosition
	// Without leaves out the operations of these tools: enough of them are known.
	Without []Tool
	Limit   int
}

// DuePage is some of what is due.
type DuePage struct {
	Due []DuePosition
	// End is the position up to which was looked, which may be far behind the last one found; zero: nothing is due behind it. The next page
	// begins there.
	End DuePosition
	// Now is the store's time.
	Now time.Time
}

// DueScan is how many due operations a store looks at for one page, where it leaves some out.
const DueScan = 1 << 15

// Scanned is how many due operations are looked at for the page.
func (q DueQuery) Scanned() int {
	if len(q.Without) == 0 {
		return q.Limit
	}
	return max(DueScan, q.Limit)
}

// LookedAt is a due operation that a store has come to: one that is wanted, or the last one that was looked at.
type LookedAt struct {
	DuePosition
	Wanted, Last bool
}

// PageOf makes a page of what was looked at.
func PageOf(looked []LookedAt, limit int) (page DuePage) {
	for _, p := range looked {
		if p.Wanted {
			page.Due = append(page.Due, p.DuePosition)
		}
		if p.Last {
			page.End = p.DuePosition
		}
	}
	if len(looked) == limit {
		page.End = looked[limit-1].DuePosition
	}
	return page
}

// DuePosition is a place in the order of due operations.
type DuePosition struct {
	Time time.Time
	ID   OperationID
}
