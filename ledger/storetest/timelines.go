// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

func openRestorable(t *testing.T, d Data, opts Options) (ledger.RestoreStore, ledger.Store) {
	t.Helper()
	s := d.Open(t, opts)
	r, ok := s.(ledger.RestoreStore)
	if !ok {
		t.Fatalf("%T is no ledger.RestoreStore", s)
	}
	return r, s
}

// viewOf is what a decision on an absent key is given.
func viewOf(t *testing.T, s ledger.Store) (last ledger.View) {
	t.Helper()
	reads := ledger.ReadSet{ID: testID("absent"), MayCreate: true}
	if err := s.Update(t.Context(), reads, seeing(&last, func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil })); err != nil {
		t.Fatal(err)
	}
	return last
}

// RunTimelines tests a store that knows of its timelines: what a person says of a restore is what each decision is given from then on, also in a process that guesses.
func RunTimelines(t *testing.T, h Harness) {
	d := h.New(t)
	restored, s := openRestorable(t, d, Options{})
	_, other := openRestorable(t, d, Options{})
	for i := range 4 { // a store that guesses has seen by now that most keys are new
		mustClaim(t, other, testKey("before "+string(rune('a'+i))), "c")
	}
	all, err := restored.Timelines(t.Context())
	if err != nil || len(all) != 1 || all[0].Number != 1 || all[0].Cause != ledger.CauseCreated || !all[0].LostSince.IsZero() {
		t.Fatalf("of a new store: %+v, %v", all, err)
	}
	before := viewOf(t, s)
	if age := before.Now.Sub(all[0].BeginTime); age < 0 || age > time.Hour {
		t.Errorf("it began %v before now", age)
	}

	if _, err := restored.Restored(t.Context(), before.Now.Add(time.Hour)); !errors.Is(err, ledger.ErrValidation) {
		t.Errorf("lost since a time ahead: got %v", err)
	}
	if after := viewOf(t, s); after.Timeline != 1 || after.Watermark != (ledger.Watermark{}) {
		t.Errorf("what was refused has left timeline %d, %v", after.Timeline, after.Watermark)
	}

	lost := before.Now.Add(-time.Hour)
	first, err := restored.Restored(t.Context(), lost)
	if err != nil || first.Number <= 1 || first.BeginTime.Before(before.Now) || !first.LostSince.Equal(lost) || first.Cause != ledger.CauseRestored {
		t.Fatalf("restored: %+v, %v", first, err)
	}
	for name, s := range map[string]ledger.Store{"the one that said it": s, "another one": other} {
		v := viewOf(t, s)
		if v.Timeline != first.Number || !v.Watermark.At.Equal(first.BeginTime) || !v.Watermark.LostSince.Equal(lost) {
			t.Errorf("%s: timeline %d, watermark %+v; want those of %+v", name, v.Timeline, v.Watermark, first)
		}
	}
	k := testKey("after")
	var last ledger.View
	mustUpdate(t, other, ledger.ReadSet{ID: k.Hash().OperationID(), MayCreate: true}, seeing(&last, create(k, "c")))
	if last.Timeline != first.Number {
		t.Errorf("a new row is decided in timeline %d, want %d", last.Timeline, first.Number)
	}

	second, err := restored.Restored(t.Context(), first.BeginTime)
	if err != nil || second.Number <= first.Number || !second.LostSince.Equal(lost) { // what was lost first still is
		t.Errorf("restored once more: %+v, %v", second, err)
	}
	if all, err = restored.Timelines(t.Context()); err != nil || len(all) != 3 || all[1] != first || all[2] != second {
		t.Errorf("all: %+v, %v", all, err)
	}
}
