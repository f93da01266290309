// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// Related is what a decision needs besides the operation, the contract and the time: plain values, read in the transaction that
// writes what is decided.
type Related struct {
	Timeline  uint32
	Watermark Watermark
	// Forgotten is the latest settlement of a key of the tool that the store has forgotten; zero: none was, or it does not matter to the command.
	Forgotten time.Time
	// Prior are the operation's events under the command's id.
	Prior []Event
	// Original is what the operation compensates or corrects.
	Original *Operation
	// OriginalContract is that of the original's tool, as it is now; nil: judged by what is recorded.
	OriginalContract *Contract
	// OriginalIrreversible: the original's tool has no compensation.
	OriginalIrreversible bool
	// OtherCompensations of the original that may have had an effect.
	OtherCompensations []OperationID
	Dependencies       []Operation
	UnknownSiblings    []OperationID
	// Owners of the slots that a Claim asks for, as they stand; a slot without one is free.
	Owners        map[Slot]Operation
	ToolPaused    bool
	ToolSaturated bool
	// Jumps of the store's clock that this process knows of.
	Jumps Jumps
}

// maxObservations bounds what reports that move nothing may add to one history.
const maxObservations = 64

// Decide is the meaning of the ledger: one pure function from an operation (nil: absent), what is related to it, a command, the
// contract in force and the store's time, to what is written and what is answered. No I/O, no clock, no randomness. Its
// specification is testdata/cells.txt, one line a cell; no other function assigns a state.
//
// Errors are Refusals; with one, nothing is written. An Answer with Again set means that the change brings the row up to date (a
// lapsed lease, an older timeline) and that the command is to be decided once more on a fresh read.
func Decide(op *Operation, rel Related, cmd Command, c Contract, now time.Time) (Change, Answer, error) {
	d := &decision{was: op, rel: rel, c: c, now: now, cmd: cmd}
	if op != nil {
		d.next = op.Clone()
		d.terms = c.judged(op.Terms, 0)
	} else {
		d.terms = c.judged(Terms{}, 0)
	}
	if claim, ok := cmd.(Claim); ok {
		d.terms = c.judged(d.next.Terms, claim.EffectHint)
		return d.done(d.claim(claim))
	}
	if op == nil || op.State == Retired {
		return Change{}, Answer{}, &Refusal{Err: ErrOperationNotFound}
	}
	switch {
	case d.outdated():
		return d.done(d.rewrite(), nil)
	case d.keptIsDue():
		return d.done(d.applyKept(), nil)
	}
	return d.done(d.dispatch())
}

func (d *decision) dispatch() (Answer, error) {
	switch cmd := d.cmd.(type) {
	case Start:
		return d.start(cmd)
	case Renew:
		return d.renew(cmd)
	case Complete:
		return d.complete(cmd)
	case MarkUnknown:
		return d.markUnknown(cmd)
	case Cancel:
		return d.cancel(cmd)
	case BeginCheck:
		return d.beginCheck(cmd)
	case Reconcile:
		return d.reconcile(cmd)
	case Inspect:
		return d.inspect(cmd)
	case Regrant:
		return d.regrant()
	case GiveUp:
		return d.giveUpUnasked()
	case TakeOver:
		return d.takeOver(cmd)
	case HandBack:
		return d.handBack(cmd)
	case Resolve:
		return d.resolve(cmd)
	case Approve:
		return d.approve(cmd)
	case CheckNow:
		return d.checkNow(cmd)
	case Note:
		return d.note(cmd)
	case Expire:
		return d.expire()
	case Retire:
		return d.retire(cmd)
	default:
		panic("ledger: a command without a decision")
	}
}

// decision is one run of Decide.
type decision struct {
	was   *Operation // nil: absent
	next  Operation
	rel   Related
	c     Contract
	terms Terms // by which the operation is judged now
	now   time.Time
	cmd   Command

	event     *Event
	moved     bool // a deadline was moved without an event (Renew)
	companion *Change
	taken     []TakenSlot
	guarded   bool // it rests on the guards
}

func (d *decision) done(a Answer, err error) (Change, Answer, error) {
	if err != nil {
		return Change{}, Answer{}, err
	}
	a.Now, a.Hidden = d.now, d.hidden()
	if d.event == nil && !d.moved {
		a.Operation = d.was
		return Change{}, a, nil
	}
	a.Operation = &d.next
	return Change{Next: &d.next, Event: d.event, Companion: d.companion, UnlessPaused: d.guarded, Slots: d.taken}, a, nil
}

// hidden: an operation with a subject is visible to workers only with it, and a report carries none: only the proof of a grant shows it.
func (d *decision) hidden() bool {
	switch d.cmd.(type) {
	case Complete, MarkUnknown:
		return len(d.was.SubjectDigest) > 0 && d.reporter() == stranger
	default:
		return false
	}
}

// reporter is who reports; evidence comes from somebody who was given the role.
func (d *decision) reporter() who {
	switch c := d.cmd.(type) {
	case Complete:
		return d.who(c.ClaimID)
	case MarkUnknown:
		return d.who(c.ClaimID)
	default:
		return holder
	}
}

// record appends the decision's one event. A decision raises the version; observations, links and notes don't.
func (d *decision) record(kind EventKind, raises bool, facts map[string]string, note string) {
	n := &d.next
	n.Sequence++
	if raises { // the class that it was judged by holds from now on
		n.Version++
		n.Terms.Effect = max(n.Terms.Effect, d.terms.Effect)
	}
	n.UpdateTime = latest(d.now, n.UpdateTime) // the clock may have been set back
	e := &Event{
		OperationID: n.ID, Sequence: n.Sequence, Version: n.Version, Epoch: n.Grant.Epoch, Time: n.UpdateTime,
		ActorKind: d.cmd.actor().Kind, Actor: d.cmd.actor().Name,
		Kind: kind, ToState: n.State, Facts: facts, Note: note, ContractVersion: d.c.Version,
	}
	var prev [32]byte
	if d.was != nil {
		e.FromState, prev = d.was.State, d.was.LastHash
	}
	e.Seal(prev)
	n.LastHash = e.Hash
	d.event = e
}

// decided records a decision under the command's own id, so that the command is applied once.
func (d *decision) decided(kind EventKind, facts map[string]string) {
	d.recordCommand(d.cmd.kind(), kind, true, facts, "")
}

// observe keeps a report that moves nothing.
func (d *decision) observe(kind EventKind, facts map[string]string) {
	d.next.Detail.Observations++
	d.recordCommand(d.cmd.kind(), kind, false, facts, "")
}

func (d *decision) recordCommand(command CommandKind, kind EventKind, raises bool, facts map[string]string, note string) {
	d.record(kind, raises, facts, note)
	if d.cmd.id() == "" {
		return
	}
	e := d.event
	e.Command, e.CommandID, e.CommandDigest = command, d.cmd.id(), d.digest()
	e.Seal(e.PrevHash)
	d.next.LastHash = e.Hash
}

// digest of the command's content, where content counts.
func (d *decision) digest() string {
	switch c := d.cmd.(type) {
	case Complete:
		c.Actor, c.ClaimID = Actor{}, ""
		return contentDigest(c)
	case MarkUnknown:
		c.Actor, c.ClaimID = Actor{}, ""
		return contentDigest(c)
	case Renew: // only what it adds is an event
		return contentDigest(c.TargetAttributes)
	case Reconcile: // what was submitted, not what the contract in force made of it
		c.Actor, c.Chance = Actor{}, 0
		c.Evidence.Different, c.Evidence.Missing = nil, nil
		if r := c.Evidence.Result; r != nil {
			c.Evidence.Result = &Result{Resource: r.Resource, Code: r.Code}
		}
		return contentDigest(c)
	case TakeOver:
		c.Actor = Actor{}
		return contentDigest(c)
	case HandBack:
		c.Actor = Actor{}
		return contentDigest(c)
	case Resolve: // as for Reconcile
		c.Actor = Actor{}
		if r := c.Resolution.Happened; r != nil {
			c.Resolution.Happened = &Result{Resource: r.Resource, Code: r.Code}
		}
		return contentDigest(c)
	case Approve:
		c.Actor = Actor{}
		return contentDigest(c)
	case CheckNow:
		c.Actor = Actor{}
		return contentDigest(c)
	case Note:
		c.Actor = Actor{}
		return contentDigest(c)
	default:
		return ""
	}
}

// prior returns the event that this very command left earlier. For commands of people and reconcilers, the same id with other
// content is refused.
func (d *decision) prior() (*Event, error) {
	digest := d.digest()
	for i := range d.rel.Prior {
		e := &d.rel.Prior[i]
		if e.Command != d.cmd.kind() {
			continue
		}
		if e.CommandDigest == digest {
			return e, nil
		}
		switch d.cmd.(type) {
		case Complete, MarkUnknown, Renew: // other content is another report
		default:
			return nil, &Refusal{Err: ErrCommandReused}
		}
	}
	return nil, nil
}

// who a claim_id is to the operation.
type who uint8

const (
	stranger who = iota // never granted here
	earlier             // granted before the latest grant
	holder              // of the latest grant, also after it has ended
)

func (d *decision) who(id ClaimID) who {
	if id != "" && id == d.next.Grant.ClaimID {
		return holder
	}
	for i := range d.rel.Prior {
		if e := &d.rel.Prior[i]; e.Kind == EventGranted && e.CommandID == string(id) {
			return earlier
		}
	}
	return stranger
}

// outdated reports whether the row is unsettled and of an older timeline: it can't be told whether it is the last word.
func (d *decision) outdated() bool {
	return d.was.Timeline < d.rel.Timeline && !d.was.State.Final() && d.terms.Effect != Read
}

// rewrite makes an outdated row UNKNOWN, with a new epoch without a holder, so that what the lost timeline granted can't be
// confused with what follows.
func (d *decision) rewrite() Answer {
	n := &d.next
	n.Timeline = d.rel.Timeline
	n.Grant = Grant{Epoch: d.nextEpoch(), Time: d.now}
	n.Check = Check{Number: d.nextCheckNumber()}
	n.MayHaveApplied = true
	n.LastSend = latest(n.LastSend, d.now.Add(d.c.SendWithin))
	if n.FirstStart.IsZero() {
		n.FirstStart = n.CreateTime
	}
	if a := n.Detail.Approval; a != nil {
		a.Granted = false
	}
	n.Detail.Proposal, n.Detail.Changed = nil, nil
	n.Detail.ClearedUntil, n.Detail.Waived = time.Time{}, false
	n.State = Unknown
	if n.Custody == Automation {
		n.NextCheckTime = d.now
		if d.c.Method == MethodOperator {
			d.queue(Quarantine)
		}
	}
	d.record(EventQuarantined, true, nil, "")
	return Answer{Again: true}
}
