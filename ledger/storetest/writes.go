// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// callers is how many act at once.
const callers = 64

// atOnce runs f in that many goroutines, which begin together, and fails the test with their errors.
func atOnce(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	begin := make(chan struct{})
	errs := make([]error, n)
	for i := range n {
		group.Go(func() {
			<-begin
			errs[i] = f(i)
		})
	}
	close(begin)
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func testFirstInsertWins(t *testing.T, d Data) {
	stores := []ledger.Store{d.Open(t, Options{}), d.Open(t, Options{})}
	for round := range 3 {
		k := testKey(fmt.Sprint("contested ", round))
		id := k.Hash().OperationID()
		holders := make([]ledger.ClaimID, callers)
		atOnce(t, callers, func(i int) error {
			mine := ledger.ClaimID(fmt.Sprint("claim ", i))
			return stores[i%2].Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
				holders[i] = mine
				if v.Current != nil {
					holders[i] = v.Current.Grant.ClaimID
				}
				return create(k, mine)(v)
			})
		})
		for i, h := range holders {
			if h != holders[0] {
				t.Fatalf("caller %d was told that %q holds it, caller 0 that %q does", i, h, holders[0])
			}
		}
		if events := mustVerify(t, stores[0], id); len(events) != 1 || events[0].CommandID != string(holders[0]) {
			t.Errorf("%d events, want one, of %q", len(events), holders[0])
		}
	}
}

func testCollidingKeys(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("first"))
	before := d.Row(t, id)
	err := s.Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
		next := v.Current.Clone()
		next.KeyHash[31] ^= 1 // the same id, another hash
		return step(next, note(""), v.Now), nil
	})
	if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("got %v, want an error that no retry mends", err)
	}
	if after := d.Row(t, id); after != before {
		t.Error("the row has changed")
	}
}

func testContention(t *testing.T, d Data) {
	stores := []ledger.Store{d.Open(t, Options{}), d.Open(t, Options{})}
	id := mustCreate(t, stores[0], testKey("contended"))
	written := make([]uint64, callers)
	atOnce(t, callers, func(i int) error {
		return stores[i%2].Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
			written[i] = v.Current.Sequence + 1
			return change(note(fmt.Sprint("note ", i)), unchanged)(v)
		})
	})
	events := mustVerify(t, stores[1], id)
	if len(events) != callers+1 {
		t.Fatalf("%d events, want %d", len(events), callers+1)
	}
	for i, sequence := range written {
		if got := events[sequence-1].Note; got != fmt.Sprint("note ", i) {
			t.Errorf("event %d is %q, written by caller %d", sequence, got, i)
		}
	}
}

func testChain(t *testing.T, d Data) {
	stores := []ledger.Store{d.Open(t, Options{}), d.Open(t, Options{})}
	ids := make([]ledger.OperationID, 4)
	for i := range ids {
		ids[i] = mustCreate(t, stores[0], testKey(fmt.Sprint("chain ", i)))
	}
	atOnce(t, 8, func(worker int) error {
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		for range 12 {
			decide := renew(time.Second)
			switch random.IntN(4) {
			case 0:
				decide = change(note("\x00\u2028<&>\"\\"), unchanged)
			case 1:
				decide = change(ledger.Event{
					Kind: ledger.EventObserved, Actor: "spiffe://test/é", ActorKind: ledger.ActorPerson, Epoch: 1<<32 + 7,
					Facts: map[string]string{"b": "2", "a": "\x01"}, ContractVersion: "v1", FromState: ledger.Processing,
				}, func(o *ledger.Operation, _ time.Time) { o.Version++ })
			case 2:
				decide = func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }
			}
			if err := stores[random.IntN(2)].Update(t.Context(), ledger.ReadSet{ID: ids[random.IntN(len(ids))]}, decide); err != nil {
				return err
			}
		}
		return nil
	})
	for _, id := range ids {
		mustVerify(t, stores[0], id)
	}
}

func testUnchanged(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	before := d.Row(t, id)
	mustUpdate(t, s, ledger.ReadSet{ID: id}, create(testKey("k"), "another claim"))
	refusal := ledger.InvalidField("field", "rule")
	err := s.Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
		return step(*v.Current, note("not written"), v.Now), refusal
	})
	if !errors.Is(err, refusal) {
		t.Errorf("got %v, want the very error of decide", err)
	}
	if after := d.Row(t, id); after != before {
		t.Errorf("the row has changed:\n%s\n%s", before, after)
	}
	if events := mustVerify(t, s, id); len(events) != 1 {
		t.Errorf("%d events, want 1", len(events))
	}
	absent := testID("absent")
	err = s.Update(t.Context(), ledger.ReadSet{ID: absent}, func(v ledger.View) (ledger.Change, error) {
		if v.Current != nil {
			t.Error("an absent operation has a row")
		}
		return ledger.Change{}, ledger.ErrOperationNotFound
	})
	if !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("got %v, want the error of decide", err)
	}
}

func testCommandOnce(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	report := func(digest string) ledger.Event {
		return ledger.Event{Kind: ledger.EventObserved, Command: ledger.KindComplete, CommandID: "c", CommandDigest: digest}
	}
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(report(""), unchanged))
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(report("other content"), unchanged))
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note(""), unchanged))
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note(""), unchanged)) // what has no command may repeat
	wantUnavailable(t, "the same command again", s.Update(t.Context(), ledger.ReadSet{ID: id}, change(report(""), unchanged)))
	if events := mustVerify(t, s, id); len(events) != 5 {
		t.Errorf("%d events, want 5", len(events))
	}
	other := mustCreate(t, s, testKey("another operation"))
	mustUpdate(t, s, ledger.ReadSet{ID: other}, change(report(""), unchanged))
}

func testPrior(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	k := testKey("k")
	id := mustCreate(t, s, k)
	again := claim("claim of k")
	again.Command = ledger.KindComplete
	again.CommandDigest = "0123"
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note("between"), unchanged))
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(again, unchanged))
	events := mustVerify(t, s, id)
	for commandID, want := range map[string][]ledger.Event{
		"claim of k": {events[0], events[2]},
		"unheard of": nil,
		"CLAIM OF K": nil,
		"":           nil,
	} {
		mustUpdate(t, s, ledger.ReadSet{ID: id, CommandID: commandID}, func(v ledger.View) (ledger.Change, error) {
			if diff := cmp.Diff(want, v.Prior); diff != "" {
				t.Errorf("command %q: %s", commandID, diff)
			}
			return ledger.Change{}, nil
		})
	}
}

func testRenew(t *testing.T, d Data) {
	stores := []ledger.Store{d.Open(t, Options{}), d.Open(t, Options{})}
	id := mustCreate(t, stores[0], testKey("k"))
	before := mustGet(t, stores[0], id)
	atOnce(t, 8, func(i int) error {
		return stores[i%2].Update(t.Context(), ledger.ReadSet{ID: id}, renew(time.Second))
	})
	want := before.Clone()
	want.Grant.LeaseUntil = before.Grant.LeaseUntil.Add(8 * time.Second)
	if diff := cmp.Diff(want, mustGet(t, stores[1], id)); diff != "" {
		t.Error(diff)
	}
	if events := mustVerify(t, stores[0], id); len(events) != 1 {
		t.Errorf("%d events, want 1", len(events))
	}
}

func testMisfits(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	before := d.Row(t, id)
	for name, spoil := range map[string]func(*ledger.Change){
		"another operation's row":   func(c *ledger.Change) { c.Next.ID[0] ^= 1 },
		"another operation's event": func(c *ledger.Change) { c.Event.OperationID[0] ^= 1 },
		"a gap": func(c *ledger.Change) {
			c.Next.Sequence++
			c.Event.Sequence++
		},
		"an event that the row does not know": func(c *ledger.Change) { c.Next.LastHash[0] ^= 1 },
		"a sequence without an event":         func(c *ledger.Change) { c.Event = nil },
		"a companion that was not read": func(c *ledger.Change) {
			other := step(received(testKey("other"), c.Next.UpdateTime), note(""), c.Next.UpdateTime)
			c.Companion = &other
		},
	} {
		err := s.Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
			c := step(v.Current.Clone(), note(""), v.Now)
			spoil(&c)
			return c, nil
		})
		if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: got %v, want an error that no retry mends", name, err)
		}
	}
	if after := d.Row(t, id); after != before {
		t.Error("the row has changed")
	}
	err := s.Update(t.Context(), ledger.ReadSet{ID: testID("new")}, func(v ledger.View) (ledger.Change, error) {
		next := received(testKey("new"), v.Now)
		return ledger.Change{Next: &next}, nil
	})
	if err == nil {
		t.Error("a new row without an event was taken")
	}
}

func testIdentity(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	want := mustGet(t, s, id)
	mustUpdate(t, s, ledger.ReadSet{ID: id}, change(note(""), func(o *ledger.Operation, now time.Time) {
		o.Scope, o.Principal, o.Tool, o.Task = "x", "x", "x", "x"
		o.SubjectDigest, o.DependsOn = []byte("x"), []ledger.OperationID{id}
		o.IntentTime, o.CreateTime = now.Add(-time.Hour), now.Add(-time.Hour)
		o.Compensates, o.Corrects = id, id
		o.Fingerprint = ledger.Fingerprint{
			Spec: 9, SecretID: "x", Contract: "x", Digest: [32]byte{9}, Categories: map[string]ledger.CategoryDigest{"x": {}},
		}
	}))
	got := mustGet(t, s, id)
	want.Sequence, want.LastHash, want.UpdateTime = got.Sequence, got.LastHash, got.UpdateTime
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func testCompanion(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	original := mustCreate(t, s, testKey("original"))
	pair := func(k ledger.Key, spoil func(*ledger.Operation)) func(ledger.View) (ledger.Change, error) {
		return func(v ledger.View) (ledger.Change, error) {
			c, err := create(k, ledger.ClaimID(k.Key))(v)
			was, ok := v.Related[original]
			if !ok || c.Next == nil {
				return ledger.Change{}, errors.Join(err, errors.New("the original was not read"))
			}
			next := was.Clone()
			next.CompensatedBy = append(next.CompensatedBy, c.Next.ID)
			spoil(&next)
			companion := step(next, note("linked"), v.Now)
			c.Companion = &companion
			return c, nil
		}
	}
	reads := func(k ledger.Key) ledger.ReadSet {
		return ledger.ReadSet{ID: k.Hash().OperationID(), Related: []ledger.OperationID{original}}
	}
	mustUpdate(t, s, reads(testKey("first")), pair(testKey("first"), func(*ledger.Operation) {}))
	before := d.Row(t, original)
	err := s.Update(t.Context(), reads(testKey("second")), pair(testKey("second"), func(o *ledger.Operation) { o.State = 7 }))
	if err == nil {
		t.Error("an impossible companion was taken")
	}
	if _, _, err := s.Get(t.Context(), testID("second")); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("the change is there without its companion: %v", err)
	}
	if d.Row(t, original) != before {
		t.Error("the companion has changed without its change")
	}
	// Many at once: each link is on the original, or its compensation is not there.
	var made atomic.Int64
	atOnce(t, 16, func(i int) error {
		k := testKey(fmt.Sprint("at once ", i))
		err := s.Update(t.Context(), reads(k), pair(k, func(*ledger.Operation) {}))
		if err == nil {
			made.Add(1)
		}
		return err
	})
	if links := len(mustGet(t, s, original).CompensatedBy); int64(links) != made.Load()+1 {
		t.Errorf("%d links, want %d", links, made.Load()+1)
	}
	mustVerify(t, s, original)
}
