// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"strconv"
	"time"

	"github.com/opsledger/opsledger/guard"
)

// The moves. Each leaves the row as its state demands.

// unknown ends the grant without an outcome.
func (d *decision) unknown(check time.Time) {
	n := &d.next
	n.Grant.LeaseUntil = time.Time{}
	if d.terms.Effect == Read { // a repeat is harmless: nobody needs to find out
		n.MayHaveApplied = true
		d.free(time.Time{})
		return
	}
	if n.State == Unknown && n.Custody == Queued { // a person is already asked
		return
	}
	n.State = Unknown
	d.automate()
	n.NextCheckTime = check
	if d.c.Method == MethodOperator {
		d.queue(NoMethod)
	}
}

// free makes it claimable, from a time on.
func (d *decision) free(notBefore time.Time) {
	n := &d.next
	n.State = Received
	n.Grant.LeaseUntil = time.Time{}
	n.Check.Open = false
	n.NextCheckTime = time.Time{}
	n.Detail.NotBefore, n.Detail.Freed = notBefore, d.now
	n.Detail.Retries = 0
	if a := n.Detail.Approval; a != nil && !a.Granted { // asked again
		a.ExpireTime = d.now.Add(d.c.ApprovalExpires)
	}
	d.automate()
	if d.needsInspection() {
		n.NextCheckTime = latest(d.now, notBefore)
	}
}

// freeAlone makes it claimable, or leaves it to a person while another one that it would repeat, or that undoes the same, may be lost.
func (d *decision) freeAlone() {
	d.free(time.Time{})
	if d.rivalMayBeLost() {
		d.queue(Quarantine)
	}
}

// queue hands it to people. It ends the check.
func (d *decision) queue(reason QueueReason) {
	n := &d.next
	n.Custody, n.QueueReason, n.Custodian = Queued, reason, ""
	n.Check.Open = false
	n.NextCheckTime = time.Time{}
}

// queueFacts say in the history why a person was asked: the row forgets it with the answer.
func (d *decision) queueFacts() map[string]string {
	return map[string]string{"reason": d.next.QueueReason.String()}
}

func (d *decision) automate() {
	n := &d.next
	n.Custody, n.QueueReason, n.Custodian = Automation, 0, ""
}

func (d *decision) settle(s State) {
	n := &d.next
	n.State = s
	n.FinalTime = d.now
	n.Grant.LeaseUntil = time.Time{}
	n.Check.Open = false
	n.NextCheckTime = time.Time{}
	n.Detail.NotBefore = time.Time{}
	n.Detail.Approval, n.Detail.Proposal, n.Detail.Changed, n.Detail.Kept, n.Detail.Candidates = nil, nil, nil, nil, nil
	n.Detail.Waived, n.Detail.ClearedUntil = false, time.Time{}
	d.automate()
}

// succeed settles it with a result; by is the grant that reported it, if one did.
func (d *decision) succeed(r *Result, by ClaimID) {
	d.settle(Completed)
	d.next.Result = r.clone()
	d.next.Detail.CompletedBy = by
}

func (d *decision) fail(f Failure) {
	d.settle(Failed)
	d.next.Failure = &f
}

// keptIsDue: nothing runs any more that a kept success would have to wait for.
func (d *decision) keptIsDue() bool {
	n := &d.next
	return n.Detail.Kept != nil && !d.held() && (n.State == Unknown || n.State == Received)
}

func (d *decision) applyKept() Answer {
	d.endsByKept()
	return Answer{Again: true}
}

// keptApplies settles it with a success that was kept while another attempt ran, once that attempt has ended without one of its own.
func (d *decision) keptApplies() bool {
	k := d.next.Detail.Kept
	if k == nil {
		return false
	}
	d.succeed(&k.Result, k.ClaimID)
	return true
}

// endsByKept is keptApplies, as an event of its own.
func (d *decision) endsByKept() bool {
	if !d.keptApplies() {
		return false
	}
	d.record(EventCompleted, true, map[string]string{"by": "kept"}, "")
	return true
}

func (d *decision) attention() {
	d.next.NeedsAttention = true
	d.next.Detail.AttentionSequence = d.next.Sequence + 1
}

// settleTime is when absence begins to prove something: the end of the last send window plus the bound; zero: never, or nothing
// was ever sent.
func (d *decision) settleTime() time.Time { return settleTime(&d.next, d.terms) }

func settleTime(op *Operation, t Terms) time.Time {
	if op.LastSend.IsZero() || t.EffectWithin == 0 {
		return time.Time{}
	}
	return op.LastSend.Add(t.EffectWithin)
}

// settled reports whether nothing can land any more.
func (d *decision) settled() bool {
	t := d.settleTime()
	return !t.IsZero() && d.over(t, d.next.sentSince())
}

// settledBy reports whether what was seen at a time can prove absence.
func (d *decision) settledBy(at time.Time) bool {
	return d.passedBy(at, d.settleTime(), d.next.sentSince())
}

// mayRepeat reports whether a second send can't make a second effect.
func (d *decision) mayRepeat(inDoubt bool) bool {
	switch {
	case !inDoubt || d.terms.Effect == Read:
		return true
	case d.terms.EffectWithin == 0 || d.next.FirstStart.IsZero():
		return false
	case d.terms.Effect == Idempotent:
		return d.settled()
	case d.terms.Effect == Keyed:
		start, lasts := d.next.FirstStart, d.terms.KeyRetention
		if guard.LandsInTime.On() {
			lasts -= d.c.SendWithin + d.terms.EffectWithin
		}
		return d.terms.KeyRetention > 0 && d.open(start.Add(lasts), start) || guard.KeyWindow.Off()
	default:
		return guard.UnsafeInDoubt.Off()
	}
}

func (d *decision) startsLeft() bool {
	return d.next.Starts < d.c.MaxAttempts+d.next.Detail.ExtraStarts
}

// nextEpoch never repeats, also across failovers.
func (d *decision) nextEpoch() uint64 {
	return max(d.next.Grant.Epoch+1, uint64(d.rel.Timeline)<<32+1)
}

// nextCheckNumber never repeats, either: it fences the answers of older checks.
func (d *decision) nextCheckNumber() uint64 {
	if guard.NewCheckNumber.Off() {
		return d.next.Check.Number + 1
	}
	return max(d.next.Check.Number+1, uint64(d.rel.Timeline)<<16+1)
}

func (d *decision) held() bool { return d.next.Custody == Operator }

// keepAttributes adds facts for status queries; it reports whether any is new.
func (d *decision) keepAttributes(attrs map[string]string) bool {
	changed := false
	for k, v := range attrs {
		if old, ok := d.next.TargetAttributes[k]; !ok || old != v {
			changed = true
		}
	}
	if changed {
		if d.next.TargetAttributes == nil {
			d.next.TargetAttributes = map[string]string{}
		}
		maps.Copy(d.next.TargetAttributes, attrs)
	}
	return changed
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func left(until, now time.Time) time.Duration { return max(until.Sub(now), 0) }

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
