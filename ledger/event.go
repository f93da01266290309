// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// EventKind says what an event records.
type EventKind uint8

// The kinds.
const (
	EventRegistered         EventKind = 1
	EventGranted            EventKind = 2
	EventStarted            EventKind = 3
	EventCompleted          EventKind = 4
	EventFailed             EventKind = 5
	EventNotExecuted        EventKind = 6
	EventMarkedUnknown      EventKind = 7
	EventLeaseLapsed        EventKind = 8
	EventCheckTaken         EventKind = 9
	EventEvidence           EventKind = 10
	EventQueued             EventKind = 11
	EventTakenOver          EventKind = 12
	EventHandedBack         EventKind = 13
	EventResolved           EventKind = 14
	EventApproval           EventKind = 15
	EventObserved           EventKind = 16
	EventContradicted       EventKind = 17
	EventNote               EventKind = 18
	EventCancelled          EventKind = 19
	EventQuarantined        EventKind = 20
	EventRetired            EventKind = 21
	EventRegranted          EventKind = 22
	EventCheckRequested     EventKind = 23
	EventProposed           EventKind = 24
	EventCleared            EventKind = 25
	EventCompensationLinked EventKind = 26
	EventExpired            EventKind = 27
	EventAttributes         EventKind = 28
)

var eventKindNames = []string{
	"UNSPECIFIED", "REGISTERED", "GRANTED", "STARTED", "COMPLETED", "FAILED", "NOT_EXECUTED", "MARKED_UNKNOWN", "LEASE_LAPSED",
	"CHECK_TAKEN", "EVIDENCE", "QUEUED", "TAKEN_OVER", "HANDED_BACK", "RESOLVED", "APPROVAL", "OBSERVED", "CONTRADICTED", "NOTE", "CANCELLED",
	"QUARANTINED", "RETIRED", "REGRANTED", "CHECK_REQUESTED", "PROPOSED", "CLEARED", "COMPENSATION_LINKED", "EXPIRED", "ATTRIBUTES",
}

func (k EventKind) String() string { return name(k, eventKindNames...) }

// Event is one entry of an operation's history. Events of one operation are numbered 1, 2, 3, ... without a gap and form a hash
// chain: each carries the hash of the one before it.
type Event struct {
	OperationID OperationID
	Sequence    uint64
	// Version of the operation after it.
	Version uint64
	Epoch   uint64
	// Command and CommandID under which it was asked for; empty for what happened by itself.
	Command   CommandKind
	CommandID string
	// CommandDigest tells the contents of two commands under one id apart; 32 hex digits, empty where the id alone decides.
	CommandDigest   string
	Time            time.Time
	ActorKind       ActorKind
	Actor           Principal
	Kind            EventKind
	FromState       State
	ToState         State
	Facts           map[string]string
	Note            string
	ContractVersion string
	PrevHash        [32]byte
	Hash            [32]byte
}

// Body is the RFC 8785 form of the event as the contract's Event message in ProtoJSON, without its hash, prev_hash included: what the
// hash is made of, what the store keeps, and what an auditor recomputes from an export. Command and CommandDigest are in facts
// ("command", "content"), so that the message holds all of it.
func (e *Event) Body() []byte {
	w := newCanonical()
	w.field("actor", string(e.Actor))
	w.enum("actorKind", "ACTOR_KIND_", uint8(e.ActorKind), e.ActorKind.String())
	w.field("commandId", e.CommandID)
	w.field("contractVersion", e.ContractVersion)
	if e.Epoch != 0 {
		w.field("epoch", strconv.FormatUint(e.Epoch, 10))
	}
	w.object("facts", e.AllFacts())
	w.enum("fromState", "STATE_", uint8(e.FromState), e.FromState.String())
	w.enum("kind", "EVENT_KIND_", uint8(e.Kind), e.Kind.String())
	w.field("note", e.Note)
	w.field("operationId", e.OperationID.String())
	if e.PrevHash != ([32]byte{}) {
		w.field("prevHash", base64.StdEncoding.EncodeToString(e.PrevHash[:]))
	}
	w.field("sequence", strconv.FormatUint(e.Sequence, 10))
	w.field("time", protoTime(e.Time))
	w.enum("toState", "STATE_", uint8(e.ToState), e.ToState.String())
	w.field("version", strconv.FormatUint(e.Version, 10))
	return w.bytes()
}

// AllFacts are the facts as the contract's message has them, with the command ("command") and the digest of its content ("content").
func (e *Event) AllFacts() map[string]string {
	facts := make(map[string]string, len(e.Facts)+2)
	for k, v := range e.Facts {
		facts[k] = v
	}
	if e.Command != "" {
		facts["command"] = string(e.Command)
	}
	if e.CommandDigest != "" {
		facts["content"] = e.CommandDigest
	}
	return facts
}

// Seal chains the event to the one before it.
func (e *Event) Seal(prev [32]byte) {
	e.PrevHash = prev
	e.Hash = sha256.Sum256(e.Body())
}

// Check reports whether an event is what its hash was made of. ErrRecordTooNew: it has a word of a later release, and can't be judged.
func (e *Event) Check() error {
	if int(e.Kind) >= len(eventKindNames) || e.FromState > Retired || e.ToState > Retired || e.ActorKind > ActorPerson {
		return ErrRecordTooNew
	}
	if sha256.Sum256(e.Body()) != e.Hash {
		return errTampered
	}
	return nil
}

// eventJSON reads a body back.
type eventJSON struct {
	Actor           string            `json:"actor"`
	ActorKind       string            `json:"actorKind"`
	CommandID       string            `json:"commandId"`
	ContractVersion string            `json:"contractVersion"`
	Epoch           uint64            `json:"epoch,string"`
	Facts           map[string]string `json:"facts"`
	FromState       string            `json:"fromState"`
	Kind            string            `json:"kind"`
	Note            string            `json:"note"`
	OperationID     OperationID       `json:"operationId"`
	PrevHash        []byte            `json:"prevHash"`
	Sequence        uint64            `json:"sequence,string"`
	Time            time.Time         `json:"time"`
	ToState         string            `json:"toState"`
	Version         uint64            `json:"version,string"`
}

// errTampered says that an event's bytes are not what its hash was made of.
var errTampered = errors.New("event does not match its hash")

// ParseEvent reads an event from its stored body and checks it against its hash.
func ParseEvent(body []byte, hash [32]byte) (Event, error) {
	if sha256.Sum256(body) != hash {
		return Event{}, errTampered
	}
	var j eventJSON
	if err := json.Unmarshal(body, &j); err != nil {
		return Event{}, fmt.Errorf("event body: %w", err)
	}
	e := Event{
		OperationID: j.OperationID, Sequence: j.Sequence, Version: j.Version, Epoch: j.Epoch, CommandID: j.CommandID,
		Command: CommandKind(j.Facts["command"]), CommandDigest: j.Facts["content"],
		Time: j.Time.UTC(), ActorKind: parseName[ActorKind](j.ActorKind, "ACTOR_KIND_", 4), Actor: Principal(j.Actor),
		Kind:      parseName[EventKind](j.Kind, "EVENT_KIND_", 28),
		FromState: parseName[State](j.FromState, "STATE_", 6), ToState: parseName[State](j.ToState, "STATE_", 6),
		Facts: j.Facts, Note: j.Note, ContractVersion: j.ContractVersion, Hash: hash,
	}
	if j.Kind != "" && e.Kind == 0 || j.ActorKind != "" && e.ActorKind == 0 || j.FromState != "" && e.FromState == 0 || j.ToState != "" && e.ToState == 0 {
		return Event{}, ErrRecordTooNew // a word of a later release
	}
	copy(e.PrevHash[:], j.PrevHash)
	delete(e.Facts, "command")
	delete(e.Facts, "content")
	if len(e.Facts) == 0 {
		e.Facts = nil
	}
	if !bytes.Equal(e.Body(), body) {
		return Event{}, errTampered
	}
	return e, nil
}

func parseName[T interface {
	~uint8
	fmt.Stringer
}](s, prefix string, last T,
) T {
	for v := T(1); v <= last; v++ {
		if s == prefix+v.String() {
			return v
		}
	}
	return 0
}

// VerifyChain checks a whole history: sequence without a gap, every hash, every link, and that it ends in last (the hash on the
// operation's row). It needs the events alone.
func VerifyChain(events []Event, last [32]byte) error {
	var prev [32]byte
	for i := range events {
		e := &events[i]
		if e.Sequence != uint64(i)+1 {
			return fmt.Errorf("event %d of the history has sequence %d", i+1, e.Sequence)
		}
		if e.OperationID != events[0].OperationID {
			return fmt.Errorf("event %d is of another operation", e.Sequence)
		}
		if e.PrevHash != prev {
			return fmt.Errorf("event %d is not linked to the one before it", e.Sequence)
		}
		if sha256.Sum256(e.Body()) != e.Hash {
			return fmt.Errorf("event %d: %w", e.Sequence, errTampered)
		}
		prev = e.Hash
	}
	if prev != last {
		return errors.New("the history does not end where the operation's row says")
	}
	return nil
}

// protoTime is a time as ProtoJSON writes it: UTC, with 0, 3 or 6 fraction digits. The stores keep microseconds.
func protoTime(t time.Time) string {
	switch us := t.Nanosecond() / 1000; {
	case us == 0:
		return t.UTC().Format("2006-01-02T15:04:05Z")
	case us%1000 == 0:
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	default:
		return t.UTC().Format("2006-01-02T15:04:05.000000Z")
	}
}
