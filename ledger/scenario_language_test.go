// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/opsledger/opsledger/guard"
	"github.com/opsledger/opsledger/ledger"
)

// script runs one scenario file: a command a line, what its sender sees and how the operation stands below it. testdata/scenarios/README.md
// says how to read it.
type script struct {
	sys       system
	contracts declared
	begins    time.Time
	target    *scriptTarget
	ops       map[string]ledger.Key
	checks    map[string]uint64
	commands  int

	// What verdicts look at: the request of each claim, what each operation looks like and compensates, and the last line.
	requests, looks, originals map[string]string
	last                       said
	// verdicts by which the file is judged, besides what every file is.
	verdicts []string
	// unguarded: a guard is switched off, so that lines may not fit what came before them.
	unguarded bool
}

// said is what came of a command.
type said struct {
	on            string
	cmd           ledger.Command
	before, after *ledger.Operation
	answer        ledger.Answer
	err           error
}

func newScript(sys system, contracts declared) *script {
	return &script{
		sys: sys, contracts: contracts, begins: sys.now(), target: newScriptTarget(),
		ops: map[string]ledger.Key{}, checks: map[string]uint64{},
		requests: map[string]string{}, looks: map[string]string{}, originals: map[string]string{},
	}
}

// scriptLine is one line with its arguments. Each is asked for; what nobody asked for fails the test.
type scriptLine struct {
	t    *testing.T
	td   *datadriven.TestData
	used []string
	bare []string
}

func (w *scriptLine) text(name, otherwise string) string {
	w.used = append(w.used, name)
	for _, a := range w.td.CmdArgs {
		if a.Key == name && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ", ")
		}
	}
	return otherwise
}

func (w *scriptLine) list(name string) []string {
	if s := w.text(name, ""); s != "" {
		return strings.Split(s, ", ")
	}
	return nil
}

func (w *scriptLine) flag(name string) bool {
	w.used = append(w.used, name)
	return slices.Contains(w.bare, name)
}

func (w *scriptLine) duration(name string, otherwise time.Duration) time.Duration {
	s := w.text(name, "")
	if s == "" {
		return otherwise
	}
	return w.parse(s)
}

func (w *scriptLine) parse(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		w.td.Fatalf(w.t, "%v", err)
	}
	return d
}

// first is the line's subject: the first argument that stands alone.
func (w *scriptLine) first() string {
	if len(w.bare) == 0 {
		w.td.Fatalf(w.t, "%s of what?", w.td.Cmd)
	}
	w.used = append(w.used, w.bare[0])
	return w.bare[0]
}

func (w *scriptLine) done() {
	for _, a := range w.td.CmdArgs {
		if !slices.Contains(w.used, a.Key) {
			w.td.Fatalf(w.t, "%s knows no %q", w.td.Cmd, a.Key)
		}
	}
}

func newLine(t *testing.T, td *datadriven.TestData) *scriptLine {
	w := &scriptLine{t: t, td: td}
	for _, a := range td.CmdArgs {
		if len(a.Vals) == 0 {
			w.bare = append(w.bare, a.Key)
		}
	}
	return w
}

func (s *script) line(t *testing.T, td *datadriven.TestData) string {
	w := newLine(t, td)
	out := s.run(w)
	w.done()
	s.judge(t)
	return out
}

func (s *script) run(w *scriptLine) string {
	on := w.text("on", "main")
	s.last = said{on: on}
	switch w.td.Cmd {
	case "contract":
		s.contract(w)
		return ""
	case "advance":
		s.sys.advance(w.parse(w.first()))
		return s.offset(s.sys.now())
	case "mark":
		s.sys.mark()
		return ""
	case "failover":
		s.sys.failOver(w.flag("lossless"))
		return ""
	case "send", "lands", "refuses", "drops":
		return s.target.line(w, s.sys.now(), s.contractOf(on), on)
	case "look":
		return s.target.look(on)
	case "many":
		return s.many(w, on)
	case "show":
		op, _ := s.sys.read(s.id(on))
		return s.row(on, op)
	}
	return s.command(w, on)
}

// command sends one command to the ledger and shows all that came of it.
func (s *script) command(w *scriptLine, on string) string {
	cmd := s.parse(w, on)
	took := w.duration("took", 0)
	lost := w.flag("lost")
	checkName := ""
	if w.td.Cmd == "check" {
		checkName = w.first()
	}
	before, history := s.sys.read(s.id(on))
	sent := s.sys.now()
	answer, err := s.sys.apply(s.id(on), cmd)
	after, events := s.sys.read(s.id(on))
	s.sys.advance(took)
	s.last = said{on, cmd, before, after, answer, err}

	if guard.FromSending.Off() {
		sent = s.sys.now()
	}
	if err == nil && !lost && answer.Grant != nil && answer.Grant.SendWithin > 0 {
		s.target.learn(w.first(), sent, answer.Grant.SendWithin)
	}
	if answer.CheckNumber != 0 {
		s.checks[checkName] = answer.CheckNumber
	}
	lines := []string{s.answer(cmd, answer, err)}
	if cmp.Equal(before, after) {
		lines = append(lines, "unchanged")
	} else {
		lines = append(lines, s.row(on, after))
	}
	for i := range events[len(history):] {
		lines = append(lines, showEvent(&events[len(history)+i]))
	}
	return strings.Join(lines, "\n")
}

// judge looks at what must hold after every line, whatever the file says.
func (s *script) judge(t *testing.T) {
	for name, key := range s.ops {
		op, events := s.sys.read(key.Hash().OperationID())
		if op == nil {
			continue
		}
		if err := ledger.VerifyChain(events, op.LastHash); err != nil {
			t.Errorf("I7: %s: %v", name, err)
		}
	}
	for _, invariant := range append([]string{"two effects", "FAILED with an effect"}, s.verdicts...) {
		if what := verdicts[invariant](s); what != "" {
			t.Error(what)
		}
	}
}

func (s *script) id(on string) ledger.OperationID { return s.key(on).Hash().OperationID() }

func (s *script) key(on string) ledger.Key {
	if k, ok := s.ops[on]; ok {
		return k
	}
	return ledger.Key{Scope: "team", Tool: "payments.charge", Task: "task-1", Key: on}
}

func (s *script) contractOf(on string) ledger.Contract {
	c, _ := s.contracts.Contract(s.key(on).Tool)
	return c
}

// contract declares, or corrects, what a tool's owner says.
func (s *script) contract(w *scriptLine) {
	tool := ledger.Tool(w.text("tool", "payments.charge"))
	c, known := s.contracts.Contract(tool)
	c.Version = fmt.Sprintf("%016d", 1)
	if known {
		n, _ := strconv.Atoi(s.contracts[tool].Version)
		c.Version = fmt.Sprintf("%016d", n+1)
	}
	c.Effect = enum(w, "effect", c.Effect, ledger.Unsafe)
	c.Method = enum(w, "method", c.Method, ledger.MethodRegrant)
	c.EffectWithin = w.duration("effect-within", c.EffectWithin)
	c.KeyRetention = w.duration("key-retention", c.KeyRetention)
	c.SendWithin = w.duration("send-within", c.SendWithin)
	c.LeaseTotal = w.duration("lease-total", c.LeaseTotal)
	c.ApprovalExpires = w.duration("approval-expires", c.ApprovalExpires)
	c.GiveUpAfter = w.duration("give-up-after", c.GiveUpAfter)
	if n, err := strconv.ParseUint(w.text("max-attempts", "-"), 10, 32); err == nil {
		c.MaxAttempts = uint32(n)
	}
	switch w.text("repeat", "") {
	case "when-absent":
		c.Repeat = ledger.RepeatAllowed
	case "never":
		c.Repeat = ledger.RepeatForbidden
	}
	c.Override = map[string]ledger.Override{"caller": ledger.OverrideCaller, "approval": ledger.OverrideApproval}[w.text("override", "")]
	c.VerifyStated = c.VerifyStated || w.flag("verify")
	c.StickyAnswers = c.StickyAnswers || w.flag("sticky")
	c.RejectCodes = append(slices.Clone(c.RejectCodes), w.list("codes")...)
	c.SecondPerson = c.SecondPerson || w.flag("second-person")
	c.Irreversible = c.Irreversible || w.flag("irreversible")
	c.RequireUnchanged = c.RequireUnchanged && !w.flag("may-have-changed")
	if n, err := strconv.Atoi(w.text("max-unknown", "-")); err == nil {
		c.MaxUnknown = n
	}
	if within := w.duration("unique", 0); within > 0 {
		c.Unique = []ledger.UniqueRule{{By: []string{"amount"}, Within: within}}
	}
	if n, err := strconv.Atoi(w.text("per-original", "-")); err == nil {
		c.PerOriginal = n
	}
	s.contracts[tool] = c
}

// enum reads a value by the name that it prints.
func enum[T interface {
	~uint8
	String() string
}](w *scriptLine, name string, otherwise, last T,
) T {
	given := w.text(name, "")
	if given == "" {
		return otherwise
	}
	return named(w, given, last)
}

func named[T interface {
	~uint8
	String() string
}](w *scriptLine, given string, last T,
) T {
	for v := T(0); v <= last; v++ {
		if v.String() == strings.ToUpper(strings.ReplaceAll(given, "-", "_")) {
			return v
		}
	}
	w.td.Fatalf(w.t, "there is no %q", given)
	return 0
}

// scriptID is a UUID that is the same in every run.
func scriptID(name string) string { return uuid.NewSHA1(uuid.Nil, []byte(name)).String() }

func scriptFingerprint(request string) ledger.Fingerprint {
	sum := sha256.Sum256([]byte(request))
	return ledger.Fingerprint{Spec: 1, SecretID: "s1", Contract: "0000000000000001", Digest: sum, Categories: map[string]ledger.CategoryDigest{"amount": [8]byte(sum[:8])}}
}
