// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
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

// parseCells reads the golden table, and says what is wrong with it.
func parseCells(text []byte) (golden map[cell]verdict, problems []string) {
	golden = map[cell]verdict{}
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	table := ""
	for i, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
			continue
		case len(f) == 1 && line[0] == '[':
			table = strings.Trim(line, "[]")
			continue
		case len(f) != 12 || f[6] != "|":
			problem("line %d is no cell", i+1)
			continue
		}
		c, v := cell{table, f[0], f[1], f[2], f[3], f[4], f[5]}, verdict{f[7], f[8], f[9], f[10], f[11]}
		if _, twice := golden[c]; twice {
			problem("line %d: %v is there twice", i+1, c)
		}
		known := slices.Contains(words.answers, v.answer) && slices.Contains(words.states, v.state) &&
			slices.Contains(words.custodies, v.custody) && slices.Contains(words.doubts, v.doubt)
		for _, event := range strings.Split(v.events, ",") {
			known = known && slices.Contains(words.events, event)
		}
		if !known {
			problem("line %d: %v has an unknown word", i+1, c)
		}
		golden[c] = v
	}
	exists := map[cell]bool{}
	for _, table := range tables {
		for _, c := range table.enumerate() {
			exists[c] = true
			if _, ok := golden[c]; !ok {
				problem("%v is missing", c)
			}
		}
	}
	for c := range golden {
		if !exists[c] {
			problem("%v is a cell that does not exist", c)
		}
	}
	return golden, problems
}

func readTable(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/cells.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestEveryCell compares the decision function with the golden table, cell by cell.
func TestEveryCell(t *testing.T) {
	golden, problems := parseCells(readTable(t))
	for _, problem := range problems {
		t.Error(problem)
	}
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) {
			for _, c := range table.enumerate() {
				want, ok := golden[c]
				if !ok {
					continue // missing: said above
				}
				if got := decideCell(t, c); got != want {
					t.Errorf("%v\n got %v\nwant %v", c, got, want)
				}
			}
		})
	}
	t.Logf("%d cells", len(golden))
}

// TestFaultsOfTheTableShow: a table with a hole, a double or a slip of the pen does not pass.
func TestFaultsOfTheTableShow(t *testing.T) {
	text := string(readTable(t))
	const line = "PROCESSING claim                 stranger over  automation no  | " +
		"unknown:CHECK_SCHEDULED   UNKNOWN    automation                 no  LEASE_LAPSED\n"
	if !strings.Contains(text, line) {
		t.Fatal("the line that this test spoils is not in the table")
	}
	for _, fault := range []struct{ name, spoiled, problem string }{
		{"a hole", "", "is missing"},
		{"a double", line + line, "is there twice"},
		{"an unknown answer", strings.Replace(line, "unknown:", "probably:", 1), "has an unknown word"},
		{"an unknown event", strings.Replace(line, "LEASE_LAPSED", "LEASE_GONE", 1), "has an unknown word"},
		{"an impossible custody", line + strings.Replace(line, "automation", "queued", 1), "is a cell that does not exist"},
		{"an impossible caller", line + strings.Replace(line, "stranger", "nobody", 1), "is a cell that does not exist"},
		{"half a line", line + "PROCESSING claim\n", "is no cell"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			_, problems := parseCells([]byte(strings.Replace(text, line, fault.spoiled, 1)))
			if len(problems) != 1 || !strings.Contains(problems[0], fault.problem) {
				t.Errorf("problems: %q", problems)
			}
		})
	}
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
	aside := e.Kind == ledger.EventObserved || e.Kind == ledger.EventContradicted
	if aside && after.Detail.SeenThere && !before.Detail.SeenThere {
		word += "+seen"
	}
	raises := e.Kind != ledger.EventObserved && e.Kind != ledger.EventContradicted && e.Kind != ledger.EventNote
	if after.Detail.Kept != nil && before.Detail.Kept == nil {
		word, raises = word+"+kept", true
	}
	version := before.Version
	if raises {
		version++
	}
	if aside && !raises && after.Version == version+1 {
		word, version = word+"+raised", version+1
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
	if aside && !strings.Contains(word, "+kept") {
		a := after.Clone()
		if strings.Contains(word, "+attention") { // a stranger's success has the target asked at once
			a.NextCheckTime = before.NextCheckTime
		}
		if after.Detail.SeenThere { // what was seen there is remembered
			a.MayHaveApplied, a.Detail.SeenThere, a.Detail.FoundThere = before.MayHaveApplied, before.Detail.SeenThere, before.Detail.FoundThere
			a.Detail.Candidates = before.Detail.Candidates
		}
		a.Version, a.Sequence, a.LastHash, a.UpdateTime, a.NeedsAttention = before.Version, before.Sequence, before.LastHash, before.UpdateTime, before.NeedsAttention
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
	"HELD_BY_OPERATOR": ledger.ErrHeldByOperator, "BLOCKED": ledger.ErrBlocked, "ILLEGAL_TRANSITION": ledger.ErrIllegalTransition, "EFFECT_FOUND": ledger.ErrEffectFound,
	"OPERATION_NOT_FOUND": ledger.ErrOperationNotFound, "STALE_VERSION": ledger.ErrStaleVersion, "TOOL_PAUSED": ledger.ErrToolPaused,
	"TOOL_NOT_ALLOWED": ledger.ErrToolNotAllowed, "ORIGINAL_UNSETTLED": ledger.ErrOriginalUnsettled,
	"KEY_TOO_OLD": ledger.ErrKeyTooOld, "DEPENDENCY_FAILED": ledger.ErrDependencyFailed,
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
