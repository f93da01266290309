// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Workers.

func (r *run) claim() {
	if len(r.attempts) > 8 {
		return
	}
	a := &attempt{
		id: claimID(fmt.Sprintf("claim-%d", len(r.attempts))), worker: "worker",
		reserve: below(r.t, "reserve", 4) == 0,
	}
	r.attempts = append(r.attempts, a)
	r.sendClaim(a)
}

func (r *run) claimAgain() {
	if a := r.someAttempt(); a != nil {
		r.sendClaim(a)
	}
}

// sendClaim: the call may be slow, and its answer may be lost.
func (r *run) sendClaim(a *attempt) {
	sent := r.sys.now()
	if below(r.t, "slow", 4) == 0 {
		r.pass(3 * time.Second)
	}
	answer, err := r.do(ledger.Claim{
		Key: r.key, ClaimID: a.id, WorkerID: a.worker, Actor: scriptWorker, Fingerprint: scriptFingerprint("request"), SubjectDigest: r.subject,
		Reserve: a.reserve, ToolAllowed: true, IntentTime: shelfBegins,
	})
	r.learn(a, sent, answer, err)
}

// learn what a call answered, if the answer arrives.
func (r *run) learn(a *attempt, sent time.Time, answer ledger.Answer, err error) {
	lost := below(r.t, "lost", 4) == 0
	if err != nil || answer.Grant == nil || lost {
		return
	}
	if until := sent.Add(answer.Grant.SendWithin); answer.Grant.SendWithin > 0 && until.After(a.until) {
		a.until = until
		if r.often() {
			r.send()
		}
	}
}

func (r *run) start() {
	for _, a := range slices.Backward(r.attempts) {
		if a.reserve && !a.quiet {
			sent := r.sys.now()
			answer, err := r.do(ledger.Start{ClaimID: a.id, Actor: scriptWorker, ToolAllowed: true})
			r.learn(a, sent, answer, err)
			return
		}
	}
}

// send lets a request leave, within the window as the worker counts it. The transport may double it.
func (r *run) send() {
	now := r.sys.now()
	for _, a := range slices.Backward(r.attempts) {
		if !a.maySend(now) {
			continue
		}
		fates := []fate{accept, accept, accept, decline, decline, overloaded, drop, declineOddly}
		for range oneOf(r.t, "copies", []int{1, 1, 2}) {
			visible := time.Duration(below(r.t, "visible after", int(r.truth/time.Second)+1)) * time.Second
			lands := time.Duration(below(r.t, "lands after", int(visible/time.Second)+1)) * time.Second
			if below(r.t, "late", 3) == 0 { // as late as it may be
				visible, lands = r.truth, r.truth
			}
			r.target.flying = append(r.target.flying, &packet{
				attempt: a, lands: now.Add(lands), visible: now.Add(visible), fate: oneOf(r.t, "fate", fates),
				answered: below(r.t, "answered", 2) == 1,
			})
			a.copies++
		}
		r.moves++
		r.judge.i12Landed(r.target.deliver(now))
		if r.often() {
			r.pass(oneOf(r.t, "after", []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}))
			r.reportOf(a)
		}
		return
	}
}

func (r *run) report() {
	if a := r.someAttempt(); a != nil {
		r.reportOf(a)
	}
}

// reportOf: what a worker has seen, honestly. After it, the worker sends nothing.
func (r *run) reportOf(a *attempt) {
	once := a.copies == 1
	cmd := ledger.Complete{ClaimID: a.id, Actor: scriptWorker, SentExactlyOnce: once}
	give := below(r.t, "gives up", 4)
	switch {
	case a.copies == 0 && below(r.t, "never sent", 4) > 0: // it may still send
		return
	case a.resource != "":
		cmd.Succeeded = chargeResult(a.resource)
	case give == 0:
		a.quiet = true
		_, _ = r.do(ledger.MarkUnknown{ClaimID: a.id, Actor: scriptWorker, Cause: ledger.CauseTimeout})
		return
	case a.declined != "":
		cmd.Rejected = &ledger.Failure{Kind: ledger.Declined, Code: a.declined}
	case a.copies == 0:
		cmd.NotExecuted = &ledger.NotExecuted{Kind: ledger.NeverSent}
	case a.refused:
		cmd.NotExecuted = &ledger.NotExecuted{Kind: ledger.RefusedBeforeAcceptance, RetryAfter: 5 * time.Second}
	default:
		return
	}
	a.quiet = true
	_, _ = r.do(cmd)
}

func (r *run) renew() {
	if a := r.someAttempt(); a != nil {
		_, _ = r.do(ledger.Renew{ClaimID: a.id, Actor: scriptWorker, Lease: oneOf(r.t, "lease", []time.Duration{0, minute})})
	}
}

// cancel: a worker that gives up its reservation does not start it any more.
func (r *run) cancel() {
	a := r.someAttempt()
	if a == nil || a.copies > 0 {
		return
	}
	a.quiet = true
	_, _ = r.do(ledger.Cancel{ClaimID: a.id, Actor: scriptWorker})
}

// stranger shows a claim_id that never was granted. It has not sent anything, so it does not claim that it has.
func (r *run) stranger() {
	id := claimID("nobody")
	_, _ = r.do(oneOf(r.t, "command", []ledger.Command{
		ledger.Start{ClaimID: id, Actor: scriptWorker, ToolAllowed: true},
		ledger.Renew{ClaimID: id, Actor: scriptWorker},
		ledger.MarkUnknown{ClaimID: id, Actor: scriptWorker, Cause: ledger.CauseTimeout},
		ledger.Complete{ClaimID: id, Actor: scriptWorker, NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent}},
		ledger.Complete{ClaimID: id, Actor: scriptWorker, Rejected: &ledger.Failure{Kind: ledger.Invalid}, SentExactlyOnce: true},
	}))
}

func (r *run) conflict() {
	_, _ = r.do(ledger.Claim{
		Key: r.key, ClaimID: claimID("other"), WorkerID: "worker", Actor: scriptWorker, Fingerprint: scriptFingerprint("other"), SubjectDigest: r.subject,
		ToolAllowed: false, IntentTime: shelfBegins,
	})
}

func (r *run) someAttempt() *attempt {
	if len(r.attempts) == 0 {
		return nil
	}
	recent := len(r.attempts) - 1 - oneOf(r.t, "how recent", []int{0, 0, 0, 1, 2})
	return r.attempts[max(recent, 0)]
}

// lateCopy: the network delivers a command once more.
func (r *run) lateCopy() {
	if len(r.sent) == 0 {
		return
	}
	cmd := oneOf(r.t, "copy", r.sent)
	_, history := r.sys.read(r.id)
	_, _ = r.once(cmd)
	_, events := r.sys.read(r.id)
	r.judge.i8Late(cmd, history, events[len(history):])
}
