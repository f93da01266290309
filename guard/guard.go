// SPDX-License-Identifier: Apache-2.0

// Package guard names the conditions that keep a known run of faults from making a second effect, a denied effect or an intrusion on
// a person's work. Each is marked once in the code, beside the condition itself, by Name.On() or Name.Off().
//
// A release can't switch one off: without the build tag "guards" On is the constant true, which the compiler inlines. With the tag a test
// can, to see that the run which the guard is there for is then caught by who looks at the target. test/traces/table/traces.txt says
// which run each is for, and what must not happen; `make traces` shows both.
//
// The package depends on the standard library only.
package guard

// Guard is one of the names below.
type Guard string

// Off is the opposite of On.
func (g Guard) Off() bool { return !g.On() }

// The guards, with the traces that they are for.
const (
	// SettleTime: absence proves nothing before settle time (T3, T12).
	SettleTime Guard = "settle-time"
	// KeyForgotten: nor once the target has forgotten the key (T14).
	KeyForgotten Guard = "key-forgotten"
	// SeenBefore: nor against an earlier finding (T37).
	SeenBefore Guard = "seen-before"
	// OwnCheck: an answer counts for the check that it answers (T21).
	OwnCheck Guard = "own-check"
	// NewCheckNumber: no check has the number of one that a failover lost (T22).
	NewCheckNumber Guard = "new-check-number"
	// RejectedThen: a rejection at the target is definite only after settle time (T28).
	RejectedThen Guard = "rejected-then"
	// Verified: what was found settles nothing unless all that was asked for is there and equal (T18).
	Verified Guard = "verified"
	// Observed: what evidence does not show is missing (T18).
	Observed Guard = "observed"
	// FoundAfter: nor if it is older than the first start (T18).
	FoundAfter Guard = "found-after"

	// SentOnce: a refusal proves that nothing was executed only of the one send (T4).
	SentOnce Guard = "sent-once"
	// RejectedOnce: and so does a rejection (T28).
	RejectedOnce Guard = "rejected-once"
	// NotInDoubt: a rejection is definite only of the only attempt (T12).
	NotInDoubt Guard = "not-in-doubt"
	// HolderFrees: only the holder frees its grant (T9).
	HolderFrees Guard = "holder-frees"
	// OwnSuccess: a success of who was never granted it is not applied (T10).
	OwnSuccess Guard = "own-success"
	// EarlierSuccess: one of an earlier grant is (T23).
	EarlierSuccess Guard = "earlier-success"
	// OwnDecline: only a decline by who completed it contradicts that (T38).
	OwnDecline Guard = "own-decline"

	// GrantedOnce: a claim_id is granted once (T5).
	GrantedOnce Guard = "granted-once"
	// WhatIsLeft: a grant that is told again has what is left of its send window (T7).
	WhatIsLeft Guard = "what-is-left"
	// FromSending: a worker counts it from when it sent the call (T8).
	FromSending Guard = "from-sending"
	// KeyWindow: no repeat once the target may have forgotten the key (T13).
	KeyWindow Guard = "key-window"
	// LandsInTime: nor one that could land then (T15).
	LandsInTime Guard = "lands-in-time"
	// UnsafeInDoubt: an UNSAFE operation in doubt is not repeated (T35).
	UnsafeInDoubt Guard = "unsafe-in-doubt"
	// FirstStart: the key window counts from the first start, also of what a failover lost (T29).
	FirstStart Guard = "first-start"
	// Unsettled: what is not settled stands in the way of its look-alikes (T19).
	Unsettled Guard = "unsettled"
	// Conflict: another request changes nothing (T32).
	Conflict Guard = "conflict"
	// FoundFirst: what is queued for something that was found is not granted (T31).
	FoundFirst Guard = "found-first"
	// FoundWaits: nor is it in between (T31).
	FoundWaits Guard = "found-waits"
	// FoundReturns: nor after a person has handed it back (T31).
	FoundReturns Guard = "found-returns"

	// HeldClaim: a claim moves nothing while a person has it (T6, T20).
	HeldClaim Guard = "held-claim"
	// HeldCheck: nor does a check begin (T30).
	HeldCheck Guard = "held-check"
	// HeldRegrant: nor is it made claimable (T30).
	HeldRegrant Guard = "held-regrant"
	// HeldExpire: nor does it expire (T30).
	HeldExpire Guard = "held-expire"
	// HeldEvidence: nor does evidence decide (T30).
	HeldEvidence Guard = "held-evidence"
	// HeldRequest: nor is a check asked for (T30).
	HeldRequest Guard = "held-request"
	// CheckEnds: taking over ends the check (T30).
	CheckEnds Guard = "check-ends"

	// SearchTime: a person's "never happened" rests on a search after settle time (T1, T2).
	SearchTime Guard = "search-time"
	// LeaseOver: and is not heard while a lease is alive (T1).
	LeaseOver Guard = "lease-over"
	// KeptSuccess: nor against a success that a worker has reported (T27).
	KeptSuccess Guard = "kept-success"
	// FoundDenied: nor, unseen, against what was found (T39).
	FoundDenied Guard = "found-denied"
	// OneMoreStart: whom a person frees may start once more (T36).
	OneMoreStart Guard = "one-more-start"

	// OnlyProposal: who rejects a proposal does not decide the opposite (T25).
	OnlyProposal Guard = "only-proposal"
	// ProposalEnds: a proposal ends when it is handed back (T26).
	ProposalEnds Guard = "proposal-ends"
	// Custodian: only who has it decides it, also by a proposal (T26).
	Custodian Guard = "custodian"

	// OriginalThere: what has failed or is retired is not compensated (T16).
	OriginalThere Guard = "original-there"
	// OriginalCompleted: nor what has not completed (T16).
	OriginalCompleted Guard = "original-completed"
	// Relations: what a request compensates is part of it (T24).
	Relations Guard = "same-relations"
	// OneCompensation: an original has as many compensations as its contract says (T17).
	OneCompensation Guard = "one-compensation"
	// Uncontradicted: a contradicted original is not compensated (T33).
	Uncontradicted Guard = "uncontradicted"
	// OriginalSettled: nor one before its settle time (T34).
	OriginalSettled Guard = "original-settled"
)
