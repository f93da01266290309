// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// errTaken is what the takers of slots are told that somebody has.
var errTaken = errors.New("somebody has the slot")

// slots in the order of their digests.
func testSlot(name byte) ledger.Slot { return ledger.Slot{name, 31: name} }

// asking is what a Claim reads whose contract has unique rules.
func asking(k ledger.Key, id ledger.ClaimID, slots ...ledger.Slot) ledger.ReadSet {
	reads := claiming(k, id)
	reads.Slots = slots
	return reads
}

// taking creates a row that takes slots, where nobody has them but operations that have failed.
func taking(k ledger.Key, id ledger.ClaimID, slots ...ledger.Slot) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		c, err := create(k, id)(v)
		if err != nil || c.Next == nil {
			return c, err
		}
		for _, slot := range slots {
			owner, there := v.Owners[slot]
			if there && owner.State != ledger.Failed && owner.State != ledger.Retired {
				return ledger.Change{}, errTaken
			}
			c.Slots = append(c.Slots, ledger.TakenSlot{Slot: slot, From: owner.ID})
		}
		return c, nil
	}
}

func mustTake(t *testing.T, s ledger.Store, k ledger.Key, slots ...ledger.Slot) ledger.OperationID {
	t.Helper()
	mustUpdate(t, s, asking(k, "c", slots...), taking(k, "c", slots...))
	return k.Hash().OperationID()
}

// fail settles a row, so that its slots can be taken.
func fail(o *ledger.Operation, now time.Time) {
	o.State, o.Failure, o.FinalTime = ledger.Failed, &ledger.Failure{Kind: ledger.Declined, Code: "no"}, now
	o.Grant.LeaseUntil, o.NextCheckTime = time.Time{}, time.Time{}
}

// ownersOf reads whose the slots are, for somebody who wants to write nothing.
func ownersOf(t *testing.T, s ledger.Store, slots ...ledger.Slot) map[ledger.Slot]ledger.Operation {
	t.Helper()
	var last ledger.View
	nothing := func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }
	mustUpdate(t, s, asking(testKey("nobody's"), "c", slots...), seeing(&last, nothing))
	return last.Owners
}

func wantOwner(t *testing.T, s ledger.Store, slot ledger.Slot, want ledger.OperationID) {
	t.Helper()
	owner, there := ownersOf(t, s, slot)[slot]
	if there == want.IsZero() || owner.ID != want {
		t.Errorf("the slot is of %v (%t), want %v", owner.ID, there, want)
	}
}

func testSlots(t *testing.T, d Data) {
	s, other := d.Open(t, Options{}), d.Open(t, Options{})
	one, two, three := testSlot(1), testSlot(2), testSlot(3)
	first := mustTake(t, s, testKey("first"), one, two)
	mustUpdate(t, s, ledger.ReadSet{ID: first}, change(note("n"), func(o *ledger.Operation, _ time.Time) { o.TargetAttributes = map[string]string{"a": "b"} }))

	t.Run("an owner comes back whole", func(t *testing.T) {
		owners := ownersOf(t, other, one, two, three)
		want := mustGet(t, other, first)
		if diff := cmp.Diff(map[ledger.Slot]ledger.Operation{one: want, two: want}, owners); diff != "" {
			t.Errorf("owners (-want +got):\n%s", diff)
		}
	})
	t.Run("owners are copies", func(t *testing.T) {
		owners := ownersOf(t, s, one, two)
		owners[one].TargetAttributes["x"] = "y"
		if len(owners[two].TargetAttributes) != 1 {
			t.Error("two owners share what can be changed")
		}
	})
	t.Run("all of its slots or nothing", func(t *testing.T) {
		k := testKey("half")
		for name, slots := range map[string][]ledger.Slot{"the second is taken": {testSlot(0), one}, "the first is": {two, three}} {
			// It decides as if the owner were not there, which is what a race looks like.
			err := s.Update(t.Context(), asking(k, "c", slots...), func(v ledger.View) (ledger.Change, error) {
				clear(v.Owners)
				return taking(k, "c", slots...)(v)
			})
			wantUnavailable(t, name, err)
			if _, _, err := s.Get(t.Context(), k.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
				t.Errorf("%s: the row is there: %v", name, err)
			}
			if events, err := s.Events(t.Context(), k.Hash().OperationID()); len(events) > 0 || err != nil {
				t.Errorf("%s: %d events, %v", name, len(events), err)
			}
		}
		wantOwner(t, s, testSlot(0), ledger.OperationID{})
		wantOwner(t, s, three, ledger.OperationID{})
		wantOwner(t, s, one, first)
		mustTake(t, s, k, testSlot(0), three)
	})
	t.Run("its own key comes again", func(t *testing.T) {
		var last ledger.View
		mustUpdate(t, other, asking(testKey("first"), "again", one, two), seeing(&last, change(claim("again"), unchanged)))
		if last.Owners[one].ID != first || last.Owners[two].ID != first {
			t.Errorf("owners are %v and %v", last.Owners[one].ID, last.Owners[two].ID)
		}
		wantOwner(t, s, one, first)
	})
	t.Run("taken with a later change", func(t *testing.T) {
		slot := testSlot(9)
		id := mustClaim(t, s, testKey("later"), "c")
		mustUpdate(t, s, asking(testKey("later"), "again", slot), func(v ledger.View) (ledger.Change, error) {
			c, err := change(claim("again"), unchanged)(v)
			c.Slots = []ledger.TakenSlot{{Slot: slot}}
			return c, err
		})
		wantOwner(t, other, slot, id)
	})
	t.Run("a change that does not fit", func(t *testing.T) {
		k, slot := testKey("misfit"), testSlot(20)
		for name, spoil := range map[string]func(*ledger.Change){
			"from somebody else": func(c *ledger.Change) { c.Slots = []ledger.TakenSlot{{Slot: slot, From: first}} },
			"without an event": func(c *ledger.Change) {
				c.Slots, c.Event = []ledger.TakenSlot{{Slot: slot}}, nil
				c.Next.Sequence--
			},
		} {
			err := s.Update(t.Context(), asking(k, "c", slot), func(v ledger.View) (ledger.Change, error) {
				c, err := create(k, "c")(v)
				spoil(&c)
				return c, err
			})
			if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("%s: got %v, want an error that no retry mends", name, err)
			}
		}
		wantOwner(t, s, slot, ledger.OperationID{})
	})
}

// testSlotWonOnce: of those who want one slot at once, one gets it, whether it is free or of an operation that has failed; nobody else has
// written anything. Each has another one, too, so that some win the one and lose the other.
func testSlotWonOnce(t *testing.T, d Data) {
	stores := []ledger.Store{d.Open(t, Options{}), d.Open(t, Options{})}
	contested, last := testSlot(100), ledger.OperationID{}
	for round := range 3 {
		key := func(i int) ledger.Key { return testKey(fmt.Sprint("slot ", round, " ", i)) }
		var winners atomic.Int64
		atOnce(t, callers, func(i int) error {
			own := testSlot(byte(200 * (i % 2)))
			own[1], own[2] = byte(round), byte(i/4) // some share it
			slots := []ledger.Slot{own, contested}
			if i%2 == 1 {
				slots = []ledger.Slot{contested, own}
			}
			err := stores[i%2].Update(t.Context(), asking(key(i), "c", slots...), taking(key(i), "c", slots...))
			switch {
			case err == nil:
				winners.Add(1)
			case !errors.Is(err, errTaken):
				return fmt.Errorf("caller %d: %w", i, err)
			}
			return nil
		})
		if winners.Load() != 1 {
			t.Fatalf("round %d: %d callers were told that they have the slot, want 1", round, winners.Load())
		}
		owner := ownersOf(t, stores[0], contested)[contested]
		if owner.ID == last {
			t.Fatalf("round %d: the slot is still of the operation that has failed", round)
		}
		for i := range callers {
			id := key(i).Hash().OperationID()
			events, err := stores[1].Events(t.Context(), id)
			if won := id == owner.ID; err != nil || won != (len(events) == 1) || !won && len(events) > 0 {
				t.Errorf("round %d, caller %d: %d events, %v; it has the slot: %t", round, i, len(events), err, won)
			}
		}
		last = owner.ID
		mustUpdate(t, stores[0], ledger.ReadSet{ID: last}, change(note("failed"), fail))
	}
}

// testSlotFaults: who can't see its commit finds its row with its slots, or takes them anew, or loses them to who was faster.
func testSlotFaults(t *testing.T, d Data) {
	plain := d.Open(t, Options{})
	for i, apply := range []bool{false, true} {
		var faults atomic.Int64
		s := d.Open(t, Options{CommitFault: func() (bool, error) {
			if faults.Add(1) == 1 {
				return apply, errFault
			}
			return true, nil
		}})
		free, failed := testSlot(byte(10*i+10)), testSlot(byte(10*i+11))
		before := mustTake(t, plain, testKey(fmt.Sprint("before ", apply)), failed)
		mustUpdate(t, plain, ledger.ReadSet{ID: before}, change(note("failed"), fail))
		k := testKey(fmt.Sprint("unseen ", apply))
		id := mustTake(t, s, k, free, failed)
		if faults.Load() == 0 {
			t.Fatal("no commit has failed")
		}
		wantOwner(t, plain, free, id)
		wantOwner(t, plain, failed, id)
		if events := mustVerify(t, plain, id); len(events) != 1 {
			t.Errorf("persisted %t: %d events, want 1", apply, len(events))
		}
	}
	// The commit has failed, and somebody else wants the slot before that can be found out: one of the two has it.
	for round := range 8 {
		slot, k, faster := testSlot(byte(100+round)), testKey(fmt.Sprint("overtaken ", round)), testKey(fmt.Sprint("faster ", round))
		var others error
		ended := make(chan struct{})
		var once sync.Once
		s := d.Open(t, Options{CommitFault: func() (apply bool, err error) {
			once.Do(func() {
				err = errFault
				go func() { // it waits for this commit to end
					defer close(ended)
					others = plain.Update(t.Context(), asking(faster, "c", slot), taking(faster, "c", slot))
				}()
			})
			return err == nil, err
		}})
		ours := s.Update(t.Context(), asking(k, "c", slot), taking(k, "c", slot))
		<-ended
		want, lost := k, faster
		if ours != nil {
			want, lost = faster, k
		}
		refused := errors.Join(ours, others) // a store may not be able to say yet that what it did not see is not there
		if (ours == nil) == (others == nil) || !errors.Is(refused, errTaken) && !errors.Is(refused, ledger.ErrStoreUnavailable) {
			t.Errorf("round %d: one was told %v, the other one %v", round, ours, others)
		}
		wantOwner(t, plain, slot, want.Hash().OperationID())
		if _, _, err := plain.Get(t.Context(), lost.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("round %d: who has lost the slot has a row: %v", round, err)
		}
	}
}

// testTooNewOwner: what a newer release has written keeps nobody from being decided beside it.
func testTooNewOwner(t *testing.T, d Data) {
	s, slot := d.Open(t, Options{}), testSlot(1)
	id := mustTake(t, s, testKey("first"), slot)
	if err := d.Alter(t, id, "record_version = 1000"); err != nil {
		t.Fatal(err)
	}
	if o := ownersOf(t, s, slot)[slot]; o.ID != id || o.State != 0 || o.Scope != testKey("").Scope {
		t.Errorf("it is %v in state %v of %q", o.ID, o.State, o.Scope)
	}
}

// testUnknowns: how many operations of a tool are UNKNOWN, up to a limit, of whatever scope and task they are.
func testUnknowns(t *testing.T, d Data) {
	s, other := d.Open(t, Options{}), d.Open(t, Options{})
	count := func(tool ledger.Tool, limit int) int {
		t.Helper()
		k := testKey("asks")
		reads := claiming(k, "c")
		reads.Unknowns = &ledger.Unknowns{Tool: tool, Limit: limit}
		var last ledger.View
		mustUpdate(t, s, reads, seeing(&last, func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }))
		return last.Unknowns
	}
	var ids []ledger.OperationID
	for i := range 5 {
		k := testKey(fmt.Sprint("counted ", i))
		k.Scope, k.Task = ledger.Scope(fmt.Sprint("scope ", i)), ledger.Task(fmt.Sprint("task ", i))
		if i == 4 {
			k.Tool = "another"
		}
		ids = append(ids, mustClaim(t, other, k, "c"))
	}
	if n := count(testKey("").Tool, 10); n != 0 {
		t.Errorf("%d while none is UNKNOWN", n)
	}
	for _, id := range ids {
		mustUpdate(t, other, ledger.ReadSet{ID: id}, change(note("u"), func(o *ledger.Operation, _ time.Time) {
			o.State, o.Grant.LeaseUntil = ledger.Unknown, time.Time{}
		}))
	}
	for limit, want := range map[int]int{1: 1, 3: 3, 4: 4, 5: 4, 1000: 4} {
		if n := count(testKey("").Tool, limit); n != want {
			t.Errorf("%d with the limit %d, want %d", n, limit, want)
		}
	}
	if n := count("another", 10) + count("none", 10); n != 1 {
		t.Errorf("%d of other tools, want 1", n)
	}
	mustUpdate(t, other, ledger.ReadSet{ID: ids[0]}, change(note("f"), fail))
	if n := count(testKey("").Tool, 10); n != 3 {
		t.Errorf("%d after one has settled, want 3", n)
	}
}
