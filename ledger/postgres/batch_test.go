// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/storetest"
)

// TestStoreOfManyRows runs the suite on the statements for many rows, which most of its cases are too small to need.
func TestStoreOfManyRows(t *testing.T) {
	postgres.ManyRows(t)
	storetest.Run(t, harness{})
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

// gathered makes calls that all wait, one after the other, to be written in one batch, while the batch before is held. It returns a
// function that lets go of that and returns their errors, and last that of the call which was held.
func gathered(t *testing.T, s *postgres.Store, g *gate, calls ...func() error) func() []error {
	t.Helper()
	errs := make([]error, len(calls)+1)
	var group sync.WaitGroup
	group.Go(func() { errs[len(calls)] = putting(t.Context(), s, "first of all", "")() })
	<-g.reached
	for i, call := range calls {
		group.Go(func() { errs[i] = call() })
		until(t, "the call waits for its batch", func() bool { return postgres.WritesWaiting(s) > i })
	}
	return func() []error {
		close(g.open)
		group.Wait()
		return errs
	}
}

// putting is one call that puts a note.
func putting(ctx context.Context, s ledger.Store, name, note string) func() error {
	return func() error { return s.Update(ctx, reads(key(name)), put(key(name), note)) }
}

func mustPut(t *testing.T, s ledger.Store, name, note string) {
	t.Helper()
	if err := putting(t.Context(), s, name, note)(); err != nil {
		t.Fatal(err)
	}
}

// inserts is a tracer that keeps the ids of rows as they were inserted together.
type inserts struct {
	mu  sync.Mutex
	ids [][]pgtype.UUID
}

func (*inserts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*inserts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (*inserts) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (*inserts) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (i *inserts) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if array, ok := firstOf(q.Args).(pgtype.ArrayGetter); ok && strings.Contains(q.SQL, "INSERT INTO operations") {
		ids := make([]pgtype.UUID, array.Dimensions()[0].Length)
		for n := range ids {
			ids[n] = *array.Index(n).(*pgtype.UUID)
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.ids = append(i.ids, ids)
	}
}

func firstOf(args []any) any {
	if len(args) == 0 {
		return nil
	}
	return args[0]
}

func TestManyCallsTakeFewStatements(t *testing.T) {
	d := harness{}.New(t).(data)
	g := newGate()
	var seen inserts
	s := d.open(t, postgres.Options{CommitFault: g.hook, Tracer: &seen})
	var calls []func() error
	for i := range 64 {
		calls = append(calls, putting(t.Context(), s, fmt.Sprint("new ", i), ""))
	}
	release := gathered(t, s, g, calls...)
	before := s.Stats()
	if err := errors.Join(release()...); err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	// That of the first call was begun before. BEGIN, a setting, one insert, COMMIT.
	want := postgres.Stats{WriteBatches: 1, Writes: 64, Statements: 4}
	got := postgres.Stats{
		WriteBatches: after.WriteBatches - before.WriteBatches, Writes: after.Writes - before.Writes,
		Statements: after.Statements - before.Statements - 4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("64 writes of one batch (-want +got):\n%s", diff)
	}
	for i := range 64 {
		if got := history(t, s, key(fmt.Sprint("new ", i))); len(got) != 1 {
			t.Errorf("call %d: history %q, want one event", i, got)
		}
	}
	// Batches that take their locks in one order wait for each other, but not in a circle.
	inOrder := func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) }
	if len(seen.ids) != 1 || len(seen.ids[0]) != 64 || !slices.IsSortedFunc(seen.ids[0], inOrder) {
		t.Errorf("the rows were not inserted together, in the order of their ids: %v", seen.ids)
	}
}

func TestLoneCallWaitsForNobody(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	for range 3 {
		mustPut(t, s, "k", "")
	}
	// The first call reads and writes: BEGIN, meta, row and ROLLBACK; BEGIN, a setting, the row and COMMIT. Then it is known what a read would
	// find: the others write.
	want := postgres.Stats{ReadBatches: 1, Reads: 1, WriteBatches: 3, Writes: 3, Statements: 16}
	if diff := cmp.Diff(want, s.Stats()); diff != "" {
		t.Errorf("three calls (-want +got):\n%s", diff)
	}
}

// TestSameOperationTwiceInABatch: of one row a batch has one write; who comes second decides again.
func TestSameOperationTwiceInABatch(t *testing.T) {
	d := harness{}.New(t).(data)
	g := newGate()
	s := d.open(t, postgres.Options{CommitFault: g.hook})
	if err := putting(t.Context(), d.open(t, postgres.Options{}), "there", "0")(); err != nil {
		t.Fatal(err)
	}
	var decided [4]int
	call := func(i int, name string) func() error {
		return func() error {
			return s.Update(t.Context(), reads(key(name)), func(v ledger.View) (ledger.Change, error) {
				decided[i]++
				return put(key(name), fmt.Sprint(i))(v)
			})
		}
	}
	touch := func() error { // changes nothing, and keeps the others in their order
		return s.Update(t.Context(), reads(key("there")), func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil })
	}
	release := gathered(t, s, g, call(0, "new"), call(1, "new"), call(2, "there"), touch, call(3, "there"))
	if err := errors.Join(release()...); err != nil {
		t.Fatal(err)
	}
	if want := [4]int{1, 2, 1, 2}; decided != want {
		t.Errorf("decided %v times, want %v", decided, want)
	}
	for name, want := range map[string][]string{"new": {"0", "1"}, "there": {"0", "2", "3"}} {
		if diff := cmp.Diff(want, history(t, s, key(name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPoisonedRowInABatch: what nothing has found before it is the database's to refuse, and refuses no other row.
func TestPoisonedRowInABatch(t *testing.T) {
	d := harness{}.New(t).(data)
	g := newGate()
	s := d.open(t, postgres.Options{CommitFault: g.hook})
	var calls []func() error
	for i := range 100 {
		calls = append(calls, putting(t.Context(), s, fmt.Sprint(i), ""))
	}
	calls[42] = func() error {
		return s.Update(t.Context(), reads(key("42")), func(v ledger.View) (ledger.Change, error) {
			c, err := put(key("42"), "")(v)
			c.Next.Custodian = "nobody's"
			return c, err
		})
	}
	for i, err := range gathered(t, s, g, calls...)()[:100] {
		want := 1
		switch {
		case i != 42 && err != nil:
			t.Errorf("call %d: %v", i, err)
		case i == 42:
			want = 0
			const says = `postgres: the database refuses the row: SQLSTATE 23514, constraint "operations_held"`
			if err == nil || err.Error() != says {
				t.Errorf("call %d: got %v, want %q", i, err, says)
			}
		}
		if got := history(t, s, key(fmt.Sprint(i))); len(got) != want {
			t.Errorf("call %d: history %q, want %d events", i, got, want)
		}
	}
	if s.Stats().Alone != 0 {
		t.Errorf("%d calls went alone, where one was to be found", s.Stats().Alone)
	}
}

// TestNumbersThatNoReleaseHasWritten: a row of them can't be read, and what is read beside it can.
func TestNumbersThatNoReleaseHasWritten(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	for _, k := range []string{"sound", "broken"} {
		if err := putting(t.Context(), s, k, "")(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Alter(t, key("broken").Hash().OperationID(), "custody = 2, queue_reason = 300"); err != nil {
		t.Fatal(err)
	}
	errs := make(map[string][]error)
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 200 {
		k := []string{"sound", "broken"}[i%2]
		group.Go(func() {
			_, _, err := s.Get(t.Context(), key(k).Hash().OperationID())
			mu.Lock()
			defer mu.Unlock()
			errs[k] = append(errs[k], err)
		})
	}
	group.Wait()
	for k, all := range errs {
		for _, err := range all {
			if k == "sound" && err != nil || k == "broken" && !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Fatalf("%s: %v", k, err)
			}
		}
	}
}

// TestPanicInABatchIsItsCalls: it ends where its caller catches it, and not the process.
func TestPanicInABatchIsItsCalls(t *testing.T) {
	d := harness{}.New(t).(data)
	left := 0
	once := func() {
		if left > 0 {
			left--
			panic("as ordered")
		}
	}
	s := d.open(t, postgres.Options{
		CommitFault: func() (bool, error) { once(); return true, nil }, Now: func(now time.Time) time.Time { once(); return now },
	})
	for _, in := range []string{"the read", "the write"} {
		if in == "the read" {
			left = 1
		}
		var caught any
		func() {
			defer func() { caught = recover() }()
			_ = s.Update(t.Context(), reads(key("k")), func(v ledger.View) (ledger.Change, error) {
				left = 1 // it is decided only where nothing was ordered for the read
				return put(key("k"), "")(v)
			})
		}()
		if caught != "as ordered" || left != 0 {
			t.Errorf("%s: caught %v", in, caught)
		}
	}
	mustPut(t, s, "k", "later")
	if got := history(t, s, key("k")); len(got) != 1 {
		t.Errorf("history %q, want one event", got)
	}
}

func TestFullQueues(t *testing.T) {
	d := harness{}.New(t).(data)
	g := newGate()
	s, plain := d.open(t, postgres.Options{CommitFault: g.hook, Queue: 4}), d.open(t, postgres.Options{})
	mustPut(t, plain, "there", "")
	mustPut(t, plain, "there, too", "")
	refused := func(what string, err, want error) {
		t.Helper()
		var r *ledger.Refusal
		if !errors.As(err, &r) || !errors.Is(err, want) || r.RetryAfter <= 0 {
			t.Errorf("%s: got %v, want %v, and when to come again", what, err, want)
		}
	}
	release := gathered(t, s, g, putting(t.Context(), s, "1", ""), putting(t.Context(), s, "2", ""), putting(t.Context(), s, "3", ""))
	refused("a new row, where there is room for others", putting(t.Context(), s, "4", "")(), ledger.ErrRateLimited)
	last := later(t, s, key("there"), put(key("there"), "n"))
	until(t, "it waits, too", func() bool { return postgres.WritesWaiting(s) == 4 })
	refused("a change", putting(t.Context(), s, "there, too", "")(), ledger.ErrStoreUnavailable)
	if err := errors.Join(append(release(), <-last)...); err != nil {
		t.Error(err)
	}
	// Reads wait behind one that waits for the table.
	conn := d.connect(t)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE operations IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	waiting := []<-chan error{later(t, s, key("there"), put(key("there"), "n"))}
	until(t, "it is in a batch", func() bool { return postgres.ReadsWaiting(s) == 0 && s.Stats().Reads > 5 })
	for i := range 4 {
		if i == 3 {
			asking := reads(key("new"))
			asking.Siblings = &ledger.Siblings{Scope: "scope-a", Tool: "tickets.create", Task: "task-1"}
			refused("who would begin something", s.Update(t.Context(), asking, put(key("new"), "")), ledger.ErrRateLimited)
		}
		waiting = append(waiting, later(t, s, key("there"), put(key("there"), "n")))
		until(t, "it waits for its batch", func() bool { return postgres.ReadsWaiting(s) == i+1 })
	}
	refused("who reports", putting(t.Context(), s, "there", "")(), ledger.ErrStoreUnavailable)
	_, _, err := s.Get(t.Context(), key("there").Hash().OperationID())
	refused("who looks", err, ledger.ErrStoreUnavailable)
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiting {
		if err := <-w; err != nil {
			t.Error(err)
		}
	}
	if got := history(t, plain, key("there")); len(got) != 7 {
		t.Errorf("history %q, want 7 events", got)
	}
	for _, absent := range []string{"4", "new"} {
		if got := history(t, plain, key(absent)); got != nil {
			t.Errorf("%s was refused, and has the history %q", absent, got)
		}
	}
}
