// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// The recovery loop, any number of instances.

func (r *run) beginCheck() {
	answer, err := r.do(ledger.BeginCheck{Actor: scriptLoop})
	if err == nil && answer.CheckNumber != 0 {
		r.checks = append(r.checks, &modelCheck{number: answer.CheckNumber, began: r.sys.now()})
		r.judge.began[answer.CheckNumber] = r.sys.now()
		if r.often() {
			r.ask()
		}
	}
}

// ask: the target is queried at some time after the check began. What it says may wait.
func (r *run) ask() {
	for _, c := range slices.Backward(r.checks) {
		if c.asked == nil {
			e := r.query()
			c.asked = &e
			r.moves++
			if r.often() {
				r.answer()
			}
			return
		}
	}
}

// answer brings any finding that waits, also an old one.
func (r *run) answer() {
	var waiting []*modelCheck
	for _, c := range r.checks {
		if c.asked != nil {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) == 0 {
		return
	}
	c := waiting[len(waiting)-1]
	if below(r.t, "an old one", 4) == 0 {
		c = oneOf(r.t, "answer", waiting)
	}
	r.names++
	_, _ = r.do(ledger.Reconcile{CommandID: r.newCommand(), Actor: scriptLoop, CheckNumber: c.number, Evidence: *c.asked})
	r.checks = slices.DeleteFunc(r.checks, func(o *modelCheck) bool { return o == c })
}

// evidence that comes by itself.
func (r *run) evidence() {
	_, _ = r.do(ledger.Reconcile{CommandID: r.newCommand(), Actor: scriptProbe, Evidence: r.query()})
}

// query is an honest answer of the target's status query, or none.
func (r *run) query() ledger.Evidence {
	now := r.sys.now()
	e := ledger.Evidence{Source: "status query"}
	effects, rejections := r.target.seen(now, true)
	said := below(r.t, "said", 10)
	switch {
	case said == 0:
		e.Finding, e.Cause = ledger.Indeterminate, ledger.QueryTimeout
	case r.told && below(r.t, "the index lags", 3) == 0:
		e.Finding = ledger.NotFound
	case len(effects) > 1 || len(effects) > 0 && len(rejections) > 0:
		e.Finding = ledger.AmbiguousThere
		e.Candidates = []ledger.ResourceRef{chargeResult(effects[0].resource).Resource}
	case len(effects) == 1:
		e.Finding, e.Result, e.CreateTime = ledger.FoundResource, chargeResult(effects[0].resource), shelfBegins
		if said == 1 {
			e.Missing = []string{"amount"}
		}
	case len(rejections) > 0:
		e.Finding, e.Rejected = ledger.RejectedThere, &ledger.Failure{Kind: ledger.Declined, Code: rejections[0].code}
	case said < 3 && len(r.target.flying) > 0:
		e.Finding = ledger.PendingThere
	case said < 6:
		e.Finding = ledger.NotAccepted
		if said == 3 && len(r.target.effects) == 0 {
			e.Final, r.target.refuses = true, true
		}
	default:
		e.Finding = ledger.NotFound
	}
	return e
}

func (r *run) regrant() { _, _ = r.do(ledger.Regrant{Actor: scriptLoop}) }

func (r *run) housekeeping() {
	_, _ = r.do(oneOf(r.t, "command", []ledger.Command{
		ledger.Expire{Actor: scriptLoop}, ledger.Retire{Actor: scriptLoop}, ledger.Retire{Actor: scriptLoop, Referenced: true}, ledger.Inspect{Actor: scriptLoop, Outcome: ledger.InspectUnchanged},
	}))
}

// People. They are honest about what they saw, and in a hurry.

var people = []ledger.Actor{{Kind: ledger.ActorPerson, Name: "ops-a"}, {Kind: ledger.ActorPerson, Name: "ops-b"}}

func (r *run) newCommand() ledger.CommandID {
	r.names++
	return ledger.CommandID(scriptID(fmt.Sprintf("command-%d", r.names)))
}

// version that a person looked at: mostly the present one.
func (r *run) version() uint64 {
	op, _ := r.sys.read(r.id)
	if op == nil {
		return 0
	}
	if below(r.t, "stale", 10) == 0 && op.Version > 0 {
		return op.Version - 1
	}
	return op.Version
}

func (r *run) person() ledger.Actor { return oneOf(r.t, "person", people) }

// custodian is mostly whoever has it.
func (r *run) custodian() ledger.Actor {
	op, _ := r.sys.read(r.id)
	if op != nil && op.Custodian == people[1].Name {
		return people[1]
	}
	return people[0]
}

func (r *run) takeOver() {
	_, err := r.do(ledger.TakeOver{CommandID: r.newCommand(), Actor: r.person(), ExpectedVersion: r.version(), Reason: "on call"})
	if err == nil && r.often() {
		r.advance()
		r.look()
	}
}

// look: the view is read, then the target is searched, by eye and not by key.
func (r *run) look() {
	effects, _ := r.target.seen(r.sys.now(), false)
	r.views = append(r.views, modelView{at: r.sys.now(), shown: r.shelf.shown(), effects: effects})
	r.moves++
	if r.often() {
		r.resolve()
	}
}

func (r *run) resolve() {
	if len(r.views) == 0 {
		return
	}
	view := r.views[len(r.views)-1]
	if len(r.views) > 1 && below(r.t, "an old view", 5) == 0 {
		view = r.views[len(r.views)-2]
	}
	res := ledger.Resolution{SearchTime: view.shown, Note: "searched the dashboard at " + view.at.Format(time.RFC3339Nano)}
	switch {
	case len(view.effects) > 0:
		res.Happened = chargeResult(view.effects[0].resource)
	case below(r.t, "retry", 2) == 1:
		res.NeverHappenedTry = &ledger.NotExecuted{Kind: ledger.AbsentAtTarget}
	default:
		res.NeverHappenedEnd = &ledger.Failure{Kind: ledger.Abandoned}
	}
	_, _ = r.do(ledger.Resolve{CommandID: r.newCommand(), Actor: r.custodian(), ExpectedVersion: r.version(), Resolution: res})
}

func (r *run) secondPerson() {
	approved := below(r.t, "approved", 4) > 0
	_, _ = r.do(ledger.Approve{CommandID: r.newCommand(), Actor: r.person(), ExpectedVersion: r.version(), Approved: approved, Note: "looked, too"})
}

func (r *run) handBack() {
	_, _ = r.do(ledger.HandBack{CommandID: r.newCommand(), Actor: r.custodian(), ExpectedVersion: r.version(), Reason: "done"})
}

func (r *run) checkNow() {
	_, _ = r.do(ledger.CheckNow{CommandID: r.newCommand(), Actor: r.person(), Reason: "the target is back"})
}

func (r *run) note() {
	through := uint64(below(r.t, "through", 61))
	_, _ = r.do(ledger.Note{CommandID: r.newCommand(), Actor: r.person(), Text: "asked the owner", AcknowledgeThrough: through})
}

// correct the contract. What it states stays true of the target: bounds are never below the truth. An effect class that it loosens is the
// owner's error, and does not count for what is recorded; one that it tightens counts at once.
func (r *run) correct() {
	c := r.c
	switch below(r.t, "what", 6) {
	case 0:
		c.Effect = oneOf(r.t, "effect", []ledger.Effect{ledger.Read, ledger.Idempotent, ledger.Keyed, ledger.Unsafe})
		if op, _ := r.sys.read(r.id); op == nil { // nothing is recorded yet: the class must be true
			c.Effect = max(c.Effect, r.target.class)
		}
		if c.Effect == ledger.Keyed && r.target.class < ledger.Keyed { // a target can't begin to deduplicate what it has taken
			c.Effect = ledger.Unsafe
		}
	case 1:
		c.EffectWithin = oneOf(r.t, "effect_within", []time.Duration{0, r.truth, 3 * r.truth})
	case 2:
		if c.KeyRetention > minute {
			c.KeyRetention /= 2
		}
	case 3:
		c.Method = oneOf(r.t, "method", []ledger.Method{ledger.MethodProbe, ledger.MethodRegrant, ledger.MethodOperator})
	case 4:
		c.Repeat = oneOf(r.t, "repeat", []ledger.Repeat{ledger.RepeatDefault, ledger.RepeatAllowed, ledger.RepeatForbidden})
	default:
		c.SecondPerson = !c.SecondPerson
	}
	r.contract(c)
}
