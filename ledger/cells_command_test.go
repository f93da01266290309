// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

func cellCommand(c cell, op *ledger.Operation) ledger.Command {
	version := uint64(0)
	if op != nil {
		version = op.Version
	}
	switch c.command {
	case "claim", "claim-other":
		claim := ledger.Claim{
			Key: cellKey, ClaimID: c.id(), WorkerID: "worker-1", Actor: agent, Fingerprint: cellFingerprint(1), ToolAllowed: true, IntentTime: cellNow,
		}
		switch c.table {
		case "other-worker":
			claim.WorkerID = "worker-2"
		case "revoked":
			claim.ToolAllowed = false
		case "reserve":
			claim.Reserve = true
		case "too-old", "too-old-read": // what it may have left has just been forgotten
			claim.IntentTime = cellNow.Add(5*time.Minute - 9600*time.Hour)
		}
		if c.command == "claim-other" {
			claim.Fingerprint = cellFingerprint(2)
		}
		if op != nil {
			claim.Compensates, claim.Corrects = op.Compensates, op.Corrects
		}
		return claim
	case "start":
		return ledger.Start{ClaimID: c.id(), Actor: agent, ToolAllowed: c.table != "revoked"}
	case "renew":
		return ledger.Renew{ClaimID: c.id(), Actor: agent}
	case "succeeded":
		result := charge
		result.Code = "accepted"
		if c.table == "other-resource" {
			result.Resource.ID = "ch_2"
		}
		return ledger.Complete{ClaimID: c.id(), Actor: agent, Succeeded: &result}
	case "rejected":
		failure := refused
		if c.table == "other-failure" {
			failure.Code = "expired_card"
		}
		return ledger.Complete{ClaimID: c.id(), Actor: agent, Rejected: &failure, SentExactlyOnce: c.table != "sent-twice"}
	case "not-executed":
		kind := ledger.NeverSent
		if c.table == "sent-twice" {
			kind = ledger.RefusedBeforeAcceptance
		}
		return ledger.Complete{ClaimID: c.id(), Actor: agent, NotExecuted: &ledger.NotExecuted{Kind: kind}}
	case "mark-unknown":
		return ledger.MarkUnknown{ClaimID: c.id(), Actor: agent, Cause: ledger.CauseTimeout}
	case "cancel":
		return ledger.Cancel{ClaimID: c.id(), Actor: agent}
	case "check":
		return ledger.BeginCheck{Actor: recovery}
	case "regrant":
		return ledger.Regrant{Actor: recovery}
	case "expire":
		return ledger.Expire{Actor: recovery}
	case "retire":
		return ledger.Retire{Actor: recovery, Referenced: c.table == "referenced"}
	}
	if isEvidence(c.command) {
		r := ledger.Reconcile{CommandID: commandID, Actor: reconciler, Evidence: cellEvidence(c)}
		if op != nil && op.Check.Open && c.table != "unasked" {
			r.CheckNumber = op.Check.Number
		}
		return r
	}
	if inspection, ok := strings.CutPrefix(c.command, "inspect-"); ok {
		return ledger.Inspect{Actor: recovery, Outcome: inspections[inspection], Current: ledger.ResourceRef{Type: "charge", ID: "ch_1", Version: "2"}}
	}
	return personsCommand(c, version)
}

var inspections = map[string]ledger.Inspection{
	"unchanged": ledger.InspectUnchanged, "changed": ledger.InspectChanged, "gone": ledger.InspectGone,
	"no-version": ledger.InspectNoVersion, "indeterminate": ledger.InspectIndeterminate,
}

func cellEvidence(c cell) ledger.Evidence {
	e := ledger.Evidence{Source: "status query"}
	switch c.command {
	case "rejected-evidence":
		failure := refused
		e.Finding, e.Rejected = ledger.RejectedThere, &failure
	case "pending":
		e.Finding = ledger.PendingThere
	case "not-accepted", "not-accepted-final":
		e.Finding, e.Final = ledger.NotAccepted, c.command == "not-accepted-final"
	case "not-found":
		e.Finding = ledger.NotFound
	case "ambiguous":
		e.Finding, e.Candidates = ledger.AmbiguousThere, []ledger.ResourceRef{{ID: "ch_1"}, {ID: "ch_2"}}
	case "indeterminate":
		e.Finding, e.Cause = ledger.Indeterminate, ledger.QueryTimeout
	default:
		result := charge
		e.Finding, e.Result, e.CreateTime = ledger.FoundResource, &result, firstStart.Add(time.Minute)
		switch {
		case c.table == "other-resource":
			result.Resource.ID = "ch_2"
		case c.command == "found-different":
			e.Different = []string{"amount"}
		case c.command == "found-missing":
			e.Missing = []string{"amount"}
		case c.command == "found-older":
			e.CreateTime = firstStart.Add(-10 * time.Minute)
		}
	}
	return e
}

func personsCommand(c cell, version uint64) ledger.Command {
	resolution := ledger.Resolution{SearchTime: cellNow, Note: "searched the dashboard"}
	switch c.table {
	case "never-started":
		resolution.SearchTime = time.Time{}
	case "early-search":
		resolution.SearchTime = cellNow.Add(-11 * time.Minute)
	case "stale-version":
		version--
	}
	switch c.command {
	case "take-over":
		return ledger.TakeOver{CommandID: commandID, Actor: person, ExpectedVersion: version, Reason: "on call"}
	case "hand-back":
		return ledger.HandBack{CommandID: commandID, Actor: person, ExpectedVersion: version, Reason: "on call"}
	case "check-now":
		return ledger.CheckNow{CommandID: commandID, Actor: person, Reason: "target is back"}
	case "note":
		return ledger.Note{CommandID: commandID, Actor: person, Text: "asked the owner"}
	case "approve", "approve-reject":
		return ledger.Approve{CommandID: commandID, Actor: second, ExpectedVersion: version, Approved: c.command == "approve", Note: "looked at it"}
	case "resolve-happened":
		result := charge
		resolution.Happened = &result
	case "resolve-retry":
		resolution.NeverHappenedTry = &ledger.NotExecuted{Kind: ledger.AbsentAtTarget}
	case "resolve-stop":
		resolution.NeverHappenedEnd = &ledger.Failure{Kind: ledger.Abandoned}
	default:
		panic("no such command: " + c.command)
	}
	return ledger.Resolve{CommandID: commandID, Actor: person, ExpectedVersion: version, Resolution: resolution}
}
