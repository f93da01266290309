// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// RunAged runs the cases of a store that finds what is old, and forgets.
func RunAged(t *testing.T, h Harness) {
	for _, c := range []testCase{
		{"what is old comes in pages, scope by scope", testAgedPages},
		{"what is old comes with what retention looks at", testAgedFields},
		{"a history is forgotten", testForgetHistories},
		{"a key is forgotten", testForgetKeys},
		{"only what is retired is forgotten", testForgetOnlyRetired},
		{"until when keys were forgotten", testForgottenUntil},
		{"a forgotten key comes again", testForgottenComesAgain},
		{"keys are forgotten at once, beside claims of them", testForgetAtOnce},
		{"what is old of a closed store", testAgedClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h.New(t)) })
	}
}

func openAged(t *testing.T, d Data, opts Options) (ledger.AgedStore, ledger.Store) {
	t.Helper()
	s := d.Open(t, opts)
	aged, ok := s.(ledger.AgedStore)
	if !ok {
		t.Fatalf("%T is no ledger.AgedStore", s)
	}
	return aged, s
}

// walk reads all pages, which are bounded, and fails where there is no end.
func walk(t *testing.T, s ledger.AgedStore, age time.Duration, limit int) []ledger.AgedOperation {
	t.Helper()
	var all []ledger.AgedOperation
	q := ledger.AgedQuery{Age: age, Limit: limit}
	for range 500 {
		page, err := s.Aged(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if page.Now.IsZero() {
			t.Fatal("a page without the store's time")
		}
		if len(page.Operations) > limit {
			t.Fatalf("a page of %d, want at most %d", len(page.Operations), limit)
		}
		all = append(all, page.Operations...)
		if page.End == "" {
			return all
		}
		q.After = page.End
	}
	t.Fatal("the pages have no end")
	return nil
}

func testAgedPages(t *testing.T, d Data) {
	clock := newSteps()
	s, store := openAged(t, d, Options{Now: clock.at})
	if all := walk(t, s, 0, 10); len(all) > 0 {
		t.Errorf("%d operations in an empty store", len(all))
	}
	begin := clock.now
	want := map[ledger.Scope][]ledger.OperationID{}
	at := map[ledger.OperationID]time.Time{}
	for i := range 24 {
		clock.now = begin.Add(time.Duration(i/3) * time.Microsecond) // three at a time
		for _, scope := range []ledger.Scope{"scope-a", "scope-A", "scope-a ", "ß", "\U0001F512 {\"scope\": 1}"} {
			k := testKey(fmt.Sprint(i))
			k.Scope = scope
			id := mustCreate(t, store, k)
			at[id] = clock.now
			if i < 21 {
				want[scope] = append(want[scope], id)
			}
		}
	}
	tooNew := want["scope-A"][5]
	if err := d.Alter(t, tooNew, "record_version = 99"); err != nil {
		t.Fatal(err)
	}
	want["scope-A"] = slices.Delete(want["scope-A"], 5, 6)
	for scope, ids := range want {
		want[scope] = byTime(ids, at)
	}
	clock.now = begin.Add(6*time.Microsecond + time.Minute)
	for _, limit := range []int{1, 4, 21, 100} {
		got := map[ledger.Scope][]ledger.OperationID{}
		for _, o := range walk(t, s, time.Minute, limit) {
			op := mustGet(t, store, o.ID)
			got[op.Scope] = append(got[op.Scope], o.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	if _, err := s.Aged(t.Context(), ledger.AgedQuery{After: "nowhere", Limit: 1}); err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("a page that begins nowhere: %v, want a fault of the code", err)
	}
}

func testAgedFields(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	want := map[ledger.OperationID]ledger.AgedOperation{}
	for name, set := range map[string]func(*ledger.Operation, time.Time){
		"it runs": unchanged,
		"in doubt": func(o *ledger.Operation, _ time.Time) {
			o.State, o.MayHaveApplied = ledger.Received, true
		},
		"held": func(o *ledger.Operation, _ time.Time) {
			o.State, o.Custody, o.Custodian, o.NextCheckTime = ledger.Unknown, ledger.Operator, "ops-a", time.Time{}
		},
		"contradicted": func(o *ledger.Operation, now time.Time) {
			fail(o, now)
			o.NeedsAttention = true
		},
		"retired": retire,
	} {
		id := mustCreate(t, store, testKey(name))
		mustUpdate(t, store, ledger.ReadSet{ID: id}, change(note("n"), set))
		o := mustGet(t, store, id)
		want[id] = ledger.AgedOperation{
			ID: id, Tool: o.Tool, State: o.State, Custody: o.Custody, MayHaveApplied: o.MayHaveApplied, NeedsAttention: o.NeedsAttention,
			CreateTime: o.CreateTime, FinalTime: o.FinalTime,
		}
	}
	got := map[ledger.OperationID]ledger.AgedOperation{}
	for _, o := range walk(t, s, -time.Hour, 2) {
		got[o.ID] = o
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// retire settles a row and forgets what it was.
func retire(o *ledger.Operation, now time.Time) {
	o.State, o.FinalTime, o.Detail.RetiredFrom = ledger.Retired, now, ledger.Completed
	o.Grant.LeaseUntil, o.NextCheckTime = time.Time{}, time.Time{}
}

// mustRetire makes a retired row, which has a slot if one is named.
func mustRetire(t *testing.T, s ledger.Store, k ledger.Key, slots ...ledger.Slot) ledger.Tombstone {
	t.Helper()
	id := mustTake(t, s, k, slots...)
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("n"), retire))
	return ledger.Tombstone{ID: id, FinalTime: mustGet(t, s, id).FinalTime}
}

func mustForget(t *testing.T, what func() (int, error), want int) {
	t.Helper()
	if n, err := what(); err != nil || n != want {
		t.Fatalf("%d were forgotten, want %d: %v", n, want, err)
	}
}

func keys(t *testing.T, s ledger.AgedStore, of ...ledger.Tombstone) func() (int, error) {
	return func() (int, error) { return s.ForgetKeys(t.Context(), of) }
}

func histories(t *testing.T, s ledger.AgedStore, of ...ledger.Tombstone) func() (int, error) {
	return func() (int, error) { return s.ForgetHistories(t.Context(), of) }
}

func testForgetHistories(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	other, _ := openAged(t, d, Options{})
	slot := testSlot(1)
	one, two := mustRetire(t, store, testKey("one"), slot), mustRetire(t, store, testKey("two"))
	row := d.Row(t, one.ID)
	mustForget(t, histories(t, s), 0)
	mustForget(t, histories(t, s, one, ledger.Tombstone{ID: testID("absent"), FinalTime: one.FinalTime}), 1)
	mustForget(t, histories(t, other, one, one), 0)
	if events, err := store.Events(t.Context(), one.ID); err != nil || len(events) != 0 {
		t.Errorf("%d events are left: %v", len(events), err)
	}
	if d.Row(t, one.ID) != row {
		t.Error("the row has changed")
	}
	wantOwner(t, store, slot, one.ID)
	mustVerify(t, store, two.ID)
}

func testForgetKeys(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	other, _ := openAged(t, d, Options{})
	slot, second, kept := testSlot(1), testSlot(2), testSlot(3)
	one, two := mustRetire(t, store, testKey("one"), slot, second), mustRetire(t, store, testKey("two"), kept)
	three := mustRetire(t, store, testKey("three"))
	mustForget(t, histories(t, s, three), 1)
	mustForget(t, keys(t, s), 0)
	mustForget(t, keys(t, s, three, one, one), 2)
	mustForget(t, keys(t, other, one, three), 0)
	for _, gone := range []ledger.Tombstone{one, three} {
		if _, _, err := store.Get(t.Context(), gone.ID); !errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("get: %v, want ErrOperationNotFound", err)
		}
		if events, err := store.Events(t.Context(), gone.ID); err != nil || len(events) != 0 {
			t.Errorf("%d events are left: %v", len(events), err)
		}
	}
	wantOwner(t, store, slot, ledger.OperationID{})
	wantOwner(t, store, second, ledger.OperationID{})
	wantOwner(t, store, kept, two.ID)
	mustVerify(t, store, two.ID)
}

func testForgetOnlyRetired(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	var all []ledger.Tombstone
	rows := map[ledger.OperationID]string{}
	for name, set := range map[string]func(*ledger.Operation, time.Time){
		"it runs":  unchanged,
		"received": func(o *ledger.Operation, _ time.Time) { o.State, o.NextCheckTime = ledger.Received, time.Time{} },
		"unknown":  func(o *ledger.Operation, _ time.Time) { o.State = ledger.Unknown },
		"failed":   fail,
		"completed": func(o *ledger.Operation, now time.Time) {
			retire(o, now)
			o.State, o.Result = ledger.Completed, &ledger.Result{}
		},
	} {
		id := mustCreate(t, store, testKey(name))
		mustUpdate(t, store, ledger.ReadSet{ID: id}, change(note("n"), set))
		all = append(all, ledger.Tombstone{ID: id, FinalTime: mustGet(t, store, id).FinalTime})
		rows[id] = d.Row(t, id)
	}
	other := mustRetire(t, store, testKey("another under the same key"))
	rows[other.ID] = d.Row(t, other.ID)
	all = append(all, ledger.Tombstone{ID: other.ID, FinalTime: other.FinalTime.Add(-time.Microsecond)})
	mustForget(t, histories(t, s, all...), 0)
	mustForget(t, keys(t, s, all...), 0)
	for id, row := range rows {
		if d.Row(t, id) != row {
			t.Errorf("%s: the row has changed", row)
		}
		mustVerify(t, store, id)
	}
}

// untilWhen reads until when keys of a tool were forgotten.
func untilWhen(t *testing.T, s ledger.Store, tool ledger.Tool) time.Time {
	t.Helper()
	var last ledger.View
	nothing := func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }
	reads := claiming(testKey("nobody's"), "c")
	reads.Forgotten = tool
	mustUpdate(t, s, reads, seeing(&last, nothing))
	return last.Forgotten
}

func testForgottenUntil(t *testing.T, d Data) {
	clock := newSteps()
	s, store := openAged(t, d, Options{Now: clock.at})
	_, other := openAged(t, d, Options{})
	var made []ledger.Tombstone
	for i := range 3 {
		clock.now = clock.now.Add(time.Second)
		made = append(made, mustRetire(t, store, testKey(fmt.Sprint(i))))
	}
	k := testKey("of another tool")
	k.Tool = "tickets.Create"
	another := mustRetire(t, store, k)
	want := func(tool ledger.Tool, at time.Time) {
		t.Helper()
		for _, s := range []ledger.Store{store, other} {
			if got := untilWhen(t, s, tool); !got.Equal(at) {
				t.Errorf("keys of %s were forgotten until %v, want %v", tool, got, at)
			}
		}
	}
	want(testKey("").Tool, time.Time{})
	mustForget(t, histories(t, s, made...), 3)
	want(testKey("").Tool, time.Time{})
	mustForget(t, keys(t, s, made[1]), 1)
	want(testKey("").Tool, made[1].FinalTime)
	want(k.Tool, time.Time{})
	mustForget(t, keys(t, s, made[0], another), 2)
	want(testKey("").Tool, made[1].FinalTime) // it never goes back
	want(k.Tool, another.FinalTime)
	mustForget(t, keys(t, s, made...), 1)
	want(testKey("").Tool, made[2].FinalTime)
}

// testForgottenComesAgain: a key that another process has forgotten is new, also for one that remembers it.
func testForgottenComesAgain(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	_, other := openAged(t, d, Options{})
	slot := testSlot(1)
	gone := mustRetire(t, store, testKey("k"), slot)
	mustGet(t, other, gone.ID)
	mustForget(t, keys(t, s, gone), 1)
	mustTake(t, other, testKey("k"), slot)
	if o := mustGet(t, store, gone.ID); o.State != ledger.Processing || o.Sequence != 1 {
		t.Errorf("it is %v with %d events, want a new one", o.State, o.Sequence)
	}
	mustForget(t, keys(t, s, gone), 0)
	mustVerify(t, store, gone.ID)
	wantOwner(t, store, slot, gone.ID)
}

// testForgetAtOnce: two forget the same keys while others claim them: each goes once, and what comes after it is whole.
func testForgetAtOnce(t *testing.T, d Data) {
	const many = 24
	one, store := openAged(t, d, Options{})
	two, other := openAged(t, d, Options{})
	var all []ledger.Tombstone
	for i := range many {
		all = append(all, mustRetire(t, store, testKey(fmt.Sprint(i)), testSlot(byte(i))))
	}
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	var forgotten, granted atomic.Int64
	atOnce(t, 4+2*many, func(i int) error {
		if i < 4 {
			s, of := one, all
			if i%2 == 1 {
				s, of = two, backwards
			}
			n, err := s.ForgetKeys(t.Context(), of)
			forgotten.Add(int64(n))
			return err
		}
		i -= 4
		s, k, id := []ledger.Store{store, other}[i%2], testKey(fmt.Sprint(i/2)), ledger.ClaimID(fmt.Sprint("again ", i))
		made := false
		err := s.Update(t.Context(), claiming(k, id), func(v ledger.View) (ledger.Change, error) {
			c, err := create(k, id)(v)
			made = c.Next != nil
			return c, err
		})
		if err == nil && made {
			granted.Add(1)
		}
		return err
	})
	if forgotten.Load() != many {
		t.Errorf("%d keys were forgotten, want %d", forgotten.Load(), many)
	}
	there := int64(0)
	for i := range many {
		o, _, err := store.Get(t.Context(), all[i].ID)
		if errors.Is(err, ledger.ErrOperationNotFound) {
			continue
		}
		there++
		if err != nil || o.State != ledger.Processing || !bytes.Equal(o.ID[:], all[i].ID[:]) {
			t.Errorf("%v is %v: %v", o.ID, o.State, err)
			continue
		}
		mustVerify(t, store, o.ID)
	}
	if there != granted.Load() {
		t.Errorf("%d were claimed anew, %d are there", granted.Load(), there)
	}
	t.Logf("%d of %d were claimed anew", there, many)
}

func testAgedClosed(t *testing.T, d Data) {
	s, store := openAged(t, d, Options{})
	gone := mustRetire(t, store, testKey("k"))
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Aged(t.Context(), ledger.AgedQuery{Limit: 1})
	wantUnavailable(t, "read", err)
	_, err = keys(t, s, gone)()
	wantUnavailable(t, "forget keys", err)
	_, err = histories(t, s, gone)()
	wantUnavailable(t, "forget histories", err)
}
