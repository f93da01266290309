// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// faults makes the next commits fail: as many as are left, applied or not.
type faults struct {
	left  atomic.Int64
	apply bool
	// asked counts commits.
	asked atomic.Int64
}

func (f *faults) hook() (bool, error) {
	f.asked.Add(1)
	if f.left.Add(-1) < 0 {
		return true, nil
	}
	return f.apply, errFault
}

// kindsOfWrite are all shapes that a write has, each on data of its own.
var kindsOfWrite = []struct {
	name string
	// events that the operation has after the write
	events int
	decide func(k ledger.Key) func(ledger.View) (ledger.Change, error)
}{
	{"a new row", 1, func(k ledger.Key) func(ledger.View) (ledger.Change, error) { return create(k, "c") }},
	{"a change", 2, func(ledger.Key) func(ledger.View) (ledger.Change, error) { return change(note("n"), unchanged) }},
	{"a renewal", 1, func(ledger.Key) func(ledger.View) (ledger.Change, error) { return renew(time.Second) }},
	{"a pair", 2, func(ledger.Key) func(ledger.View) (ledger.Change, error) {
		return func(v ledger.View) (ledger.Change, error) {
			c, err := change(note("n"), unchanged)(v)
			companion := step(v.Related[testID("related")], note("linked"), v.Now)
			c.Companion = &companion
			return c, err
		}
	}},
}

func testFaults(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	related := mustCreate(t, s, testKey("related"))
	links := 1
	for _, apply := range []bool{false, true} {
		for _, w := range kindsOfWrite {
			t.Run(fmt.Sprintf("%s, persisted %t", w.name, apply), func(t *testing.T) {
				f := &faults{apply: apply}
				faulty := d.Open(t, Options{CommitFault: f.hook})
				k := testKey(fmt.Sprint(w.name, apply))
				id := k.Hash().OperationID()
				if w.name != "a new row" {
					mustCreate(t, s, k)
				}
				var lease time.Time
				f.left.Store(1)
				runs := 0
				mustUpdate(t, faulty, ledger.ReadSet{ID: id, Related: []ledger.OperationID{related}}, func(v ledger.View) (ledger.Change, error) {
					runs++
					c, err := w.decide(k)(v)
					lease = c.Next.Grant.LeaseUntil
					return c, err
				})
				want := 1
				if !apply {
					want = 2 // what was decided before the fault is too old to be written after it
				}
				if runs != want {
					t.Errorf("decided %d times, want %d", runs, want)
				}
				if events := mustVerify(t, s, id); len(events) != w.events {
					t.Errorf("%d events, want %d", len(events), w.events)
				}
				if got := mustGet(t, s, id).Grant.LeaseUntil; !got.Equal(lease) {
					t.Errorf("lease until %v, want %v", got, lease)
				}
				if w.name == "a pair" {
					links++
				}
				if events := mustVerify(t, s, related); len(events) != links {
					t.Errorf("the companion has %d events, want %d", len(events), links)
				}
				if f.asked.Load() != 2 {
					t.Errorf("%d commits, want 2", f.asked.Load())
				}
			})
		}
	}
}

// testFaultsInACrowd makes a commit fail while many calls are under way, which may share it: each is written once.
func testFaultsInACrowd(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	related := mustCreate(t, s, testKey("related"))
	links := 1
	for _, apply := range []bool{false, true} {
		var asked atomic.Int64
		faulty := d.Open(t, Options{CommitFault: func() (bool, error) {
			if asked.Add(1) == 2 { // the first may be that of the first call alone
				return apply, errFault
			}
			return true, nil
		}})
		key := func(i int) ledger.Key { return testKey(fmt.Sprint("crowd ", i, apply)) }
		kind := func(i int) int { return i % len(kindsOfWrite) }
		for i := range callers {
			if kindsOfWrite[kind(i)].name != "a new row" {
				mustCreate(t, s, key(i))
			}
		}
		atOnce(t, callers, func(i int) error {
			reads := ledger.ReadSet{ID: key(i).Hash().OperationID(), Related: []ledger.OperationID{related}}
			return faulty.Update(t.Context(), reads, kindsOfWrite[kind(i)].decide(key(i)))
		})
		for i := range callers {
			w := kindsOfWrite[kind(i)]
			if events := mustVerify(t, s, key(i).Hash().OperationID()); len(events) != w.events {
				t.Errorf("persisted %t, call %d, %s: %d events, want %d", apply, i, w.name, len(events), w.events)
			}
			if w.name == "a pair" {
				links++
			}
		}
		if events := mustVerify(t, s, related); len(events) != links {
			t.Errorf("persisted %t: the companion has %d events, want %d", apply, len(events), links)
		}
	}
}

func testLastingFaults(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	related := mustCreate(t, s, testKey("related"))
	for _, apply := range []bool{false, true} {
		for _, w := range kindsOfWrite {
			t.Run(fmt.Sprintf("%s, persisted %t", w.name, apply), func(t *testing.T) {
				f := &faults{apply: apply}
				f.left.Store(1000)
				faulty := d.Open(t, Options{CommitFault: f.hook})
				k := testKey(fmt.Sprint(w.name, apply))
				id := k.Hash().OperationID()
				before := 0
				if w.name != "a new row" {
					mustCreate(t, s, k)
					before = 1
				}
				reads := ledger.ReadSet{ID: id, Related: []ledger.OperationID{related}}
				wantUnavailable(t, "update", faulty.Update(t.Context(), reads, w.decide(k)))
				want := before
				if apply {
					want = w.events
				}
				events, err := s.Events(t.Context(), id)
				if err != nil || len(events) != want {
					t.Errorf("%d events, want %d: %v", len(events), want, err)
				}
				// The caller sends the same call again, when the store can be reached.
				f.left.Store(0)
				mustUpdate(t, faulty, reads, func(v ledger.View) (ledger.Change, error) {
					if found := v.Current != nil && v.Current.Sequence == uint64(w.events); found && w.name != "a renewal" {
						return ledger.Change{}, nil
					}
					return w.decide(k)(v)
				})
				if events := mustVerify(t, s, id); len(events) != w.events {
					t.Errorf("%d events after the call was sent again, want %d", len(events), w.events)
				}
			})
		}
	}
}

// testOvertaken lets another process write while the first doesn't know what became of its commit. Which of them is first is open; that
// nothing is lost or doubled is not.
func testOvertaken(t *testing.T, d Data) {
	other := d.Open(t, Options{})
	for round := range 6 {
		k := testKey(fmt.Sprint("overtaken ", round))
		id := mustCreate(t, other, k)
		done := make(chan error, 1)
		first := true
		s := d.Open(t, Options{CommitFault: func() (bool, error) {
			if !first {
				return true, nil
			}
			first = false
			go func() {
				done <- other.Update(context.WithoutCancel(t.Context()), ledger.ReadSet{ID: id}, change(note("other"), unchanged))
			}()
			return round%2 == 0, errFault
		}})
		mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("mine"), unchanged))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, e := range mustVerify(t, s, id) {
			counts[e.Note]++
		}
		if counts["mine"] != 1 || counts["other"] != 1 {
			t.Errorf("round %d: notes %v, want one of each", round, counts)
		}
	}
}

func testHangUp(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for _, name := range []string{"a new row", "a change"} {
		ctx, hangUp := context.WithCancel(t.Context())
		k := testKey("k")
		id := k.Hash().OperationID()
		err := s.Update(ctx, ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
			hangUp()
			if v.Current == nil {
				return create(k, "c")(v)
			}
			return change(note("written all the same"), unchanged)(v)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if events := mustVerify(t, s, testID("k")); len(events) != 2 {
		t.Errorf("%d events, want 2", len(events))
	}
}

func testHungUp(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	wantUnavailable(t, "update", s.Update(ctx, ledger.ReadSet{ID: testID("k")}, create(testKey("k"), "c")))
	_, _, err := s.Get(ctx, testID("k"))
	wantUnavailable(t, "get", err)
	if _, _, err := s.Get(t.Context(), testID("k")); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("got %v: something was written", err)
	}
}

func testClosed(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	wantUnavailable(t, "update", s.Update(ctx, ledger.ReadSet{ID: id}, create(testKey("k"), "c")))
	_, _, err := s.Get(ctx, id)
	wantUnavailable(t, "get", err)
	_, err = s.ByDownstreamKey(ctx, "x")
	wantUnavailable(t, "by downstream key", err)
	_, _, err = s.List(ctx, ledger.Listing{Scope: "scope-a", Limit: 1})
	wantUnavailable(t, "list", err)
	_, err = s.Due(ctx, ledger.DueQuery{Limit: 1})
	wantUnavailable(t, "due", err)
	_, err = s.Events(ctx, id)
	wantUnavailable(t, "events", err)
	wantUnavailable(t, "ready", s.Ready(ctx))
}

func testReopened(t *testing.T, d Data) {
	first := d.Open(t, Options{})
	id := mustCreate(t, first, testKey("k"))
	want := mustGet(t, first, id)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := d.Open(t, Options{})
	if got := mustGet(t, second, id); got.LastHash != want.LastHash || got.Grant != want.Grant {
		t.Errorf("got %+v, want %+v", got, want)
	}
	mustUpdate(t, second, ledger.ReadSet{ID: id}, change(note("after"), unchanged))
	mustVerify(t, second, id)
}

func testClock(t *testing.T, d Data) {
	var offset atomic.Int64
	move := func(now time.Time) time.Time { return now.Add(time.Duration(offset.Load())) }
	s, plain := d.Open(t, Options{Now: move}), d.Open(t, Options{})
	now := func(s ledger.Store) (now time.Time) {
		t.Helper()
		mustUpdate(t, s, ledger.ReadSet{ID: testID("k")}, func(v ledger.View) (ledger.Change, error) {
			if v.Timeline != 1 || v.Watermark != (ledger.Watermark{}) {
				t.Errorf("timeline %d, watermark %v: want those of a new store", v.Timeline, v.Watermark)
			}
			now = v.Now
			return ledger.Change{}, nil
		})
		return now
	}
	before := now(plain)
	if before.Location() != time.UTC || !before.Equal(before.Truncate(time.Microsecond)) {
		t.Errorf("the time is %v, want UTC to the microsecond", before)
	}
	offset.Store(int64(time.Hour + 999))
	after := now(s)
	if d := after.Sub(before); d < time.Hour || d > time.Hour+time.Minute {
		t.Errorf("the clock was moved by %v, want an hour", d)
	}
	if !after.Equal(after.Truncate(time.Microsecond)) {
		t.Errorf("the time is %v, want it to the microsecond", after)
	}
	id := mustCreate(t, s, testKey("k"))
	o, read, err := s.Get(t.Context(), id)
	if err != nil || read.Before(o.UpdateTime) || read.Sub(before) < time.Hour {
		t.Errorf("read at %v, written at %v: %v", read, o.UpdateTime, err)
	}
}

func testClockBack(t *testing.T, d Data) {
	ahead := d.Open(t, Options{Now: func(now time.Time) time.Time { return now.Add(10 * time.Minute) }})
	s := d.Open(t, Options{})
	id := mustCreate(t, ahead, testKey("k"))
	written := mustGet(t, s, id).UpdateTime
	behind := func(what string, now time.Time) {
		t.Helper()
		if d := written.Sub(now); d < 9*time.Minute || d > 10*time.Minute {
			t.Errorf("%s: the row was written %v from now, want the clock as it is: ten minutes before", what, d)
		}
	}
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("later"), func(_ *ledger.Operation, now time.Time) { behind("changed", now) }))
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("and again"), func(_ *ledger.Operation, now time.Time) { behind("changed again", now) }))
	_, now, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	behind("read", now)
	mustUpdate(t, s, ledger.ReadSet{ID: testID("other"), Related: []ledger.OperationID{id}}, func(v ledger.View) (ledger.Change, error) {
		behind("related", v.Now)
		return ledger.Change{}, nil
	})
}
