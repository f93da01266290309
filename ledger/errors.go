// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"time"
)

// The refusals. Each is one ErrorReason of the contract; what else a caller may know is in the Refusal that wraps it.
var (
	ErrValidation           = errors.New("the request breaks a rule")
	ErrFingerprintConflict  = errors.New("the key belongs to another request")
	ErrDuplicateIntent      = errors.New("a look-alike of an earlier operation")
	ErrKeyRetired           = errors.New("the key's retention is over")
	ErrKeyTooOld            = errors.New("the intent is older than what the ledger can vouch for, or its time is missing")
	ErrRecordTooNew         = errors.New("the record was written by a newer release")
	ErrStaleGrant           = errors.New("a newer grant exists, or this one was never given")
	ErrLeaseOver            = errors.New("the reservation has lapsed: claim again under a new claim_id")
	ErrCommandReused        = errors.New("the command_id or claim_id was used with other content")
	ErrStaleVersion         = errors.New("the operation has moved since the version that was looked at")
	ErrTooEarly             = errors.New("before its settle time, or while a lease is alive")
	ErrNotInCustody         = errors.New("the person does not have it")
	ErrSecondPersonRequired = errors.New("the decision needs another person")
	ErrOriginalHasNoEffect  = errors.New("the original has no effect")
	ErrDependencyFailed     = errors.New("a dependency has failed")
	ErrNotReversible        = errors.New("the original can't be reversed: use a correction")
	ErrHeldByOperator       = errors.New("a person has it")
	ErrToolPaused           = errors.New("the tool is paused")
	ErrOriginalUnsettled    = errors.New("the original is contradicted or not settled")
	ErrBlocked              = errors.New("a guard does not hold now")
	ErrIllegalTransition    = errors.New("not possible in this state")
	ErrEffectFound          = errors.New("an effect was found or reported, which this would deny")
	ErrToolUnknown          = errors.New("the tool has no contract")
	ErrToolNotAllowed       = errors.New("the caller may not use this tool")
	ErrSubjectNotAllowed    = errors.New("the caller may not act for a subject, or must name one")
	ErrRoleRequired         = errors.New("the caller lacks the role")
	ErrOperationNotFound    = errors.New("no such operation")
	ErrIdentityInvalid      = errors.New("no identity, or no scope for it")
	ErrRateLimited          = errors.New("too many requests")
	ErrStoreUnavailable     = errors.New("the store is unavailable")
	ErrDraining             = errors.New("the server is shutting down")
)

// Refusal is a refusal with what the caller may know of it: never a value of the request.
type Refusal struct {
	// Err is one of the refusals above.
	Err error
	// RetryAfter, where waiting helps.
	RetryAfter time.Duration
	// Reason why a guard does not hold.
	Reason WaitReason
	// Operation that the refusal is about, as it stands.
	Operation *Operation
	// Outcome of a retired operation, if it is the same request; else 0. UNKNOWN: it failed, and something spoke against that.
	Outcome State
	// Other operations that it names.
	Other []OperationID
	// Categories of fields that differ.
	Categories []string
	// Violations of form.
	Violations []Violation
}

// Violation names a field and the rule that it breaks, never the value.
type Violation struct {
	Field string
	Rule  string
}

func (r *Refusal) Error() string { return r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

// InvalidField refuses one field of a request.
func InvalidField(field, rule string) *Refusal {
	return &Refusal{Err: ErrValidation, Violations: []Violation{{Field: field, Rule: rule}}}
}
