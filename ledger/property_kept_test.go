// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// TestKeptSuccessIsNeverLost begins where an earlier attempt of an UNSAFE operation has succeeded after all, since its owner's bound is not true, while
// another attempt runs: that success is kept. Whatever follows, failovers, people and late findings, it is applied once nothing runs and no person
// has it, and is never denied.
func TestKeptSuccessIsNeverLost(t *testing.T) {
	steadyRapid(t, 1500)
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		r.keepSuccess()
		for range 3 + below(t, "steps", 20) {
			r.act()
		}
		r.finish()
	})
}

// keepSuccess brings a run to a kept success beside a running attempt.
func (r *run) keepSuccess() {
	c := r.c
	c.Effect, c.Method, c.Repeat, c.EffectWithin = ledger.Unsafe, ledger.MethodProbe, ledger.RepeatAllowed, time.Second
	c.SendWithin, c.MaxAttempts, c.StickyAnswers = 30*time.Second, 5, below(r.t, "sticky answers", 2) == 0
	r.contract(c)
	r.target.class, r.target.sticky, r.judge.untrue = c.Effect, c.StickyAnswers, true
	first, second := &attempt{id: claimID("first"), worker: "worker", quiet: true}, &attempt{id: claimID("second"), worker: "worker", quiet: true}
	r.attempts = append(r.attempts, first, second)
	r.claimFor(first)
	_, _ = r.do(ledger.MarkUnknown{ClaimID: first.id, Actor: scriptWorker, Cause: ledger.CauseTimeout})
	r.pass(minute)
	check, _ := r.do(ledger.BeginCheck{Actor: scriptLoop})
	r.judge.began[check.CheckNumber] = r.sys.now()
	_, _ = r.do(ledger.Reconcile{CommandID: r.newCommand(), Actor: scriptLoop, CheckNumber: check.CheckNumber, Evidence: ledger.Evidence{Finding: ledger.NotFound}})
	r.claimFor(second)
	r.target.effects = append(r.target.effects, landing{attempt: first, resource: "ch_1", visible: r.sys.now()})
	_, _ = r.do(ledger.Complete{ClaimID: first.id, Actor: scriptWorker, Succeeded: chargeResult("ch_1")})
	if op, _ := r.sys.read(r.id); op == nil || op.State != ledger.Processing || op.Detail.Kept == nil {
		r.t.Fatalf("no success is kept: %+v", op)
	}
}

func (r *run) claimFor(a *attempt) {
	_, _ = r.do(ledger.Claim{
		Key: r.key, ClaimID: a.id, WorkerID: a.worker, Actor: scriptWorker, Fingerprint: scriptFingerprint("request"), SubjectDigest: r.subject,
		ToolAllowed: true, IntentTime: shelfBegins,
	})
}
