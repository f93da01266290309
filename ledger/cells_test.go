// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// cell is what one line of the golden table has on its left.
type cell struct {
	table, state, command, who, lease, custody, doubt string
}

func (c cell) String() string {
	return strings.Join([]string{c.table, c.state, c.command, c.who, c.lease, c.custody, c.doubt}, "/")
}

// verdict is what it has on its right.
type verdict struct {
	answer, state, custody, doubt, events string
}

// The cells that there must be. "states : commands : who": a state may name the only lease, custody or doubt that counts; without
// a who the commands show no claim_id.
const (
	everyone = "holder,earlier,stranger"
	worker   = "claim,claim-other,start,renew,succeeded,rejected,not-executed,mark-unknown"
	others   = "check,found,rejected-evidence,pending,not-accepted,not-accepted-final,not-found,ambiguous,indeterminate,take-over,hand-back," +
		"resolve-happened,resolve-retry,resolve-stop,approve,check-now,note,expire,retire"
	unsettled  = "RECEIVED,PROCESSING,UNKNOWN"
	inspection = "inspect-unchanged,inspect-changed"
	waitsFor   = "RECEIVED/over/no/automation,RECEIVED/over/no/operator"
	rewritten  = "RECEIVED/over/no,PROCESSING/alive/no,UNKNOWN/no"
)

var tables = []struct {
	name  string
	cells []string
}{
	{"main", []string{
		unsettled + ",COMPLETED,FAILED : " + worker + " : " + everyone,
		unsettled + ",COMPLETED,FAILED : cancel : " + everyone + ",nobody",
		unsettled + ",COMPLETED,FAILED : " + others,
		"RETIRED,absent : " + worker + ",cancel," + others,
	}},
	{"unsafe", []string{unsettled + " : claim,succeeded : " + everyone, unsettled + " : not-found,not-accepted-final"}},
	{"unsafe-repeat", []string{"UNKNOWN : not-found,not-accepted-final"}},
	{"read", []string{"RECEIVED,PROCESSING : claim,rejected,mark-unknown : " + everyone}},
	{"idempotent-early", []string{"RECEIVED/over : claim : " + everyone, "RECEIVED/over : resolve-retry,resolve-stop"}},
	{"unbounded", []string{
		"RECEIVED/over : claim : stranger",
		"UNKNOWN : rejected-evidence,not-accepted,not-accepted-final,not-found,resolve-happened,resolve-retry,resolve-stop",
	}},
	{"late", []string{"RECEIVED/over : claim : stranger", "UNKNOWN : not-accepted,not-accepted-final,not-found"}},
	{"exhausted", []string{"RECEIVED/over : claim : " + everyone}},
	{"sticky", []string{unsettled + " : rejected : " + everyone, "UNKNOWN : rejected-evidence"}},
	{"sent-twice", []string{unsettled + " : rejected,not-executed : holder"}},
	{"no-method", []string{unsettled + " : claim,rejected,mark-unknown : " + everyone, unsettled + " : check,hand-back,check-now"}},
	{"regrant", []string{unsettled + ",COMPLETED,FAILED,RETIRED,absent : regrant"}},
	{"regrant-exhausted", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-unsafe", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-late", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-idempotent", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-idempotent-early", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"freed", []string{"RECEIVED/over : claim,renew,succeeded,rejected,not-executed,mark-unknown : holder,earlier"}},
	{"released", []string{"RECEIVED/over : claim,renew,succeeded,rejected,not-executed,mark-unknown : holder,earlier"}},
	{"never-started", []string{"RECEIVED/over/no : claim : stranger", "RECEIVED/over/no : found,resolve-happened,resolve-retry,resolve-stop"}},
	{"mismatch", []string{unsettled + " : found-different,found-missing,found-older"}},
	{"other-resource", []string{"COMPLETED : succeeded : " + everyone, "COMPLETED : found"}},
	{"cancelled", []string{"FAILED : cancel : " + everyone + ",nobody"}},
	{"kept", []string{"RECEIVED/operator,PROCESSING/operator,UNKNOWN/operator : hand-back,resolve-happened,resolve-retry,resolve-stop"}},
	{"overtaken", []string{"PROCESSING/automation : claim : " + everyone, "PROCESSING/automation : renew,rejected,not-executed,mark-unknown : holder"}},
	{"proposal", []string{"UNKNOWN/operator : resolve-happened,resolve-retry,resolve-stop"}},
	{"approval", []string{waitsFor + " : claim : stranger", waitsFor + " : approve,approve-reject,expire"}},
	{"resource-changed", []string{"RECEIVED/over/queued : claim : stranger", "RECEIVED/over/queued : approve,approve-reject,check-now"}},
	{"inspect", []string{
		"RECEIVED/over : " + inspection + ",inspect-gone,inspect-no-version,inspect-indeterminate",
		"PROCESSING,UNKNOWN,COMPLETED,FAILED,RETIRED,absent : " + inspection,
	}},
	{"older-timeline", []string{
		rewritten + " : " + worker + " : " + everyone,
		rewritten + " : cancel : holder,nobody",
		rewritten + " : found,not-found,check-now,note,expire",
	}},
}

// situations are the ways in which an operation of a state can stand: lease, custody, doubt.
func situations(state string) [][3]string {
	leases, custodies := []string{"-"}, []string{"automation", "queued", "operator"}
	switch state {
	case "RECEIVED":
		leases = []string{"alive", "over"}
	case "PROCESSING":
		leases, custodies = []string{"alive", "over"}, []string{"automation", "operator"}
	case "UNKNOWN":
	default:
		return [][3]string{{"-", "-", "-"}}
	}
	var all [][3]string
	for _, lease := range leases {
		for _, custody := range custodies {
			all = append(all, [3]string{lease, custody, "no"}, [3]string{lease, custody, "yes"})
		}
	}
	return all
}

func enumerate(table, spec string) []cell {
	parts := append(strings.Split(spec, " : "), "-")
	var all []cell
	for _, named := range strings.Split(parts[0], ",") {
		only := strings.Split(named, "/")
		for _, command := range strings.Split(parts[1], ",") {
			for _, s := range situations(only[0]) {
				if slices.ContainsFunc(only[1:], func(word string) bool { return !slices.Contains(s[:], word) }) {
					continue
				}
				for _, who := range strings.Split(parts[2], ",") {
					all = append(all, cell{table, only[0], command, who, s[0], s[1], s[2]})
				}
			}
		}
	}
	return all
}

var words = struct{ answers, states, custodies, doubts, events []string }{
	answers: []string{
		"granted", "resent", "started", "renewed", "completed", "failed", "in-progress:LEASE_HELD", "in-progress:SETTLED", "unknown:CHECK_SCHEDULED",
		"unknown:QUEUED", "unknown:HELD_BY_OPERATOR", "waiting:QUEUED", "waiting:HELD_BY_OPERATOR", "waiting:NOT_BEFORE",
		"awaiting-approval:APPROVAL_PENDING", "stop:SUPERSEDED", "stop:SETTLED", "stop:HELD_BY_OPERATOR", "stop:LEASE_OVER",
		"applied", "observed", "contradiction", "taken", "not-taken", "ok", "nothing", "FINGERPRINT_CONFLICT", "KEY_RETIRED", "STALE_GRANT",
		"LEASE_OVER", "TOO_EARLY", "NOT_IN_CUSTODY", "HELD_BY_OPERATOR", "BLOCKED", "ILLEGAL_TRANSITION", "OPERATION_NOT_FOUND",
	},
	states: []string{"RECEIVED", "PROCESSING", "COMPLETED", "FAILED", "UNKNOWN", "RETIRED", "absent"},
	custodies: []string{
		"-", "automation", "operator", "queued(NO_METHOD)", "queued(GAVE_UP)", "queued(EVIDENCE_MISMATCH)", "queued(EVIDENCE_INCOMPLETE)",
		"queued(AMBIGUOUS)", "queued(KEY_WINDOW_OVER)", "queued(RESOURCE_CHANGED)", "queued(ATTEMPTS_EXHAUSTED)", "queued(REPEAT_NOT_ALLOWED)",
	},
	doubts: []string{"-", "no", "yes"},
	events: []string{
		"-", "GRANTED", "STARTED", "COMPLETED", "FAILED", "NOT_EXECUTED", "MARKED_UNKNOWN", "LEASE_LAPSED", "CHECK_TAKEN", "EVIDENCE", "QUEUED",
		"TAKEN_OVER", "HANDED_BACK", "RESOLVED", "APPROVAL", "OBSERVED", "OBSERVED+attention", "OBSERVED+kept", "CONTRADICTED", "CONTRADICTED+kept",
		"NOTE", "CANCELLED", "QUARANTINED", "RETIRED", "REGRANTED", "CHECK_REQUESTED", "PROPOSED", "CLEARED", "EXPIRED",
	},
}

// readCells reads the golden table; what it can't read is an error of the test.
func readCells(t *testing.T) map[cell]verdict {
	t.Helper()
	text, err := os.ReadFile("testdata/cells.txt")
	if err != nil {
		t.Fatal(err)
	}
	golden, table, number := map[cell]verdict{}, "", 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		number++
		line := lines.Text()
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
			continue
		case len(f) == 1 && line[0] == '[':
			table = strings.Trim(line, "[]")
			continue
		case len(f) != 12 || f[6] != "|":
			t.Errorf("line %d is no cell: %q", number, line)
			continue
		}
		c, v := cell{table, f[0], f[1], f[2], f[3], f[4], f[5]}, verdict{f[7], f[8], f[9], f[10], f[11]}
		if _, twice := golden[c]; twice {
			t.Errorf("line %d: %v is there twice", number, c)
		}
		if !slices.Contains(words.answers, v.answer) || !slices.Contains(words.states, v.state) || !slices.Contains(words.custodies, v.custody) ||
			!slices.Contains(words.doubts, v.doubt) {
			t.Errorf("line %d has an unknown word: %q", number, line)
		}
		for _, event := range strings.Split(v.events, ",") {
			if !slices.Contains(words.events, event) {
				t.Errorf("line %d has an unknown event: %q", number, line)
			}
		}
		golden[c] = v
	}
	return golden
}

// TestEveryCell compares the decision function with the golden table, cell by cell.
func TestEveryCell(t *testing.T) {
	golden := readCells(t)
	known := map[cell]bool{}
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) {
			for _, spec := range table.cells {
				for _, c := range enumerate(table.name, spec) {
					known[c] = true
					want, ok := golden[c]
					if !ok {
						t.Errorf("%v is missing", c)
						continue
					}
					if got := decideCell(t, c); got != want {
						t.Errorf("%v\n got %v\nwant %v", c, got, want)
					}
				}
			}
		})
	}
	for c := range golden {
		if !known[c] {
			t.Errorf("%v is a cell that does not exist", c)
		}
	}
	t.Logf("%d cells", len(known))
}

// decideCell decides a cell's command on a cell's operation, until it is decided, and says in the table's words what came of it. What
// holds for every decision is checked on the way.
func decideCell(t *testing.T, c cell) verdict {
	t.Helper()
	s := situate(c)
	op, events := s.op, []string(nil)
	for range 3 { // a row is brought up to date at most twice: timeline, lapse
		var before *ledger.Operation
		if op != nil {
			b := op.Clone()
			before = &b
		}
		change, answer, err := ledger.Decide(op, s.related, s.command, s.contract, cellNow)
		if diff := cmp.Diff(before, op); diff != "" {
			t.Errorf("%v: the decision has changed its own input:\n%s", c, diff)
		}
		if change.Next == nil {
			if change.Event != nil || change.Companion != nil || answer.Again {
				t.Errorf("%v: an event, a companion or another try without a change", c)
			}
			if err == nil && answer.Operation != op {
				t.Errorf("%v: unchanged, but the answer shows another operation", c)
			}
			return s.verdict(op, events, wordFor(s.command, false, answer, err))
		}
		if err != nil {
			t.Errorf("%v: a refusal with a change: %v", c, err)
		}
		if change.Event == nil {
			checkRenewal(t, c, op, change.Next)
		} else {
			events = append(events, checkEvent(t, c, op, change))
		}
		op = change.Next
		if !answer.Again {
			return s.verdict(op, events, wordFor(s.command, true, answer, nil))
		}
	}
	t.Errorf("%v: decided again and again", c)
	return verdict{}
}

// checkRenewal: without an event nothing moves but the lease's end, and it moves forward.
func checkRenewal(t *testing.T, c cell, before, after *ledger.Operation) {
	t.Helper()
	if !after.Grant.LeaseUntil.After(before.Grant.LeaseUntil) {
		t.Errorf("%v: the lease was not extended", c)
	}
	a := after.Clone()
	a.Grant.LeaseUntil, a.NextCheckTime, a.UpdateTime = before.Grant.LeaseUntil, before.NextCheckTime, before.UpdateTime
	if diff := cmp.Diff(before, &a); diff != "" {
		t.Errorf("%v: changed without an event:\n%s", c, diff)
	}
}

// checkEvent checks what holds for every event, and returns the table's word for it.
func checkEvent(t *testing.T, c cell, before *ledger.Operation, change ledger.Change) string {
	t.Helper()
	if before == nil {
		before = &ledger.Operation{}
	}
	e, after := change.Event, change.Next
	word := e.Kind.String()
	if after.NeedsAttention && !before.NeedsAttention && e.Kind != ledger.EventContradicted {
		word += "+attention"
	}
	if e.Kind == ledger.EventContradicted && !after.NeedsAttention {
		word += "-attention"
	}
	raises := e.Kind != ledger.EventObserved && e.Kind != ledger.EventContradicted && e.Kind != ledger.EventNote
	if after.Detail.Kept != nil && before.Detail.Kept == nil {
		word, raises = word+"+kept", true
	}
	version := before.Version
	if raises {
		version++
	}
	if after.Version != version || e.Version != version {
		t.Errorf("%v: %s makes version %d of %d (event: %d)", c, word, after.Version, before.Version, e.Version)
	}
	if after.Sequence != before.Sequence+1 || e.Sequence != after.Sequence {
		t.Errorf("%v: %s has sequence %d, the operation %d after %d", c, word, e.Sequence, after.Sequence, before.Sequence)
	}
	if e.FromState != before.State || e.ToState != after.State {
		t.Errorf("%v: %s says %v to %v, it is %v to %v", c, word, e.FromState, e.ToState, before.State, after.State)
	}
	sealed := *e
	if sealed.Seal(before.LastHash); e.PrevHash != before.LastHash || e.Hash != sealed.Hash || after.LastHash != e.Hash {
		t.Errorf("%v: %s is not chained", c, word)
	}
	if word == "OBSERVED" || word == "CONTRADICTED" {
		a := after.Clone()
		a.Sequence, a.LastHash, a.UpdateTime, a.NeedsAttention = before.Sequence, before.LastHash, before.UpdateTime, before.NeedsAttention
		a.Detail.Observations, a.Detail.AttentionSequence = before.Detail.Observations, before.Detail.AttentionSequence
		if diff := cmp.Diff(before, &a); diff != "" {
			t.Errorf("%v: %s has moved something:\n%s", c, word, diff)
		}
	}
	return word
}

// verdict says how an operation stands, in the table's words.
func (s situation) verdict(op *ledger.Operation, events []string, answer string) verdict {
	v := verdict{answer, "absent", "-", "-", "-"}
	if len(events) > 0 {
		v.events = strings.Join(events, ",")
	}
	if op == nil {
		return v
	}
	v.state = op.State.String()
	custody := strings.ToLower(op.Custody.String())
	switch {
	case op.Custody == ledger.Queued:
		custody += "(" + op.QueueReason.String() + ")"
	case op.Custody == ledger.Automation && op.QueueReason != 0:
		custody += "(" + op.QueueReason.String() + "?)"
	}
	if op.State.Final() {
		if custody != "automation" {
			v.custody = custody
		}
		return v
	}
	v.custody, v.doubt = custody, "no"
	if op.MayHaveApplied {
		v.doubt = "yes"
	}
	return v
}

// refusals are the errors that the table names, by the contract's words.
var refusals = map[string]error{
	"FINGERPRINT_CONFLICT": ledger.ErrFingerprintConflict, "KEY_RETIRED": ledger.ErrKeyRetired, "STALE_GRANT": ledger.ErrStaleGrant,
	"LEASE_OVER": ledger.ErrLeaseOver, "TOO_EARLY": ledger.ErrTooEarly, "NOT_IN_CUSTODY": ledger.ErrNotInCustody,
	"HELD_BY_OPERATOR": ledger.ErrHeldByOperator, "BLOCKED": ledger.ErrBlocked, "ILLEGAL_TRANSITION": ledger.ErrIllegalTransition,
	"OPERATION_NOT_FOUND": ledger.ErrOperationNotFound,
}

func wordFor(command ledger.Command, changed bool, a ledger.Answer, err error) string {
	for word, refusal := range refusals {
		if errors.Is(err, refusal) {
			return word
		}
	}
	if err != nil {
		return fmt.Sprintf("%q", err)
	}
	pick := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	switch command.(type) {
	case ledger.Claim:
		if a.Outcome == ledger.OutcomeGranted {
			return pick(a.Grant.Resent, "resent", "granted")
		}
		word := strings.ReplaceAll(strings.ToLower(a.Outcome.String()), "_", "-")
		return pick(a.Wait.Reason != 0, word+":"+a.Wait.Reason.String(), word)
	case ledger.Start:
		return pick(a.Grant != nil && a.Grant.Resent, "resent", "started")
	case ledger.Renew:
		return pick(a.Stop != 0, "stop:"+a.Stop.String(), "renewed")
	case ledger.Complete, ledger.MarkUnknown, ledger.Reconcile:
		return strings.ToLower(a.Disposition.String())
	case ledger.BeginCheck:
		return pick(a.CheckNumber != 0, "taken", "not-taken")
	case ledger.Regrant, ledger.Inspect, ledger.Expire, ledger.Retire:
		return pick(changed, "ok", "nothing")
	default:
		return "ok"
	}
}
