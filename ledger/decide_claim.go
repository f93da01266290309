// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/subtle"
	"maps"
	"slices"
	"time"

	"github.com/opsledger/opsledger/guard"
)

// claim decides in the order identity and form (before this), fingerprint, custody, final states, tool allowed, same claim_id,
// guards: so that a conflict is a conflict in every state, and a paused, revoked or exhausted tool still replays.
func (d *decision) claim(c Claim) (Answer, error) {
	if d.was == nil {
		return d.claimNew(c)
	}
	n := &d.next
	categories, same := compare(n.Fingerprint, c.Fingerprint)
	if n.State == Retired {
		refused := &Refusal{Err: ErrKeyRetired}
		if same { // what became of another request is not what became of this one
			refused.Outcome = n.retiredAs()
		}
		return Answer{}, refused
	}
	if !same && (guard.Conflict.On() || !d.outdated()) {
		return Answer{}, &Refusal{Err: ErrFingerprintConflict, Operation: d.was, Categories: categories}
	}
	switch {
	case d.outdated():
		return d.rewrite(), nil
	case d.keptIsDue():
		return d.applyKept(), nil
	}
	held := d.held() && guard.HeldClaim.On()
	if held || n.Custody == Queued && n.State == Received && guard.FoundFirst.On() || n.State.Final() {
		return d.standing(), nil
	}
	if !c.ToolAllowed {
		return Answer{}, &Refusal{Err: ErrToolNotAllowed}
	}
	who := d.who(c.ClaimID)
	switch n.State {
	case Processing:
		return d.claimProcessing(c, who)
	case Received:
		return d.claimReceived(c, who)
	default:
		return d.standing(), nil
	}
}

func (d *decision) claimProcessing(c Claim, who who) (Answer, error) {
	n := &d.next
	if !d.leaseAlive() {
		d.lapse()
		if d.next.State != Unknown { // READ: claimable again; or a kept success applied
			return Answer{Again: true}, nil
		}
		return d.standing(), nil
	}
	switch {
	case who == earlier:
		return Answer{}, &Refusal{Err: ErrStaleGrant}
	case who == holder && n.Detail.Kept != nil:
		return Answer{Outcome: OutcomeInProgress, Wait: Wait{Reason: Settled, RetryAfter: d.leaseLeft()}}, nil
	case who == holder && c.WorkerID == n.Grant.WorkerID && d.sendLeft() > 0:
		return d.granted(true), nil
	default:
		return d.standing(), nil
	}
}

// lapse records that a lease is over: it permits an investigation, and proves nothing.
func (d *decision) lapse() {
	if d.endsByKept() {
		return
	}
	d.unknown(d.now)
	d.record(EventLeaseLapsed, true, nil, "")
}

func (d *decision) claimReceived(c Claim, who who) (Answer, error) {
	n := &d.next
	reserved := d.reserved()
	switch {
	case who == holder && reserved && c.WorkerID == n.Grant.WorkerID:
		return d.granted(true), nil
	case who == holder && reserved:
		return d.standing(), nil
	case who == holder && !n.Grant.Started && !n.Grant.Released:
		return Answer{}, &Refusal{Err: ErrLeaseOver}
	case who != stranger && guard.GrantedOnce.On():
		return Answer{}, &Refusal{Err: ErrStaleGrant}
	}
	if reason, _ := d.receivedWait(); reason != 0 {
		return d.standing(), nil
	}
	if !d.startsLeft() {
		d.queue(AttemptsExhausted)
		d.record(EventQueued, true, d.queueFacts(), "")
		return d.standing(), nil
	}
	if !d.mayRepeat(n.MayHaveApplied) {
		n.State = Unknown
		d.queue(KeyWindowOver)
		d.record(EventQueued, true, d.queueFacts(), "")
		return d.standing(), nil
	}
	if d.c.Override == OverrideCaller {
		n.Detail.DistinctFrom = slices.Clone(c.DistinctFrom)
	}
	if wait, err := d.guards(n.Detail.DistinctFrom); err != nil || wait.Reason != 0 {
		return Answer{Outcome: OutcomeBlocked, Wait: wait}, err
	}
	if alike := d.lookAlikes(); d.wasQuarantined() && len(without(alike, n.Detail.DistinctFrom)) > 0 {
		return Answer{}, &Refusal{Err: ErrDuplicateIntent, Other: alike}
	}
	d.grant(c)
	d.decided(EventGranted, grantFacts(c))
	return d.granted(false), nil
}

// claimNew inserts the operation. What a guard blocks is not stored.
func (d *decision) claimNew(c Claim) (Answer, error) {
	if d.tooOld(c.IntentTime) || d.linkedBefore(c) {
		return Answer{}, &Refusal{Err: ErrKeyTooOld}
	}
	if c.IntentTime.After(d.now.Add(intentSkew)) {
		return Answer{}, InvalidField("intent_time", "must not lie more than 5 minutes ahead of the ledger's time")
	}
	if !c.ToolAllowed {
		return Answer{}, &Refusal{Err: ErrToolNotAllowed}
	}
	d.insert(c)
	if !c.Corrects.IsZero() {
		d.next.Detail.Approval = &Approval{Kind: ApproveCorrection, Requester: c.Actor.Name, ExpireTime: d.now.Add(d.c.ApprovalExpires)}
	}
	if since, lost := d.maybeLost(c.IntentTime); lost {
		d.link(c)
		d.takeSlots(false)
		d.quarantine(since)
		d.recordCommand(KindRegister, EventQuarantined, true, nil, "")
		return d.standing(), nil
	}
	wait, err := d.guards(c.DistinctFrom)
	if err != nil || wait.Reason != 0 {
		return Answer{Outcome: OutcomeBlocked, Wait: wait}, err
	}
	alike := d.lookAlikes()
	if len(without(alike, c.DistinctFrom)) > 0 {
		return Answer{}, &Refusal{Err: ErrDuplicateIntent, Other: alike}
	}
	d.lift(c, alike)
	d.link(c)
	switch {
	case d.needsInspection():
		d.next.NextCheckTime = d.now
	case !c.Compensates.IsZero() && d.quarantined(): // another compensation may have been lost
		d.queue(Quarantine)
	case d.ownerMayBeLost():
		d.queue(Quarantine)
	}
	if d.next.Detail.Approval != nil || d.needsInspection() || d.next.Custody == Queued {
		d.takeSlots(false)
		d.recordCommand(KindRegister, EventRegistered, true, nil, "")
		return d.standing(), nil
	}
	d.grant(c)
	d.decided(EventGranted, grantFacts(c))
	return d.granted(false), nil
}

// insert fills in what is written once.
func (d *decision) insert(c Claim) {
	hash := c.Key.Hash()
	d.next = Operation{
		ID: hash.OperationID(), KeyHash: hash, Scope: c.Key.Scope, Principal: c.Actor.Name, Tool: c.Key.Tool, Task: c.Key.Task,
		SubjectDigest: slices.Clone(c.SubjectDigest), TargetSummary: c.TargetSummary, IntentTime: c.IntentTime,
		CreateTime: d.now, Compensates: c.Compensates, Corrects: c.Corrects, DependsOn: slices.Clone(c.DependsOn),
		Fingerprint: c.Fingerprint, State: Received, Custody: Automation, Timeline: d.rel.Timeline,
		Terms: d.c.recorded(Terms{}, c.EffectHint), TargetAttributes: maps.Clone(c.TargetAttributes),
	}
}

// maybeLost reports whether the absence of this key may be the work of a failover, and since when it may have been at the target.
func (d *decision) maybeLost(intent time.Time) (since time.Time, lost bool) {
	w := d.rel.Watermark
	if w.At.IsZero() || d.terms.Effect == Read {
		return time.Time{}, false
	}
	if intent.IsZero() {
		return w.LostSince, d.quarantined()
	}
	decided := intent.Add(-intentSkew)
	return decided, decided.Before(w.At)
}

// quarantined: what was granted shortly before a failover may be unknown to the ledger.
func (d *decision) quarantined() bool { return d.mattersStill(d.c.RetryWindow) }

// mattersStill reports whether what a failover may have lost is younger than a window.
func (d *decision) mattersStill(window time.Duration) bool {
	at := d.rel.Watermark.At
	return !at.IsZero() && !d.over(at.Add(window), at)
}

// wasQuarantined: nobody was granted it before a quarantine that is known of, nor since. Where it was inserted behind the watermark nobody has asked yet what looks
// like it.
func (d *decision) wasQuarantined() bool { return d.next.Attempts == 0 && !d.next.FirstStart.IsZero() }

func (d *decision) quarantine(since time.Time) {
	n := &d.next
	n.State = Unknown
	n.MayHaveApplied = true
	n.Grant = Grant{Epoch: d.nextEpoch(), Time: d.now}
	n.FirstStart = since
	if guard.FirstStart.Off() {
		n.FirstStart = d.now
	}
	n.LastSend = d.now.Add(d.c.SendWithin)
	n.NextCheckTime = d.now
	if d.c.Method == MethodOperator {
		d.queue(Quarantine)
	}
}

// guards are the conditions outside the operation itself, read in the transaction that grants.
func (d *decision) guards(distinct []OperationID) (Wait, error) {
	if d.rel.ToolPaused {
		return Wait{Reason: ToolPaused}, nil
	}
	d.guarded = true
	if d.rel.ToolSaturated {
		return Wait{Reason: ToolSaturated}, nil
	}
	var waiting []OperationID
	for i := range d.rel.Dependencies {
		switch dep := &d.rel.Dependencies[i]; {
		case dep.State == Completed, dep.State == Retired && dep.Detail.RetiredFrom == Completed:
		case dep.State.Final():
			return Wait{}, &Refusal{Err: ErrDependencyFailed, Other: []OperationID{dep.ID}}
		default:
			waiting = append(waiting, dep.ID)
		}
	}
	if waiting != nil {
		return Wait{Reason: DependencyUnsettled, Operations: waiting}, nil
	}
	if siblings := without(d.rel.UnknownSiblings, distinct); len(siblings) > 0 && !d.c.AllowWhileUnknown {
		return Wait{Reason: SiblingUnknown, Operations: siblings}, nil
	}
	return d.originalGuard()
}

func (d *decision) originalGuard() (Wait, error) {
	n, o := &d.next, d.rel.Original
	if o == nil {
		if !n.Compensates.IsZero() {
			return Wait{}, &Refusal{Err: ErrOriginalHasNoEffect, Other: []OperationID{n.Compensates}}
		}
		return Wait{}, nil
	}
	if n.Compensates.IsZero() {
		if !o.State.Final() {
			return Wait{Reason: OriginalUnsettled, Operations: []OperationID{o.ID}}, nil
		}
		return Wait{}, nil
	}
	switch c := d.rel.OriginalContract; {
	case d.rel.OriginalIrreversible:
		return Wait{}, &Refusal{Err: ErrNotReversible, Other: []OperationID{o.ID}}
	case c != nil && c.Compensation != "" && c.Compensation != n.Tool:
		return Wait{}, InvalidField("compensates", "must name what the tool undoes: the original's contract names another one for it")
	case (o.State == Failed || o.State == Retired) && guard.OriginalThere.On():
		return Wait{}, &Refusal{Err: ErrOriginalHasNoEffect, Other: []OperationID{o.ID}}
	case len(d.rel.OtherCompensations) >= d.c.PerOriginal && guard.OneCompensation.On():
		return Wait{}, &Refusal{Err: ErrDuplicateIntent, Other: d.rel.OtherCompensations}
	}
	settle := d.originalSettles(o)
	open, contradicted := o.State != Completed && guard.OriginalCompleted.On(), o.NeedsAttention && guard.Uncontradicted.On()
	if open || contradicted || !d.over(settle, o.sentSince()) && guard.OriginalSettled.On() {
		return Wait{Reason: OriginalUnsettled, RetryAfter: d.wait(settle, o.sentSince()), Operations: []OperationID{o.ID}}, nil
	}
	return Wait{}, nil
}

// originalSettles is when nothing of the original can land any more. Where nobody states a bound, people's patience stands in for one.
func (d *decision) originalSettles(o *Operation) time.Time {
	terms := o.Terms
	if c := d.rel.OriginalContract; c != nil {
		terms = c.judged(terms, 0)
	}
	if terms.EffectWithin == 0 && !o.LastSend.IsZero() {
		return o.LastSend.Add(max(unboundedSearchDelay, o.Terms.EffectWithin))
	}
	return settleTime(o, terms)
}

// lift remembers what distinct_from says of unknown siblings and look-alikes. It counts after a person's approval, or at once where the
// contract takes the caller's word.
func (d *decision) lift(c Claim, alike []OperationID) {
	named := len(alike) > 0 || len(d.rel.UnknownSiblings) > 0 && !d.c.AllowWhileUnknown
	if !named {
		return
	}
	d.next.Detail.DistinctFrom = slices.Clone(c.DistinctFrom)
	if d.c.Override == OverrideApproval && d.next.Detail.Approval == nil {
		d.next.Detail.Approval = &Approval{Kind: ApproveLookAlike, Requester: c.Actor.Name, ExpireTime: d.now.Add(d.c.ApprovalExpires)}
	}
}

// link names a compensation on its original's own row, in the same transaction.
func (d *decision) link(c Claim) {
	if c.Compensates.IsZero() || d.rel.Original == nil {
		return
	}
	o := &decision{was: d.rel.Original, next: d.rel.Original.Clone(), c: d.c, now: d.now, cmd: d.cmd}
	o.next.CompensatedBy = append(o.next.CompensatedBy, d.next.ID)
	o.record(EventCompensationLinked, false, map[string]string{"operation": d.next.ID.String()}, "")
	d.companion = &Change{Next: &o.next, Event: o.event}
}

// grant gives the operation to one worker: the only place that does.
func (d *decision) grant(c Claim) {
	n := &d.next
	d.takeSlots(true)
	lease := c.Lease
	if lease <= 0 {
		lease = d.c.LeaseDefault
	}
	n.Attempts++
	n.Timeline = d.rel.Timeline
	n.Terms = d.c.recorded(n.Terms, c.EffectHint)
	n.Grant = Grant{ClaimID: c.ClaimID, WorkerID: c.WorkerID, Epoch: d.nextEpoch(), Lease: min(lease, d.c.LeaseMax)}
	if a := n.Detail.Approval; a != nil && a.Granted {
		a.Granted, n.Grant.UsedApproval = false, true
	}
	if n.Detail.Waived {
		n.Detail.Waived, n.Grant.UsedWaiver = false, true
	}
	n.Detail.NotBefore = time.Time{}
	n.NextCheckTime = time.Time{}
	if c.Reserve {
		n.State = Received
		d.lease()
		if !n.Compensates.IsZero() && d.c.RequireUnchanged { // if it lapses, the resource is looked at again
			n.NextCheckTime = n.Grant.LeaseUntil
		}
		return
	}
	d.execute()
}

func (d *decision) lease() {
	g := &d.next.Grant
	g.Time = d.now
	g.LeaseUntil = d.now.Add(g.Lease)
}

// execute opens the send window. It never exceeds the lease, and renewing never extends it.
func (d *decision) execute() {
	n := &d.next
	d.lease()
	n.State = Processing
	n.Starts++
	n.Grant.Started = true
	n.Grant.SendUntil = d.now.Add(min(d.c.SendWithin, n.Grant.Lease))
	n.LastSend = latest(n.LastSend, n.Grant.SendUntil)
	n.NextCheckTime = n.Grant.LeaseUntil
	if n.FirstStart.IsZero() {
		n.FirstStart = d.now
	}
}

func grantFacts(c Claim) map[string]string {
	facts := map[string]string{"worker": c.WorkerID}
	if c.Reserve {
		facts["reserved"] = "true"
	}
	return facts
}

// standing answers with how the operation stands, after whatever this decision changed.
func (d *decision) standing() Answer {
	out, wait := d.stand()
	return Answer{Outcome: out, Wait: wait}
}

// compare tells two fingerprints apart, in constant time; the names of the categories that differ come sorted.
func compare(stored, given Fingerprint) ([]string, bool) {
	if subtle.ConstantTimeCompare(stored.Digest[:], given.Digest[:]) == 1 && stored.Spec == given.Spec && stored.SecretID == given.SecretID {
		return nil, true
	}
	differ := map[string]bool{}
	for name, digest := range stored.Categories {
		if other, ok := given.Categories[name]; !ok || other != digest {
			differ[name] = true
		}
	}
	for name := range given.Categories {
		if _, ok := stored.Categories[name]; !ok {
			differ[name] = true
		}
	}
	if len(differ) == 0 {
		return []string{"relation"}, false
	}
	return slices.Sorted(maps.Keys(differ)), false
}

func without(ids, named []OperationID) []OperationID {
	return slices.DeleteFunc(slices.Clone(ids), func(id OperationID) bool { return slices.Contains(named, id) })
}
