// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func testAbsent(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := testID("absent")
	if _, _, err := s.Get(t.Context(), id); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("get: got %v, want ErrOperationNotFound", err)
	}
	if _, err := s.ByDownstreamKey(t.Context(), testKey("absent").Hash().DownstreamKey()); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("by downstream key: got %v, want ErrOperationNotFound", err)
	}
	if events, err := s.Events(t.Context(), id); err != nil || len(events) != 0 {
		t.Errorf("events: got %d, %v, want none", len(events), err)
	}
	if page, _, err := s.List(t.Context(), ledger.Listing{Scope: "nobody's", Limit: 10}); err != nil || len(page) != 0 {
		t.Errorf("list: got %d, %v, want none", len(page), err)
	}
	if page, err := s.Due(t.Context(), ledger.DueQuery{Limit: 10}); err != nil || len(page.Due) != 0 || page.End != (ledger.DuePosition{}) {
		t.Errorf("due: got %v, %v, want none", page, err)
	}
}

func testDownstreamKey(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	want := mustCreate(t, s, testKey("k"))
	mustCreate(t, s, testKey("other"))
	key := testKey("k").Hash().DownstreamKey()
	if got, err := s.ByDownstreamKey(t.Context(), key); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, near := range []string{strings.ToUpper(key), key + " ", key[:31], ""} {
		if _, err := s.ByDownstreamKey(t.Context(), near); !errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("%q: got %v, want ErrOperationNotFound", near, err)
		}
	}
}

// steps is a clock that stands still until it is moved, so that many rows have one time.
type steps struct{ now time.Time }

func (c *steps) at(time.Time) time.Time { return c.now }

// newSteps begins yesterday, so that a store with the machine's clock is ahead of it.
func newSteps() *steps {
	return &steps{now: time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Second).Add(123456 * time.Microsecond)}
}

// pages reads a listing to its end, size operations at a time.
func pages(t *testing.T, s ledger.Store, q ledger.Listing, size int) []ledger.OperationID {
	t.Helper()
	var ids []ledger.OperationID
	q.Limit = size
	for range 100 {
		page, _, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > size {
			t.Fatalf("a page of %d, want at most %d", len(page), size)
		}
		for _, o := range page {
			ids = append(ids, o.ID)
		}
		if len(page) < size {
			return ids
		}
		last := page[size-1]
		q.AfterID, q.AfterTime = last.ID, last.CreateTime
		if !q.UpdatedAfter.IsZero() {
			q.AfterTime = last.UpdateTime
		}
	}
	t.Fatal("the listing has no end")
	return nil
}

// byTime sorts ids by (time, id).
func byTime(ids []ledger.OperationID, at map[ledger.OperationID]time.Time) []ledger.OperationID {
	return slices.SortedFunc(slices.Values(ids), func(a, b ledger.OperationID) int {
		if c := at[a].Compare(at[b]); c != 0 {
			return c
		}
		return bytes.Compare(a[:], b[:])
	})
}

func testListing(t *testing.T, d Data) {
	clock := newSteps()
	s := d.Open(t, Options{Now: clock.at})
	at := map[ledger.OperationID]time.Time{}
	var ids, ofTask []ledger.OperationID
	for i := range 23 {
		if i%10 == 0 {
			clock.now = clock.now.Add(time.Microsecond)
		}
		k := testKey(fmt.Sprint(i))
		if i%3 == 0 {
			k.Task = "task-2"
		}
		id := mustCreate(t, s, k)
		ids, at[id] = append(ids, id), clock.now
		if i%3 == 0 {
			ofTask = append(ofTask, id)
		}
		k.Scope = "scope-b" // never seen from the other scope
		mustCreate(t, s, k)
	}
	for _, size := range []int{1, 5, 23, 50} {
		if diff := cmp.Diff(byTime(ids, at), pages(t, s, ledger.Listing{Scope: "scope-a"}, size)); diff != "" {
			t.Errorf("pages of %d: %s", size, diff)
		}
		if diff := cmp.Diff(byTime(ofTask, at), pages(t, s, ledger.Listing{Scope: "scope-a", Task: "task-2"}, size)); diff != "" {
			t.Errorf("one task, pages of %d: %s", size, diff)
		}
	}
}

func testUpdateListing(t *testing.T, d Data) {
	clock := newSteps()
	s := d.Open(t, Options{Now: clock.at})
	begin := clock.now
	at := map[ledger.OperationID]time.Time{}
	var changed, ofTask []ledger.OperationID
	for i := range 20 {
		k := testKey(fmt.Sprint(i))
		if i%2 == 0 {
			k.Task = "task-2"
		}
		clock.now = begin
		id := mustCreate(t, s, k)
		if i%4 == 3 {
			continue // not changed since
		}
		clock.now = begin.Add(time.Duration(1+i%3) * time.Second)
		mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note(""), unchanged))
		changed, at[id] = append(changed, id), clock.now
		if i%2 == 0 {
			ofTask = append(ofTask, id)
		}
	}
	for _, size := range []int{1, 4, 50} {
		got := pages(t, s, ledger.Listing{Scope: "scope-a", UpdatedAfter: begin}, size)
		if diff := cmp.Diff(byTime(changed, at), got); diff != "" {
			t.Errorf("pages of %d: %s", size, diff)
		}
		got = pages(t, s, ledger.Listing{Scope: "scope-a", Task: "task-2", UpdatedAfter: begin}, size)
		if diff := cmp.Diff(byTime(ofTask, at), got); diff != "" {
			t.Errorf("one task, pages of %d: %s", size, diff)
		}
	}
	late := slices.DeleteFunc(slices.Clone(changed), func(id ledger.OperationID) bool { return !at[id].After(begin.Add(2 * time.Second)) })
	got := pages(t, s, ledger.Listing{Scope: "scope-a", UpdatedAfter: begin.Add(2 * time.Second)}, 50)
	if diff := cmp.Diff(byTime(late, at), got); diff != "" {
		t.Errorf("after the second of three times: %s", diff)
	}
}

func testListingFilters(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	row := func(name string, subject []byte, state ledger.State) {
		k := testKey(name)
		insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			if state == ledger.Processing {
				o = granted(o, "c", now)
			}
			o.State, o.SubjectDigest, o.TargetSummary = state, subject, name
			return o
		})
	}
	one, two := []byte{1, 0xff}, []byte{2, 0x00}
	row("plain", nil, ledger.Received)
	row("plain unknown", nil, ledger.Unknown)
	row("one", one, ledger.Received)
	row("one processing", one, ledger.Processing)
	row("two unknown", two, ledger.Unknown)
	for _, c := range []struct {
		name     string
		subjects [][]byte
		states   []ledger.State
		want     []string
	}{
		{"no subject", nil, nil, []string{"plain", "plain unknown"}},
		{"no subject, one state", nil, []ledger.State{ledger.Unknown}, []string{"plain unknown"}},
		{"no subject, two states", nil, []ledger.State{ledger.Unknown, ledger.Received}, []string{"plain", "plain unknown"}},
		{"a state that nobody has", nil, []ledger.State{ledger.Retired}, nil},
		{"a subject", [][]byte{one}, nil, []string{"one", "one processing"}},
		{"a subject under two secrets", [][]byte{two, one}, nil, []string{"one", "one processing", "two unknown"}},
		{"a subject and a state", [][]byte{one}, []ledger.State{ledger.Processing}, []string{"one processing"}},
		{"a subject that nobody has", [][]byte{{1}}, nil, nil},
	} {
		for _, q := range []ledger.Listing{{}, {Task: "task-1"}, {UpdatedAfter: time.Unix(1, 0)}} {
			q.Scope, q.SubjectDigests, q.States, q.Limit = "scope-a", c.subjects, c.states, 10
			page, _, err := s.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range page {
				got = append(got, o.TargetSummary)
			}
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
		}
	}
}

func testDue(t *testing.T, d Data) {
	clock := newSteps()
	s := d.Open(t, Options{Now: clock.at})
	plain := d.Open(t, Options{})
	var want []ledger.DuePosition
	for i, at := range []time.Duration{-time.Hour, -time.Minute, -time.Minute, -time.Minute, -time.Microsecond, 0, time.Microsecond, time.Hour} {
		k := testKey(fmt.Sprint("due ", i))
		o := insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			o.NextCheckTime = now.Add(at)
			return o
		})
		if at <= 0 {
			want = append(want, ledger.DuePosition{Time: o.NextCheckTime, ID: o.ID})
		}
	}
	insert(t, s, testKey("never"), func(now time.Time) ledger.Operation { return received(testKey("never"), now) })
	slices.SortFunc(want, func(a, b ledger.DuePosition) int {
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	for _, limit := range []int{1, 2, 100} {
		var got []ledger.DuePosition
		for q := (ledger.DueQuery{Limit: limit}); ; {
			page, err := s.Due(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page.Due...)
			if q.After = page.End; q.After == (ledger.DuePosition{}) || len(got) > len(want) {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d at a time: %s", limit, diff)
		}
	}
	// Tools can be passed by: where all that is due is theirs, the page ends where it has looked to.
	other := testKey("due 1").Tool
	page, err := s.Due(t.Context(), ledger.DueQuery{Without: []ledger.Tool{"another", other}, Limit: 100})
	if err != nil || len(page.Due) != 0 || page.End != (ledger.DuePosition{}) {
		t.Errorf("without their tool there are due: %v, %v", page, err)
	}
	if page, err = s.Due(t.Context(), ledger.DueQuery{Without: []ledger.Tool{"another"}, Limit: 100}); err != nil || len(page.Due) != len(want) {
		t.Errorf("without another tool there are due: %v, %v", page, err)
	}
	// By the store's own clock, what was due in the past is due.
	page, err = plain.Due(t.Context(), ledger.DueQuery{Limit: 100})
	if err != nil || len(page.Due) != len(want)+2 {
		t.Errorf("%d are due by the store's own clock, want %d: %v", len(page.Due), len(want)+2, err)
	}
}

func testSiblings(t *testing.T, d Data) {
	clock := newSteps()
	s := d.Open(t, Options{Now: clock.at})
	row := func(k ledger.Key, subject []byte, state ledger.State) ledger.OperationID {
		return insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			o.State, o.SubjectDigest = state, subject
			return o
		}).ID
	}
	var want []ledger.OperationID
	at := map[ledger.OperationID]time.Time{}
	for i := range 40 {
		if i%3 == 0 {
			clock.now = clock.now.Add(time.Second)
		}
		id := row(testKey(fmt.Sprint("unknown ", i)), nil, ledger.Unknown)
		want, at[id] = append(want, id), clock.now
	}
	want = byTime(want, at)
	row(testKey("received"), nil, ledger.Received)
	ofSubject := row(testKey("of a subject"), []byte{7}, ledger.Unknown)
	for _, k := range []ledger.Key{
		{Scope: "scope-b", Tool: "tickets.create", Task: "task-1", Key: "k"},
		{Scope: "scope-a", Tool: "tickets.close", Task: "task-1", Key: "k"},
		{Scope: "scope-a", Tool: "tickets.create", Task: "task-2", Key: "k"},
	} {
		row(k, nil, ledger.Unknown)
	}
	for _, c := range []struct {
		name     string
		self     ledger.OperationID
		subjects [][]byte
		want     []ledger.OperationID
	}{
		{"32 at most, the oldest first", testID("new"), nil, want[:32]},
		{"not itself", want[0], nil, want[1:33]},
		{"of the subject", testID("new"), [][]byte{{6}, {7}}, []ledger.OperationID{ofSubject}},
		{"of another subject", testID("new"), [][]byte{{8}}, nil},
	} {
		mustUpdate(t, s, ledger.ReadSet{ID: c.self, Siblings: &ledger.Siblings{
			Scope: "scope-a", Tool: "tickets.create", Task: "task-1", SubjectDigests: c.subjects,
		}}, func(v ledger.View) (ledger.Change, error) {
			if diff := cmp.Diff(c.want, v.UnknownSiblings); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
			return ledger.Change{}, nil
		})
	}
	// A row's own digest can't be compared with one made under another secret.
	under := func(name, secret string, subject []byte, state ledger.State) ledger.OperationID {
		k := testKey(name)
		k.Task = "rotated"
		return insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			o.State, o.SubjectDigest, o.Fingerprint.SecretID = state, subject, secret
			return o
		}).ID
	}
	self := under("self", "s1", []byte{1}, ledger.Received)
	other := under("other subject", "s1", []byte{2}, ledger.Unknown)
	rotated := under("rotated", "s2", []byte{3}, ledger.Unknown)
	under("rotated, settled", "s2", []byte{4}, ledger.Received)
	under("rotated, no subject", "s2", nil, ledger.Unknown)
	for _, c := range []struct {
		name     string
		subjects [][]byte
		want     []ledger.OperationID
	}{
		{"its own digest", [][]byte{{1}}, []ledger.OperationID{rotated}},
		{"digests under all secrets", [][]byte{{1}, {9}}, nil},
		{"another subject's", [][]byte{{2}}, []ledger.OperationID{other}},
	} {
		mustUpdate(t, s, ledger.ReadSet{ID: self, Siblings: &ledger.Siblings{
			Scope: "scope-a", Tool: "tickets.create", Task: "rotated", SubjectDigests: c.subjects,
		}}, func(v ledger.View) (ledger.Change, error) {
			if diff := cmp.Diff(c.want, v.UnknownSiblings); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
			return ledger.Change{}, nil
		})
	}
	mustUpdate(t, s, ledger.ReadSet{ID: testID("new")}, func(v ledger.View) (ledger.Change, error) {
		if v.UnknownSiblings != nil {
			t.Errorf("%d siblings, where none were asked for", len(v.UnknownSiblings))
		}
		return ledger.Change{}, nil
	})
}

func testRelated(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	first, second := mustCreate(t, s, testKey("first")), mustCreate(t, s, testKey("second"))
	want := map[ledger.OperationID]ledger.Operation{first: mustGet(t, s, first), second: mustGet(t, s, second)}
	reads := ledger.ReadSet{ID: testID("k"), Related: []ledger.OperationID{first, testID("absent"), second, first}}
	mustUpdate(t, s, reads, func(v ledger.View) (ledger.Change, error) {
		if diff := cmp.Diff(want, v.Related); diff != "" {
			t.Error(diff)
		}
		return ledger.Change{}, nil
	})
}
