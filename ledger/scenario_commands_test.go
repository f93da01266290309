// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

var (
	scriptWorker      = ledger.Actor{Kind: ledger.ActorWorker, Name: "agent"}
	scriptLoop        = ledger.Actor{Kind: ledger.ActorRecovery, Name: "recovery"}
	scriptProbe       = ledger.Actor{Kind: ledger.ActorReconciler, Name: "evidence"}
	scriptInspections = map[string]ledger.Inspection{
		"unchanged": ledger.InspectUnchanged, "changed": ledger.InspectChanged, "gone": ledger.InspectGone,
		"no-version": ledger.InspectNoVersion, "indeterminate": ledger.InspectIndeterminate,
	}
)

// parse reads a line as a command of the ledger.
func (s *script) parse(w *scriptLine, on string) ledger.Command {
	switch w.td.Cmd {
	case "claim":
		return s.claim(w, on)
	case "start":
		return ledger.Start{ClaimID: claimID(w.first()), Actor: scriptWorker, ToolAllowed: true}
	case "renew":
		return ledger.Renew{ClaimID: claimID(w.first()), Actor: scriptWorker, Lease: w.duration("lease", 0)}
	case "succeeded":
		return ledger.Complete{ClaimID: claimID(w.first()), Actor: scriptWorker, Succeeded: chargeResult(w.text("resource", "ch_1")), SentExactlyOnce: w.flag("once")}
	case "rejected":
		f := &ledger.Failure{Kind: ledger.Declined, Code: w.text("code", "card_declined")}
		return ledger.Complete{ClaimID: claimID(w.first()), Actor: scriptWorker, Rejected: f, SentExactlyOnce: w.flag("once")}
	case "not-executed":
		ne := &ledger.NotExecuted{Kind: ledger.NeverSent, RetryAfter: w.duration("retry-after", 0)}
		if w.flag("refused") {
			ne.Kind = ledger.RefusedBeforeAcceptance
		}
		return ledger.Complete{ClaimID: claimID(w.first()), Actor: scriptWorker, NotExecuted: ne, SentExactlyOnce: w.flag("once")}
	case "mark-unknown":
		return ledger.MarkUnknown{ClaimID: claimID(w.first()), Actor: scriptWorker, Cause: ledger.CauseTimeout}
	case "cancel":
		return ledger.Cancel{ClaimID: claimID(w.first()), Actor: scriptWorker}
	case "check":
		return ledger.BeginCheck{Actor: scriptLoop}
	case "evidence":
		return s.evidence(w)
	case "inspect":
		current := ledger.ResourceRef{Type: "charge", ID: w.text("resource", "ch_1"), Version: w.text("version", "1")}
		return ledger.Inspect{Actor: scriptLoop, Outcome: scriptInspections[w.first()], Current: current, Cause: enum(w, "cause", ledger.QueryTimeout, ledger.QueryNotUnderstood)}
	case "regrant":
		return ledger.Regrant{Actor: scriptLoop}
	case "give-up":
		return ledger.GiveUp{Actor: scriptLoop}
	case "expire":
		return ledger.Expire{Actor: scriptLoop}
	case "retire":
		return ledger.Retire{Actor: scriptLoop, Referenced: w.flag("referenced")}
	}
	return s.person(w, on)
}

func (s *script) claim(w *scriptLine, on string) ledger.Claim {
	given := ledger.Key{Scope: "team", Tool: ledger.Tool(w.text("tool", "payments.charge")), Task: ledger.Task(w.text("task", "task-1")), Key: on}
	key, known := s.ops[on]
	if !known {
		key = given
		s.ops[on] = key
	}
	name := w.first()
	request := w.text("request", "request")
	s.requests[name] = request
	c := ledger.Claim{
		Key: key, ClaimID: claimID(name), WorkerID: w.text("worker", "worker-"+name), Actor: scriptWorker, Fingerprint: scriptFingerprint(request),
		Lease: w.duration("lease", 0), Reserve: w.flag("reserve"), ToolAllowed: !w.flag("revoked"),
		IntentTime: s.begins.Add(w.duration("intent", 0)), EffectHint: enum(w, "hint", 0, ledger.Unsafe),
	}
	if original := w.text("compensates", ""); original != "" {
		c.Compensates = s.id(original)
		s.originals[on] = original
	}
	if original := w.text("corrects", ""); original != "" {
		c.Corrects = s.id(original)
	}
	if looks := w.text("looks", ""); looks != "" { // what the rule compares
		contract, _ := s.contracts.Contract(key.Tool)
		s.looks[on] = looks
		for _, u := range contract.Unique {
			c.Slots = append(c.Slots, ledger.UniqueSlot{Slot: sha256.Sum256([]byte(looks)), Within: u.Within})
		}
	}
	for _, other := range w.list("distinct-from") {
		c.DistinctFrom = append(c.DistinctFrom, s.id(other))
	}
	return c
}

// many sends reports that differ: each of another stranger, or all of the one that from= names. It shows how many were answered how, and how
// many events of each kind they left.
func (s *script) many(w *scriptLine, on string) string {
	_, history := s.sys.read(s.id(on))
	report, from := w.first(), w.text("from", "")
	times, err := strconv.Atoi(w.text("times", ""))
	if err != nil {
		w.td.Fatalf(w.t, "how many times?")
	}
	answers, left := map[string]int{}, map[string]int{}
	for i := range times {
		var cmd ledger.Command
		switch id := claimID(when(from == "", fmt.Sprintf("stranger-%d", i)) + from); report {
		case "succeeded":
			r := chargeResult(when(from == "", fmt.Sprintf("other_%d", i)) + when(from != "", "ch_1"))
			r.Code = fmt.Sprint(i)
			cmd = ledger.Complete{ClaimID: id, Actor: scriptWorker, Succeeded: r}
		case "mark-unknown":
			cmd = ledger.MarkUnknown{ClaimID: id, Actor: scriptWorker, Cause: ledger.CauseTimeout}
		default:
			w.td.Fatalf(w.t, "there is no report %q", report)
		}
		a, err := s.sys.apply(s.id(on), cmd)
		answers[s.answer(cmd, a, err)]++
	}
	after, events := s.sys.read(s.id(on))
	for i := range events[len(history):] {
		left[events[len(history)+i].Kind.String()]++
	}
	lines := []string{}
	for _, a := range slices.Sorted(maps.Keys(answers)) {
		lines = append(lines, fmt.Sprintf("%d %s", answers[a], a))
	}
	lines = append(lines, s.row(on, after))
	for _, kind := range slices.Sorted(maps.Keys(left)) {
		lines = append(lines, fmt.Sprintf("  %d %s", left[kind], kind))
	}
	return strings.Join(lines, "\n")
}

func (s *script) evidence(w *scriptLine) ledger.Reconcile {
	r := ledger.Reconcile{CommandID: s.commandID(w), Actor: scriptProbe}
	if answers := w.text("answers", ""); answers != "" {
		number, ok := s.checks[answers]
		switch {
		case ok:
		case s.unguarded: // it went another way: that is an answer to nothing
			number = math.MaxUint32
		default:
			w.td.Fatalf(w.t, "no check was taken as %s", answers)
		}
		r.CheckNumber, r.Actor = number, scriptLoop
	}
	e := ledger.Evidence{Finding: named(w, w.first(), ledger.Indeterminate), Source: "status query", RetryAfter: w.duration("retry-after", 0)}
	switch e.Finding {
	case ledger.FoundResource:
		e.Result = chargeResult(w.text("resource", "ch_1"))
		e.Different, e.Missing = w.list("different"), w.list("missing")
		e.CreateTime = s.begins.Add(w.duration("created", 0))
	case ledger.RejectedThere:
		e.Rejected = &ledger.Failure{Kind: ledger.Declined, Code: w.text("code", "card_declined")}
	case ledger.NotAccepted:
		e.Final = w.flag("final")
	case ledger.AmbiguousThere:
		e.Candidates = []ledger.ResourceRef{{Type: "charge", ID: "ch_1"}, {Type: "charge", ID: "ch_2"}}
	case ledger.Indeterminate:
		e.Cause = enum(w, "cause", ledger.QueryTimeout, ledger.QueryNotUnderstood)
	}
	r.Evidence = e
	return r
}

// person reads a decision of a person, who has looked at the present version unless the line names another.
func (s *script) person(w *scriptLine, on string) ledger.Command {
	by := ledger.Actor{Kind: ledger.ActorPerson, Name: ledger.Principal(w.text("by", "ops-a"))}
	id := s.commandID(w)
	version := uint64(0)
	if op, _ := s.sys.read(s.id(on)); op != nil {
		version = op.Version
	}
	if n, err := strconv.ParseUint(w.text("version", "-"), 10, 64); err == nil {
		version = n
	}
	note := w.text("note", "looked at it")
	switch w.td.Cmd {
	case "take-over":
		return ledger.TakeOver{CommandID: id, Actor: by, ExpectedVersion: version, Reason: note}
	case "hand-back":
		return ledger.HandBack{CommandID: id, Actor: by, ExpectedVersion: version, Reason: note}
	case "check-now":
		return ledger.CheckNow{CommandID: id, Actor: by, Reason: note}
	case "approve", "reject":
		return ledger.Approve{CommandID: id, Actor: by, ExpectedVersion: version, Approved: w.td.Cmd == "approve", Note: note}
	case "note":
		through, _ := strconv.ParseUint(w.text("through", "0"), 10, 64)
		return ledger.Note{CommandID: id, Actor: by, Text: note, AcknowledgeThrough: through}
	case "resolve":
		r := ledger.Resolution{Note: note, SearchTime: s.sys.now(), DespiteFound: w.flag("despite-found")}
		if searched := w.text("searched", ""); searched != "" {
			r.SearchTime = s.begins.Add(w.parse(searched))
		}
		switch w.first() {
		case "happened":
			r.Happened = chargeResult(w.text("resource", "ch_1"))
		case "never-happened-retry":
			r.NeverHappenedTry = &ledger.NotExecuted{Kind: ledger.AbsentAtTarget}
		case "never-happened-stop":
			r.NeverHappenedEnd = &ledger.Failure{Kind: ledger.Abandoned}
		}
		return ledger.Resolve{CommandID: id, Actor: by, ExpectedVersion: version, Resolution: r}
	}
	w.td.Fatalf(w.t, "there is no command %q", w.td.Cmd)
	return nil
}

// commandID is a new one for each line that does not name its own.
func (s *script) commandID(w *scriptLine) ledger.CommandID {
	s.commands++
	return ledger.CommandID(scriptID(w.text("id", fmt.Sprintf("command-%d", s.commands))))
}

func claimID(name string) ledger.ClaimID { return ledger.ClaimID(scriptID(name)) }

func chargeResult(id string) *ledger.Result {
	return &ledger.Result{Resource: ledger.ResourceRef{Type: "charge", ID: id, Version: "1"}, Code: "created"}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

var refusalNames = map[string]error{
	"VALIDATION": ledger.ErrValidation, "FINGERPRINT_CONFLICT": ledger.ErrFingerprintConflict, "DUPLICATE_INTENT": ledger.ErrDuplicateIntent,
	"KEY_RETIRED": ledger.ErrKeyRetired, "KEY_TOO_OLD": ledger.ErrKeyTooOld, "STALE_GRANT": ledger.ErrStaleGrant, "LEASE_OVER": ledger.ErrLeaseOver,
	"COMMAND_REUSED": ledger.ErrCommandReused, "STALE_VERSION": ledger.ErrStaleVersion, "TOO_EARLY": ledger.ErrTooEarly,
	"NOT_IN_CUSTODY": ledger.ErrNotInCustody, "SECOND_PERSON_REQUIRED": ledger.ErrSecondPersonRequired,
	"ORIGINAL_HAS_NO_EFFECT": ledger.ErrOriginalHasNoEffect, "DEPENDENCY_FAILED": ledger.ErrDependencyFailed,
	"NOT_REVERSIBLE": ledger.ErrNotReversible, "HELD_BY_OPERATOR": ledger.ErrHeldByOperator, "TOOL_PAUSED": ledger.ErrToolPaused,
	"ORIGINAL_UNSETTLED": ledger.ErrOriginalUnsettled, "BLOCKED": ledger.ErrBlocked, "ILLEGAL_TRANSITION": ledger.ErrIllegalTransition, "EFFECT_FOUND": ledger.ErrEffectFound,
	"TOOL_NOT_ALLOWED": ledger.ErrToolNotAllowed, "OPERATION_NOT_FOUND": ledger.ErrOperationNotFound,
}

func refusalName(err error) string {
	for name, sentinel := range refusalNames {
		if errors.Is(err, sentinel) {
			return name
		}
	}
	return "an error that no refusal names"
}

// scriptTarget is a tiny target: what was sent to it, and the effects that it has. It deduplicates by key for as long as its
// contract says, if that is KEYED.
type scriptTarget struct {
	windows map[string]time.Time // by claim: until when its worker may send, as the worker counts
	sides   map[string]*scriptSide
}

type scriptSide struct {
	flying     []scriptPacket
	effects    []scriptEffect
	remembered time.Time
}

// scriptPacket is a request on its way; from is the claim under which it was sent.
type scriptPacket struct{ name, from string }

type scriptEffect struct{ id, from string }

func newScriptTarget() *scriptTarget {
	return &scriptTarget{windows: map[string]time.Time{}, sides: map[string]*scriptSide{}}
}

func (m *scriptTarget) of(on string) *scriptSide {
	if m.sides[on] == nil {
		m.sides[on] = &scriptSide{}
	}
	return m.sides[on]
}

// learn: the worker counts what is left from when it sent the call.
func (m *scriptTarget) learn(claim string, sent time.Time, window time.Duration) {
	if until := sent.Add(window); until.After(m.windows[claim]) {
		m.windows[claim] = until
	}
}

func (m *scriptTarget) line(w *scriptLine, now time.Time, c ledger.Contract, on string) string {
	side := m.of(on)
	if w.td.Cmd == "send" {
		claim := w.first()
		p := scriptPacket{w.text("as", claim), claim}
		until, granted := m.windows[claim]
		switch {
		case !granted:
			return "not sent: it knows of no send window"
		case !until.After(now):
			return "not sent: its send window is over"
		}
		side.flying = append(side.flying, p)
		return "on its way"
	}
	name := w.first()
	i := slices.IndexFunc(side.flying, func(p scriptPacket) bool { return p.name == name })
	if i < 0 {
		return "not on its way"
	}
	from := side.flying[i].from
	side.flying = slices.Delete(side.flying, i, i+1)
	remembers := len(side.effects) > 0 && (c.KeyRetention == 0 || now.Before(side.remembered.Add(c.KeyRetention)))
	switch {
	case w.td.Cmd == "refuses":
		return "no effect"
	case w.td.Cmd == "drops":
		return "no effect"
	case c.Effect == ledger.Keyed && remembers:
		return "seen before: " + side.effects[0].id
	}
	id := fmt.Sprintf("ch_%d", len(side.effects)+1)
	side.effects, side.remembered = append(side.effects, scriptEffect{id, from}), now
	return "effect " + id
}

func (m *scriptTarget) look(on string) string {
	var ids []string
	for _, e := range m.of(on).effects {
		ids = append(ids, e.id)
	}
	if len(ids) == 0 {
		return "nothing there"
	}
	return fmt.Sprintf("%d effects: %v", len(ids), ids)
}
