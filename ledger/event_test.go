// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// jcs writes RFC 8785 again, from the standard alone: members sorted by UTF-16 code unit, strings with the shortest escapes.
func jcs(v any) string {
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) })
		members := make([]string, len(names))
		for i, name := range names {
			members[i] = jcs(name) + ":" + jcs(v[name])
		}
		return "{" + strings.Join(members, ",") + "}"
	case string:
		var b strings.Builder
		for _, r := range v {
			if short, ok := jcsShort[r]; ok {
				b.WriteString(short)
			} else if r < 0x20 {
				fmt.Fprintf(&b, `\u%04x`, r)
			} else {
				b.WriteRune(r)
			}
		}
		return `"` + b.String() + `"`
	default:
		panic(fmt.Sprintf("an event holds strings and objects, not %T", v))
	}
}

var jcsShort = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`}

// eventMessage is an event as the contract's message in ProtoJSON, without its hash.
func eventMessage(e *ledger.Event) map[string]any {
	m := map[string]any{}
	put := func(name, value string) {
		if value != "" {
			m[name] = value
		}
	}
	count := func(name string, n uint64) {
		if n != 0 {
			put(name, strconv.FormatUint(n, 10))
		}
	}
	enum := func(name, prefix string, n uint8, word string) {
		if n != 0 {
			put(name, prefix+word)
		}
	}
	facts := map[string]any{}
	for k, v := range e.Facts {
		facts[k] = v
	}
	if e.Command != "" {
		facts["command"] = string(e.Command)
	}
	if e.CommandDigest != "" {
		facts["content"] = e.CommandDigest
	}
	if len(facts) > 0 {
		m["facts"] = facts
	}
	put("actor", string(e.Actor))
	enum("actorKind", "ACTOR_KIND_", uint8(e.ActorKind), e.ActorKind.String())
	put("commandId", e.CommandID)
	put("contractVersion", e.ContractVersion)
	count("epoch", e.Epoch)
	enum("fromState", "STATE_", uint8(e.FromState), e.FromState.String())
	enum("kind", "EVENT_KIND_", uint8(e.Kind), e.Kind.String())
	put("note", e.Note)
	put("operationId", e.OperationID.String())
	if e.PrevHash != [32]byte{} {
		put("prevHash", base64.StdEncoding.EncodeToString(e.PrevHash[:]))
	}
	count("sequence", e.Sequence)
	stamp := e.Time.UTC().Format("2006-01-02T15:04:05.000000")
	for range 2 {
		stamp = strings.TrimSuffix(stamp, "000")
	}
	put("time", strings.TrimSuffix(stamp, ".")+"Z")
	enum("toState", "STATE_", uint8(e.ToState), e.ToState.String())
	count("version", e.Version)
	return m
}

// awkward text: what JSON must escape, what it must not, and what sorts otherwise by byte than by code unit.
var awkward = []string{
	"", "plain", `"quoted" \ back/slash`, "\b\t\n\f\r", "\x00\x01\x0b\x1f\x7f", "</script>&", "\u00e9 e\u0301 \u20ac", "\U0001f600 \U00010000", "\u2028\u2029\ufeff\ufffd\uffff", "\ue000 \ud7ff",
}

func drawText() *rapid.Generator[string] {
	return rapid.OneOf(rapid.SampledFrom(awkward), rapid.String())
}

func drawEvent(t *rapid.T) ledger.Event {
	e := ledger.Event{
		OperationID: ledger.Key{Key: rapid.String().Draw(t, "key")}.Hash().OperationID(),
		Sequence:    rapid.Uint64Range(1, 1<<63).Draw(t, "sequence"), Version: rapid.Uint64Range(1, 1<<53+1).Draw(t, "version"),
		Epoch: rapid.Uint64().Draw(t, "epoch"), CommandID: drawText().Draw(t, "command id"),
		Time: time.UnixMicro(rapid.Int64Range(0, 1<<51).Draw(t, "time")).Truncate(rapid.SampledFrom([]time.Duration{1000, 1e6, 1e9}).Draw(t, "cut")).UTC(),
		Kind: ledger.EventKind(rapid.Uint8Range(1, uint8(ledger.EventAttributes)).Draw(t, "kind")), ActorKind: ledger.ActorKind(rapid.Uint8Range(1, 4).Draw(t, "actor kind")),
		Actor: ledger.Principal(drawText().Draw(t, "actor")), FromState: ledger.State(rapid.Uint8Range(0, 6).Draw(t, "from")), ToState: ledger.State(rapid.Uint8Range(1, 6).Draw(t, "to")),
		Note: drawText().Draw(t, "note"), ContractVersion: drawText().Draw(t, "contract"),
	}
	if rapid.Bool().Draw(t, "a command's") {
		e.Command, e.CommandDigest = ledger.KindComplete, strings.Repeat("0f", 16)
	}
	names := []string{"code", "check", "resource_id", "zone", "A", "_", "outcome"}
	for range rapid.IntRange(0, 4).Draw(t, "facts") {
		if e.Facts == nil {
			e.Facts = map[string]string{}
		}
		e.Facts[rapid.SampledFrom(names).Draw(t, "name")] = drawText().Draw(t, "fact")
	}
	var prev [32]byte
	copy(prev[:], rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "prev"))
	e.Seal(prev)
	return e
}

// TestEventBody: what the hash is made of is the RFC 8785 form of the contract's message, and reads back to the same event.
func TestEventBody(t *testing.T) {
	steadyRapid(t, 2000)
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		body := e.Body()
		if want := jcs(eventMessage(&e)); string(body) != want {
			t.Fatalf("body\n%s\nwant\n%s", body, want)
		}
		if e.Hash != sha256.Sum256(body) {
			t.Fatal("the hash is not that of the body")
		}
		back, err := ledger.ParseEvent(body, e.Hash)
		if err != nil {
			t.Fatalf("does not read back: %v\n%s", err, body)
		}
		if d := cmp.Diff(e, back); d != "" {
			t.Fatalf("reads back as another event:\n%s", d)
		}
	})
}

// TestEventBodyVector pins one body and its hash, computed by another program.
func TestEventBodyVector(t *testing.T) {
	e := ledger.Event{
		OperationID: ledger.Key{Scope: "team", Tool: "payments.charge", Task: "task-1", Key: "charge-1"}.Hash().OperationID(),
		Sequence:    2, Version: 2, Epoch: 1<<32 + 1, Command: ledger.KindComplete, CommandID: "5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b01",
		CommandDigest: strings.Repeat("0f", 16), Time: time.Date(2026, 7, 1, 12, 0, 0, 120_000_000, time.UTC),
		ActorKind: ledger.ActorWorker, Actor: "spiffe://example.org/agents/a", Kind: ledger.EventCompleted, FromState: ledger.Processing, ToState: ledger.Completed,
		Facts: map[string]string{"resource_id": "ch_1", "outcome": "succeeded"}, Note: "caf\u00e9\x01\"", ContractVersion: "5d41402abc4b2a76",
	}
	e.Seal([32]byte{31: 1})
	if got := string(e.Body()); got != eventVector {
		t.Errorf("body\n%s\nwant\n%s", got, eventVector)
	}
	if got := fmt.Sprintf("%x", e.Hash); got != eventVectorHash {
		t.Errorf("hash %s, want %s", got, eventVectorHash)
	}
}

const (
	eventVector = `{"actor":"spiffe://example.org/agents/a","actorKind":"ACTOR_KIND_WORKER","commandId":"5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b01",` +
		`"contractVersion":"5d41402abc4b2a76","epoch":"4294967297","facts":{"command":"complete","content":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",` +
		`"outcome":"succeeded","resource_id":"ch_1"},"fromState":"STATE_PROCESSING","kind":"EVENT_KIND_COMPLETED","note":"caf` + "\u00e9" + `\u0001\"",` +
		`"operationId":"9216d91b-4e62-8d3f-9ef0-2b781f36b770","prevHash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=","sequence":"2",` +
		`"time":"2026-07-01T12:00:00.120Z","toState":"STATE_COMPLETED","version":"2"}`
	eventVectorHash = "a22b3d94856f74189d7499bb8c5669a56ba5ee130d75ab3ede41dcadb8812536"
)

// history is a real one, of the kinds that workers, recovery and people leave.
func history(t *testing.T) ([]ledger.Event, [32]byte) {
	t.Helper()
	c := ledger.DefaultContract("payments.charge")
	c.Method = ledger.MethodProbe
	key := ledger.Key{Scope: "team", Tool: "payments.charge", Task: "task-1", Key: "charge-1"}
	id := key.Hash().OperationID()
	s := decideSystem{shelf: newShelf(), contracts: declared{key.Tool: c}}
	for _, cmd := range []ledger.Command{
		ledger.Claim{Key: key, ClaimID: claimID("c1"), WorkerID: "w1", Actor: scriptWorker, Fingerprint: scriptFingerprint("r"), ToolAllowed: true, IntentTime: s.clock},
		ledger.MarkUnknown{ClaimID: claimID("c1"), Actor: scriptWorker, Cause: ledger.CauseTimeout},
		ledger.TakeOver{CommandID: "t1", Actor: people[0], ExpectedVersion: 2, Reason: "caf\u00e9 \x01 \U0001f600"},
		ledger.Note{CommandID: "n1", Actor: people[0], Text: "line\nline"},
		ledger.Resolve{CommandID: "r1", Actor: people[0], ExpectedVersion: 3, Resolution: ledger.Resolution{Happened: chargeResult("ch_1"), Note: "found"}},
	} {
		s.advance(time.Second)
		if _, err := s.apply(id, cmd); err != nil {
			t.Fatalf("%T: %v", cmd, err)
		}
	}
	op, events := s.read(id)
	if err := ledger.VerifyChain(events, op.LastHash); err != nil || len(events) != 5 {
		t.Fatalf("%d events: %v", len(events), err)
	}
	return events, op.LastHash
}

// TestTamperingWithAHistory: whatever is changed, VerifyChain names the event that gives it away.
func TestTamperingWithAHistory(t *testing.T) {
	fields := map[string]func(*ledger.Event){
		"operation":       func(e *ledger.Event) { e.OperationID[0]++ },
		"sequence":        func(e *ledger.Event) { e.Sequence++ },
		"version":         func(e *ledger.Event) { e.Version++ },
		"epoch":           func(e *ledger.Event) { e.Epoch++ },
		"command":         func(e *ledger.Event) { e.Command = ledger.KindRetire },
		"command id":      func(e *ledger.Event) { e.CommandID += "x" },
		"command content": func(e *ledger.Event) { e.CommandDigest = strings.Repeat("ab", 16) },
		"time":            func(e *ledger.Event) { e.Time = e.Time.Add(time.Microsecond) },
		"actor kind":      func(e *ledger.Event) { e.ActorKind = e.ActorKind%4 + 1 },
		"actor":           func(e *ledger.Event) { e.Actor += "x" },
		"kind":            func(e *ledger.Event) { e.Kind = e.Kind%28 + 1 },
		"from":            func(e *ledger.Event) { e.FromState = e.FromState%6 + 1 },
		"to":              func(e *ledger.Event) { e.ToState = e.ToState%6 + 1 },
		"a fact":          func(e *ledger.Event) { e.Facts = map[string]string{"outcome": "other"} },
		"note":            func(e *ledger.Event) { e.Note += " " },
		"contract":        func(e *ledger.Event) { e.ContractVersion += "x" },
		"previous hash":   func(e *ledger.Event) { e.PrevHash[31]++ },
		"hash":            func(e *ledger.Event) { e.Hash[0]++ },
	}
	for name, tamper := range fields {
		for i := range 5 {
			events, last := history(t)
			tamper(&events[i])
			wantNamed(t, fmt.Sprintf("%s of event %d", name, i+1), ledger.VerifyChain(events, last), i+1)
		}
	}
	for i := range 5 {
		events, last := history(t)
		forged := events[i]
		forged.Note += "forged"
		forged.Seal(forged.PrevHash)
		events[i] = forged
		wantNamed(t, fmt.Sprintf("event %d written anew", i+1), ledger.VerifyChain(events, last), i+2)

		events, last = history(t)
		wantNamed(t, fmt.Sprintf("event %d removed", i+1), ledger.VerifyChain(slices.Delete(events, i, i+1), last), i+1)

		events, last = history(t)
		wantNamed(t, fmt.Sprintf("event %d twice", i+1), ledger.VerifyChain(slices.Insert(events, i, events[i]), last), i+2)

		if i > 0 {
			events, last = history(t)
			events[i-1], events[i] = events[i], events[i-1]
			wantNamed(t, fmt.Sprintf("events %d and %d swapped", i, i+1), ledger.VerifyChain(events, last), i)
		}
	}
	events, _ := history(t)
	if ledger.VerifyChain(events, [32]byte{}) == nil {
		t.Error("a row with another last hash is taken")
	}
	if err := ledger.VerifyChain(nil, [32]byte{}); err != nil {
		t.Errorf("no events of no operation: %v", err)
	}
}

// wantNamed wants an error that names the event; behind the last of the five it may name the row.
func wantNamed(t *testing.T, what string, err error, position int) {
	t.Helper()
	switch name := fmt.Sprintf("event %d", position); {
	case err == nil:
		t.Errorf("%s: not noticed", what)
	case strings.Contains(err.Error(), name), position >= 5 && strings.Contains(err.Error(), "row"):
	default:
		t.Errorf("%s: %v, which does not name %s", what, err, name)
	}
}

// TestTamperedBody: a stored body with any byte changed, or with anything added or left out, is not read.
func TestTamperedBody(t *testing.T) {
	events, _ := history(t)
	for _, e := range events {
		body := e.Body()
		for i := range body {
			changed := bytes.Clone(body)
			changed[i] ^= 1
			if _, err := ledger.ParseEvent(changed, e.Hash); err == nil {
				t.Fatalf("event %d: byte %d changed, and read", e.Sequence, i)
			}
		}
		// With the hash made to fit, only the one form is an event.
		for name, other := range map[string][]byte{
			"white space":       append([]byte(" "), body...),
			"another member":    bytes.Replace(body, []byte("{"), []byte(`{"aaa":"1",`), 1),
			"a member twice":    bytes.Replace(body, []byte("{"), []byte(`{"actor":"x",`), 1),
			"a number unquoted": bytes.Replace(body, []byte(`"sequence":"`+strconv.FormatUint(e.Sequence, 10)+`"`), []byte(`"sequence":`+strconv.FormatUint(e.Sequence, 10)), 1),
			"an unknown kind":   bytes.Replace(body, []byte("EVENT_KIND_"), []byte("EVENT_KIND_X"), 1),
			"trailing data":     append(bytes.Clone(body), '{', '}'),
			"empty":             nil,
		} {
			if _, err := ledger.ParseEvent(other, sha256.Sum256(other)); err == nil {
				t.Errorf("event %d with %s is read", e.Sequence, name)
			}
		}
	}
}

// TestEventTextThatIsNotUTF8: what is no text is stored as the replacement character, the same at every look.
func TestEventTextThatIsNotUTF8(t *testing.T) {
	e := ledger.Event{Sequence: 1, Version: 1, Time: shelfBegins, Kind: ledger.EventNote, ToState: ledger.Unknown, Note: "a\xff\xfeb\xed\xa0\x80"}
	e.Seal([32]byte{})
	back, err := ledger.ParseEvent(e.Body(), e.Hash)
	if err != nil {
		t.Fatal(err)
	}
	if back.Note != "a\ufffd\ufffdb\ufffd\ufffd\ufffd" {
		t.Errorf("note %q", back.Note)
	}
	if !bytes.Equal(back.Body(), e.Body()) {
		t.Error("its body differs at the second look")
	}
}

// TestCheckOfAnEventInParts: whatever part of a stored event is changed, it is not what was hashed; a word of a later release can't be judged.
func TestCheckOfAnEventInParts(t *testing.T) {
	events, _ := history(t)
	changes := map[string]func(e *ledger.Event){
		"operation": func(e *ledger.Event) { e.OperationID[0] ^= 1 }, "sequence": func(e *ledger.Event) { e.Sequence++ },
		"version": func(e *ledger.Event) { e.Version++ }, "epoch": func(e *ledger.Event) { e.Epoch++ },
		"time": func(e *ledger.Event) { e.Time = e.Time.Add(time.Microsecond) }, "kind": func(e *ledger.Event) { e.Kind = e.Kind%28 + 1 },
		"from": func(e *ledger.Event) { e.FromState = (e.FromState + 1) % 7 }, "to": func(e *ledger.Event) { e.ToState = (e.ToState + 1) % 7 },
		"actor kind": func(e *ledger.Event) { e.ActorKind = (e.ActorKind + 1) % 5 }, "actor": func(e *ledger.Event) { e.Actor += "x" },
		"command": func(e *ledger.Event) { e.Command += "x" }, "command id": func(e *ledger.Event) { e.CommandID += "x" },
		"content": func(e *ledger.Event) { e.CommandDigest += "x" }, "contract": func(e *ledger.Event) { e.ContractVersion += "x" },
		"facts": func(e *ledger.Event) { e.Facts = map[string]string{"x": "y"} }, "note": func(e *ledger.Event) { e.Note += "x" },
		"link": func(e *ledger.Event) { e.PrevHash[0] ^= 1 }, "hash": func(e *ledger.Event) { e.Hash[0] ^= 1 },
	}
	for _, e := range events {
		if err := e.Check(); err != nil {
			t.Fatalf("event %d: %v", e.Sequence, err)
		}
		for part, change := range changes {
			other := e
			if change(&other); other.Check() == nil {
				t.Errorf("event %d: another %s is not noticed", e.Sequence, part)
			}
		}
		for word, change := range map[string]func(e *ledger.Event){
			"kind": func(e *ledger.Event) { e.Kind = 29 }, "state": func(e *ledger.Event) { e.ToState = 7 }, "actor kind": func(e *ledger.Event) { e.ActorKind = 5 },
		} {
			later := e
			if change(&later); !errors.Is(later.Check(), ledger.ErrRecordTooNew) {
				t.Errorf("event %d, a %s of a later release: %v", e.Sequence, word, later.Check())
			}
		}
	}
}
