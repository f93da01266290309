// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

func key(name string) ledger.Key {
	return ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "task-1", Key: name}
}

func idOf(name string) ledger.OperationID { return key(name).Hash().OperationID() }

// inserting is a decision that inserts a row under a command.
func inserting(name, command string) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		if v.Current != nil {
			return ledger.Change{}, nil
		}
		k := key(name)
		return step(ledger.Operation{
			ID: k.Hash().OperationID(), KeyHash: k.Hash(), Scope: k.Scope, Principal: "spiffe://test/agent", Tool: k.Tool, Task: k.Task,
			CreateTime: v.Now, Timeline: 1, Version: 1, State: ledger.Received, Custody: ledger.Automation,
			Fingerprint: ledger.Fingerprint{Spec: 1, SecretID: "s1", Contract: "default"},
		}, command, v), nil
	}
}

// changing is a decision that adds an event under a command.
func changing(command string, spoil func(*ledger.Operation)) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		if v.Current == nil {
			return ledger.Change{}, ledger.ErrOperationNotFound
		}
		next := v.Current.Clone()
		spoil(&next)
		return step(next, command, v), nil
	}
}

func sound(*ledger.Operation) {}

func step(next ledger.Operation, command string, v ledger.View) ledger.Change {
	next.Sequence++
	next.UpdateTime = v.Now
	e := ledger.Event{
		OperationID: next.ID, Sequence: next.Sequence, Version: next.Version, Time: v.Now, Kind: ledger.EventObserved, ToState: next.State,
		Command: ledger.KindNote, CommandID: command,
	}
	e.Seal(next.LastHash)
	next.LastHash = e.Hash
	return ledger.Change{Next: &next, Event: &e}
}

func create(ctx context.Context, s ledger.Store, name string) error {
	return s.Update(ctx, ledger.ReadSet{ID: idOf(name)}, inserting(name, "create"))
}

func change(ctx context.Context, s ledger.Store, name, command string) error {
	return s.Update(ctx, ledger.ReadSet{ID: idOf(name)}, changing(command, sound))
}

// verify checks a row's whole history, and returns its length.
func verify(t *testing.T, s ledger.Store, id ledger.OperationID) int {
	t.Helper()
	o, _, err := s.Get(t.Context(), id)
	if errors.Is(err, ledger.ErrOperationNotFound) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), id)
	if err == nil {
		err = ledger.VerifyChain(events, o.LastHash)
	}
	if err != nil || uint64(len(events)) != o.Sequence {
		t.Fatalf("%d events, sequence %d: %v", len(events), o.Sequence, err)
	}
	return len(events)
}

// gate holds the first commit that it meets, so that calls gather behind it.
type gate struct {
	once    sync.Once
	reached chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) hook() (bool, error) {
	g.once.Do(func() {
		close(g.reached)
		<-g.open
	})
	return true, nil
}

// gathered makes calls that all wait for their batch while the one before, which creates "first", is held. It returns when they wait,
// and gives a function that lets the batch go and returns their errors.
func gathered(t *testing.T, s *sqlite.Store, g *gate, calls ...func() error) func() []error {
	t.Helper()
	errs := make([]error, len(calls)+1)
	var group sync.WaitGroup
	group.Go(func() { errs[len(calls)] = create(t.Context(), s, "first") })
	<-g.reached
	for i, call := range calls {
		group.Go(func() { errs[i] = call() })
		for sqlite.Waiting(s) <= i { // one after the other, so that their order is known
			runtime.Gosched()
		}
	}
	return func() []error {
		close(g.open)
		group.Wait()
		if errs[len(calls)] != nil {
			t.Errorf("the batch before: %v", errs[len(calls)])
		}
		return errs[:len(calls)]
	}
}

func TestPoisonedRowsFailAlone(t *testing.T) {
	impossible := func(o *ledger.Operation) { o.State = 7 }
	for _, torn := range []bool{false, true} {
		t.Run(fmt.Sprintf("one is written in part %t", torn), func(t *testing.T) {
			d := harness{}.new(t)
			plain := d.open(t, sqlite.Options{})
			for _, name := range []string{"old", "again", "pair"} {
				if err := create(t.Context(), plain, name); err != nil {
					t.Fatal(err)
				}
			}
			g := newGate()
			s := d.open(t, sqlite.Options{CommitFault: g.hook})
			name := func(i int) string { return fmt.Sprint("good ", i, torn) }
			update := func(name string, decide func(ledger.View) (ledger.Change, error)) func() error {
				return func() error {
					return s.Update(t.Context(), ledger.ReadSet{ID: idOf(name), Related: []ledger.OperationID{idOf("pair")}}, decide)
				}
			}
			calls := []func() error{
				update(name(0), inserting(name(0), "create")),
				update("old", changing("impossible", impossible)),
				update(name(1), inserting(name(1), "create")),
				update("never", func(v ledger.View) (ledger.Change, error) { // its first row is possible, the second is not
					c, err := inserting("never", "create")(v)
					pair := v.Related[idOf("pair")]
					v.Current = &pair
					companion, _ := changing("impossible", impossible)(v)
					c.Companion = &companion
					return c, err
				}),
				update(name(2), inserting(name(2), "create")),
			}
			if torn { // the row is possible, but its event has been there before
				calls[1] = update("again", changing("create", sound))
			}
			before := s.Stats().WriteBatches
			errs := gathered(t, s, g, calls...)()
			for i, err := range errs {
				if bad := i%2 == 1; bad != (err != nil) {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if !torn && s.Stats().WriteBatches != before+2 {
				t.Errorf("%d batches, want the one before and one more", s.Stats().WriteBatches-before)
			}
			for i := range 3 {
				if n := verify(t, s, idOf(name(i))); n != 1 {
					t.Errorf("%s: %d events, want 1", name(i), n)
				}
			}
			for name, want := range map[string]int{"old": 1, "again": 1, "pair": 1, "never": 0} {
				if n := verify(t, s, idOf(name)); n != want {
					t.Errorf("%s: %d events, want %d", name, n, want)
				}
			}
		})
	}
}

func TestOneOperationManyTimesInABatch(t *testing.T) {
	g := newGate()
	s := harness{}.new(t).open(t, sqlite.Options{CommitFault: g.hook})
	const n = 40
	runs := make([]int, n)
	var creators atomic.Int64
	calls := make([]func() error, n)
	for i := range calls {
		calls[i] = func() error {
			created := false
			err := s.Update(t.Context(), ledger.ReadSet{ID: idOf("hot"), CommandID: "same"}, func(v ledger.View) (ledger.Change, error) {
				runs[i]++
				created = v.Current == nil
				switch {
				case created:
					return inserting("hot", "same")(v)
				case i%2 == 0 && len(v.Prior) > 0: // the command has been executed
					return ledger.Change{}, nil
				default:
					return changing(fmt.Sprint("own ", i), sound)(v)
				}
			})
			if created {
				creators.Add(1)
			}
			return err
		}
	}
	if err := errors.Join(gathered(t, s, g, calls...)()...); err != nil {
		t.Fatal(err)
	}
	if creators.Load() != 1 {
		t.Errorf("%d calls were told that they created it, want 1", creators.Load())
	}
	if got := verify(t, s, idOf("hot")); got != n/2+1 {
		t.Errorf("%d events, want %d", got, n/2+1)
	}
	for i, got := range runs {
		if got > 2 {
			t.Errorf("call %d was decided %d times: a crowd may cost it one race, not more", i, got)
		}
	}
}

func TestFullQueue(t *testing.T) {
	d := harness{}.new(t)
	if err := create(t.Context(), d.open(t, sqlite.Options{}), "old"); err != nil {
		t.Fatal(err)
	}
	g := newGate()
	s := d.open(t, sqlite.Options{Queue: 8, CommitFault: g.hook})
	var calls []func() error
	for i := range 5 { // with the one that is being written six creations, which is what they may fill
		calls = append(calls, func() error { return create(t.Context(), s, fmt.Sprint("new ", i)) })
	}
	for i := range 3 {
		calls = append(calls, func() error { return change(t.Context(), s, "old", fmt.Sprint("report ", i)) })
	}
	letGo := gathered(t, s, g, calls...)
	for what, c := range map[string]struct{ got, want error }{
		"a new operation":         {create(t.Context(), s, "one too many"), ledger.ErrRateLimited},
		"a report on an old one":  {change(t.Context(), s, "old", "one too many"), ledger.ErrStoreUnavailable},
		"a command without write": {s.Update(t.Context(), ledger.ReadSet{}, nothing), nil},
	} {
		var r *ledger.Refusal
		if !errors.Is(c.got, c.want) || c.want != nil && (!errors.As(c.got, &r) || r.RetryAfter <= 0) {
			t.Errorf("%s: got %v, want %v and when to try again", what, c.got, c.want)
		}
	}
	if err := errors.Join(letGo()...); err != nil {
		t.Error(err)
	}
	if n := verify(t, s, idOf("old")); n != 4 {
		t.Errorf("%d events, want 4", n)
	}
	if verify(t, s, idOf("one too many")) != 0 {
		t.Error("what was refused is there")
	}
	if err := create(t.Context(), s, "one too many"); err != nil {
		t.Errorf("later: %v", err)
	}
}

func TestCallerThatHangsUpWhileItsWriteWaits(t *testing.T) {
	g := newGate()
	s := harness{}.new(t).open(t, sqlite.Options{CommitFault: g.hook})
	ctx, hangUp := context.WithCancel(t.Context())
	letGo := gathered(t, s, g, func() error { return create(ctx, s, "k") })
	hangUp()
	if err := errors.Join(letGo()...); err != nil {
		t.Error(err)
	}
	if verify(t, s, idOf("k")) != 1 {
		t.Error("what was decided was not written")
	}
}

func TestCloseWhileCallsWait(t *testing.T) {
	d := harness{}.new(t)
	g := newGate()
	s := d.open(t, sqlite.Options{CommitFault: g.hook})
	first, waiting := make(chan error), make(chan error)
	go func() { first <- create(context.WithoutCancel(t.Context()), s, "first") }()
	<-g.reached
	go func() { waiting <- create(context.WithoutCancel(t.Context()), s, "waiting") }()
	for sqlite.Waiting(s) == 0 {
		runtime.Gosched()
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	if err := <-waiting; !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("a call that waits: got %v, want ErrStoreUnavailable", err)
	}
	close(g.open)
	told := <-first
	if err := <-closed; err != nil {
		t.Error(err)
	}
	again := d.open(t, sqlite.Options{})
	if told == nil && verify(t, again, idOf("first")) != 1 {
		t.Error("a call was told that it was written, and it is not there")
	}
	if told != nil && !errors.Is(told, ledger.ErrStoreUnavailable) {
		t.Errorf("a call whose batch is being written: got %v", told)
	}
	if verify(t, again, idOf("waiting")) != 0 {
		t.Error("a call that was told that the store is closed was written")
	}
}

func TestDecisionThatPanicsInABatch(t *testing.T) {
	d := harness{}.new(t)
	if err := create(t.Context(), d.open(t, sqlite.Options{}), "hot"); err != nil {
		t.Fatal(err)
	}
	g := newGate()
	s := d.open(t, sqlite.Options{CommitFault: g.hook})
	runs := 0
	errs := gathered(t, s, g,
		func() error { return change(t.Context(), s, "hot", "before") },
		func() (err error) {
			defer func() { err = fmt.Errorf("recovered: %v", recover()) }()
			return s.Update(t.Context(), ledger.ReadSet{ID: idOf("hot")}, func(v ledger.View) (ledger.Change, error) {
				if runs++; runs > 1 {
					panic("in the batch")
				}
				return changing("never", sound)(v)
			})
		},
		func() error { return change(t.Context(), s, "hot", "after") },
	)()
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the others: %v, %v", errs[0], errs[2])
	}
	if errs[1] == nil || errs[1].Error() != "recovered: in the batch" {
		t.Errorf("got %v, want the panic on the caller's own goroutine", errs[1])
	}
	if n := verify(t, s, idOf("hot")); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}
