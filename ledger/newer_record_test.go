// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

func historyEvent(id byte, sequence uint64) ledger.Event {
	return ledger.Event{
		OperationID: ledger.OperationID{id}, Sequence: sequence, Version: sequence, Time: shelfBegins.Add(time.Duration(sequence) * time.Second),
		ActorKind: ledger.ActorWorker, Actor: "agent", Kind: ledger.EventGranted, FromState: ledger.Received, ToState: ledger.Processing,
	}
}

// TestParseEventOfANewerRelease: what a newer release has written, and this one has no word for, is neither tampered with nor anything else that it knows.
func TestParseEventOfANewerRelease(t *testing.T) {
	for _, word := range []string{"EVENT_KIND_GRANTED", "STATE_RECEIVED", "STATE_PROCESSING", "ACTOR_KIND_WORKER"} {
		t.Run(word, func(t *testing.T) {
			e := historyEvent(1, 1)
			body := bytes.Replace(e.Body(), []byte(`"`+word+`"`), []byte(`"`+word+`_BY_A_LATER_RELEASE"`), 1)
			if bytes.Equal(body, e.Body()) {
				t.Fatalf("the body does not say %s", word)
			}
			if _, err := ledger.ParseEvent(body, sha256.Sum256(body)); !errors.Is(err, ledger.ErrRecordTooNew) {
				t.Errorf("ParseEvent: %v, want %v", err, ledger.ErrRecordTooNew)
			}
			if _, err := ledger.ParseEvent(body, sha256.Sum256(e.Body())); err == nil || errors.Is(err, ledger.ErrRecordTooNew) {
				t.Errorf("ParseEvent of a body that does not match its hash: %v", err)
			}
		})
	}
}

// TestVerifyChainOfTwoOperations: events that are linked, and numbered without a gap, are no history if they are not of one operation.
func TestVerifyChainOfTwoOperations(t *testing.T) {
	chain := func(ids ...byte) []ledger.Event {
		events, prev := []ledger.Event{}, [32]byte{}
		for i, id := range ids {
			e := historyEvent(id, uint64(i)+1)
			e.Seal(prev)
			events, prev = append(events, e), e.Hash
		}
		return events
	}
	if events := chain(1, 1, 1); ledger.VerifyChain(events, events[2].Hash) != nil {
		t.Errorf("a history of one operation: %v", ledger.VerifyChain(events, events[2].Hash))
	}
	for _, ids := range [][]byte{{1, 2}, {1, 1, 2}, {1, 2, 1}} {
		events := chain(ids...)
		if err := ledger.VerifyChain(events, events[len(events)-1].Hash); err == nil {
			t.Errorf("events of operations %v pass for one history", ids)
		}
	}
}

// TestStartWithoutTheOriginal: I10 holds for the Start of a reservation, too, when what it would compensate can't be read any more.
func TestStartWithoutTheOriginal(t *testing.T) {
	op := ledger.Operation{
		State: ledger.Received, Custody: ledger.Automation, Timeline: 1, Compensates: ledger.OperationID{9},
		Grant: ledger.Grant{ClaimID: claimID("c1"), LeaseUntil: shelfBegins.Add(30 * time.Second), Lease: 30 * time.Second},
	}
	start := ledger.Start{ClaimID: claimID("c1"), Actor: scriptWorker, ToolAllowed: true}
	change, _, err := ledger.Decide(&op, ledger.Related{Timeline: 1}, start, ledger.DefaultContract("payments.refund"), shelfBegins)
	if !errors.Is(err, ledger.ErrOriginalHasNoEffect) || change.Next != nil {
		t.Errorf("Start: %v, want %v", err, ledger.ErrOriginalHasNoEffect)
	}
}
