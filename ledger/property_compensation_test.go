// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// TestCompensationNeedsItsOriginal judges I10: whatever happens to both in whatever order, a compensation goes out only while its original is
// COMPLETED, past its settle time, not contradicted, and seen unchanged lately, or a person has waived that once. A repeat in doubt is excepted.
func TestCompensationNeedsItsOriginal(t *testing.T) {
	steadyRapid(t, 2000)
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		for _, first := range []string{"claim original", "succeed", "advance", "advance", "claim", "inspect", "claim"}[:below(t, "prelude", 8)] {
			p.act(first)
		}
		for range 5 + below(t, "steps", 31) {
			p.act(oneOf(t, "action", pairActions))
		}
	})
}

// pair is an original and what compensates it.
type pair struct {
	t                *rapid.T
	sys              decideSystem
	original, undo   ledger.Key
	claims, commands int
	cleared          time.Time // when the resource was last seen unchanged
	waived, used     bool
}

func newPair(t *rapid.T) *pair {
	c := ledger.DefaultContract("payments.charge")
	c.Effect, c.Method, c.EffectWithin, c.KeyRetention, c.VerifyStated = ledger.Keyed, ledger.MethodProbe, time.Minute, 24*time.Hour, true
	u := c
	u.Tool = "payments.refund"
	return &pair{
		t: t, sys: decideSystem{shelf: newShelf(), contracts: declared{c.Tool: c, u.Tool: u}},
		original: ledger.Key{Scope: "team", Tool: c.Tool, Task: "task-1", Key: "charge-1"},
		undo:     ledger.Key{Scope: "team", Tool: u.Tool, Task: "task-1", Key: "refund-1"},
	}
}

var pairActions = []string{
	"advance", "advance", "claim original", "succeed", "contradict", "acknowledge", "claim", "claim", "claim", "start", "start", "inspect", "inspect", "inspect changed",
	"approve", "approve", "not executed", "take over", "hand back", "hand back", "look again", "unknown",
}

func (p *pair) act(action string) {
	original, undo := p.original.Hash().OperationID(), p.undo.Hash().OperationID()
	by := ledger.Actor{Kind: ledger.ActorPerson, Name: oneOf(p.t, "person", []ledger.Principal{"ops-a", "ops-b"})}
	p.commands++
	id := ledger.CommandID(scriptID(string(rune(p.commands))))
	version := func(of ledger.OperationID) uint64 { return p.sys.ops[of].Version }
	switch action {
	case "advance":
		p.sys.advance(oneOf(p.t, "for", []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 45 * time.Second, 90 * time.Second}))
	case "claim original":
		p.do(original, p.claim(p.original, ledger.OperationID{}))
	case "succeed":
		p.do(original, ledger.Complete{ClaimID: p.sys.ops[original].Grant.ClaimID, Actor: scriptWorker, Succeeded: chargeResult("ch_1")})
	case "contradict":
		p.do(original, ledger.Reconcile{CommandID: id, Actor: scriptProbe, Evidence: ledger.Evidence{Finding: ledger.FoundResource, Result: chargeResult("ch_2")}})
	case "acknowledge":
		p.do(original, ledger.Note{CommandID: id, Actor: by, Text: "seen", AcknowledgeThrough: p.sys.ops[original].Sequence})
	case "claim":
		p.do(undo, p.claim(p.undo, original))
	case "start":
		p.do(undo, ledger.Start{ClaimID: p.sys.ops[undo].Grant.ClaimID, Actor: scriptWorker, ToolAllowed: true})
	case "inspect":
		p.do(undo, ledger.Inspect{Actor: scriptLoop, Outcome: ledger.InspectUnchanged, Current: chargeResult("ch_1").Resource})
	case "inspect changed":
		p.do(undo, ledger.Inspect{Actor: scriptLoop, Outcome: ledger.InspectChanged, Current: chargeResult("ch_1").Resource})
	case "approve":
		p.do(undo, ledger.Approve{CommandID: id, Actor: by, ExpectedVersion: version(undo), Approved: true, Note: "it is fine"})
	case "not executed":
		p.do(undo, ledger.Complete{ClaimID: p.sys.ops[undo].Grant.ClaimID, Actor: scriptWorker, NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent}})
	case "take over":
		p.do(undo, ledger.TakeOver{CommandID: id, Actor: by, ExpectedVersion: version(undo), Reason: "on call"})
	case "hand back":
		p.do(undo, ledger.HandBack{CommandID: id, Actor: by, ExpectedVersion: version(undo), Reason: "done"})
	case "look again":
		p.do(undo, ledger.CheckNow{CommandID: id, Actor: by, Reason: "look again"})
	case "unknown":
		p.do(undo, ledger.MarkUnknown{ClaimID: p.sys.ops[undo].Grant.ClaimID, Actor: scriptWorker, Cause: ledger.CauseTimeout})
	}
}

func (p *pair) claim(key ledger.Key, compensates ledger.OperationID) ledger.Claim {
	p.claims++
	return ledger.Claim{
		Key: key, ClaimID: claimID(string(rune('a' + p.claims))), WorkerID: "worker", Actor: scriptWorker, Fingerprint: scriptFingerprint("r"), ToolAllowed: true,
		IntentTime: shelfBegins, Compensates: compensates, Reserve: below(p.t, "reserve", 2) == 1,
	}
}

func (p *pair) do(id ledger.OperationID, cmd ledger.Command) {
	if _, claims := cmd.(ledger.Claim); !claims && p.sys.ops[id].State == 0 {
		return
	}
	if c, ok := cmd.(ledger.Claim); ok && !c.Compensates.IsZero() && p.sys.ops[c.Compensates].State == 0 {
		return // the caller can't see what does not exist
	}
	_, history := p.sys.read(id)
	_, err := p.sys.apply(id, cmd)
	op, events := p.sys.read(id)
	p.t.Logf("%s %T: %v", p.sys.now().Format("15:04:05"), cmd, err)
	if id == p.undo.Hash().OperationID() {
		for i := range events[len(history):] {
			p.judge(op, &events[len(history)+i])
		}
	}
}

func (p *pair) judge(undo *ledger.Operation, e *ledger.Event) {
	switch {
	case e.Kind == ledger.EventCleared:
		p.cleared = e.Time
	case e.Kind == ledger.EventApproval && e.Facts["decision"] == "approved":
		p.waived = true
	case e.Kind == ledger.EventTakenOver: // it ends every permission to act
		p.cleared, p.waived, p.used = time.Time{}, false, false
	case e.Kind == ledger.EventNotExecuted: // it gives back what its grant used up
		p.waived = p.waived || p.used
	}
	if e.Kind == ledger.EventGranted {
		defer func() { p.used, p.waived = p.waived, false }()
	}
	if e.Kind != ledger.EventGranted && e.Kind != ledger.EventStarted || undo.MayHaveApplied {
		return
	}
	now := p.sys.now()
	original := p.sys.ops[p.original.Hash().OperationID()]
	contract, _ := p.sys.contracts.Contract(p.original.Tool)
	switch settle := ledger.Stand(&original, contract, now).SettleTime; {
	case original.State != ledger.Completed:
		p.t.Fatalf("I10: %s while its original is %s", e.Kind, original.State)
	case original.NeedsAttention:
		p.t.Fatalf("I10: %s while its original is contradicted", e.Kind)
	case settle.After(now):
		p.t.Fatalf("I10: %s before its original's settle time", e.Kind)
	case e.Kind == ledger.EventGranted && !p.waived && now.Sub(p.cleared) >= 30*time.Second:
		p.t.Fatalf("I10: %s, and the resource was last seen unchanged at %s", e.Kind, p.cleared)
	}
}
