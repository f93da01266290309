// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/opsledger/opsledger/guard"
)

// looked checks what a person's decision is based on: sent before, or the version that was looked at.
func (d *decision) looked(expected uint64) (sent bool, err error) {
	e, err := d.prior()
	if e != nil || err != nil {
		return e != nil, err
	}
	if d.next.Version != expected {
		return false, &Refusal{Err: ErrStaleVersion, Operation: d.was}
	}
	return false, nil
}

// takeOver gives the operation to a person: automation stops touching the target. It ends the check, a proposal and every
// permission to act that is not yet used.
func (d *decision) takeOver(t TakeOver) (Answer, error) {
	n := &d.next
	if sent, err := d.looked(t.ExpectedVersion); sent || err != nil {
		return Answer{}, err
	}
	if n.State.Final() {
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	}
	n.Custody, n.Custodian, n.QueueReason = Operator, t.Actor.Name, 0
	n.Check.Open = n.Check.Open && guard.CheckEnds.Off()
	n.NextCheckTime = time.Time{}
	if n.State == Received { // a reservation was a permission to act
		n.Grant.LeaseUntil = time.Time{}
	}
	n.Detail.Waived, n.Detail.ClearedUntil = false, time.Time{}
	n.Detail.Proposal, n.Detail.Changed = nil, nil
	n.Grant.UsedApproval, n.Grant.UsedWaiver = false, false // what was used up does not come back, either
	if a := n.Detail.Approval; a != nil {
		a.Granted = false
	}
	d.recordCommand(KindTakeOver, EventTakenOver, true, nil, t.Reason)
	return Answer{}, nil
}

// custodian checks that the person who decides is the one who has it.
func (d *decision) custodian(a Actor) error {
	if !d.held() || d.next.Custodian != a.Name {
		return &Refusal{Err: ErrNotInCustody}
	}
	return nil
}

func (d *decision) handBack(h HandBack) (Answer, error) {
	n := &d.next
	if sent, err := d.looked(h.ExpectedVersion); sent || err != nil {
		return Answer{}, err
	}
	if err := d.custodian(h.Actor); err != nil {
		return Answer{}, err
	}
	if guard.ProposalEnds.On() {
		n.Detail.Proposal = nil
	}
	d.toAutomation()
	if k := n.Detail.Kept; k != nil {
		if n.State == Processing && d.terms.Effect == Unsafe && k.ClaimID != n.Grant.ClaimID {
			d.attention() // another attempt runs: two effects may exist
		} else {
			d.keptApplies()
		}
	}
	d.recordCommand(KindHandBack, EventHandedBack, true, nil, h.Reason)
	return Answer{}, nil
}

// toAutomation makes it due now, with a fresh budget.
func (d *decision) toAutomation() {
	n := &d.next
	d.automate()
	n.Detail.BudgetSpent, n.Detail.LastAnswer, n.Detail.Retries = 0, time.Time{}, 0
	if n.State == Received && n.MayHaveApplied && n.Detail.FoundThere && guard.FoundReturns.On() {
		n.State = Unknown // something was found at the target: it is not provably absent, so nobody may claim it
	}
	switch {
	case n.State == Unknown && d.c.Method == MethodOperator:
		d.queue(NoMethod)
	case n.State == Processing && d.leaseAlive():
		n.NextCheckTime = n.Grant.LeaseUntil
	case n.State == Received && !d.needsInspection():
		n.NextCheckTime = time.Time{}
	default:
		n.NextCheckTime = d.now
	}
}

func (d *decision) resolve(r Resolve) (Answer, error) {
	if sent, err := d.looked(r.ExpectedVersion); sent || err != nil {
		return Answer{}, err
	}
	if err := d.resolvable(r.Actor, r.Resolution); err != nil {
		return Answer{}, err
	}
	if d.c.SecondPerson {
		res := r.Resolution
		d.next.Detail.Proposal = &Approval{
			Kind: ApproveResolution, Requester: r.Actor.Name, ExpireTime: d.now.Add(d.c.ProposalExpires), Resolution: &res,
		}
		d.recordCommand(KindResolve, EventProposed, true, nil, r.Resolution.Note)
		return Answer{}, nil
	}
	d.settleByHand(r.Resolution)
	return Answer{}, nil
}

// resolvable judges every guard of a person's decision; a second person's word has them judged again.
func (d *decision) resolvable(person Actor, r Resolution) error {
	n := &d.next
	if err := d.custodian(person); err != nil && guard.Custodian.On() { // nobody has a final one
		return err
	}
	if r.Note == "" {
		return InvalidField("note", "must say what was looked at")
	}
	if r.Happened != nil {
		if !r.Happened.Resource.named() && n.Detail.Kept == nil {
			return InvalidField("resolution.happened.resource", "must name what was found by its id or uri")
		}
		return nil
	}
	switch {
	case n.Detail.Kept != nil && guard.KeptSuccess.On(): // a worker has reported the effect
		return &Refusal{Err: ErrEffectFound}
	case n.effectSeen() && !r.DespiteFound && guard.FoundDenied.On():
		return &Refusal{Err: ErrEffectFound}
	}
	if d.leaseAlive() && guard.LeaseOver.On() {
		return &Refusal{Err: ErrTooEarly, RetryAfter: max(d.leaseLeft(), d.wait(d.settleTime(), n.sentSince()))}
	}
	if !n.EverStarted() {
		return nil
	}
	searchable := d.settleTime()
	if searchable.IsZero() {
		searchable = n.LastSend.Add(max(unboundedSearchDelay, n.Terms.EffectWithin)) // a bound that was withdrawn was once believed
	}
	if !d.passedBy(r.SearchTime, searchable, n.sentSince()) && guard.SearchTime.On() || r.SearchTime.After(d.now) {
		return &Refusal{Err: ErrTooEarly, RetryAfter: d.wait(searchable, n.sentSince())}
	}
	return nil
}

func (d *decision) settleByHand(r Resolution) {
	n := &d.next
	facts := map[string]string{}
	switch {
	case r.Happened != nil:
		result := r.Happened
		if k := n.Detail.Kept; !result.Resource.named() && k != nil {
			result = &k.Result
		}
		d.succeed(result, "")
		facts = resourceFacts(*result)
	case r.NeverHappenedTry != nil:
		n.MayHaveApplied = false
		if guard.OneMoreStart.On() {
			n.Detail.ExtraStarts++
		}
		n.Detail.Candidates = nil
		n.Detail.FoundThere = false
		n.Detail.SeenThere = false // a person has looked at what was seen
		n.Detail.Proposal = nil
		d.free(time.Time{})
		facts["outcome"] = "never_happened_retry"
	default:
		f := Failure{Kind: Abandoned}
		if r.NeverHappenedEnd != nil && r.NeverHappenedEnd.Kind != 0 {
			f = *r.NeverHappenedEnd
		}
		n.Detail.DeniedSequence = n.Sequence + 1
		d.fail(f)
		facts["outcome"] = "never_happened_stop"
	}
	d.recordCommand(d.cmd.kind(), EventResolved, true, facts, r.Note)
}

// approve is the word of a second person on what waits for one: a proposal, a changed resource, or a permission that the operation needs.
func (d *decision) approve(ap Approve) (Answer, error) {
	n := &d.next
	if sent, err := d.looked(ap.ExpectedVersion); sent || err != nil {
		return Answer{}, err
	}
	a := n.Question()
	switch {
	case a == nil || a.Granted || a.ExpireTime.Before(d.now):
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case a.Requester == ap.Actor.Name:
		return Answer{}, &Refusal{Err: ErrSecondPersonRequired}
	case a.Kind == ApproveResolution:
		return Answer{}, d.approveResolution(*a, ap)
	case n.State != Received || d.reserved(): // not waiting for it
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case d.held():
		return Answer{}, &Refusal{Err: ErrHeldByOperator}
	case n.MayHaveApplied && (!ap.Approved || a.Kind == ApproveChangedResource): // FAILED would deny what may exist
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	}
	decision := "rejected"
	switch {
	case !ap.Approved:
		d.fail(Failure{Kind: Abandoned})
	case a.Kind == ApproveChangedResource:
		decision = "approved"
		n.Detail.Waived, n.Detail.Precondition = true, a.Resource
		n.Detail.Changed = nil
		d.automate()
	default:
		decision = "approved"
		a.Granted, a.Approver = true, ap.Actor.Name
	}
	d.recordCommand(KindApprove, EventApproval, true, map[string]string{"decision": decision}, ap.Note)
	return Answer{}, nil
}

// approveResolution ends a proposal: approved, it is judged again and carried out; rejected, only the proposal goes.
func (d *decision) approveResolution(a Approval, ap Approve) error {
	if !ap.Approved {
		d.next.Detail.Proposal = nil
		if guard.OnlyProposal.Off() {
			d.fail(Failure{Kind: Abandoned})
		}
		d.recordCommand(KindApprove, EventApproval, true, map[string]string{"decision": "rejected"}, ap.Note)
		return nil
	}
	if err := d.resolvable(Actor{Kind: ActorPerson, Name: a.Requester}, *a.Resolution); err != nil {
		return err
	}
	d.settleByHand(*a.Resolution)
	return nil
}

func (d *decision) checkNow(c CheckNow) (Answer, error) {
	n := &d.next
	if e, err := d.prior(); e != nil || err != nil {
		return Answer{}, err
	}
	changed := n.State == Received && n.Custody == Queued && n.QueueReason == ResourceChanged
	switch {
	case n.State != Unknown && !changed:
		return Answer{}, &Refusal{Err: ErrIllegalTransition}
	case d.held() && guard.HeldRequest.On():
		return Answer{}, &Refusal{Err: ErrHeldByOperator}
	}
	n.Detail.Changed = nil
	d.automate()
	n.Detail.BudgetSpent, n.Detail.LastAnswer, n.Detail.Retries = 0, time.Time{}, 0
	n.NextCheckTime = d.now
	d.recordCommand(KindCheckNow, EventCheckRequested, true, nil, c.Reason)
	return Answer{}, nil
}

func (d *decision) note(c Note) (Answer, error) {
	n := &d.next
	if e, err := d.prior(); e != nil || err != nil {
		return Answer{}, err
	}
	if c.AcknowledgeThrough > n.Sequence {
		return Answer{}, InvalidField("acknowledge_through_sequence", "must not lie beyond the history that was looked at")
	}
	if n.NeedsAttention && c.AcknowledgeThrough >= n.Detail.AttentionSequence {
		n.NeedsAttention = false
	}
	d.recordCommand(KindNote, EventNote, false, nil, c.Text)
	return Answer{}, nil
}

// expire ends what nobody has claimed within the retry window: provably nothing was sent.
func (d *decision) expire() (Answer, error) {
	n := &d.next
	since := latest(latest(n.CreateTime, n.Detail.Freed), n.Grant.Time)
	open := n.Detail.Approval != nil && !d.over(n.Detail.Approval.ExpireTime, n.CreateTime)
	taken := n.Custody != Automation && guard.HeldExpire.On()
	if n.State != Received || taken || n.MayHaveApplied || open || d.reserved() || !d.over(since.Add(d.c.RetryWindow), since) {
		return Answer{}, nil
	}
	d.fail(Failure{Kind: Expired})
	d.record(EventExpired, true, nil, "")
	return Answer{}, nil
}

// retire forgets everything but the key, the outcome, the times and the end of the chain.
func (d *decision) retire(r Retire) (Answer, error) {
	n := &d.next
	if n.State != Completed && n.State != Failed || n.NeedsAttention || r.Referenced ||
		!d.over(n.FinalTime.Add(d.c.retires(n.State)), n.FinalTime) || !d.over(d.settleTime(), n.sentSince()) {
		return Answer{}, nil
	}
	n.Detail = Detail{RetiredFrom: n.State, AttentionSequence: n.Detail.AttentionSequence, DeniedSequence: n.Detail.DeniedSequence}
	n.State = Retired
	n.Result, n.Failure, n.TargetAttributes, n.TargetSummary = nil, nil, nil, ""
	d.record(EventRetired, true, nil, "")
	return Answer{}, nil
}
