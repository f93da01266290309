// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// Actor is who asks.
type Actor struct {
	Kind ActorKind
	Name Principal
}

// Command names what somebody wants of one operation. Each is a plain value, already authorised and validated in form.
type Command interface {
	// kind names the command in the history; with id it is unique within an operation.
	kind() CommandKind
	// id is the claim_id or command_id under which it is asked for; empty for the loop's own.
	id() string
	actor() Actor
}

// CommandKind names a kind of command in stored events. Stored: never renamed.
type CommandKind string

// The kinds that leave an event under their claim_id or command_id. A Claim that only registers does so under its own kind, so that
// the same claim_id may still be granted.
const (
	KindClaim       CommandKind = "claim"
	KindRegister    CommandKind = "register"
	KindStart       CommandKind = "start"
	KindRenew       CommandKind = "renew"
	KindComplete    CommandKind = "complete"
	KindMarkUnknown CommandKind = "mark_unknown"
	KindCancel      CommandKind = "cancel"
	KindCheck       CommandKind = "check"
	KindReconcile   CommandKind = "reconcile"
	KindTakeOver    CommandKind = "take_over"
	KindHandBack    CommandKind = "hand_back"
	KindResolve     CommandKind = "resolve"
	KindApprove     CommandKind = "approve"
	KindCheckNow    CommandKind = "check_now"
	KindNote        CommandKind = "note"
	KindInspect     CommandKind = "inspect"
	KindRegrant     CommandKind = "regrant"
	KindGiveUp      CommandKind = "give_up"
	KindExpire      CommandKind = "expire"
	KindRetire      CommandKind = "retire"
)

// Claim asks to execute once.
type Claim struct {
	Key         Key
	ClaimID     ClaimID
	WorkerID    string
	Actor       Actor
	Fingerprint Fingerprint
	// SubjectDigest under Fingerprint's secret; empty without a subject.
	SubjectDigest []byte
	// Slots that the unique rules of the contract ask for, with the values of its request.
	Slots []UniqueSlot
	// Lease wished for, within the contract's bounds; 0: the contract's default.
	Lease   time.Duration
	Reserve bool
	// ToolAllowed: the policy lets the caller claim this tool now.
	ToolAllowed      bool
	TargetSummary    string
	TargetAttributes map[string]string
	IntentTime       time.Time
	DependsOn        []OperationID
	DistinctFrom     []OperationID
	Compensates      OperationID
	Corrects         OperationID
	EffectHint       Effect
}

// Start turns a reservation into execution.
type Start struct {
	ClaimID     ClaimID
	Actor       Actor
	ToolAllowed bool
}

// Renew extends a lease.
type Renew struct {
	ClaimID          ClaimID
	Actor            Actor
	Lease            time.Duration
	TargetAttributes map[string]string
}

// Complete reports a definite outcome: exactly one of Succeeded, Rejected, NotExecuted is set.
type Complete struct {
	ClaimID         ClaimID
	Actor           Actor
	Succeeded       *Result
	Rejected        *Failure
	NotExecuted     *NotExecuted
	SentExactlyOnce bool
	// DroppedAttributes and PayloadOmitted say what of the result is not kept.
	DroppedAttributes []string
	PayloadOmitted    string
}

// NotExecuted: the target never accepted the request, for certain.
type NotExecuted struct {
	Kind       NotExecutedKind `json:"kind"`
	Detail     string          `json:"detail,omitempty"`
	RetryAfter time.Duration   `json:"retry_after,omitempty"`
}

// MarkUnknown reports that the outcome could not be seen.
type MarkUnknown struct {
	ClaimID          ClaimID
	Actor            Actor
	Cause            UnknownCause
	TargetAttributes map[string]string
}

// Cancel gives up what provably was not sent.
type Cancel struct {
	// ClaimID of the caller's own reservation, or empty.
	ClaimID ClaimID
	Actor   Actor
}

// BeginCheck takes an operation for a check of the target.
type BeginCheck struct {
	CommandID CommandID
	Actor     Actor
}

// Reconcile submits evidence from the target.
type Reconcile struct {
	CommandID CommandID
	Actor     Actor
	// CheckNumber that this answers; 0 for evidence that came by itself.
	CheckNumber uint64
	Evidence    Evidence
	// Chance, from [0, 1), was drawn by who asked: the wait before the next check is shorter by that share of a fifth, so that operations which
	// became unknown together are not asked about together for ever.
	Chance float64
}

// Evidence is one finding, as plain values.
type Evidence struct {
	Finding Finding
	Source  string
	// Result and CreateTime of what was found.
	Result     *Result
	CreateTime time.Time
	// Different and Missing are the categories of the contract's verify list that the observation contradicts or lacks.
	Different []string
	Missing   []string
	// Rejected is the target's own decision.
	Rejected   *Failure
	RetryAfter time.Duration
	// Final: the target refuses this key from now on.
	Final      bool
	Candidates []ResourceRef
	Cause      IndeterminateCause
}

// Inspect is the loop's finding about the resource that a compensation would undo.
type Inspect struct {
	Actor   Actor
	Outcome Inspection
	Current ResourceRef
	// Cause of an indeterminate one.
	Cause IndeterminateCause
	// Sequence of the operation before the target was asked: what was seen before somebody has moved it says nothing. 0: it is not said.
	Sequence uint64
	// Asked is the store's time before the target was asked, from which on the look grows old; zero: now.
	Asked time.Time
}

// Inspection says how a resource stands compared with what the original left.
type Inspection uint8

// The inspections.
const (
	InspectIndeterminate Inspection = iota
	InspectUnchanged
	InspectChanged
	InspectGone
	InspectNoVersion
)

// Regrant frees an operation whose repeat is harmless.
type Regrant struct{ Actor Actor }

// GiveUp hands to people what somebody else than the recovery loop is to ask about, if nobody has for as long as the contract lets that be in vain.
type GiveUp struct{ Actor Actor }

// TakeOver gives an operation to a person.
type TakeOver struct {
	CommandID       CommandID
	Actor           Actor
	ExpectedVersion uint64
	Reason          string
}

// HandBack gives it back to automation.
type HandBack struct {
	CommandID       CommandID
	Actor           Actor
	ExpectedVersion uint64
	Reason          string
}

// Resolution is a person's finding: exactly one field is set.
type Resolution struct {
	Happened         *Result      `json:"happened,omitempty"`
	NeverHappenedTry *NotExecuted `json:"never_happened_retry,omitempty"`
	NeverHappenedEnd *Failure     `json:"never_happened_stop,omitempty"`
	// SearchTime is when the view was read that preceded the search.
	SearchTime time.Time `json:"search_time,omitzero"`
	// DespiteFound: the person has looked at what was found, and says that it is not this operation's effect.
	DespiteFound bool   `json:"despite_found,omitempty"`
	Note         string `json:"note,omitempty"`
}

// Resolve is a person's decision.
type Resolve struct {
	CommandID       CommandID
	Actor           Actor
	ExpectedVersion uint64
	Resolution      Resolution
}

// Approve is the word of a second person.
type Approve struct {
	CommandID       CommandID
	Actor           Actor
	ExpectedVersion uint64
	Approved        bool
	Note            string
}

// CheckNow makes an operation due.
type CheckNow struct {
	CommandID CommandID
	Actor     Actor
	Reason    string
}

// Note is a remark; it acknowledges contradictions up to a sequence.
type Note struct {
	CommandID          CommandID
	Actor              Actor
	Text               string
	AcknowledgeThrough uint64
}

// Expire ends what nobody claimed within the retry window.
type Expire struct{ Actor Actor }

// Retire forgets everything but the key.
type Retire struct {
	Actor Actor
	// Referenced: something live refers to it. The ledger looks at the compensations that its row names.
	Referenced bool
}

func (Claim) kind() CommandKind       { return KindClaim }
func (Start) kind() CommandKind       { return KindStart }
func (Renew) kind() CommandKind       { return KindRenew }
func (Complete) kind() CommandKind    { return KindComplete }
func (MarkUnknown) kind() CommandKind { return KindMarkUnknown }
func (Cancel) kind() CommandKind      { return KindCancel }
func (BeginCheck) kind() CommandKind  { return KindCheck }
func (Reconcile) kind() CommandKind   { return KindReconcile }
func (Inspect) kind() CommandKind     { return KindInspect }
func (Regrant) kind() CommandKind     { return KindRegrant }
func (GiveUp) kind() CommandKind      { return KindGiveUp }
func (TakeOver) kind() CommandKind    { return KindTakeOver }
func (HandBack) kind() CommandKind    { return KindHandBack }
func (Resolve) kind() CommandKind     { return KindResolve }
func (Approve) kind() CommandKind     { return KindApprove }
func (CheckNow) kind() CommandKind    { return KindCheckNow }
func (Note) kind() CommandKind        { return KindNote }
func (Expire) kind() CommandKind      { return KindExpire }
func (Retire) kind() CommandKind      { return KindRetire }

func (c Claim) id() string       { return string(c.ClaimID) }
func (c Start) id() string       { return string(c.ClaimID) }
func (c Renew) id() string       { return string(c.ClaimID) }
func (c Complete) id() string    { return string(c.ClaimID) }
func (c MarkUnknown) id() string { return string(c.ClaimID) }
func (c Cancel) id() string      { return string(c.ClaimID) }
func (c BeginCheck) id() string  { return string(c.CommandID) }
func (c Reconcile) id() string   { return string(c.CommandID) }
func (Inspect) id() string       { return "" }
func (Regrant) id() string       { return "" }
func (GiveUp) id() string        { return "" }
func (c TakeOver) id() string    { return string(c.CommandID) }
func (c HandBack) id() string    { return string(c.CommandID) }
func (c Resolve) id() string     { return string(c.CommandID) }
func (c Approve) id() string     { return string(c.CommandID) }
func (c CheckNow) id() string    { return string(c.CommandID) }
func (c Note) id() string        { return string(c.CommandID) }
func (Expire) id() string        { return "" }
func (Retire) id() string        { return "" }

func (c Claim) actor() Actor       { return c.Actor }
func (c Start) actor() Actor       { return c.Actor }
func (c Renew) actor() Actor       { return c.Actor }
func (c Complete) actor() Actor    { return c.Actor }
func (c MarkUnknown) actor() Actor { return c.Actor }
func (c Cancel) actor() Actor      { return c.Actor }
func (c BeginCheck) actor() Actor  { return c.Actor }
func (c Reconcile) actor() Actor   { return c.Actor }
func (c Inspect) actor() Actor     { return c.Actor }
func (c Regrant) actor() Actor     { return c.Actor }
func (c GiveUp) actor() Actor      { return c.Actor }
func (c TakeOver) actor() Actor    { return c.Actor }
func (c HandBack) actor() Actor    { return c.Actor }
func (c Resolve) actor() Actor     { return c.Actor }
func (c Approve) actor() Actor     { return c.Actor }
func (c CheckNow) actor() Actor    { return c.Actor }
func (c Note) actor() Actor        { return c.Actor }
func (c Expire) actor() Actor      { return c.Actor }
func (c Retire) actor() Actor      { return c.Actor }
