// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
)

// TestHungUpInAQueue: who waits to read does nothing any more, who waits to write is written.
func TestHungUpInAQueue(t *testing.T) {
	d := harness{}.New(t).(data)
	g := newGate()
	s, plain := d.open(t, postgres.Options{CommitFault: g.hook}), d.open(t, postgres.Options{})
	ctx, hangUp := context.WithCancel(t.Context())
	release := gathered(t, s, g, putting(ctx, s, "written", ""))
	hangUp()
	if err := release()[0]; err != nil {
		t.Errorf("the write went on, and its caller was told %v", err)
	}
	if got := history(t, plain, key("written")); len(got) != 1 {
		t.Errorf("history %q, want one event", got)
	}
	conn := d.connect(t)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE operations IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	first := later(t, s, key("reads"), put(key("reads"), ""))
	d.awaitLock(t, 0)
	ctx, hangUp = context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- putting(ctx, s, "hung up", "")() }()
	until(t, "it waits for its batch", func() bool { return postgres.ReadsWaiting(s) == 1 })
	hangUp()
	if err := <-gone; !errors.Is(err, ledger.ErrStoreUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrStoreUnavailable and why, at once", err)
	}
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	mustPut(t, s, "later", "")
	if got := history(t, plain, key("hung up")); got != nil {
		t.Errorf("history %q, want none", got)
	}
}

// TestHeldRowHoldsNobodyElse: a transaction of a caller's own has a row for longer than anybody may wait. Only those who want that very row
// notice it.
func TestHeldRowHoldsNobodyElse(t *testing.T) {
	for name, there := range map[string]bool{"a row that is there": true, "a row that is not committed": false} {
		t.Run(name, func(t *testing.T) {
			d := harness{}.New(t).(data)
			plain := d.open(t, postgres.Options{})
			g := newGate()
			patient := data{dsn: d.dsn + " lock_timeout=20s statement_timeout=20s"} // longer than a call takes
			s := patient.open(t, postgres.Options{CommitFault: g.hook})
			if there {
				mustPut(t, plain, "held", "")
			}
			tx := d.begun(t, pgx.ReadCommitted)
			if err := postgres.InTx(tx).Update(t.Context(), reads(key("held")), put(key("held"), "")); err != nil {
				t.Fatal(err)
			}
			held := make(chan error, 3)
			calls := []func() error{func() error { held <- putting(t.Context(), s, "held", "")(); return nil }}
			var others sync.WaitGroup
			for i := range 100 {
				call := putting(t.Context(), s, fmt.Sprint("free ", i), "")
				others.Add(1)
				calls = append(calls, func() error { defer others.Done(); return call() })
			}
			release := gathered(t, s, g, calls...)
			answered := make(chan []error, 1)
			go func() { answered <- release() }()
			others.Wait()
			// While somebody waits for the row, no batch finds out anew that it is held.
			id := key("held").Hash().OperationID()
			for i := range 2 {
				until(t, "they wait for their turn", func() bool { return postgres.Turns(s, id) == i+1 })
				before := s.Stats()
				go func() { held <- putting(t.Context(), s, "held", "")() }()
				until(t, "it waits for its turn", func() bool { return postgres.Turns(s, id) == i+2 })
				if after := s.Stats(); after.WriteBatches != before.WriteBatches {
					t.Error("it was put into a batch")
				}
			}
			select {
			case err := <-held:
				t.Errorf("who wants the row that is held has its answer already: %v", err)
			default:
			}
			for range 3 {
				if err := <-held; !errors.Is(err, ledger.ErrStoreUnavailable) {
					t.Errorf("who wants the row that is held: got %v, want ErrStoreUnavailable", err)
				}
			}
			if err := errors.Join(<-answered...); err != nil {
				t.Error(err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustPut(t, s, "held", "")
		})
	}
}

// TestTwoStoresWriteTheSameRows: batches that have rows in common wait for each other, in one order.
func TestTwoStoresWriteTheSameRows(t *testing.T) {
	d := harness{}.New(t).(data)
	stores := []*postgres.Store{d.open(t, postgres.Options{}), d.open(t, postgres.Options{})}
	const rows, rounds = 30, 6
	var group sync.WaitGroup
	for i := range 2 * rows {
		group.Go(func() {
			for round := range rounds {
				if err := putting(t.Context(), stores[i%2], fmt.Sprint("shared ", (i+round)/2%rows), fmt.Sprint(i, round))(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	total := 0
	for i := range rows {
		total += len(history(t, stores[0], key(fmt.Sprint("shared ", i))))
	}
	if total != 2*rows*rounds {
		t.Errorf("%d events, want %d", total, 2*rows*rounds)
	}
}

// TestCrowdWithoutItsStandby: a batch's commit is that of all its calls.
func TestCrowdWithoutItsStandby(t *testing.T) {
	d, wait := replicated(t)
	g := newGate()
	s := d.open(t, postgres.Options{CommitFault: g.hook})
	conn := d.connect(t)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	mustPut(t, d.open(t, postgres.Options{}), "there", "")
	calls := []func() error{
		putting(t.Context(), s, "a", ""), putting(t.Context(), s, "b", ""),
		func() error { // may answer an earlier copy of itself
			return s.Update(t.Context(), reads(key("there")), func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil })
		},
	}
	release := gathered(t, s, g, calls...)
	var errs []error
	done := make(chan struct{})
	wait("missing")
	go func() { errs = release(); close(done) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-tick.C:
			if _, err := conn.Exec(t.Context(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait("")
	for i, err := range errs { // that of the first call, too
		if !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("call %d: got %v, want ErrStoreUnavailable", i, err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if got := history(t, s, key(name)); len(got) != 1 {
			t.Errorf("%s: history %q, want one event: it was committed, and a resend finds it", name, got)
		}
	}
}
