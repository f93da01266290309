// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// view writes all that is known of an operation: the answer first, the next command last.
func (p printer) view(v *pb.GetOperationResponse, me string) error {
	var b strings.Builder
	now := v.GetReadTime().AsTime()
	op := v.GetOperation()
	b.WriteString(answer(v, now) + "\n")
	if op.GetNeedsAttention() {
		b.WriteString("What is known contradicts itself: read the history, and look at the target.\n")
	}
	b.WriteString("\n")
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-15s %s\n", name, text)
		}
	}
	row("operation", plain(op.GetId()))
	row("tool", plain(op.GetTool())+" ("+effect(op.GetEffect())+")")
	row("target", plain(op.GetTargetSummary()))
	row("task", plain(op.GetTask()))
	row("scope", plain(op.GetScope()))
	row("caller", plain(v.GetPrincipal()))
	row("version", fmt.Sprint(op.GetVersion()))
	row("custody", custody(op, me))
	row("attempts", attempts(v, now))
	if !final(op) {
		row("in doubt", doubt(v))
		row("settles", settles(v, now))
		row("checks", checks(op, now))
	}
	row("approval", approval(v, now))
	row("reported", reported(v))
	row("result", result(v.GetResult()))
	row("compensates", plain(op.GetCompensates()))
	row("compensated by", plain(strings.Join(op.GetCompensatedBy(), ", ")))
	row("corrects", plain(op.GetCorrects()))
	row("depends on", plain(strings.Join(op.GetDependsOn(), ", ")))
	row("created", when(op.GetCreateTime(), now))
	row("fingerprint", plain(op.GetFingerprintPrefix())+"…")
	row("contract", cut(v.GetContractVersion(), 16))
	row("history", chain(v))

	b.WriteString("\nWhat to search for at the target\n")
	fmt.Fprintf(&b, "  key  %s\n", plain(v.GetDownstreamKey()))
	for _, name := range slices.Sorted(maps.Keys(v.GetTargetAttributes())) {
		fmt.Fprintf(&b, "  %s = %s\n", plain(name), plain(v.GetTargetAttributes()[name]))
	}
	for _, c := range v.GetCandidates() {
		fmt.Fprintf(&b, "  could be  %s\n", resource(c))
	}
	for line := range strings.Lines(v.GetGuide()) {
		fmt.Fprintf(&b, "  %s\n", plain(strings.TrimRight(line, "\r\n")))
	}

	if len(v.GetHistory()) > 0 {
		b.WriteString("\nHistory\n")
		writeEvents(&b, v.GetHistory(), "  ")
	}
	fmt.Fprintf(&b, "\nread at %s\n", instant(now))
	for _, line := range next(v, me) {
		b.WriteString(line + "\n")
	}
	return p.print("%s", b.String())
}

func effect(e pb.Effect) string {
	switch e {
	case pb.Effect_EFFECT_READ:
		return "READ: no side effect"
	case pb.Effect_EFFECT_IDEMPOTENT:
		return "IDEMPOTENT: a repeat leaves the same state"
	case pb.Effect_EFFECT_KEYED:
		return "KEYED: the target recognises a repeat by its key"
	case pb.Effect_EFFECT_UNSAFE:
		return "UNSAFE: a repeat is a second effect"
	default:
		return word(e)
	}
}

// doubt says what may have been applied before, and why.
func doubt(v *pb.GetOperationResponse) string {
	if !v.GetOperation().GetMayHaveApplied() {
		return ""
	}
	for _, e := range slices.Backward(v.GetHistory()) {
		if e.GetKind() == pb.EventKind_EVENT_KIND_QUARANTINED {
			return "an attempt may have been lost with the store's last commits: see ledgerd timelines"
		}
	}
	return "an earlier attempt may have been applied"
}

func attempts(v *pb.GetOperationResponse, now time.Time) string {
	op := v.GetOperation()
	if op.GetAttempts() == 0 {
		return "none"
	}
	text := fmt.Sprintf("%d", op.GetAttempts())
	if op.GetWorkerId() != "" {
		text += ", the last by " + plain(op.GetWorkerId())
	}
	if t := op.GetLeaseExpireTime(); t != nil && !final(op) {
		ends := "ended "
		if t.AsTime().After(now) {
			ends = "ends "
		}
		text += "; its lease " + ends + when(t, now)
	}
	if t := v.GetFirstGrantTime(); t != nil {
		text += "; sent not before " + when(t, now)
	}
	return text
}

func settles(v *pb.GetOperationResponse, now time.Time) string {
	t := v.GetOperation().GetSettleTime()
	switch {
	case v.GetFirstGrantTime() == nil: // it was never sent
		return ""
	case t == nil:
		at := searchable(v)
		text := "the contract states no bound: a search that finds nothing counts from 15 minutes after the last send on"
		if at.After(now) {
			text += fmt.Sprintf(", about %s (in %s)", instant(at), span(at.Sub(now)))
		}
		return text
	}
	if t.AsTime().After(now) {
		return when(t, now) + ": until then, finding nothing proves nothing"
	}
	return when(t, now) + ": a search that finds nothing counts"
}

// overdue is how long what is due may wait while all is well.
const overdue = 15 * time.Second

func checks(op *pb.Operation, now time.Time) string {
	text := fmt.Sprintf("%d answered", op.GetChecks())
	if f := op.GetLastFinding(); f != 0 {
		text += ", the last " + word(f)
	}
	switch t := op.GetNextCheckTime(); {
	case t == nil:
	case now.Sub(t.AsTime()) > overdue:
		text += "; the next is due since " + when(t, now) + ": its target is left alone (ledgerctl tool list), others wait, or nobody asks"
	case !t.AsTime().After(now):
		text += "; the next is due now"
	default:
		text += "; the next " + when(t, now)
	}
	return text
}

func approval(v *pb.GetOperationResponse, now time.Time) string {
	a := v.GetApproval()
	if a.GetKind() == 0 {
		return ""
	}
	text := fmt.Sprintf("%s, asked for by %s", word(a.GetKind()), plain(a.GetRequester()))
	if r := proposal(a.GetResolution()); r != "" {
		text += ": " + r
	}
	if r := a.GetResource(); r.GetVersion() != "" {
		text += "; the resource is now " + resource(r)
	} else if r != nil {
		text += "; the target shows no version of " + resource(r)
	}
	switch {
	case a.GetDecision() != 0:
		text += fmt.Sprintf("; %s by %s", word(a.GetDecision()), plain(a.GetApprover()))
	case pending(v):
		text += "; waits for another person until " + when(a.GetExpireTime(), now)
	default:
		text += "; has run out"
	}
	return text
}

func proposal(r *pb.Resolution) string {
	despite := ""
	if r.GetDespiteFound() {
		despite = "; what was found is something else"
	}
	switch r := r.GetResolution().(type) {
	case *pb.Resolution_Happened:
		return "it happened" + resourceClause(r.Happened.GetResource())
	case *pb.Resolution_NeverHappenedRetry:
		return "it never happened; the key may be claimed again" + despite
	case *pb.Resolution_NeverHappenedStop:
		return "it never happened, and shall not" + despite
	default:
		return ""
	}
}

func reported(v *pb.GetOperationResponse) string {
	r := v.GetReportedResult()
	if r == nil {
		return ""
	}
	return "a worker says that it happened" + resourceClause(r.GetResource()) + "; applied when it is handed back"
}

// result is what happened, without what was returned: that is for workers.
func result(r *pb.Result) string {
	if r == nil {
		return ""
	}
	parts := []string{resource(r.GetResource())}
	if r.GetCode() != "" {
		parts = append(parts, "code "+plain(r.GetCode()))
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetAttributes())) {
		parts = append(parts, plain(name)+" = "+plain(r.GetAttributes()[name]))
	}
	return strings.Join(parts, "; ")
}

func chain(v *pb.GetOperationResponse) string {
	if v.GetChainVerified() {
		return count(len(v.GetHistory()), "event") + ", the chain is whole as the ledger says"
	}
	return count(len(v.GetHistory()), "event") + ", and the ledger does NOT vouch for their chain"
}

// writeEvents writes a history, a line for each event.
func writeEvents(b *strings.Builder, events []*pb.Event, indent string) {
	for _, e := range events {
		fmt.Fprintf(b, "%s%3d  %s  %-18s", indent, e.GetSequence(), e.GetTime().AsTime().UTC().Format("2006-01-02T15:04:05.000Z"), word(e.GetKind()))
		if e.GetFromState() != e.GetToState() {
			fmt.Fprintf(b, "  %s -> %s", state(e.GetFromState()), state(e.GetToState()))
		}
		fmt.Fprintf(b, "  version %d", e.GetVersion())
		if e.GetActor() != "" || e.GetActorKind() != 0 {
			fmt.Fprintf(b, "  by %s %s", strings.ToLower(word(e.GetActorKind())), plain(e.GetActor()))
		}
		for _, name := range slices.Sorted(maps.Keys(e.GetFacts())) {
			most := 80
			switch name {
			case "command", "content": // for the chain
				continue
			case "candidates": // what people are to look at
				most = 4096
			}
			fmt.Fprintf(b, "  %s=%s", plain(name), cut(e.GetFacts()[name], most))
		}
		b.WriteString("\n")
		if e.GetNote() != "" {
			fmt.Fprintf(b, "%s     “%s”\n", indent, plain(e.GetNote()))
		}
	}
}

// state is a state in a history, in which the first event comes from none.
func state(s pb.State) string {
	if s == 0 {
		return "new"
	}
	return word(s)
}
