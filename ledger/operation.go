// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"time"
)

// Operation is one row of the ledger: one intended effect. Times are the store's, in UTC, to the microsecond; the zero time is "unset".
//
// Everything up to Fingerprint is written once, with the first insert, and never changes, but that TargetSummary goes with retirement.
type Operation struct {
	ID        OperationID
	KeyHash   KeyHash
	Scope     Scope
	Principal Principal // who claimed it first
	Tool      Tool
	Task      Task
	// SubjectDigest is keyed with the secret that Fingerprint names; empty for an operation without a subject.
	SubjectDigest []byte
	TargetSummary string
	IntentTime    time.Time
	CreateTime    time.Time
	Compensates   OperationID
	Corrects      OperationID
	DependsOn     []OperationID
	Fingerprint   Fingerprint

	State       State
	Custody     Custody
	Custodian   Principal
	QueueReason QueueReason
	// Sequence counts events, Version decisions: what a person's expected version means.
	Sequence uint64
	Version  uint64
	// LastHash is the hash of the last event.
	LastHash   [32]byte
	UpdateTime time.Time
	// Timeline of the store when the row was inserted or last rewritten.
	Timeline uint32

	// Terms are the strictest promises that this operation was ever judged by.
	Terms Terms
	// Grant is the latest one, also after it has ended.
	Grant Grant
	// Attempts counts grants, Starts those that may have been sent.
	Attempts uint32
	Starts   uint32
	// MayHaveApplied: an earlier attempt than the latest may have been applied ("in doubt").
	MayHaveApplied bool
	// FirstStart is when the first send window began; never moved later.
	FirstStart time.Time
	// LastSend is the latest time at which a request of this operation may have left, or may still be on its way by the target's
	// own word (pending): settle time is this plus effect_within.
	LastSend time.Time

	// NextCheckTime is when recovery looks next: a check, an inspection, or the end of a lease. Zero: never by itself.
	NextCheckTime time.Time
	Check         Check
	// TargetAttributes are facts for status queries, stored in clear: only names that the contract declares.
	TargetAttributes map[string]string

	Result  *Result
	Failure *Failure
	// FinalTime is when the operation became final.
	FinalTime time.Time
	// NeedsAttention: contradicting evidence was recorded and nobody has acknowledged it.
	NeedsAttention bool

	CompensatedBy []OperationID
	Detail        Detail
}

// Terms are promises of a contract that only ever become stricter for what is recorded.
type Terms struct {
	// ContractVersion is the digest of the contract in force at the last grant.
	ContractVersion string
	Effect          Effect
	// EffectWithin is the largest bound ever stated; 0: none was.
	EffectWithin time.Duration
	// KeyRetention is the smallest ever stated; 0: none was.
	KeyRetention time.Duration
}

// Grant is permission to execute once.
type Grant struct {
	ClaimID  ClaimID
	WorkerID string
	// Epoch is (timeline << 32) + number of the grant: a fencing token that never repeats.
	Epoch uint64
	// Time is when the lease began to count: the claim's, or Start's.
	Time time.Time
	// LeaseUntil is unset when the grant has ended by a report or decision.
	LeaseUntil time.Time
	// SendUntil is the end of the send window; unset for a reservation that has not started.
	SendUntil time.Time
	// Lease is the length that was granted.
	Lease time.Duration
	// Started tells execution from reservation.
	Started bool
	// Released: the holder itself reported that nothing was executed.
	Released bool
	// UsedApproval, UsedWaiver: the grant used them up; not executed gives them back.
	UsedApproval bool
	UsedWaiver   bool
}

// Check is the latest check of the target.
type Check struct {
	// Number is (timeline << 16) + count: it never repeats. 0: never checked.
	Number uint64
	Began  time.Time
	// LeaseUntil: nobody else may check until then.
	LeaseUntil time.Time
	// Open: not answered, not ended by a person, a queueing or a rewrite.
	Open bool
}

// Detail holds what is read only together with the whole row. It is stored as one JSON document, so that a new field needs no migration.
type Detail struct {
	// CompletedBy is the grant whose success completed it, if one did.
	CompletedBy ClaimID `json:"completed_by,omitempty"`
	Cancelled   bool    `json:"cancelled,omitempty"`
	// SeenThere: since the first start a finding said found, pending or ambiguous: absence is not believed any more.
	SeenThere bool `json:"seen_there,omitempty"`
	// FoundThere tells AMBIGUOUS from GAVE_UP.
	FoundThere bool `json:"found_there,omitempty"`
	// Checks counts those that the target answered.
	Checks      uint32  `json:"checks,omitempty"`
	LastFinding Finding `json:"last_finding,omitempty"`
	// Retries counts consecutive checks without a decision; it spaces the next one.
	Retries uint32 `json:"retries,omitempty"`
	// BudgetSpent is what counted towards giving up, LastAnswer the time of the last finding that arrived.
	BudgetSpent time.Duration `json:"budget_spent,omitempty"`
	LastAnswer  time.Time     `json:"last_answer,omitzero"`
	Candidates  []ResourceRef `json:"candidates,omitempty"`
	// Kept is a success that could not be applied when it came.
	Kept *KeptSuccess `json:"kept,omitempty"`
	// Observations counts those kept as events, up to maxObservations.
	Observations uint32 `json:"observations,omitempty"`
	// AttentionSequence is that of the last contradiction; it stays when that is acknowledged, and when the operation is retired.
	AttentionSequence uint64 `json:"attention_sequence,omitempty"`
	// DeniedSequence is that of the decision by which a person ended it as never happened: what spoke for an effect before is something else.
	DeniedSequence uint64 `json:"denied_sequence,omitempty"`
	// NotBefore is when it may be claimed again.
	NotBefore time.Time `json:"not_before,omitzero"`
	// ExtraStarts are starts that a person has granted beyond the contract's.
	ExtraStarts uint32 `json:"extra_starts,omitempty"`
	// Freed is when it last became claimable again.
	Freed time.Time `json:"freed,omitzero"`
	// Approval that it needs before it is granted; Proposal of the person who has it; Changed resource that a person may overlook once.
	Approval *Approval `json:"approval,omitempty"`
	Proposal *Approval `json:"proposal,omitempty"`
	Changed  *Approval `json:"changed,omitempty"`
	// DistinctFrom names unknown siblings and look-alikes that it knowingly does not repeat, as far as that counted.
	DistinctFrom []OperationID `json:"distinct_from,omitempty"`
	// ClearedUntil: the target said that the resource to compensate is as the original left it.
	ClearedUntil time.Time `json:"cleared_until,omitzero"`
	// Waived: a person has waived that check for one grant.
	Waived       bool         `json:"waived,omitempty"`
	Precondition *ResourceRef `json:"precondition,omitempty"`
	// RetiredFrom is the outcome of a retired operation.
	RetiredFrom State `json:"retired_from,omitempty"`
	// DroppedAttributes names result attributes that the contract does not declare.
	DroppedAttributes []string `json:"dropped_attributes,omitempty"`
	// PayloadOmitted says why the payload is not kept: "TOO_LARGE" or "UNDECLARED".
	PayloadOmitted string `json:"payload_omitted,omitempty"`
}

// KeptSuccess is a success reported while a person had the operation or another attempt ran.
type KeptSuccess struct {
	ClaimID ClaimID `json:"claim_id"`
	Result  Result  `json:"result"`
}

// ApprovalKind says what a second person is asked about.
type ApprovalKind uint8

// The kinds.
const (
	ApproveCorrection      ApprovalKind = 1
	ApproveResolution      ApprovalKind = 2
	ApproveChangedResource ApprovalKind = 3
	ApproveLookAlike       ApprovalKind = 4
)

// Approval is asked of a second person, bound to the operation's fingerprint by being on its row.
type Approval struct {
	Kind       ApprovalKind `json:"kind"`
	Requester  Principal    `json:"requester,omitempty"`
	ExpireTime time.Time    `json:"expire_time,omitzero"`
	Approver   Principal    `json:"approver,omitempty"`
	// Granted: approved and not used up. Until then the operation waits.
	Granted    bool         `json:"granted,omitempty"`
	Resolution *Resolution  `json:"resolution,omitempty"`
	Resource   *ResourceRef `json:"resource,omitempty"`
}

// ResourceRef names a thing at the target.
type ResourceRef struct {
	Type    string `json:"type,omitempty"`
	ID      string `json:"id,omitempty"`
	URI     string `json:"uri,omitempty"`
	Version string `json:"version,omitempty"`
}

// named reports whether it says which thing it is.
func (r ResourceRef) named() bool { return r.ID != "" || r.URI != "" }

// Same reports whether both name one thing; its version may differ.
func (r ResourceRef) Same(o ResourceRef) bool {
	if r.ID == "" && o.ID == "" {
		return r.Type == o.Type && r.URI == o.URI
	}
	return r.ID == o.ID && (r.Type == o.Type || r.Type == "" || o.Type == "")
}

// Result is the business result, apart from any transport.
type Result struct {
	Resource   ResourceRef       `json:"resource"`
	Code       string            `json:"code,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Schema     string            `json:"schema,omitempty"`
	Payload    []byte            `json:"payload,omitempty"`
}

// Failure is a definite failure: no effect exists, and the same request is pointless.
type Failure struct {
	Kind    FailureKind `json:"kind"`
	Code    string      `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
}

// Fingerprint is the keyed digest of the canonical request, with the versions it was made with.
type Fingerprint struct {
	Spec     uint16
	SecretID string
	// Contract is the digest of the contract whose rules were applied.
	Contract string
	Digest   [32]byte
	// Categories has one short digest for each category of fields.
	Categories map[string]CategoryDigest
}

// CategoryDigest is the keyed digest of one category of fields. Its text, in documents, is hex.
type CategoryDigest [8]byte

// MarshalText writes hex.
func (d CategoryDigest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText reads hex.
func (d *CategoryDigest) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(d) {
		return errors.New("a category's digest is 16 hex digits")
	}
	copy(d[:], b)
	return nil
}

// Prefix is what logs and answers show: the first 8 hex digits.
func (f Fingerprint) Prefix() string { return hex.EncodeToString(f.Digest[:4]) }

// Reserved reports whether a reservation is alive: nothing was sent under it.
func (o *Operation) Reserved(now time.Time) bool {
	return o.State == Received && !o.Grant.Started && o.Grant.LeaseUntil.After(now)
}

// LeaseAlive reports whether somebody may be executing.
func (o *Operation) LeaseAlive(now time.Time) bool { return o.Grant.LeaseUntil.After(now) }

// EverStarted reports whether something may ever have been sent.
func (o *Operation) EverStarted() bool { return !o.FirstStart.IsZero() }

// effectSeen reports whether something speaks for an effect that no person has dealt with: what the target said, or a success that nobody could apply.
func (o *Operation) effectSeen() bool {
	return o.Detail.SeenThere || o.Detail.FoundThere || len(o.Detail.Candidates) > 0 || o.NeedsAttention
}

// counts: it has, or may have, an effect. A failure that something speaks against may: to acknowledge that is not to deny it.
func (o *Operation) counts() bool {
	failed := o.State == Failed || o.State == Retired && o.Detail.RetiredFrom == Failed
	return !failed || o.NeedsAttention || o.Detail.AttentionSequence > o.Detail.DeniedSequence
}

// retiredAs is the outcome that a retired operation is remembered with: of a failure that something speaks against it is not known.
func (o *Operation) retiredAs() State {
	if o.Detail.RetiredFrom == Failed && o.counts() {
		return Unknown
	}
	return o.Detail.RetiredFrom
}

// Clone returns a copy that shares nothing that can be changed.
func (o Operation) Clone() Operation {
	c := o
	c.SubjectDigest = slices.Clone(o.SubjectDigest)
	c.DependsOn = slices.Clone(o.DependsOn)
	c.CompensatedBy = slices.Clone(o.CompensatedBy)
	c.Fingerprint.Categories = maps.Clone(o.Fingerprint.Categories)
	c.TargetAttributes = maps.Clone(o.TargetAttributes)
	c.Result = o.Result.clone()
	if o.Failure != nil {
		f := *o.Failure
		c.Failure = &f
	}
	c.Detail.Candidates = slices.Clone(o.Detail.Candidates)
	c.Detail.DistinctFrom = slices.Clone(o.Detail.DistinctFrom)
	c.Detail.DroppedAttributes = slices.Clone(o.Detail.DroppedAttributes)
	if k := o.Detail.Kept; k != nil {
		c.Detail.Kept = &KeptSuccess{ClaimID: k.ClaimID, Result: *k.Result.clone()}
	}
	c.Detail.Approval, c.Detail.Proposal, c.Detail.Changed = o.Detail.Approval.clone(), o.Detail.Proposal.clone(), o.Detail.Changed.clone()
	if p := o.Detail.Precondition; p != nil {
		q := *p
		c.Detail.Precondition = &q
	}
	return c
}

func (a *Approval) clone() *Approval {
	if a == nil {
		return nil
	}
	c := *a
	return &c
}

func (r *Result) clone() *Result {
	if r == nil {
		return nil
	}
	c := *r
	c.Attributes = maps.Clone(r.Attributes)
	c.Payload = slices.Clone(r.Payload)
	return &c
}
