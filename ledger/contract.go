// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
	"time"
)

// Method says how an unknown outcome of a tool is found out.
type Method uint8

// The methods.
const (
	// MethodOperator: nobody can be asked; people settle it.
	MethodOperator Method = iota
	// MethodProbe: the target can be queried.
	MethodProbe
	// MethodRegrant: no query; the same key is sent again where a repeat is harmless.
	MethodRegrant
)

func (m Method) String() string { return name(m, "OPERATOR", "PROBE", "REGRANT") }

// Contract is what a tool's owner declares, as plain values. The zero value is not a contract: DefaultContract is what a tool
// without one gets.
type Contract struct {
	Tool Tool
	// Version is the digest of the declaration, 16 hex digits.
	Version string
	Effect  Effect
	// Irreversible tools can only be corrected, with approval.
	Irreversible bool

	LeaseDefault time.Duration
	LeaseMax     time.Duration // of one lease, and of one renewal
	LeaseTotal   time.Duration // of a lease with all its renewals
	SendWithin   time.Duration
	MaxAttempts  uint32 // starts over an operation's life

	RequireIntentTime bool
	// AllowWhileUnknown lifts SIBLING_UNKNOWN.
	AllowWhileUnknown bool
	// MaxUnknown: with so many unknowns the tool gets no new grant; 0: no limit.
	MaxUnknown int
	// Unique are the rules by which a look-alike of another operation is refused (DUPLICATE_INTENT), sorted by their categories.
	Unique []UniqueRule
	// Override says who lifts a sibling or look-alike that distinct_from names.
	Override Override
	// ApproveCorrections: an operation that corrects another one waits for an operator's approval; always so for an irreversible tool.
	ApproveCorrections bool
	// ApprovalExpires bounds approvals of corrections, look-alikes and changed resources.
	ApprovalExpires time.Duration

	// StickyAnswers: a rejection holds for the key for ever.
	StickyAnswers bool
	// RejectCodes are the declared codes of definite rejections.
	RejectCodes []string

	Method Method
	// EffectWithin: a request that was sent takes visible effect, if ever, within this time. 0: not stated.
	EffectWithin time.Duration
	// KeyRetention: how long the target remembers a downstream key. 0: not stated.
	KeyRetention time.Duration
	// Repeat says whether it may be claimed again after conclusive absence.
	Repeat Repeat
	// Verify lists the categories of fields that evidence must show equal; VerifyStated tells the empty list from none.
	Verify       []string
	VerifyStated bool

	FirstCheck   time.Duration
	MaxInterval  time.Duration
	GiveUpAfter  time.Duration
	CheckTimeout time.Duration
	// CheckConcurrency and ChecksPerSecond bound what all instances together ask the target for recovery.
	CheckConcurrency int
	ChecksPerSecond  int
	// Guide tells a person how to find out what became of an operation.
	Guide string

	// RetryWindow is the longest time after which a caller may ask again under its key. What follows is counted from settlement, and ends the
	// result, payload and attributes; the events; the key itself, which is never forgotten (0) without RequireIntentTime: a forgotten key could not
	// be told from a new one.
	RetryWindow     time.Duration
	RetainCompleted time.Duration
	RetainHistory   time.Duration
	RetainTombstone time.Duration

	// Compensation is the tool that undoes this one; empty: none is declared, and any may.
	Compensation Tool
	// What follows is about this tool where it undoes others, who declare it. PerOriginal bounds compensations of one original; FreshFor is how
	// long a check of its resource counts; RequireUnchanged: the resource must be as the original left it.
	PerOriginal      int
	FreshFor         time.Duration
	RequireUnchanged bool

	// SecondPerson: a resolution needs another person's approval within ProposalExpires.
	SecondPerson    bool
	ProposalExpires time.Duration

	// Attributes, ResultAttributes and Schemas are the names that are kept; PayloadLimit is in bytes.
	Attributes       []string
	ResultAttributes []string
	Schemas          []string
	PayloadLimit     int
	// Fields declares fields of requests by their paths, and Ignored are paths that do not count; both as package fingerprint reads them.
	Fields  map[string]RequestField
	Ignored []string
}

// RequestField is what a contract declares of one field of its requests. Nothing of it has to be given.
type RequestField struct {
	// Type says which spellings are one value: "decimal", "money", "timestamp", "uuid", "set", "text".
	Type string
	// Currency is the path of a money's currency.
	Currency string
	// Category groups fields for people and for evidence; without one they are in the category of what is around them, or in "other".
	Category string
	// Default is the JSON text of what its absence stands for.
	Default string
}

// Categories are those that the fields of requests are declared to be in, sorted.
func (c Contract) Categories() []string {
	var all []string
	for _, f := range c.Fields {
		if f.Category != "" {
			all = append(all, f.Category)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// UniqueRule refuses an operation that has the same values as another one of its scope, subject and tool.
type UniqueRule struct {
	// By are the categories of fields that are compared, sorted.
	By []string
	// Within is for how long the other one stands in the way after it has completed; unsettled it always does, failed it never does.
	Within time.Duration
}

// Override says whose word it takes that an operation knowingly is not the unknown sibling, or the look-alike, that distinct_from names.
type Override uint8

// The overrides.
const (
	OverrideApproval Override = iota
	OverrideCaller
)

// Repeat is a contract's word on what follows conclusive absence.
type Repeat uint8

// The words. The default repeats all but UNSAFE.
const (
	RepeatDefault Repeat = iota
	RepeatAllowed
	RepeatForbidden
)

// unboundedSearchDelay is how long after its send window a person may search for an operation of a tool that states no
// effect_within, before "never happened" is believed.
const unboundedSearchDelay = 15 * time.Minute

// intentSkew is the allowed error of callers' clocks.
const intentSkew = 5 * time.Minute

// checkLeaseMargin is what a check's lease adds to the probe's timeout: time to write the finding down.
const checkLeaseMargin = 20 * time.Second

// DefaultContract is the safe default that works without configuration: UNSAFE, settled by people.
func DefaultContract(tool Tool) Contract {
	return Contract{
		Tool: tool, Version: "default", Effect: Unsafe,
		LeaseDefault: 30 * time.Second, LeaseMax: time.Minute, LeaseTotal: 90 * time.Second,
		SendWithin: 30 * time.Second, MaxAttempts: 5,
		RequireIntentTime: true, ApproveCorrections: true, ApprovalExpires: time.Hour,
		Method:     MethodOperator,
		FirstCheck: 5 * time.Second, MaxInterval: 10 * time.Minute, GiveUpAfter: 24 * time.Hour, CheckTimeout: 10 * time.Second,
		CheckConcurrency: 4, ChecksPerSecond: 5,
		RetryWindow: 168 * time.Hour, RetainCompleted: 720 * time.Hour, RetainHistory: 9600 * time.Hour, RetainTombstone: 9600 * time.Hour,
		PerOriginal: 1, FreshFor: 30 * time.Second, RequireUnchanged: true,
		ProposalExpires: 8 * time.Hour, PayloadLimit: 16 << 10,
	}
}

// declares reports whether a rejection's code is one that the contract names.
func (c Contract) declares(code string) bool { return slices.Contains(c.RejectCodes, code) }

// judged returns the terms by which an operation is judged now: the strictest of what is recorded, what the contract says and
// what the caller hints. A promise that the contract does not make any more is not believed.
func (c Contract) judged(t Terms, hint Effect) Terms {
	t.Effect = max(t.Effect, c.Effect, hint)
	switch {
	case c.EffectWithin == 0: // nobody vouches for a bound any more
		t.EffectWithin = 0
	default:
		t.EffectWithin = max(t.EffectWithin, c.EffectWithin)
	}
	if c.KeyRetention == 0 && t.Effect == Keyed { // nor that the target remembers a key at all: no repeat, and absence proves nothing
		t.KeyRetention = 0
	} else { // for others it only says from when on the target, asked by the key, has forgotten it
		t.KeyRetention = shorter(t.KeyRetention, c.KeyRetention)
	}
	return t
}

// recorded returns the terms to keep on the row at a grant: the strictest that were ever stated, whatever is believed of them now.
func (c Contract) recorded(t Terms, hint Effect) Terms {
	bound, retention := max(t.EffectWithin, c.EffectWithin), shorter(t.KeyRetention, c.KeyRetention)
	t = c.judged(t, hint)
	t.EffectWithin, t.KeyRetention = bound, retention
	t.ContractVersion = c.Version
	return t
}

// shorter of two windows, of which 0 states none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// backoff is the wait before the next check, before jitter.
func (c Contract) backoff(retries uint32) time.Duration {
	d := c.FirstCheck
	for range min(retries, 30) {
		if d >= c.MaxInterval {
			break
		}
		d *= 2
	}
	return max(min(d, c.MaxInterval), time.Second)
}
