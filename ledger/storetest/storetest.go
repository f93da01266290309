// SPDX-License-Identifier: Apache-2.0

// Package storetest is the suite that every ledger.Store passes.
//
// A store brings a Harness and calls Run. The suite opens each store twice on the same data, which is what a restart and a second
// process look like; it moves the store's clock; and it makes commits fail in pairs: failed, and failed but persisted. It knows no
// rule of the ledger: its changes are made by hand, so that a store is tested for what it stores, whatever decides.
//
// It depends on the ledger's values and on go-cmp.
package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Options of a store under test; see the options of the stores.
type Options struct {
	Now         func(store time.Time) time.Time
	CommitFault func() (apply bool, err error)
}

// Harness makes data for tests.
type Harness interface {
	// New makes empty data with the schema of this release. The harness removes it when the test ends.
	New(t *testing.T) Data
}

// Data is what stores are opened on.
type Data interface {
	// Open opens one more store, which the harness closes when the test ends.
	Open(t *testing.T, opts Options) ledger.Store
	// Row is all of one row, in any form that shows each difference.
	Row(t *testing.T, id ledger.OperationID) string
	// Alter runs UPDATE operations SET set on one row behind the store's back, and returns the database's error.
	Alter(t *testing.T, id ledger.OperationID, set string) error
}

// failpoints is the case that only some binaries have.
const failpoints = "failpoints"

// Exceptions is what a Harness has besides whose store can't pass some cases: their names, each with the reason, which the test shows.
type Exceptions interface {
	Exceptions() map[string]string
}

type testCase struct {
	name string
	test func(*testing.T, Data)
}

// Run runs the whole suite; with the build tag "failpoints" also what needs them.
func Run(t *testing.T, h Harness) {
	var reasons map[string]string
	if e, ok := h.(Exceptions); ok {
		reasons = e.Exceptions()
	}
	met := 0
	if _, ok := reasons[failpoints]; ok && len(withFailpoints) == 0 {
		met++
	}
	for _, c := range append([]testCase{
		{"the first insert of a key wins", testFirstInsertWins},
		{"two keys that share an id are never merged", testCollidingKeys},
		{"writers of one row lose no change", testContention},
		{"the chain verifies after random changes", testChain},
		{"a decision that changes nothing writes nothing", testUnchanged},
		{"a command is stored once", testCommandOnce},
		{"earlier events of a command are found", testPrior},
		{"a renewed lease has no event", testRenew},
		{"a guess is told only where it holds", testGuesses},
		{"another history of the same length", testAnotherHistory},
		{"a change that does not fit is refused", testMisfits},
		{"an identity is written once", testIdentity},
		{"every field comes back", testFields},
		{"strings come back byte by byte", testStrings},
		{"strings that look alike stay apart", testLookAlikes},
		{"strings with a zero", testZeros},
		{"a companion is written with its change or not at all", testCompanion},
		{"a commit that failed is found or decided again", testFaults},
		{"a commit that fails in a crowd", testFaultsInACrowd},
		{"a commit that keeps failing is said to be unknown", testLastingFaults},
		{"a change that overtakes an unseen commit", testOvertaken},
		{"a crowd, each with a read and an answer of its own", testCrowd},
		{"a crowd, some of whose rows are refused", testRefusedInACrowd},
		{"a crowd whose commits are not seen", testUnseenCrowd},
		{"a caller that hangs up after the write began", testHangUp},
		{"a caller that hung up before", testHungUp},
		{"a closed store", testClosed},
		{"a store that is opened again", testReopened},
		{"the clock", testClock},
		{"a clock that is set back", testClockBack},
		{"absent operations", testAbsent},
		{"operations by downstream key", testDownstreamKey},
		{"a listing in pages", testListing},
		{"a listing of what has changed", testUpdateListing},
		{"a listing by subject and state", testListingFilters},
		{"due operations in order", testDue},
		{"unknown siblings", testSiblings},
		{"related operations", testRelated},
		{"unknowns of a tool are counted", testUnknowns},
		{"slots and their owners", testSlots},
		{"one of a crowd wins a slot", testSlotWonOnce},
		{"a slot of a record of a newer release", testTooNewOwner},
		{"slots whose commit is not seen", testSlotFaults},
		{"a record of a newer release", testTooNew},
		{"impossible rows", testConstraints},
		{"possible rows", testPossibleRows},
		{"a damaged history", testDamaged},
		{"versions of contracts", testContracts},
		{"gates of tools", testGates},
	}, withFailpoints...) {
		reason, excepted := reasons[c.name]
		t.Run(c.name, func(t *testing.T) {
			if excepted {
				t.Skip(reason)
			}
			c.test(t, h.New(t))
		})
		if excepted {
			met++
		}
	}
	if met != len(reasons) {
		t.Errorf("%d exceptions, and %d cases that they name", len(reasons), met)
	}
}

// errFault is what injected faults say.
var errFault = errors.New("injected fault")

// testKey is a key of its own name.
func testKey(name string) ledger.Key {
	return ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "task-1", Key: name}
}

func testID(name string) ledger.OperationID { return testKey(name).Hash().OperationID() }

// received is the first row of a key.
func received(k ledger.Key, now time.Time) ledger.Operation {
	hash := k.Hash()
	return ledger.Operation{
		ID: hash.OperationID(), KeyHash: hash, Scope: k.Scope, Principal: "spiffe://test/agent", Tool: k.Tool, Task: k.Task,
		CreateTime: now, UpdateTime: now, Timeline: 1, Version: 1,
		Fingerprint: ledger.Fingerprint{Spec: 1, SecretID: "s1", Contract: "default", Digest: [32]byte{1, 2, 3}},
		State:       ledger.Received, Custody: ledger.Automation,
		Terms: ledger.Terms{ContractVersion: "default", Effect: ledger.Unsafe},
	}
}

// granted turns it into one that a worker executes.
func granted(o ledger.Operation, claim ledger.ClaimID, now time.Time) ledger.Operation {
	o.State = ledger.Processing
	o.Attempts++
	o.Starts++
	o.Grant = ledger.Grant{
		ClaimID: claim, WorkerID: "worker", Epoch: 1<<32 + uint64(o.Attempts), Time: now,
		LeaseUntil: now.Add(time.Minute), SendUntil: now.Add(30 * time.Second), Lease: time.Minute, Started: true,
	}
	o.FirstStart, o.LastSend = now, o.Grant.SendUntil
	o.NextCheckTime = o.Grant.LeaseUntil
	return o
}

// step makes a change of the row as it shall be, with the event that records it.
func step(next ledger.Operation, e ledger.Event, now time.Time) ledger.Change {
	next.Sequence++
	if now.After(next.UpdateTime) { // not where the clock was set back
		next.UpdateTime = now
	}
	e.OperationID, e.Sequence, e.Version, e.Time = next.ID, next.Sequence, next.Version, next.UpdateTime
	e.ToState = next.State
	e.Seal(next.LastHash)
	next.LastHash = e.Hash
	return ledger.Change{Next: &next, Event: &e}
}

// note is an event without a command.
func note(text string) ledger.Event { return ledger.Event{Kind: ledger.EventNote, Note: text} }

// claim is an event under a claim_id.
func claim(id ledger.ClaimID) ledger.Event {
	return ledger.Event{Kind: ledger.EventGranted, Command: ledger.KindClaim, CommandID: string(id)}
}

// create inserts a granted row, unless there is one.
func create(k ledger.Key, id ledger.ClaimID) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		if v.Current != nil {
			return ledger.Change{}, nil
		}
		return step(granted(received(k, v.Now), id, v.Now), claim(id), v.Now), nil
	}
}

// change applies f to the row that is there.
func change(e ledger.Event, f func(*ledger.Operation, time.Time)) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		if v.Current == nil {
			return ledger.Change{}, errors.New("no row")
		}
		next := v.Current.Clone()
		f(&next, v.Now)
		return step(next, e, v.Now), nil
	}
}

// renew moves the lease's end without an event.
func renew(by time.Duration) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		next := v.Current.Clone()
		next.Grant.LeaseUntil = next.Grant.LeaseUntil.Add(by)
		return ledger.Change{Next: &next}, nil
	}
}

// unchanged only bumps the sequence.
func unchanged(*ledger.Operation, time.Time) {}

func mustUpdate(t *testing.T, s ledger.Store, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) {
	t.Helper()
	if err := s.Update(t.Context(), reads, decide); err != nil {
		t.Fatalf("update: %v", err)
	}
}

// mustCreate inserts a row of that key.
func mustCreate(t *testing.T, s ledger.Store, k ledger.Key) ledger.OperationID {
	t.Helper()
	id := k.Hash().OperationID()
	mustUpdate(t, s, ledger.ReadSet{ID: id}, create(k, ledger.ClaimID("claim of "+k.Key)))
	return id
}

func mustGet(t *testing.T, s ledger.Store, id ledger.OperationID) ledger.Operation {
	t.Helper()
	o, _, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return o
}

// mustVerify checks the whole history of a row and returns it.
func mustVerify(t *testing.T, s ledger.Store, id ledger.OperationID) []ledger.Event {
	t.Helper()
	o := mustGet(t, s, id)
	events, err := s.Events(t.Context(), id)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	if err := ledger.VerifyChain(events, o.LastHash); err != nil {
		t.Fatal(err)
	}
	if uint64(len(events)) != o.Sequence {
		t.Fatalf("%d events, sequence %d", len(events), o.Sequence)
	}
	return events
}

func wantUnavailable(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("%s: got %v, want ErrStoreUnavailable", what, err)
	}
}
