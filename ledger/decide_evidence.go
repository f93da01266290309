// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/opsledger/opsledger/guard"
)

// beginCheck takes an operation for one check of the target, as the recovery loop and reconcilers do. The check's number fences older
// answers, its beginning says what absence is worth.
func (d *decision) beginCheck(b BeginCheck) (Answer, error) {
	n := &d.next
	if b.CommandID != "" {
		e, err := d.prior()
		if err != nil {
			return Answer{}, err
		}
		if e != nil {
			return d.checkTaken(e.Facts["check"] == decimal(n.Check.Number) && n.Check.Open), nil
		}
	}
	lapsed := n.State == Processing && !d.leaseAlive()
	due := n.State == Unknown && !n.NextCheckTime.IsZero() && !n.NextCheckTime.After(d.now)
	taken := n.Custody != Automation && guard.HeldCheck.On()
	if taken || !lapsed && !due || n.Check.Open && n.Check.LeaseUntil.After(d.now) {
		return Answer{}, nil
	}
	if lapsed && d.keptApplies() {
		d.decided(EventCompleted, map[string]string{"by": "kept"})
		return Answer{}, nil
	}
	if lapsed {
		d.unknown(d.now)
	}
	if n.Check.Open && b.Actor.Kind == ActorReconciler {
		d.unanswered()
	}
	if n.State != Unknown || n.Custody == Queued { // READ is claimable again; without a method people are asked
		d.decided(EventLeaseLapsed, nil)
		return Answer{}, nil
	}
	if d.c.Method == MethodOperator {
		d.queue(NoMethod)
		d.decided(EventQueued, d.queueFacts())
		return Answer{}, nil
	}
	lease := d.c.CheckTimeout + checkLeaseMargin
	n.Check = Check{Number: d.nextCheckNumber(), Began: d.now, LeaseUntil: d.now.Add(lease), Open: true}
	n.NextCheckTime = n.Check.LeaseUntil
	d.decided(EventCheckTaken, map[string]string{"check": decimal(n.Check.Number)})
	return d.checkTaken(true), nil
}

// unanswered counts a check whose lease ran out towards giving up: who began it has never said what came of it.
func (d *decision) unanswered() {
	det := &d.next.Detail
	det.BudgetSpent += min(d.now.Sub(latest(det.LastAnswer, d.next.Check.Began)), d.c.MaxInterval)
	det.LastAnswer = d.now
	d.giveUp()
}

// giveUpUnasked brings to people what the recovery loop leaves to others, and nobody has asked about for as long as asking may be in vain. Before
// settle time there was little to ask.
func (d *decision) giveUpUnasked() (Answer, error) {
	n := &d.next
	lapsed := n.State == Processing && !d.leaseAlive()
	waits := n.State == Unknown && !n.NextCheckTime.IsZero()
	since := latest(n.NextCheckTime, d.settlesAt())
	if d.c.Method != MethodProbe || n.Custody != Automation || !lapsed && !waits || !d.over(since.Add(d.c.GiveUpAfter), n.UpdateTime) {
		return Answer{}, nil
	}
	if lapsed && d.endsByKept() {
		return Answer{}, nil
	}
	if lapsed {
		d.unknown(d.now)
	}
	if n.State != Unknown { // READ is claimable again
		d.record(EventLeaseLapsed, true, nil, "")
		return Answer{}, nil
	}
	d.handOver()
	d.record(EventQueued, true, map[string]string{"queued": n.QueueReason.String()}, "")
	return Answer{}, nil
}

func (d *decision) checkTaken(current bool) Answer {
	if !current {
		return Answer{}
	}
	return Answer{CheckNumber: d.next.Check.Number, CheckLease: left(d.next.Check.LeaseUntil, d.now)}
}

// reconcile judges evidence from the target.
func (d *decision) reconcile(r Reconcile) (Answer, error) {
	if answer, sent, err := d.sentBefore(holder); sent || err != nil {
		return answer, err
	}
	ev := r.Evidence
	facts := map[string]string{"finding": ev.Finding.String()}
	if r.CheckNumber != 0 {
		facts["check"] = decimal(r.CheckNumber)
	}
	if ev.Source != "" {
		facts["source"] = ev.Source
	}
	ev.shown(facts)
	if ev.Finding == FoundResource {
		return d.found(ev, facts), nil
	}
	n := &d.next
	current := n.Check.Open && (n.Check.Number == r.CheckNumber || guard.OwnCheck.Off())
	final := ev.Finding == NotAccepted && ev.Final
	switch {
	case n.State.Final():
		return Answer{Disposition: Observed}, nil // nothing is stored
	case n.State != Unknown, d.held() && guard.HeldEvidence.On(), !final && (!current || n.Custody == Queued):
		return d.aside(ev, facts), nil
	}
	n.Check.Open = false
	n.Detail.LastFinding = ev.Finding
	switch ev.Finding {
	case RejectedThere:
		d.rejectedThere(ev, facts)
	case PendingThere:
		n.Detail.SeenThere = true
		n.LastSend = latest(n.LastSend, d.now)
		d.spend(false)
		d.again(ev.RetryAfter)
	case NotAccepted, NotFound:
		d.absent(ev)
	case AmbiguousThere:
		d.seen(ev.Candidates...)
		d.spend(true)
		d.queue(AmbiguousEvidence)
	default:
		facts["cause"] = ev.Cause.String()
		d.spend(ev.Cause.asked())
		d.backOff(ev.RetryAfter)
		d.giveUp()
	}
	d.decided(EventEvidence, facts)
	return Answer{Disposition: Applied}, nil
}

// shown adds what people want to know of evidence that settled nothing: categories, and what may be the effect. The row forgets its candidates.
func (ev Evidence) shown(facts map[string]string) {
	names := make([]string, len(ev.Candidates))
	for i, c := range ev.Candidates {
		names[i] = cmp.Or(c.ID, c.URI)
	}
	for name, list := range map[string][]string{"different": ev.Different, "missing": ev.Missing, "candidates": names} {
		if len(list) > 0 {
			facts[name] = strings.Join(list, ",")
		}
	}
}

// aside keeps a finding that moves nothing. What it says to have seen at the target counts all the same, and is never dropped.
func (d *decision) aside(ev Evidence, facts map[string]string) Answer {
	det := &d.next.Detail
	before, candidates := [2]bool{det.SeenThere, det.FoundThere}, len(det.Candidates)
	switch ev.Finding {
	case PendingThere:
		det.SeenThere = true
	case AmbiguousThere:
		d.seen(ev.Candidates...)
	}
	if before == [2]bool{det.SeenThere, det.FoundThere} && candidates == len(det.Candidates) {
		return d.observed(facts)
	}
	d.dropDenial()
	det.Observations++
	d.recordCommand(KindReconcile, EventObserved, d.held(), facts, "")
	return Answer{Disposition: Observed}
}

// dropDenial ends a proposal that denies the effect: it did not know of what has come now.
func (d *decision) dropDenial() {
	if p := d.next.Detail.Proposal; p != nil && p.Resolution.Happened == nil {
		d.next.Detail.Proposal = nil
	}
}

// found: the effect exists. It settles the operation if it is provably this operation's.
func (d *decision) found(ev Evidence, facts map[string]string) Answer {
	n := &d.next
	facts["resource_type"], facts["resource_id"] = ev.Result.Resource.Type, ev.Result.Resource.ID
	open := n.State == Unknown || n.State == Received && n.EverStarted() && n.Compensates.IsZero()
	switch {
	case n.State == Completed && n.Result != nil && n.Result.Resource.Same(ev.Result.Resource):
		return Answer{Disposition: Applied}
	case n.State.Final():
		d.attention()
		d.observe(EventContradicted, facts)
		return Answer{Disposition: Contradiction}
	case !open, d.held():
		return d.foundAside(ev, facts, open)
	}
	n.Check.Open = false
	n.Detail.LastFinding = FoundResource
	n.Detail.SeenThere, n.Detail.FoundThere = true, true
	d.spend(true)
	switch {
	case len(ev.Different) > 0, !ev.CreateTime.IsZero() && ev.CreateTime.Before(n.FirstStart.Add(-intentSkew)) && guard.FoundAfter.On():
		d.doubtful(ev, EvidenceMismatch)
	case (len(ev.Missing) > 0 || !d.c.VerifyStated) && guard.Verified.On():
		d.doubtful(ev, EvidenceIncomplete)
	default:
		d.succeed(ev.Result, "")
		d.decided(EventEvidence, facts)
		return Answer{Disposition: Applied}
	}
	facts["queued"] = n.QueueReason.String()
	d.decided(EventEvidence, facts)
	return Answer{Disposition: Applied}
}

// foundAside keeps what was found where it can't settle the operation: somebody executes, nothing was ever started, or a person has it. It
// is always kept, and counts against everything that would deny the effect; a person who has looked before has to look again.
func (d *decision) foundAside(ev Evidence, facts map[string]string, open bool) Answer {
	d.seen(ev.Result.Resource)
	d.dropDenial()
	d.attention()
	d.next.Detail.Observations++
	kind, disposition := EventContradicted, Contradiction
	if open {
		kind, disposition = EventObserved, Observed
	}
	d.recordCommand(KindReconcile, kind, d.held(), facts, "")
	return Answer{Disposition: disposition}
}

// seen remembers what may be this operation's effect.
func (d *decision) seen(candidates ...ResourceRef) {
	n := &d.next
	n.MayHaveApplied = true
	n.Detail.SeenThere, n.Detail.FoundThere = true, true
	if n.State == Received { // in doubt, a compensation is not inspected
		n.NextCheckTime = time.Time{}
	}
	for _, c := range candidates {
		if len(n.Detail.Candidates) < maxCandidates && !slices.ContainsFunc(n.Detail.Candidates, c.Same) {
			n.Detail.Candidates = append(n.Detail.Candidates, c)
		}
	}
}

// maxCandidates bounds what a row remembers of resources that could be its effect; the history has all.
const maxCandidates = 32

// doubtful hands what was found, and may or may not be this operation's, to a person.
func (d *decision) doubtful(ev Evidence, reason QueueReason) {
	n := &d.next
	d.seen(ev.Result.Resource)
	n.Grant.LeaseUntil = time.Time{}
	d.queue(reason)
}

// rejectedThere: the target has it and decided against it. Definite only where that sticks to the key, or where nothing else can land.
func (d *decision) rejectedThere(ev Evidence, facts map[string]string) {
	n := &d.next
	for k, v := range failureFacts(*ev.Rejected) {
		facts[k] = v
	}
	sticks := d.c.StickyAnswers && d.c.declares(ev.Rejected.Code)
	d.spend(true)
	switch {
	case sticks, !n.MayHaveApplied && (d.settledBy(n.Check.Began) || guard.RejectedThen.Off()):
		d.fail(*ev.Rejected)
	case n.MayHaveApplied && d.settledBy(n.Check.Began):
		d.queue(AmbiguousEvidence)
	default:
		d.again(0)
		d.giveUp()
	}
}

// absent judges "nothing there" and "not taken": they prove nothing unless conclusive.
func (d *decision) absent(ev Evidence) {
	n := &d.next
	d.spend(true)
	switch {
	case ev.Final && n.Detail.FoundThere: // refused from now on; but what was found there may be this operation's
		d.queue(AmbiguousEvidence)
	case !d.conclusive(ev):
		d.again(ev.RetryAfter)
		d.giveUp()
	case d.repeatsWhenAbsent():
		n.MayHaveApplied = false
		n.Detail.SeenThere = false // the target's last word
		d.freeAlone()
	default:
		d.queue(RepeatNotAllowed)
	}
}

// conclusive: absence counts only from a check that began at or after settle time and ended while the target remembers its keys, and
// only while nothing was ever seen there.
func (d *decision) conclusive(ev Evidence) bool {
	n := &d.next
	if ev.Finding == NotAccepted && ev.Final {
		return true
	}
	remembers := d.terms.Effect != Keyed
	if d.terms.KeyRetention > 0 {
		remembers = d.open(n.FirstStart.Add(d.terms.KeyRetention), n.FirstStart) || guard.KeyForgotten.Off()
	}
	settled := d.settledBy(n.Check.Began) || guard.SettleTime.Off()
	return settled && remembers && !(n.Detail.SeenThere && guard.SeenBefore.On())
}

func (d *decision) repeatsWhenAbsent() bool {
	switch d.c.Repeat {
	case RepeatForbidden:
		return false
	case RepeatAllowed:
		return d.terms.Effect != Unsafe || d.terms.EffectWithin > 0
	default:
		return d.terms.Effect != Unsafe
	}
}

// again schedules the next check after an answer that proved nothing: at the later of backoff and settle time, and not before the target wants
// to be asked again.
func (d *decision) again(retryAfter time.Duration) {
	d.backOff(retryAfter)
	d.next.NextCheckTime = latest(d.next.NextCheckTime, d.settlesAt())
}

// backOff schedules the next check after a question without an answer: what is there can be found before settle time, too.
func (d *decision) backOff(retryAfter time.Duration) {
	n := &d.next
	wait := d.c.backoff(n.Detail.Retries)
	if r, ok := d.cmd.(Reconcile); ok {
		wait -= time.Duration(r.Chance * float64(wait/5))
	}
	n.NextCheckTime = d.now.Add(max(wait, retryAfter))
	n.Detail.Retries++
}

// spend counts an answer towards giving up: the time since the answer before it, but no more than one interval, so that an outage
// in which the target could not be asked counts for nothing.
func (d *decision) spend(counts bool) {
	det := &d.next.Detail
	if det.LastFinding != Indeterminate {
		det.Checks++
	}
	d.spendTime(counts)
}

// spendTime is the part of it that looks at a resource have, too.
func (d *decision) spendTime(counts bool) {
	det := &d.next.Detail
	if counts && !det.LastAnswer.IsZero() {
		det.BudgetSpent += min(d.now.Sub(det.LastAnswer), d.c.MaxInterval)
	}
	det.LastAnswer = d.now
}

func (d *decision) giveUp() {
	if d.next.Detail.BudgetSpent >= d.c.GiveUpAfter {
		d.handOver()
	}
}

// handOver brings to people what was asked about in vain.
func (d *decision) handOver() {
	if d.next.Detail.FoundThere {
		d.queue(AmbiguousEvidence)
		return
	}
	d.queue(GaveUp)
}

// regrant frees an operation whose repeat is harmless: there is nobody to ask, and nobody needs to be.
func (d *decision) regrant() (Answer, error) {
	n := &d.next
	lapsed := n.State == Processing && !d.leaseAlive()
	due := n.State == Unknown && !n.NextCheckTime.IsZero() && !n.NextCheckTime.After(d.now)
	taken := n.Custody != Automation && guard.HeldRegrant.On()
	if d.c.Method != MethodRegrant || taken || !lapsed && !due {
		return Answer{}, nil
	}
	if lapsed && d.endsByKept() {
		return Answer{}, nil
	}
	if lapsed {
		d.unknown(d.now)
	}
	kind, facts := EventRegranted, map[string]string(nil)
	switch {
	case n.State == Received: // READ
		kind = EventLeaseLapsed
	case !d.startsLeft():
		d.queue(AttemptsExhausted)
		kind, facts = EventQueued, d.queueFacts()
	case d.mayRepeat(true):
		n.MayHaveApplied = true
		d.freeAlone()
	case d.terms.Effect == Idempotent && !d.over(d.settleTime(), n.sentSince()):
		n.NextCheckTime = d.settlesAt()
		kind = EventCheckRequested
	default:
		d.queue(KeyWindowOver)
		kind, facts = EventQueued, d.queueFacts()
	}
	d.record(kind, true, facts, "")
	return Answer{}, nil
}
