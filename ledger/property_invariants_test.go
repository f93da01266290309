// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"errors"
	"reflect"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// step is one command with all that came of it.
type step struct {
	cmd           ledger.Command
	now           time.Time
	set           time.Duration // how far the store's clock is set
	contract      ledger.Contract
	before, after *ledger.Operation
	events, fresh []ledger.Event
	answer        ledger.Answer
	err           error
}

// has reports whether the step left an event of a kind.
func (s *step) has(kinds ...ledger.EventKind) bool {
	for i := range s.fresh {
		for _, k := range kinds {
			if s.fresh[i].Kind == k {
				return true
			}
		}
	}
	return false
}

// judge knows what each invariant needs to know of the past, apart from the row.
type judge struct {
	r      *run
	epochs map[uint64]ledger.ClaimID
	began  map[uint64]time.Time // by check number
	// windowEnd is the end of the last send window, or of the target's last word that it is pending; bound the largest effect_within that
	// was in force at a grant.
	windowEnd time.Time
	bound     time.Duration
	// hasty: a person decided "never happened" while nobody vouched for a bound: what follows is theirs.
	hasty bool
	// untrue: the owner's bound is, and nothing can be promised of effects; what is reported must not be lost all the same.
	untrue bool
	// lost: a failover has lost commits. loosened: the contract's class was below the truth at some time.
	lost, loosened bool
	// grants that let somebody send are counted, which orders attempts; latest is the one that took effect last.
	grants, latest int
}

func newJudge(r *run) judge {
	return judge{r: r, epochs: map[uint64]ledger.ClaimID{}, began: map[uint64]time.Time{}}
}

func (j *judge) fail(format string, args ...any) {
	j.r.t.Helper()
	j.r.t.Fatalf(format, args...)
}

func (j *judge) step(s step) {
	if s.after != nil && s.before == nil {
		s.before = &ledger.Operation{}
	}
	j.loosened = j.loosened || s.contract.Effect < j.r.target.class
	j.i16(s)
	j.i5(s)
	if s.after == nil {
		return
	}
	j.i7(s)
	j.i1(s)
	j.i2(s)
	j.i3(s)
	j.i4(s)
	j.i6(s)
	j.i9(s)
	j.i13(s)
	j.i14(s)
	j.kept(s)
	j.remember(s)
	j.i15(s)
	j.i12Granted(s)
}

// remember what the ledger's rows are judged by, from commands and answers alone.
func (j *judge) remember(s step) {
	if s.has(ledger.EventQuarantined) {
		j.bound = max(j.bound, s.contract.EffectWithin)
		if end := s.now.Add(s.contract.SendWithin); end.After(j.windowEnd) {
			j.windowEnd = end
		}
	}
	if j.executes(s) {
		lease := s.contract.LeaseDefault
		end := s.now.Add(min(s.contract.SendWithin, lease))
		if end.After(j.windowEnd) {
			j.windowEnd = end
		}
		j.bound = max(j.bound, s.contract.EffectWithin)
		for _, a := range j.r.attempts {
			if a.id == s.after.Grant.ClaimID {
				j.grants++ // who claimed first may be granted last
				a.number, a.granted, a.window, a.class = j.grants, true, end, s.after.Terms.Effect
			}
		}
	}
	if r, ok := s.cmd.(ledger.Reconcile); ok && r.Evidence.Finding == ledger.PendingThere && s.answer.Disposition == ledger.Applied && s.has(ledger.EventEvidence) {
		if s.now.After(j.windowEnd) {
			j.windowEnd = s.now
		}
	}
	resolved := s.has(ledger.EventResolved) && s.after.State != ledger.Completed
	if resolved && s.before.EverStarted() && s.contract.EffectWithin == 0 {
		j.hasty = true
	}
}

// executes: the step gave somebody the right to send.
func (j *judge) executes(s step) bool {
	return s.has(ledger.EventStarted) || s.has(ledger.EventGranted) && s.after.State == ledger.Processing
}

// settle is settle time by the judge's own account; zero: never.
func (j *judge) settle(c ledger.Contract) time.Time {
	if c.EffectWithin == 0 {
		return time.Time{}
	}
	return j.windowEnd.Add(max(j.bound, c.EffectWithin))
}

// i1: one grant per epoch, to one claim_id; epochs only grow, also over failovers.
func (j *judge) i1(s step) {
	for i := range s.fresh {
		e := &s.fresh[i]
		if e.Kind != ledger.EventGranted {
			continue
		}
		if id, used := j.epochs[e.Epoch]; used {
			j.fail("I1: epoch %x is granted to %s, and was to %s", e.Epoch, e.CommandID, id)
		}
		for epoch, id := range j.epochs {
			if epoch > e.Epoch {
				j.fail("I1: epoch %x follows %x", e.Epoch, epoch)
			}
			if string(id) == e.CommandID && !j.lost {
				j.fail("I1: %s is granted twice", id)
			}
		}
		j.epochs[e.Epoch] = ledger.ClaimID(e.CommandID)
	}
	if g := s.answer.Grant; g != nil && j.epochs[g.Epoch] != ledger.ClaimID(idOf(s.cmd)) {
		j.fail("I1: epoch %x is shown to another than its holder", g.Epoch)
	}
}

// i2: a grant follows only a new key or RECEIVED; anything but READ comes back to RECEIVED by proof, evidence, a person or a regrant.
func (j *judge) i2(s step) {
	effect := max(s.before.Terms.Effect, s.contract.Effect)
	for i := range s.fresh {
		e := &s.fresh[i]
		switch {
		case e.Kind == ledger.EventGranted && e.FromState != 0 && e.FromState != ledger.Received:
			j.fail("I2: granted from %s", e.FromState)
		case e.ToState != ledger.Received || e.FromState != ledger.Processing && e.FromState != ledger.Unknown || effect == ledger.Read:
		case e.Kind == ledger.EventNotExecuted && string(s.before.Grant.ClaimID) == e.CommandID:
		case e.Kind == ledger.EventEvidence, e.Kind == ledger.EventResolved:
		case e.Kind == ledger.EventRegranted && s.contract.Method == ledger.MethodRegrant && effect != ledger.Unsafe:
		default:
			j.fail("I2: %s brought it from %s back to RECEIVED", e.Kind, e.FromState)
		}
	}
}

// i3: a final state never changes, but into RETIRED.
func (j *judge) i3(s step) {
	if s.before.State != ledger.Completed && s.before.State != ledger.Failed || s.after.State == ledger.Retired {
		return
	}
	type outcome struct {
		State   ledger.State
		Result  *ledger.Result
		Failure *ledger.Failure
		Time    time.Time
	}
	was := outcome{s.before.State, s.before.Result, s.before.Failure, s.before.FinalTime}
	if d := cmp.Diff(was, outcome{s.after.State, s.after.Result, s.after.Failure, s.after.FinalTime}); d != "" {
		j.fail("I3: an outcome has changed:\n%s", d)
	}
}

// i4: identity and fingerprint never change; a conflict changes nothing, not one byte.
func (j *judge) i4(s step) {
	if s.before.Sequence == 0 {
		return
	}
	b, a := s.before, s.after
	if b.ID != a.ID || b.KeyHash != a.KeyHash || !reflect.DeepEqual(b.Fingerprint, a.Fingerprint) || !b.CreateTime.Equal(a.CreateTime) || b.Scope != a.Scope {
		j.fail("I4: what is written once has changed")
	}
	claim, ok := s.cmd.(ledger.Claim)
	if !ok || claim.Fingerprint.Digest == b.Fingerprint.Digest || b.State == ledger.Retired {
		return
	}
	if !errors.Is(s.err, ledger.ErrFingerprintConflict) || !reflect.DeepEqual(b, a) || len(s.fresh) > 0 {
		j.fail("I4: a conflict in %s is answered %v, changed: %s", b.State, s.err, cmp.Diff(b, a))
	}
}

// i5: of an operation with a subject, whoever shows no proof of a grant learns nothing.
func (j *judge) i5(s step) {
	if len(j.r.subject) == 0 || idOf(s.cmd) != string(claimID("nobody")) {
		return
	}
	if !errors.Is(s.err, ledger.ErrOperationNotFound) {
		j.fail("I5: a stranger learns %+v, %v", s.answer, s.err)
	}
}

// i6: while a person has it, automation starts no call to the target and moves no state.
func (j *judge) i6(s step) {
	if s.before.Custody != ledger.Operator || s.before.State.Final() {
		return
	}
	switch s.cmd.(type) {
	case ledger.TakeOver, ledger.HandBack, ledger.Resolve, ledger.Approve:
		return
	}
	moved := s.after.State != s.before.State && !s.has(ledger.EventQuarantined)
	if moved || s.after.Custody != ledger.Operator || s.after.Custodian != s.before.Custodian || s.answer.Grant != nil || s.answer.CheckNumber != 0 {
		j.fail("I6: %T moved what a person has: %s to %s", s.cmd, s.before.State, s.after.State)
	}
}

// i7: every sequence number has exactly one event; the chain verifies; without an event only Renew changes anything.
func (j *judge) i7(s step) {
	if uint64(len(s.events)) != s.after.Sequence || uint64(len(s.fresh)) != s.after.Sequence-s.before.Sequence {
		j.fail("I7: sequence %d with %d events", s.after.Sequence, len(s.events))
	}
	if len(s.fresh) > 0 {
		if err := ledger.VerifyChain(s.events, s.after.LastHash); err != nil {
			j.fail("I7: %v", err)
		}
	}
	if _, renew := s.cmd.(ledger.Renew); !renew && len(s.fresh) == 0 && !reflect.DeepEqual(s.before, s.after) {
		j.fail("I7: changed without an event: %s", cmp.Diff(s.before, s.after))
	}
}

// i8: the same command again, at once, does nothing.
func (j *judge) i8(cmd ledger.Command, before, after *ledger.Operation, fresh []ledger.Event) {
	if len(fresh) > 0 || !reflect.DeepEqual(before, after) {
		j.fail("I8: %T sent again left %d events:\n%s", cmd, len(fresh), cmp.Diff(before, after))
	}
}

// i8Late: a report or decision that has left an event is not applied again, however late its copy comes.
func (j *judge) i8Late(cmd ledger.Command, history, fresh []ledger.Event) {
	var kind ledger.CommandKind
	switch c := cmd.(type) {
	case ledger.Complete:
		kind = ledger.KindComplete
	case ledger.MarkUnknown:
		kind = ledger.KindMarkUnknown
	case ledger.TakeOver:
		kind = ledger.KindTakeOver
	case ledger.HandBack:
		kind = ledger.KindHandBack
	case ledger.Resolve:
		kind = ledger.KindResolve
	case ledger.Approve:
		kind = ledger.KindApprove
	case ledger.CheckNow:
		kind = ledger.KindCheckNow
	case ledger.Reconcile:
		kind = ledger.KindReconcile
	case ledger.Claim:
		j.granted(c, fresh, history)
		return
	default:
		return
	}
	left := false
	for i := range history {
		left = left || history[i].Command == kind && history[i].CommandID == idOf(cmd)
	}
	for len(fresh) > 0 && fresh[0].CommandID == "" { // the row was brought up to date first: rewritten, a kept success applied
		fresh = fresh[1:]
	}
	if _, complete := cmd.(ledger.Complete); complete && left { // other content under the same claim_id is another report
		left = len(fresh) == 0 || fresh[0].CommandDigest == digestUnder(history, kind, idOf(cmd), fresh[0].CommandDigest)
	}
	if left && len(fresh) > 0 {
		j.fail("I8: a late copy of %T left %s", cmd, fresh[0].Kind)
	}
}

func digestUnder(history []ledger.Event, kind ledger.CommandKind, id, digest string) string {
	for i := range history {
		if history[i].Command == kind && history[i].CommandID == id && history[i].CommandDigest == digest {
			return digest
		}
	}
	return ""
}

// granted: a delayed copy of a Claim never gets a second epoch.
func (j *judge) granted(c ledger.Claim, fresh, history []ledger.Event) {
	had := false
	for i := range history {
		had = had || history[i].Kind == ledger.EventGranted && history[i].CommandID == string(c.ClaimID)
	}
	for i := range fresh {
		if had && fresh[i].Kind == ledger.EventGranted {
			j.fail("I8: a late copy of a Claim is granted again")
		}
	}
}

// i9: what is unsettled, queued, held or contradicted is never retired.
func (j *judge) i9(s step) {
	if s.has(ledger.EventRetired) && (s.before.State != ledger.Completed && s.before.State != ledger.Failed || s.before.NeedsAttention) {
		j.fail("I9: retired from %s", s.before.State)
	}
}

// i14: what contradicts stays until a person acknowledges it.
func (j *judge) i14(s step) {
	if s.has(ledger.EventContradicted) && !s.after.NeedsAttention {
		j.fail("I14: a contradiction calls nobody")
	}
	if !s.before.NeedsAttention || s.after.NeedsAttention {
		return
	}
	if n, ok := s.cmd.(ledger.Note); !ok || n.AcknowledgeThrough < s.before.Detail.AttentionSequence {
		j.fail("I14: %T makes a contradiction forgotten", s.cmd)
	}
}

// kept: a success that a worker has reported is never lost, and waits for nothing but a person or a running attempt.
func (j *judge) kept(s step) {
	k := s.before.Detail.Kept
	if k == nil {
		return
	}
	switch {
	case s.after.State == ledger.Completed:
	case s.after.Detail.Kept == nil:
		j.fail("late truth: %T loses a kept success of %s in %s", s.cmd, k.ClaimID, s.after.State)
	case s.err == nil && s.after.Custody != ledger.Operator && s.after.State != ledger.Processing:
		j.fail("late truth: after %T a kept success is not applied in %s", s.cmd, s.after.State)
	}
}

// i15: a grant that a caller sees is stored, and lets nobody send longer than the ledger counts.
func (j *judge) i15(s step) {
	g := s.answer.Grant
	if g != nil && (s.after.Grant.Epoch != g.Epoch || string(s.after.Grant.ClaimID) != idOf(s.cmd) || g.Lease > 0 && g.Lease > s.after.Grant.LeaseUntil.Sub(s.now.Add(s.set))) {
		j.fail("I15: the grant that was answered is not the one that is stored")
	}
	window := s.answer.SendWithin
	if g != nil {
		window = g.SendWithin
	}
	for _, a := range j.r.attempts {
		if window > 0 && string(a.id) == idOf(s.cmd) && s.now.Add(window).After(a.window) {
			j.fail("I15: a send window of %s is answered, and ends in %s", window, a.window.Sub(s.now))
		}
	}
}

// i16: a true outcome is never refused.
func (j *judge) i16(s step) {
	switch s.cmd.(type) {
	case ledger.Complete, ledger.MarkUnknown:
	default:
		return
	}
	absent := s.before == nil || s.before.State == ledger.Retired
	hidden := len(j.r.subject) > 0 && errors.Is(s.err, ledger.ErrOperationNotFound)
	if s.err != nil && !absent && !hidden {
		j.fail("I16: a report is refused: %v", s.err)
	}
}
