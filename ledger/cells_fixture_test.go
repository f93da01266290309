// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"slices"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// situation is everything that a cell's decision sees.
type situation struct {
	op       *ledger.Operation
	related  ledger.Related
	command  ledger.Command
	contract ledger.Contract
}

const (
	holderID   = ledger.ClaimID("5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b01")
	earlierID  = ledger.ClaimID("5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b02")
	strangerID = ledger.ClaimID("5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b03")
	commandID  = ledger.CommandID("5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b04")

	cellWindow = 30 * time.Second // lease and send window
	cellEpoch  = uint64(1) << 32
	cellCheck  = uint64(1) << 16
)

var (
	cellNow    = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	firstStart = cellNow.Add(-time.Hour)
	cellKey    = ledger.Key{Scope: "team", Tool: "payments.charge", Task: "task-1", Key: "charge-1"}
	charge     = ledger.Result{Resource: ledger.ResourceRef{Type: "charge", ID: "ch_1", Version: "1"}, Code: "created"}
	refused    = ledger.Failure{Kind: ledger.Declined, Code: "card_declined"}
	agent      = ledger.Actor{Kind: ledger.ActorWorker, Name: "agent-a"}
	reconciler = ledger.Actor{Kind: ledger.ActorReconciler, Name: "reconciler"}
	recovery   = ledger.Actor{Kind: ledger.ActorRecovery, Name: "recovery-1"}
	person     = ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-a"}
	second     = ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-b"}
)

func situate(c cell) situation {
	s := situation{contract: cellContract(c), related: ledger.Related{Timeline: 1}}
	s.op = cellOperation(c, s.contract)
	switch c.table {
	case "older-timeline":
		s.related.Timeline = 2
	case "watermark", "watermark-no-method", "watermark-read":
		s.related.Watermark = ledger.Watermark{At: cellNow, LostSince: firstStart}
	case "paused":
		s.related.ToolPaused = true
	case "dependency-retired", "dependency-retired-failed":
		dependency := cellOperation(cell{state: "RETIRED", table: c.table}, s.contract)
		dependency.ID[0]++
		s.related.Dependencies = []ledger.Operation{*dependency}
	case "approval", "resource-changed", "inspect", "not-cleared", "cleared", "original-contradicted":
		original := cellOperation(cell{state: "COMPLETED"}, s.contract)
		original.ID[0]++
		original.Grant.SendUntil, original.LastSend = firstStart, firstStart
		original.NeedsAttention = c.table == "original-contradicted"
		s.related.Original = original
		if s.op != nil && c.table == "approval" {
			s.op.Corrects = original.ID
		} else if s.op != nil {
			s.op.Compensates = original.ID
		}
	}
	s.related.Prior = priorEvents(c, s.op)
	s.command = cellCommand(c, s.op)
	return s
}

func cellContract(c cell) ledger.Contract {
	k := ledger.DefaultContract(cellKey.Tool)
	k.Version, k.Effect, k.Method = "5d41402abc4b2a76", ledger.Keyed, ledger.MethodProbe
	k.LeaseTotal, k.EffectWithin, k.KeyRetention, k.VerifyStated = 2*time.Hour, time.Minute, 24*time.Hour, true
	if (c.command == "expire" || c.command == "retire") && c.table != "open-windows" {
		k.RetryWindow, k.RetainCompleted = time.Minute, time.Minute
	}
	table, regrant := strings.CutPrefix(c.table, "regrant")
	if regrant {
		k.Method, table = ledger.MethodRegrant, strings.TrimPrefix(table, "-")
	}
	switch table {
	case "unsafe", "overtaken", "kept-other":
		k.Effect = ledger.Unsafe
	case "unsafe-repeat":
		k.Effect, k.Repeat = ledger.Unsafe, ledger.RepeatAllowed
	case "read", "watermark-read", "too-old-read":
		k.Effect = ledger.Read
	case "idempotent":
		k.Effect = ledger.Idempotent
	case "idempotent-early":
		k.Effect, k.EffectWithin = ledger.Idempotent, 2*time.Hour
	case "unbounded":
		k.EffectWithin = 0
	case "late":
		k.KeyRetention = 30 * time.Minute
	case "exhausted":
		k.MaxAttempts = 1
		if regrant {
			k.MaxAttempts = 2
		}
	case "not-repeated":
		k.Repeat = ledger.RepeatForbidden
	case "verify-unstated":
		k.VerifyStated = false
	case "sticky":
		k.StickyAnswers, k.RejectCodes = true, []string{refused.Code}
	case "no-method", "watermark-no-method":
		k.Method = ledger.MethodOperator
	case "mismatch":
		k.Verify = []string{"amount"}
	case "proposal":
		k.SecondPerson = true
	}
	return k
}

func cellOperation(c cell, k ledger.Contract) *ledger.Operation {
	if c.state == "absent" {
		return nil
	}
	hash := cellKey.Hash()
	op := &ledger.Operation{
		ID: hash.OperationID(), KeyHash: hash, Scope: cellKey.Scope, Principal: agent.Name, Tool: cellKey.Tool, Task: cellKey.Task,
		IntentTime: firstStart, CreateTime: firstStart, Fingerprint: cellFingerprint(1),
		Custody: ledger.Automation, Sequence: 7, Version: 5, LastHash: [32]byte{7}, Timeline: 1,
		Terms:    ledger.Terms{ContractVersion: k.Version, Effect: k.Effect, EffectWithin: k.EffectWithin, KeyRetention: k.KeyRetention},
		Attempts: 2, Starts: 2, FirstStart: firstStart, MayHaveApplied: c.doubt == "yes",
	}
	began := cellNow.Add(-10 * time.Minute)
	switch {
	case c.table == "early-check" || c.table == "window-over":
		began = cellNow.Add(-40 * time.Second)
	case c.lease == "alive":
		began = cellNow.Add(-5 * time.Second)
	}
	op.UpdateTime = began
	op.Grant = ledger.Grant{
		ClaimID: holderID, WorkerID: "worker-1", Epoch: cellEpoch + 2, Time: began, Lease: cellWindow, SendUntil: began.Add(cellWindow), Started: true,
	}
	op.LastSend = op.Grant.SendUntil
	switch c.custody {
	case "queued":
		op.Custody = ledger.Queued
	case "operator":
		op.Custody, op.Custodian = ledger.Operator, person.Name
	}
	switch c.state {
	case "RECEIVED":
		op.State = ledger.Received
		receivedCell(c, op)
	case "PROCESSING":
		op.State, op.Grant.LeaseUntil, op.NextCheckTime = ledger.Processing, op.Grant.SendUntil, op.Grant.SendUntil
	case "UNKNOWN":
		op.State = ledger.Unknown
		unknownCell(c, op)
	case "COMPLETED":
		result := charge
		op.State, op.Result, op.FinalTime, op.Detail.CompletedBy = ledger.Completed, &result, op.Grant.SendUntil, holderID
	case "FAILED":
		failure := refused
		op.State, op.Failure, op.FinalTime = ledger.Failed, &failure, op.Grant.SendUntil
		if c.table == "cancelled" {
			failure = ledger.Failure{Kind: ledger.Abandoned}
			op.Detail.Cancelled = true
		}
	case "RETIRED":
		op.State, op.FinalTime, op.Grant, op.Detail.RetiredFrom = ledger.Retired, firstStart, ledger.Grant{}, ledger.Completed
	}
	switch c.table {
	case "dependency-retired-failed":
		if c.state == "RETIRED" {
			op.Detail.RetiredFrom = ledger.Failed
		}
	case "contradicted":
		op.NeedsAttention = true
	case "window-over":
		op.Grant.LeaseUntil = cellNow.Add(20 * time.Second)
	case "seen", "over-budget":
		op.Detail.SeenThere, op.Detail.LastFinding = true, ledger.PendingThere
		if c.table == "over-budget" {
			op.Detail.BudgetSpent, op.Detail.LastAnswer = k.GiveUpAfter, cellNow.Add(-time.Minute)
		}
	case "completed-by-earlier":
		op.Detail.CompletedBy = earlierID
	case "completed-by-evidence":
		op.Detail.CompletedBy = ""
	case "another-has-it":
		op.Custodian = second.Name
	case "cleared", "original-contradicted":
		op.Detail.ClearedUntil, op.Detail.Precondition = cellNow.Add(20*time.Second), &ledger.ResourceRef{Type: "charge", ID: "ch_1", Version: "1"}
	case "kept":
		op.Detail.Kept = &ledger.KeptSuccess{ClaimID: holderID, Result: charge}
	case "overtaken", "kept-other":
		op.Detail.Kept, op.NeedsAttention = &ledger.KeptSuccess{ClaimID: earlierID, Result: charge}, true
		op.Detail.AttentionSequence = op.Sequence
	}
	return op
}

// receivedCell: reserved, a lapsed reservation, or freed, as the head of the table says.
func receivedCell(c cell, op *ledger.Operation) {
	if c.custody == "queued" {
		op.QueueReason = ledger.AttemptsExhausted
	}
	until := op.Grant.SendUntil
	showsClaim := c.who != "-" && c.table != "freed" && c.table != "released" && c.table != "resource-changed"
	if c.lease == "alive" || showsClaim || c.table == "never-started" {
		op.Starts, op.LastSend = 1, firstStart.Add(cellWindow)
		op.Grant.Started, op.Grant.SendUntil, op.Grant.LeaseUntil = false, time.Time{}, until
	}
	switch c.table {
	case "never-started":
		op.Attempts, op.Starts, op.FirstStart, op.LastSend, op.Grant.Epoch = 1, 0, time.Time{}, time.Time{}, cellEpoch+1
	case "released":
		op.Grant.Released = true
	case "approval":
		op.Attempts, op.Starts, op.FirstStart, op.LastSend, op.Grant = 0, 0, time.Time{}, time.Time{}, ledger.Grant{}
		op.Detail.Approval = &ledger.Approval{Kind: ledger.ApproveCorrection, Requester: agent.Name, ExpireTime: cellNow.Add(time.Hour)}
	case "resource-changed":
		op.QueueReason = ledger.ResourceChanged
		op.Detail.Changed = &ledger.Approval{
			Kind: ledger.ApproveChangedResource, Requester: agent.Name, ExpireTime: cellNow.Add(time.Hour),
			Resource: &ledger.ResourceRef{Type: "charge", ID: "ch_1", Version: "2"},
		}
	case "inspect", "not-cleared":
		op.NextCheckTime = cellNow.Add(-time.Second)
	}
}

// unknownCell: due where a check would be begun, else with a live check.
func unknownCell(c cell, op *ledger.Operation) {
	if c.custody == "queued" {
		op.QueueReason = ledger.GaveUp
		if c.table == "no-method" {
			op.QueueReason = ledger.NoMethod
		}
	}
	if c.custody != "automation" {
		return
	}
	op.NextCheckTime = cellNow.Add(-time.Second)
	if isEvidence(c.command) {
		op.NextCheckTime = cellNow.Add(20 * time.Second)
		op.Check = ledger.Check{Number: cellCheck + 1, Began: cellNow.Add(-10 * time.Second), LeaseUntil: op.NextCheckTime, Open: true}
	}
}

func isEvidence(command string) bool {
	return slices.Contains([]string{
		"rejected-evidence", "pending", "not-accepted", "not-accepted-final", "not-found", "ambiguous", "indeterminate",
	}, command) || strings.HasPrefix(command, "found")
}

func cellFingerprint(b byte) ledger.Fingerprint {
	return ledger.Fingerprint{
		Spec: 1, SecretID: "s1", Contract: "5d41402abc4b2a76", Digest: [32]byte{b}, Categories: map[string]ledger.CategoryDigest{"amount": {b}},
	}
}

// priorEvents is what the history has under the cell's claim_id.
func priorEvents(c cell, op *ledger.Operation) []ledger.Event {
	if op == nil || op.Attempts == 0 {
		return nil
	}
	event := func(sequence uint64, command ledger.CommandKind, kind ledger.EventKind, epoch uint64, digest string) ledger.Event {
		return ledger.Event{
			OperationID: op.ID, Sequence: sequence, Version: sequence, Epoch: epoch, Command: command, CommandID: string(c.id()), CommandDigest: digest,
			Time: firstStart, ActorKind: agent.Kind, Actor: agent.Name, Kind: kind, FromState: ledger.Received, ToState: ledger.Processing,
		}
	}
	switch c.who {
	case "earlier":
		return []ledger.Event{event(1, ledger.KindClaim, ledger.EventGranted, cellEpoch+1, "")}
	case "holder":
		events := []ledger.Event{event(3, ledger.KindClaim, ledger.EventGranted, cellEpoch+2, "")}
		// Other content than what is sent now, so that the cell is decided and not found done.
		const other = "00000000000000000000000000000000"
		switch {
		case c.state == "COMPLETED":
			events = append(events, event(4, ledger.KindComplete, ledger.EventCompleted, cellEpoch+2, other))
		case c.state == "FAILED" && c.table != "cancelled":
			events = append(events, event(4, ledger.KindComplete, ledger.EventFailed, cellEpoch+2, other))
		case c.table == "released":
			events = append(events, event(4, ledger.KindComplete, ledger.EventNotExecuted, cellEpoch+2, other))
		}
		return events
	}
	return nil
}

// id is the claim_id that the cell's command shows.
func (c cell) id() ledger.ClaimID {
	switch c.who {
	case "holder":
		return holderID
	case "earlier":
		return earlierID
	case "nobody":
		return ""
	default:
		return strangerID
	}
}
