// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// testGuesses: a store may decide on what it knows of a row, or on that there is none. What it then tells is as if it had read.
func testGuesses(t *testing.T, d Data) {
	s, other := d.Open(t, Options{}), d.Open(t, Options{})
	for i := range 4 { // a store that guesses has seen by now that most keys are new
		mustClaim(t, s, testKey("before "+string(rune('a'+i))), "c")
	}

	t.Run("a row that another process has changed", func(t *testing.T) {
		k := testKey("changed")
		id := mustClaim(t, s, k, "c")
		mustUpdate(t, other, ledger.ReadSet{ID: id}, change(note("by another"), unchanged))
		var last ledger.View
		mustUpdate(t, s, ledger.ReadSet{ID: id}, seeing(&last, change(note("by this one"), unchanged)))
		if last.Current == nil || last.Current.Sequence != 2 {
			t.Errorf("decided on %+v, want the row with two events", last.Current)
		}
		if events := mustVerify(t, s, id); len(events) != 3 {
			t.Errorf("%d events, want 3", len(events))
		}
	})
	t.Run("a lease that another process has renewed", func(t *testing.T) {
		k := testKey("renewed")
		id := mustClaim(t, s, k, "c")
		mustUpdate(t, other, ledger.ReadSet{ID: id}, renew(time.Hour))
		want := mustGet(t, other, id).Grant.LeaseUntil
		mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("by this one"), unchanged))
		if got := mustGet(t, s, id).Grant.LeaseUntil; !got.Equal(want) {
			t.Errorf("the lease ends at %v, want %v", got, want)
		}
	})
	t.Run("a key that another process has claimed", func(t *testing.T) {
		k := testKey("taken")
		id := mustClaim(t, other, k, "theirs")
		var last ledger.View
		mustUpdate(t, s, claiming(k, "ours"), seeing(&last, func(v ledger.View) (ledger.Change, error) {
			if v.Current != nil {
				return ledger.Change{}, nil
			}
			return create(k, "ours")(v)
		}))
		if last.Current == nil || last.Current.Grant.ClaimID != "theirs" {
			t.Errorf("decided on %+v, want the other one's row", last.Current)
		}
		if events := mustVerify(t, s, id); len(events) != 1 {
			t.Errorf("%d events, want 1", len(events))
		}
	})
	t.Run("a command that comes again", func(t *testing.T) {
		k := testKey("again")
		id := mustClaim(t, s, k, "c")
		report := ledger.Event{Kind: ledger.EventObserved, Command: ledger.KindComplete, CommandID: "c", CommandDigest: "d"}
		mustUpdate(t, s, ledger.ReadSet{ID: id, CommandID: "c"}, change(report, unchanged))
		var last ledger.View
		mustUpdate(t, s, ledger.ReadSet{ID: id, CommandID: "c"}, seeing(&last, change(note("after it"), unchanged)))
		kinds := []ledger.EventKind{}
		for _, e := range last.Prior {
			kinds = append(kinds, e.Kind)
		}
		if diff := cmp.Diff([]ledger.EventKind{ledger.EventGranted, ledger.EventObserved}, kinds); diff != "" {
			t.Errorf("earlier events of the command (-want +got):\n%s", diff)
		}
	})
	t.Run("a decision to write nothing", func(t *testing.T) {
		k := testKey("nothing")
		id := mustClaim(t, s, k, "c")
		mustUpdate(t, other, ledger.ReadSet{ID: id}, change(note("by another"), unchanged))
		var last ledger.View
		mustUpdate(t, s, ledger.ReadSet{ID: id}, seeing(&last, func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }))
		if last.Current == nil || last.Current.Sequence != 2 {
			t.Errorf("decided on %+v, want the row as it is", last.Current)
		}
	})
	t.Run("a sibling that is UNKNOWN", func(t *testing.T) {
		first, k := testKey("sibling"), testKey("like it")
		id := insert(t, other, first, func(now time.Time) ledger.Operation {
			o := received(first, now)
			o.State = ledger.Unknown
			return o
		}).ID
		var seen []ledger.View
		decide := func(v ledger.View) (ledger.Change, error) {
			seen = append(seen, v)
			return create(k, "c")(v)
		}
		mustUpdate(t, s, claiming(k, "c"), decide)
		if last := seen[len(seen)-1]; !slices.Equal(last.UnknownSiblings, []ledger.OperationID{id}) {
			t.Errorf("decided on the siblings %v, want the UNKNOWN one", last.UnknownSiblings)
		}
		mustUpdate(t, other, ledger.ReadSet{ID: id}, change(note("settled"), func(o *ledger.Operation, _ time.Time) { o.State = ledger.Received }))
		k.Key += " too"
		var last ledger.View
		mustUpdate(t, s, claiming(k, "c"), seeing(&last, create(k, "c")))
		if len(last.UnknownSiblings) > 0 {
			t.Errorf("decided on the siblings %v, although none is UNKNOWN any more", last.UnknownSiblings)
		}
	})
	t.Run("a caller that has gone", func(t *testing.T) {
		gone, leave := context.WithCancel(t.Context())
		leave()
		k := testKey("gone")
		if err := s.Update(gone, claiming(k, "c"), create(k, "c")); err == nil {
			t.Error("a claim of a caller that has gone was granted")
		}
		if _, _, err := s.Get(t.Context(), k.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("get: %v, want ErrOperationNotFound", err)
		}
		id := mustClaim(t, s, k, "c")
		if err := s.Update(gone, ledger.ReadSet{ID: id}, change(note("n"), unchanged)); err == nil {
			t.Error("a report of a caller that has gone was written")
		}
		if events := mustVerify(t, s, id); len(events) != 1 {
			t.Errorf("%d events, want 1", len(events))
		}
	})
	t.Run("a change that does not fit", func(t *testing.T) {
		k := testKey("misfit")
		id := mustClaim(t, s, k, "c")
		err := s.Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
			c, err := change(note("n"), unchanged)(v)
			c.Event.Sequence++
			return c, err
		})
		if err == nil {
			t.Error("it was written")
		}
		mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("others go on"), unchanged))
	})
}

// testAnotherHistory: after a failover, a row may have another history of the same length than the one that a guess knows.
func testAnotherHistory(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustClaim(t, s, testKey("another history"), "c")
	if err := d.Alter(t, id, "last_hash = key_hash"); err != nil {
		t.Fatal(err)
	}
	var last ledger.View
	mustUpdate(t, s, ledger.ReadSet{ID: id}, seeing(&last, change(note("by this one"), unchanged)))
	if last.Current == nil || last.Current.LastHash != [32]byte(last.Current.KeyHash) {
		t.Error("decided on the history that is lost")
	}
}

// claiming is what a Claim reads.
func claiming(k ledger.Key, id ledger.ClaimID) ledger.ReadSet {
	return ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: string(id), MayCreate: true, Siblings: &ledger.Siblings{
		Scope: k.Scope, Tool: k.Tool, Task: k.Task,
	}}
}

func mustClaim(t *testing.T, s ledger.Store, k ledger.Key, id ledger.ClaimID) ledger.OperationID {
	t.Helper()
	mustUpdate(t, s, claiming(k, id), create(k, id))
	return k.Hash().OperationID()
}

// seeing notes on what it was decided last.
func seeing(last *ledger.View, decide func(ledger.View) (ledger.Change, error)) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		*last = v
		if v.Current != nil {
			o := v.Current.Clone()
			last.Current = &o
		}
		return decide(v)
	}
}
