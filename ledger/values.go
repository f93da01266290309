// SPDX-License-Identifier: Apache-2.0

package ledger

import "fmt"

// State says where an operation stands. COMPLETED, FAILED and RETIRED are final. The numbers are those of the contract
// and of the stores: they never change.
type State uint8

// The states.
const (
	// Received: nobody executes it, and unless it is in doubt it is provably not at the target.
	Received State = 1
	// Processing: granted to one worker, which may have sent it.
	Processing State = 2
	// Completed: the effect exists once; its result is known.
	Completed State = 3
	// Failed: definitely no effect.
	Failed State = 4
	// Unknown: the effect may or may not exist. Only evidence, or a person, moves it on.
	Unknown State = 5
	// Retired: retention is over; only the key is remembered.
	Retired State = 6
)

// Final reports whether nothing can follow but retirement.
func (s State) Final() bool { return s == Completed || s == Failed || s == Retired }

func (s State) String() string {
	return name(s, "", "RECEIVED", "PROCESSING", "COMPLETED", "FAILED", "UNKNOWN", "RETIRED")
}

// Custody says who may act for an unsettled operation.
type Custody uint8

// The custodies.
const (
	// Automation: workers and the recovery loop.
	Automation Custody = 1
	// Queued: automation has given up or must not act; it waits for a person.
	Queued Custody = 2
	// Operator: a person has taken it over.
	Operator Custody = 3
)

func (c Custody) String() string { return name(c, "", "AUTOMATION", "QUEUED", "OPERATOR") }

// Effect says what repeating the action does, from the loosest to the strictest.
type Effect uint8

// The effect classes.
const (
	// Read has no side effect.
	Read Effect = 1
	// Idempotent: repeating leaves the same state.
	Idempotent Effect = 2
	// Keyed: the target deduplicates by the downstream key.
	Keyed Effect = 3
	// Unsafe: a repeat is a second effect.
	Unsafe Effect = 4
)

func (e Effect) String() string { return name(e, "", "READ", "IDEMPOTENT", "KEYED", "UNSAFE") }

// QueueReason says why an operation waits for a person.
type QueueReason uint8

// The reasons.
const (
	NoMethod           QueueReason = 1
	GaveUp             QueueReason = 2
	EvidenceMismatch   QueueReason = 3
	EvidenceIncomplete QueueReason = 4
	AmbiguousEvidence  QueueReason = 5
	KeyWindowOver      QueueReason = 6
	ResourceChanged    QueueReason = 7
	AttemptsExhausted  QueueReason = 8
	Quarantine         QueueReason = 9
	RepeatNotAllowed   QueueReason = 10
)

func (r QueueReason) String() string {
	return name(r, "", "NO_METHOD", "GAVE_UP", "EVIDENCE_MISMATCH", "EVIDENCE_INCOMPLETE", "AMBIGUOUS", "KEY_WINDOW_OVER",
		"RESOURCE_CHANGED", "ATTEMPTS_EXHAUSTED", "QUARANTINE", "REPEAT_NOT_ALLOWED")
}

// WaitReason says why a caller waits, or must stop.
type WaitReason uint8

// The reasons; the last three are only reasons to stop.
const (
	LeaseHeld           WaitReason = 1
	CheckScheduled      WaitReason = 2
	InQueue             WaitReason = 3
	HeldByOperator      WaitReason = 4
	ApprovalPending     WaitReason = 5
	ResourceCheck       WaitReason = 6
	NotBefore           WaitReason = 7
	OriginalUnsettled   WaitReason = 8
	DependencyUnsettled WaitReason = 9
	SiblingUnknown      WaitReason = 10
	ToolPaused          WaitReason = 11
	ToolSaturated       WaitReason = 12
	Superseded          WaitReason = 13
	Settled             WaitReason = 14
	LeaseOver           WaitReason = 15
)

func (r WaitReason) String() string {
	return name(r, "", "LEASE_HELD", "CHECK_SCHEDULED", "QUEUED", "HELD_BY_OPERATOR", "APPROVAL_PENDING", "RESOURCE_CHECK", "NOT_BEFORE",
		"ORIGINAL_UNSETTLED", "DEPENDENCY_UNSETTLED", "SIBLING_UNKNOWN", "TOOL_PAUSED", "TOOL_SATURATED", "SUPERSEDED", "SETTLED", "LEASE_OVER")
}

// FailureKind says why there is definitely no effect.
type FailureKind uint8

// The kinds.
const (
	Declined  FailureKind = 1
	Invalid   FailureKind = 2
	Abandoned FailureKind = 3
	Expired   FailureKind = 4
)

func (k FailureKind) String() string {
	return name(k, "", "DECLINED", "INVALID", "ABANDONED", "EXPIRED")
}

// NotExecutedKind says how it is known that the target never accepted a request.
type NotExecutedKind uint8

// The kinds.
const (
	NeverSent               NotExecutedKind = 1
	RefusedBeforeAcceptance NotExecutedKind = 2
	AbsentAtTarget          NotExecutedKind = 3
)

func (k NotExecutedKind) String() string {
	return name(k, "", "NEVER_SENT", "REFUSED_BEFORE_ACCEPTANCE", "ABSENT_AT_TARGET")
}

// UnknownCause says why an outcome could not be seen.
type UnknownCause uint8

// The causes.
const (
	CauseTimeout           UnknownCause = 1
	CauseConnectionLost    UnknownCause = 2
	CauseServerError       UnknownCause = 3
	CauseAmbiguousResponse UnknownCause = 4
	CauseUnclassified      UnknownCause = 5
)

func (c UnknownCause) String() string {
	return name(c, "", "TIMEOUT", "CONNECTION_LOST", "SERVER_ERROR", "AMBIGUOUS_RESPONSE", "UNCLASSIFIED")
}

// Finding is the kind of a piece of evidence.
type Finding uint8

// The findings.
const (
	FoundResource  Finding = 1
	RejectedThere  Finding = 2
	PendingThere   Finding = 3
	NotAccepted    Finding = 4
	NotFound       Finding = 5
	AmbiguousThere Finding = 6
	Indeterminate  Finding = 7
)

func (f Finding) String() string {
	return name(f, "", "FOUND", "REJECTED", "PENDING", "NOT_ACCEPTED", "NOT_FOUND", "AMBIGUOUS", "INDETERMINATE")
}

// IndeterminateCause says why a query said nothing.
type IndeterminateCause uint8

// The causes.
const (
	QueryTimeout       IndeterminateCause = 1
	QueryUnavailable   IndeterminateCause = 2
	QueryThrottled     IndeterminateCause = 3
	QueryNotAuthorized IndeterminateCause = 4
	QueryNotUnderstood IndeterminateCause = 5
)

// asked reports whether the target could be asked: only then does it count that it has not told.
func (c IndeterminateCause) asked() bool { return c != QueryThrottled && c != QueryUnavailable }

func (c IndeterminateCause) String() string {
	return name(c, "", "TIMEOUT", "UNAVAILABLE", "THROTTLED", "NOT_AUTHORIZED", "NOT_UNDERSTOOD")
}

// Disposition says what became of a report.
type Disposition uint8

// The dispositions.
const (
	Applied       Disposition = 1
	Observed      Disposition = 2
	Contradiction Disposition = 3
)

func (d Disposition) String() string { return name(d, "", "APPLIED", "OBSERVED", "CONTRADICTION") }

// NextAction says what the caller should do now.
type NextAction uint8

// The actions.
const (
	Execute          NextAction = 1
	StartThenExecute NextAction = 2
	UseResult        NextAction = 3
	Stop             NextAction = 4
	WaitThen         NextAction = 5
	WaitForPerson    NextAction = 6
	ClaimAgain       NextAction = 7
)

func (a NextAction) String() string {
	return name(a, "", "EXECUTE", "START_THEN_EXECUTE", "USE_RESULT", "STOP", "WAIT", "WAIT_FOR_PERSON", "CLAIM_AGAIN")
}

// ActorKind says what kind of actor asked for a change.
type ActorKind uint8

// The kinds.
const (
	ActorWorker     ActorKind = 1
	ActorRecovery   ActorKind = 2
	ActorReconciler ActorKind = 3
	ActorPerson     ActorKind = 4
)

func (k ActorKind) String() string { return name(k, "", "WORKER", "RECOVERY", "RECONCILER", "PERSON") }

// name is the contract's word for an enumeration's value.
func name[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%T(%d)", v, uint8(v))
}
