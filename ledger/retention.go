// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"slices"
	"time"
)

// YoungestForgotten is how long after its settlement a key is remembered at least, however short its contract's window is: whoever claims a key with a
// younger intent need not ask what has been forgotten.
const YoungestForgotten = time.Hour

// retires is how long after its settlement an operation keeps its result, its attributes, and the slots that it has. All windows of retention count from
// settlement.
func (c Contract) retires(s State) time.Duration {
	window := max(c.RetainCompleted, c.RetryWindow)
	if s == Completed {
		for _, u := range c.Unique { // its slots are its own for so long
			window = max(window, u.Within)
		}
	}
	return window
}

// forgets is how long after its settlement a key may be forgotten; 0: never. Without a time of the intent a forgotten key could not be told from a new one.
func (c Contract) forgets() time.Duration {
	if !c.RequireIntentTime || c.RetainTombstone == 0 {
		return 0
	}
	return max(c.RetainTombstone, YoungestForgotten)
}

// Ageing is what may be done with an operation because of its age.
type Ageing uint8

// What may be done. The first two are commands, which decide anew.
const (
	AgeingNothing Ageing = iota
	AgeingExpire
	AgeingRetire
	// AgeingForgetHistory removes the events, and AgeingForgetKey all that is left.
	AgeingForgetHistory
	AgeingForgetKey
)

// Aged reads a page of what is old. What is done because of it is judged to the safe side of the jumps of the store's clock.
func (l *Ledger) Aged(ctx context.Context, store AgedStore, q AgedQuery) (AgedPage, error) {
	asked := l.clock.now()
	page, err := store.Aged(ctx, q)
	if err == nil {
		page.jumps = l.clock.read(asked, page.Now)
	}
	return page, err
}

// Ageing says what may be done with an operation of the page, by the contract in force, and when to look again at one that is as it is, or of which the history is
// forgotten: nothing more may be done before. What is unsettled, or contradicted, is left alone at any age, but that a RECEIVED operation that nobody wants any
// more may expire.
func (p AgedPage) Ageing(op *AgedOperation, c Contract) (what Ageing, again time.Time) {
	now := p.Now
	over := func(since time.Time, window time.Duration, what Ageing) (Ageing, time.Time) {
		if end := since.Add(window + p.jumps.gained(since)); now.Before(end) {
			return AgeingNothing, end
		}
		return what, now
	}
	switch {
	case op.State == Received && op.Custody == Automation && !op.MayHaveApplied:
		return over(op.CreateTime, c.RetryWindow, AgeingExpire)
	case (op.State == Completed || op.State == Failed) && !op.NeedsAttention:
		return over(op.FinalTime, c.retires(op.State), AgeingRetire)
	case op.State == Retired:
		what, again = AgeingNothing, now.Add(c.Youngest())
		if window := c.forgets(); window > 0 {
			what, again = over(op.FinalTime, window, AgeingForgetKey)
		}
		if history, end := over(op.FinalTime, c.RetainHistory, AgeingForgetHistory); what == AgeingNothing {
			what = history
			if history == AgeingNothing && end.Before(again) {
				again = end
			}
		}
		return what, again
	default: // a window begins when it is settled
		return AgeingNothing, now.Add(c.Youngest())
	}
}

// Youngest is how old an operation is at least, counted from when it was made, or from its settlement, before its age may matter.
func (c Contract) Youngest() time.Duration { return min(c.RetryWindow, c.RetainCompleted) }

// tooOld reports whether the absence of a key proves nothing: it may have been used, settled and forgotten. Settlement came no earlier than the claim, and
// that no more than the clocks' error before the intent.
func (d *decision) tooOld(intent time.Time) bool {
	forgotten := d.rel.Forgotten
	switch {
	case d.terms.Effect == Read: // a repeat is harmless
		return false
	case intent.IsZero():
		return d.c.RequireIntentTime || !forgotten.IsZero()
	}
	decided := intent.Add(-intentSkew)
	window := d.c.forgets()
	return window > 0 && !decided.Add(window).After(d.now) || !decided.After(forgotten)
}

// linkedBefore reports whether the original's row names this absent key: it has compensated that before, and was forgotten since, however young its intent is.
func (d *decision) linkedBefore(c Claim) bool {
	return !c.Compensates.IsZero() && d.rel.Original != nil && slices.Contains(d.rel.Original.CompensatedBy, c.Key.Hash().OperationID())
}

// asksForgotten reports whether a claim of an absent key has to know what was forgotten of its tool: the contract in force need not be the one by which it was.
func (c Claim) asksForgotten(own Contract, now time.Time) bool {
	return max(own.Effect, c.EffectHint) != Read && (c.IntentTime.IsZero() || !c.IntentTime.Add(YoungestForgotten-intentSkew).After(now))
}

// live reports whether an operation that refers to another one may still need it.
func (o *Operation) live() bool { return !o.State.Final() || o.NeedsAttention }

// refersTo reports whether an operation, if there is one, names another one.
func (o *Operation) refersTo(id OperationID) bool {
	return o != nil && (id == o.Compensates || id == o.Corrects || slices.Contains(o.DependsOn, id))
}
