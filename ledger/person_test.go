// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// heldUnknown is an UNKNOWN operation that a person has.
func heldUnknown() *ledger.Operation {
	c := ledger.DefaultContract("payments.charge")
	op := cellOperation(cell{state: "UNKNOWN"}, c)
	op.Custody, op.Custodian, op.QueueReason = ledger.Operator, person.Name, 0
	return op
}

// TestResolveByURI: a resource that has no id is named by its uri.
func TestResolveByURI(t *testing.T) {
	op := heldUnknown()
	resolve := ledger.Resolve{CommandID: commandID, Actor: person, ExpectedVersion: op.Version, Resolution: ledger.Resolution{
		Happened: &ledger.Result{Resource: ledger.ResourceRef{URI: "https://target.test/charges/1"}}, Note: "seen",
	}}
	change, _, err := ledger.Decide(op, ledger.Related{Timeline: 1}, resolve, ledger.DefaultContract(op.Tool), cellNow)
	if err != nil || change.Next.State != ledger.Completed || change.Next.Result.Resource.URI == "" {
		t.Errorf("%v, %+v", err, change.Next)
	}
	resolve.Resolution.Happened = &ledger.Result{Code: "captured"}
	if _, _, err = ledger.Decide(op, ledger.Related{Timeline: 1}, resolve, ledger.DefaultContract(op.Tool), cellNow); !errors.Is(err, ledger.ErrValidation) {
		t.Errorf("a success that names nothing: %v", err)
	}
}

// TestResolveSentAgainUnderAnotherContract: what of a result is kept depends on the contract, which may have changed since the command was first sent. It is the
// same command all the same.
func TestResolveSentAgainUnderAnotherContract(t *testing.T) {
	op := heldUnknown()
	resolve := ledger.Resolve{CommandID: commandID, Actor: person, ExpectedVersion: op.Version, Resolution: ledger.Resolution{
		Happened: &ledger.Result{
			Resource: ledger.ResourceRef{ID: "ch_1"}, Code: "captured", Attributes: map[string]string{"etag": "1"}, Schema: "charge/1", Payload: []byte("{}"),
		}, Note: "seen",
	}}
	change, _, err := ledger.Decide(op, ledger.Related{Timeline: 1}, resolve, ledger.DefaultContract(op.Tool), cellNow)
	if err != nil {
		t.Fatal(err)
	}
	sent := ledger.Related{Timeline: 1, Prior: []ledger.Event{*change.Event}}
	resolve.Resolution.Happened = &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_1"}, Code: "captured"} // no names are declared any more
	if again, _, err := ledger.Decide(change.Next, sent, resolve, ledger.DefaultContract(op.Tool), cellNow.Add(time.Hour)); err != nil || again.Next != nil {
		t.Errorf("sent again: %v, %+v", err, again)
	}
	resolve.Resolution.Happened = &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_2"}, Code: "captured"}
	if _, _, err := ledger.Decide(change.Next, sent, resolve, ledger.DefaultContract(op.Tool), cellNow); !errors.Is(err, ledger.ErrCommandReused) {
		t.Errorf("another resource: %v", err)
	}
}

// TestGrantsHoldOnlyWhileUnpaused: what is granted says so to the store; nothing else depends on it.
func TestGrantsHoldOnlyWhileUnpaused(t *testing.T) {
	claim := ledger.Claim{
		Key: cellKey, ClaimID: holderID, WorkerID: "w", Actor: agent, ToolAllowed: true, IntentTime: cellNow, Fingerprint: ledger.Fingerprint{Spec: 1, SecretID: "s"},
	}
	for _, reserve := range []bool{false, true} {
		claim.Reserve = reserve
		granted, _, err := ledger.Decide(nil, ledger.Related{Timeline: 1}, claim, ledger.DefaultContract(cellKey.Tool), cellNow)
		if err != nil || !granted.UnlessPaused {
			t.Fatalf("a claim, reserved %v: %v, %+v", reserve, err, granted)
		}
		if reserve {
			start := ledger.Start{ClaimID: holderID, Actor: agent, ToolAllowed: true}
			started, _, err := ledger.Decide(granted.Next, ledger.Related{Timeline: 1}, start, ledger.DefaultContract(cellKey.Tool), cellNow)
			if err != nil || !started.UnlessPaused {
				t.Errorf("a start: %v, %+v", err, started)
			}
			continue
		}
		report := ledger.Complete{ClaimID: holderID, Actor: agent, Succeeded: &charge}
		reported, _, err := ledger.Decide(granted.Next, ledger.Related{Timeline: 1, ToolPaused: true}, report, ledger.DefaultContract(cellKey.Tool), cellNow)
		if err != nil || reported.Next.State != ledger.Completed || reported.UnlessPaused {
			t.Errorf("a report of a paused tool: %v, %+v", err, reported)
		}
	}
}
