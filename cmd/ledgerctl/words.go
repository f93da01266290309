// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// final says whether nothing changes an operation any more.
func final(op *pb.Operation) bool {
	switch op.GetState() {
	case pb.State_STATE_COMPLETED, pb.State_STATE_FAILED, pb.State_STATE_RETIRED:
		return true
	}
	return false
}

// since is when an operation came into its state.
func since(v *pb.GetOperationResponse) time.Time {
	op := v.GetOperation()
	at := op.GetUpdateTime().AsTime()
	for _, e := range v.GetHistory() {
		if e.GetToState() == op.GetState() && e.GetFromState() != op.GetState() {
			at = e.GetTime().AsTime()
		}
	}
	return at
}

// answer is the first line of a view: did it happen?
func answer(v *pb.GetOperationResponse, now time.Time) string {
	op := v.GetOperation()
	ago := span(now.Sub(since(v)))
	switch op.GetState() {
	case pb.State_STATE_UNKNOWN:
		return fmt.Sprintf("UNKNOWN for %s: it may have happened. Do not retry with a new key.", ago)
	case pb.State_STATE_PROCESSING:
		if op.GetLeaseExpireTime().AsTime().After(now) {
			return fmt.Sprintf("PROCESSING for %s: a worker has it, and it may be sent at any moment.", ago)
		}
		return fmt.Sprintf("PROCESSING for %s, and the worker's time is over: it may have happened. Do not retry with a new key.", ago)
	case pb.State_STATE_COMPLETED:
		return fmt.Sprintf("COMPLETED %s ago: it happened%s.", ago, resourceClause(v.GetResult().GetResource()))
	case pb.State_STATE_FAILED:
		return fmt.Sprintf("FAILED %s ago: it did not happen, and will not under this key%s.", ago, failureClause(v.GetFailure()))
	case pb.State_STATE_RETIRED:
		return "RETIRED: its retention is over, and only its key is remembered."
	case pb.State_STATE_RECEIVED:
		if op.GetMayHaveApplied() {
			return "RECEIVED, in doubt: nobody executes it now, but an earlier attempt may have happened."
		}
		return "RECEIVED: it has not happened; " + claimable(op, now) + "."
	default:
		return word(op.GetState()) + ": a state that this release does not know; do not execute."
	}
}

func resourceClause(r *pb.ResourceRef) string {
	if r.GetId() == "" {
		return ""
	}
	return ": " + resource(r)
}

// resource is a thing at the target, in one line.
func resource(r *pb.ResourceRef) string {
	text := strings.TrimSpace(plain(r.GetType()) + " " + plain(r.GetId()))
	if r.GetVersion() != "" {
		text += " version " + plain(r.GetVersion())
	}
	if r.GetUri() != "" {
		text += " " + plain(r.GetUri())
	}
	return text
}

func failureClause(f *pb.Failure) string {
	text := ""
	if f.GetKind() != 0 {
		text = " (" + word(f.GetKind())
		if f.GetCode() != "" {
			text += ", " + plain(f.GetCode())
		}
		text += ")"
	}
	if f.GetMessage() != "" {
		text += ": " + plain(f.GetMessage())
	}
	return text
}

// claimable says who may have what is provably not at the target.
func claimable(op *pb.Operation, now time.Time) string {
	switch op.GetCustody() {
	case pb.Custody_CUSTODY_OPERATOR:
		return "nobody may claim it while a person has it"
	case pb.Custody_CUSTODY_QUEUED:
		return "nobody may claim it before a person has looked: " + queued(op.GetQueueReason())
	}
	text := "its own caller may claim the key"
	if op.GetWaitingFor() == 0 {
		return text
	}
	text += "; now it waits: " + word(op.GetWaitingFor())
	if t := op.GetClaimableTime(); t != nil && t.AsTime().After(now) {
		text += " until " + when(t, now)
	}
	return text
}

// custody says who may act, in one line.
func custody(op *pb.Operation, me string) string {
	switch op.GetCustody() {
	case pb.Custody_CUSTODY_OPERATOR:
		if op.GetCustodian() == me {
			return "you have it"
		}
		return plain(op.GetCustodian()) + " has it"
	case pb.Custody_CUSTODY_QUEUED:
		return "waits for a person: " + queued(op.GetQueueReason())
	default:
		return "automation"
	}
}

// queued is why something waits for a person.
func queued(r pb.QueueReason) string {
	says := map[pb.QueueReason]string{
		pb.QueueReason_QUEUE_REASON_NO_METHOD:           "the contract has no way to find out",
		pb.QueueReason_QUEUE_REASON_GAVE_UP:             "nobody could say in time what became of it",
		pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH:   "what was found differs from what was asked for",
		pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE: "what was found does not show enough to compare",
		pb.QueueReason_QUEUE_REASON_AMBIGUOUS:           "several things at the target could be it",
		pb.QueueReason_QUEUE_REASON_KEY_WINDOW_OVER:     "the target has forgotten its keys, so a repeat could be a second effect",
		pb.QueueReason_QUEUE_REASON_RESOURCE_CHANGED:    "the resource is not as it was left, or that can't be told",
		pb.QueueReason_QUEUE_REASON_ATTEMPTS_EXHAUSTED:  "all attempts that the contract allows are used up",
		pb.QueueReason_QUEUE_REASON_QUARANTINE:          "the store may have lost what came before it",
		pb.QueueReason_QUEUE_REASON_REPEAT_NOT_ALLOWED:  "it was not found, and the contract allows no repeat",
	}[r]
	if says == "" {
		return word(r)
	}
	return fmt.Sprintf("%s (%s)", word(r), says)
}

// next are the commands that may follow a view. The last one decides nothing that can't be taken back: it is what somebody types who
// has not read the others.
func next(v *pb.GetOperationResponse, me string) []string {
	op := v.GetOperation()
	timeline := "next: ledgerctl op timeline " + plain(op.GetId())
	var lines []string
	if op.GetNeedsAttention() {
		lines = append(lines, "if you have dealt with it: "+command(op, "note", `--acknowledge %d --note "WHAT YOU DID"`, lastSequence(v)))
	}
	if pending(v) {
		if v.GetApproval().GetKind() == pb.ApprovalKind_APPROVAL_KIND_CHANGED_RESOURCE && op.GetCompensates() != "" {
			lines = append(lines, "what it undoes, as that was left: ledgerctl op get "+plain(op.GetCompensates()))
		}
		agree := command(op, "approve", `--expect-version %d --note "WHAT YOU CHECKED"`, op.GetVersion())
		if v.GetApproval().GetRequester() != me {
			return append(lines, "if you agree: "+agree, "if you do not: "+command(op, "reject", `--expect-version %d --note "WHY NOT"`, op.GetVersion()), timeline)
		}
		lines = append(lines, "another person, if they agree: "+agree)
	}
	takeOver := command(op, "take-over", `--expect-version %d --reason "WHY"`, op.GetVersion())
	switch {
	case final(op):
		return append(lines, timeline)
	case op.GetCustody() == pb.Custody_CUSTODY_OPERATOR && op.GetCustodian() == me:
		return append(lines, decisions(v)...)
	case op.GetCustody() == pb.Custody_CUSTODY_OPERATOR:
		return append(lines, "to take it from them: "+takeOver, "next: "+command(op, "note", `--note "WHAT YOU KNOW"`))
	case op.GetCustody() == pb.Custody_CUSTODY_QUEUED:
		if op.GetQueueReason() == pb.QueueReason_QUEUE_REASON_RESOURCE_CHANGED { // nobody was asked in time
			return append(lines, "to settle it yourself: "+takeOver, "next: "+command(op, "check", `--reason "WHY"`))
		}
		return append(lines, "next: "+takeOver)
	case op.GetState() == pb.State_STATE_UNKNOWN:
		return append(lines, "to settle it yourself: "+takeOver, "next: "+command(op, "check", `--reason "WHY"`))
	default:
		return append(lines, timeline)
	}
}

// decisions are what the person who has it can say.
func decisions(v *pb.GetOperationResponse) []string {
	op, version := v.GetOperation(), v.GetOperation().GetVersion()
	var lines []string
	if v.GetReportedResult() != nil {
		lines = append(lines, "if it is what was reported: "+command(op, "resolve", `--expect-version %d --happened --as-reported --note "WHAT YOU FOUND"`, version))
	}
	lines = append(lines, "if you find it: "+command(op, "resolve", `--expect-version %d --happened --external-id ID --note "WHAT YOU FOUND"`, version))
	switch until := tooEarly(v); {
	case v.GetReportedResult() != nil: // then it can't be denied
	case !until.IsZero():
		lines = append(lines, fmt.Sprintf("if you do not: only a search that begins at %s or later counts; then look again, with: ledgerctl op get %s", instant(until), plain(op.GetId())))
	case foundThere(v) != "":
		lines = append(lines, "if you search from now on, and what was found is something else: "+
			command(op, "resolve", `--expect-version %d --not-happened --including-found --search-time %s --note "WHERE YOU SEARCHED"`, version, instant(v.GetReadTime().AsTime())))
	default:
		lines = append(lines, "if you search from now on and do not: "+
			command(op, "resolve", `--expect-version %d --not-happened --search-time %s --note "WHERE YOU SEARCHED"`, version, instant(v.GetReadTime().AsTime())))
	}
	return append(lines, "next, if you can't tell: "+command(op, "hand-back", `--expect-version %d --reason "WHY"`, version))
}

// tooEarly is until when a search proves nothing; zero: it may be done now, as far as the view says.
func tooEarly(v *pb.GetOperationResponse) time.Time {
	op, read := v.GetOperation(), v.GetReadTime().AsTime()
	if v.GetFirstGrantTime() == nil {
		return time.Time{}
	}
	var until time.Time
	for _, t := range []time.Time{searchable(v), op.GetLeaseExpireTime().AsTime()} {
		if t.After(read) && t.After(until) {
			until = t
		}
	}
	return until
}

// unbounded is how long after the last send a search counts where the contract states no bound.
const unbounded = 15 * time.Minute

// searchable is from when on a search that finds nothing counts. Where no bound is stated, that is told by what a view has of the last send: the end
// of its lease, and when the operation last left PROCESSING. Where the worker gave it up within its send window, the rest of the window is not seen
// here; the ledger refuses what comes too early for it, and says until when.
func searchable(v *pb.GetOperationResponse) time.Time {
	op := v.GetOperation()
	if t := op.GetSettleTime(); t != nil {
		return t.AsTime()
	}
	sent := v.GetFirstGrantTime().AsTime()
	if t := op.GetLeaseExpireTime(); t != nil && t.AsTime().After(sent) {
		sent = t.AsTime()
	}
	for _, e := range v.GetHistory() { // what the target is still at work on counts as sent anew
		ran := e.GetToState() == pb.State_STATE_PROCESSING || e.GetFromState() == pb.State_STATE_PROCESSING
		if (ran || e.GetFacts()["finding"] == word(pb.Finding_FINDING_PENDING)) && e.GetTime().AsTime().After(sent) {
			sent = e.GetTime().AsTime()
		}
	}
	return sent.Add(unbounded)
}

// pending says whether an approval waits for somebody.
func pending(v *pb.GetOperationResponse) bool {
	a := v.GetApproval()
	return a.GetKind() != 0 && a.GetDecision() == 0 && a.GetExpireTime().AsTime().After(v.GetReadTime().AsTime()) && !final(v.GetOperation())
}

func lastSequence(v *pb.GetOperationResponse) uint64 {
	if n := len(v.GetHistory()); n > 0 {
		return v.GetHistory()[n-1].GetSequence()
	}
	return 0
}

// command is a command line for an operation, to be typed as it is but for the words in capitals.
func command(op *pb.Operation, verb, format string, args ...any) string {
	return "ledgerctl op " + verb + " " + plain(op.GetId()) + " " + fmt.Sprintf(format, args...)
}
