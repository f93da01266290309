// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/opsledger/opsledger/guard"
)

// start turns a reservation into execution, right before the worker sends.
func (d *decision) start(s Start) (Answer, error) {
	n := &d.next
	who := d.who(s.ClaimID)
	switch {
	case who == stranger && len(n.SubjectDigest) > 0:
		return Answer{}, &Refusal{Err: ErrOperationNotFound}
	case who != holder:
		return Answer{}, &Refusal{Err: ErrStaleGrant}
	case n.State.Final():
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case d.held():
		return Answer{}, &Refusal{Err: ErrHeldByOperator}
	case n.State == Unknown:
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case n.State == Processing && n.Detail.Kept != nil: // another attempt has succeeded
		return Answer{}, &Refusal{Err: ErrBlocked, Reason: Settled}
	case n.State == Processing:
		return d.granted(true), nil
	case !d.reserved():
		return Answer{}, &Refusal{Err: ErrLeaseOver}
	case n.Custody == Queued:
		return Answer{}, &Refusal{Err: ErrBlocked, Reason: InQueue}
	case !s.ToolAllowed:
		return Answer{}, &Refusal{Err: ErrToolNotAllowed}
	}
	if err := d.startGuards(); err != nil {
		return Answer{}, err
	}
	d.execute()
	d.decided(EventStarted, nil)
	return d.granted(false), nil
}

// startGuards judges again what the claim was judged by: between reservation and start anything may have changed. What may repeat is judged
// by when it is sent.
func (d *decision) startGuards() error {
	if !d.mayRepeat(d.next.MayHaveApplied) {
		if d.terms.Effect == Idempotent {
			return &Refusal{Err: ErrBlocked, Reason: NotBefore, RetryAfter: d.wait(d.settleTime(), d.next.sentSince())}
		}
		return &Refusal{Err: ErrBlocked} // it never may: the next claim queues it
	}
	wait, err := d.guards(d.next.Detail.DistinctFrom)
	switch {
	case err != nil:
		return err
	case wait.Reason == 0 && d.needsInspection() && !d.next.Grant.UsedWaiver:
		return &Refusal{Err: ErrBlocked, Reason: ResourceCheck} // when the reservation has lapsed, the resource is looked at again
	case wait.Reason == 0:
		return nil
	case wait.Reason == ToolPaused:
		return &Refusal{Err: ErrToolPaused}
	case wait.Reason == OriginalUnsettled:
		return &Refusal{Err: ErrOriginalUnsettled, Other: wait.Operations}
	default:
		return &Refusal{Err: ErrBlocked, Reason: wait.Reason, RetryAfter: wait.RetryAfter, Other: wait.Operations}
	}
}

// renew extends the lease, never the send window, and tells a holder that has lost it to stop.
func (d *decision) renew(r Renew) (Answer, error) {
	n := &d.next
	switch who := d.who(r.ClaimID); {
	case who == stranger && len(n.SubjectDigest) > 0:
		return Answer{}, &Refusal{Err: ErrOperationNotFound}
	case who == stranger:
		return Answer{}, &Refusal{Err: ErrStaleGrant}
	case n.State.Final():
		return Answer{Stop: Settled}, nil
	case who == earlier:
		return Answer{Stop: Superseded}, nil
	case d.held():
		return Answer{Stop: HeldByOperator}, nil
	case n.Detail.Kept != nil:
		return Answer{Stop: Settled}, nil
	case n.State != Processing && !d.reserved():
		return Answer{Stop: LeaseOver}, nil
	}
	lease := r.Lease
	if lease <= 0 {
		lease = n.Grant.Lease
	}
	end := n.Grant.Time.Add(d.c.LeaseTotal)
	until := d.now.Add(min(lease, d.c.LeaseMax))
	if until.After(end) {
		until = end
	}
	answer := Answer{}
	switch {
	case !end.After(d.now):
		answer.Stop = LeaseOver
	case until.After(n.Grant.LeaseUntil):
		n.Grant.LeaseUntil = until
		if !n.NextCheckTime.IsZero() {
			n.NextCheckTime = until
		}
		d.moved = true
	case !n.Grant.LeaseUntil.Before(end):
		answer.Stop = LeaseOver
	}
	sent, err := d.prior() // a delayed copy does not overwrite what came later
	if err != nil {
		return Answer{}, err
	}
	if sent == nil && d.keepAttributes(r.TargetAttributes) {
		d.recordCommand(KindRenew, EventAttributes, false, nil, "")
	}
	answer.Lease = left(n.Grant.LeaseUntil, d.now)
	if n.Grant.Started {
		answer.SendWithin = d.sendLeft()
	}
	return answer, nil
}

// complete records a definite outcome.
func (d *decision) complete(c Complete) (Answer, error) {
	who := d.who(c.ClaimID)
	if answer, sent, err := d.sentBefore(who); sent || err != nil {
		return answer, err
	}
	switch {
	case c.Succeeded != nil:
		return d.succeeded(c, who), nil
	case c.Rejected != nil:
		return d.rejected(c, who), nil
	default:
		return d.notExecuted(c, who), nil
	}
}

// sentBefore finds the same report sent earlier: it is not applied again.
func (d *decision) sentBefore(who who) (Answer, bool, error) {
	e, err := d.prior()
	if err != nil {
		return Answer{}, false, err
	}
	if e == nil && who == stranger {
		e = d.toldBefore()
	}
	if e == nil {
		return Answer{}, false, nil
	}
	switch e.Kind {
	case EventObserved:
		return Answer{Disposition: Observed}, true, nil
	case EventContradicted:
		return Answer{Disposition: Contradiction}, true, nil
	default:
		return Answer{Disposition: Applied}, true, nil
	}
}

// toldBefore finds what an unknown claim_id told earlier: one observation is kept of each, but a success is never lost behind
// another report.
func (d *decision) toldBefore() *Event {
	c, _ := d.cmd.(Complete)
	for i := range d.rel.Prior {
		e := &d.rel.Prior[i]
		if e.Command == d.cmd.kind() && (c.Succeeded == nil || e.Facts["outcome"] == "succeeded") {
			return e
		}
	}
	return nil
}

func (d *decision) succeeded(c Complete, who who) Answer {
	n := &d.next
	facts := resourceFacts(*c.Succeeded)
	same := n.State == Completed && n.Result != nil && n.Result.Resource.Same(c.Succeeded.Resource)
	switch {
	case n.State == Failed:
		return d.contradicted(facts)
	case who == stranger && guard.OwnSuccess.On(), who == earlier && guard.EarlierSuccess.Off():
		if !same {
			d.attention()
			d.dueNow()
		}
		return d.observed(facts)
	case same:
		return Answer{Disposition: Applied}
	case n.State == Completed:
		return d.contradicted(facts)
	case d.held():
		return d.keep(c, facts)
	case who == earlier && n.State == Processing && d.terms.Effect == Unsafe:
		// Two effects may exist now. The running attempt is told to stop; this success is applied when it ends without one.
		if !d.keepSuccess(c) {
			return d.contradicted(facts)
		}
		d.attention()
		d.next.Detail.Observations++
		d.recordCommand(KindComplete, EventContradicted, true, facts, "")
		return Answer{Disposition: Contradiction}
	default:
		if who == holder {
			d.markSent()
		}
		d.succeed(c.Succeeded, c.ClaimID)
		n.Detail.DroppedAttributes, n.Detail.PayloadOmitted = c.DroppedAttributes, c.PayloadOmitted
		d.decided(EventCompleted, facts)
		return Answer{Disposition: Applied}
	}
}

// keep holds a success back while a person has the operation: it is shown to the person and applied when it is handed back. A second one
// with another resource is kept in the history alone, and raises attention.
func (d *decision) keep(c Complete, facts map[string]string) Answer {
	switch {
	case d.keepSuccess(c):
		d.next.Detail.Observations++
		d.recordCommand(KindComplete, EventObserved, true, facts, "")
		return Answer{Disposition: Observed}
	case !d.next.Detail.Kept.Result.Resource.Same(c.Succeeded.Resource):
		d.attention()
	}
	return d.observed(facts)
}

// keepSuccess keeps the first success; it reports false where one is kept already.
func (d *decision) keepSuccess(c Complete) bool {
	det := &d.next.Detail
	if det.Kept != nil {
		return false
	}
	det.Kept = &KeptSuccess{ClaimID: c.ClaimID, Result: *c.Succeeded.clone()}
	det.Proposal = nil // what was proposed did not know of it
	return true
}

func (d *decision) rejected(c Complete, who who) Answer {
	n, f := &d.next, *c.Rejected
	facts := failureFacts(f)
	switch {
	case n.State == Failed && who != stranger && n.Failure.Kind == f.Kind && n.Failure.Code == f.Code:
		return Answer{Disposition: Applied}
	case n.State == Completed && who != stranger && (n.Detail.CompletedBy == c.ClaimID || guard.OwnDecline.Off()):
		return d.contradicted(facts)
	case n.State.Final(), who != holder, d.held(), d.grantIsOver():
		return d.observed(facts)
	}
	d.markSent()
	once, doubt := c.SentExactlyOnce || guard.RejectedOnce.Off(), n.MayHaveApplied && guard.NotInDoubt.On()
	definite := once && !doubt || d.c.StickyAnswers && d.c.declares(f.Code)
	switch {
	case d.keptApplies():
		d.decided(EventCompleted, map[string]string{"by": "kept"})
	case definite:
		d.fail(f)
		d.decided(EventFailed, facts)
	default:
		d.unknown(d.now)
		d.decided(EventMarkedUnknown, facts)
	}
	return Answer{Disposition: Applied}
}

func (d *decision) notExecuted(c Complete, who who) Answer {
	n, ne := &d.next, c.NotExecuted
	facts := map[string]string{"not_executed": ne.Kind.String()}
	if n.State.Final() || who != holder && guard.HolderFrees.On() || d.held() || d.grantIsOver() {
		return d.observed(facts)
	}
	// The target's own word that it has something weighs more than the worker's that it sent nothing.
	once := c.SentExactlyOnce || guard.SentOnce.Off()
	definite := !n.Detail.SeenThere && (ne.Kind == NeverSent || ne.Kind == RefusedBeforeAcceptance && once)
	switch {
	case d.keptApplies():
		d.decided(EventCompleted, map[string]string{"by": "kept"})
	case definite:
		var notBefore time.Time
		if ne.RetryAfter > 0 {
			notBefore = d.now.Add(ne.RetryAfter)
		}
		if a := n.Detail.Approval; a != nil && n.Grant.UsedApproval {
			a.Granted = true
		}
		n.Detail.Waived = n.Grant.UsedWaiver
		d.free(notBefore)
		n.Grant.Released = true
		d.decided(EventNotExecuted, facts)
	default:
		d.markSent()
		d.unknown(d.now)
		d.decided(EventMarkedUnknown, facts)
	}
	return Answer{Disposition: Applied}
}

// grantIsOver: RECEIVED again since the holder's grant, by its own report, by evidence or by a person; its reports are remarks now. A
// reservation, alive or lapsed, is not over: the holder says what it did under it.
func (d *decision) grantIsOver() bool {
	return d.next.State == Received && (d.next.Grant.Started || d.next.Grant.Released)
}

// markSent: the holder of a reservation says that it has sent after all.
func (d *decision) markSent() {
	n := &d.next
	if n.Grant.Started {
		return
	}
	n.Grant.Started = true
	n.Starts++
	n.Grant.SendUntil = d.now
	n.LastSend = latest(n.LastSend, d.now)
	if n.FirstStart.IsZero() {
		n.FirstStart = n.Grant.Time
	}
}

// markUnknown records that the outcome could not be seen.
func (d *decision) markUnknown(m MarkUnknown) (Answer, error) {
	n := &d.next
	who := d.who(m.ClaimID)
	if answer, sent, err := d.sentBefore(who); sent || err != nil {
		return answer, err
	}
	facts := map[string]string{"cause": m.Cause.String()}
	ownRelease := n.State == Received && n.Grant.Released
	switch {
	case who == stranger, d.held():
		return d.observed(facts), nil
	case n.State.Final():
		return Answer{Disposition: Applied}, nil
	case n.State == Unknown:
		if who == holder && d.keepAttributes(m.TargetAttributes) { // a request id out of a late 504 helps the search
			d.recordCommand(KindMarkUnknown, EventAttributes, false, nil, "")
		}
		return Answer{Disposition: Applied}, nil
	case who == earlier, d.grantIsOver() && !ownRelease:
		return d.observed(facts), nil
	}
	if ownRelease { // withdrawn: what it gave back is used up again
		n.Grant.Released = false
		if a := n.Detail.Approval; a != nil && n.Grant.UsedApproval {
			a.Granted = false
		}
		n.Detail.Waived = false
	}
	d.markSent()
	d.keepAttributes(m.TargetAttributes)
	if d.keptApplies() {
		d.decided(EventCompleted, map[string]string{"by": "kept"})
		return Answer{Disposition: Applied}, nil
	}
	d.unknown(d.now.Add(d.c.FirstCheck))
	d.decided(EventMarkedUnknown, facts)
	return Answer{Disposition: Applied}, nil
}

// cancel gives up what provably was not sent.
func (d *decision) cancel(c Cancel) (Answer, error) {
	n := &d.next
	switch {
	case n.State == Failed && n.Detail.Cancelled:
		return Answer{Disposition: Applied}, nil
	case d.held() && !n.State.Final():
		return Answer{}, &Refusal{Err: ErrHeldByOperator}
	case n.State != Received || n.MayHaveApplied:
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case d.reserved() && d.who(c.ClaimID) != holder:
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	}
	d.fail(Failure{Kind: Abandoned})
	n.Detail.Cancelled = true
	d.decided(EventCancelled, nil)
	return Answer{Disposition: Applied}, nil
}

// observed keeps a report that moves nothing, as far as there is room for it; one that raises attention always is.
func (d *decision) observed(facts map[string]string) Answer {
	if !d.room() && (!d.next.NeedsAttention || d.was.NeedsAttention) {
		return Answer{Disposition: Observed, Dropped: true}
	}
	d.observe(EventObserved, facts)
	return Answer{Disposition: Observed}
}

// contradicted keeps a report that contradicts what is recorded, until a person acknowledges it.
func (d *decision) contradicted(facts map[string]string) Answer {
	if !d.room() && d.was.NeedsAttention {
		return Answer{Disposition: Contradiction, Dropped: true}
	}
	d.attention()
	d.observe(EventContradicted, facts)
	return Answer{Disposition: Contradiction}
}

// room bounds what reports that move nothing may add to one history. Half of it is for those who were granted the operation, so that
// strangers can't crowd out what they have to say.
func (d *decision) room() bool {
	limit := uint32(maxObservations)
	if d.reporter() == stranger {
		limit /= 2
	}
	return d.next.Detail.Observations < limit
}

// dueNow asks recovery to look at once.
func (d *decision) dueNow() {
	if d.next.State == Unknown && d.next.Custody == Automation {
		d.next.NextCheckTime = d.now
	}
}

func resourceFacts(r Result) map[string]string {
	facts := map[string]string{"outcome": "succeeded"}
	if r.Resource.Type != "" {
		facts["resource_type"] = r.Resource.Type
	}
	if r.Resource.ID != "" {
		facts["resource_id"] = r.Resource.ID
	}
	return facts
}

func failureFacts(f Failure) map[string]string {
	facts := map[string]string{"outcome": "rejected", "failure": f.Kind.String()}
	if f.Code != "" {
		facts["code"] = f.Code
	}
	return facts
}
