// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		os.Args = append([]string{"samedatabase"}, os.Args[1:]...)
		main()
		return
	}
	os.Exit(pgtest.Main(m))
}

// bench is a shop with a look at its tables from outside.
type bench struct {
	*shop
	dsn, secrets string
	// store is the ledger's own, as ledgerd would have it.
	store *postgres.Store
}

func newBench(t *testing.T, server *pgtest.Server) bench {
	t.Helper()
	b := bench{dsn: server.DSN(server.Database(t)), secrets: filepath.Join(t.TempDir(), "secrets.yaml")}
	ring, err := readSecrets(b.secrets)
	if err != nil {
		t.Fatal(err)
	}
	if b.shop, err = open(t.Context(), b.dsn, ring); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	if b.store, err = postgres.Open(t.Context(), onPath(b.dsn, "opsledger"), postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

var chair = order{Key: "basket-17", Item: "chair", Cents: 4900, Decided: time.Now()}

// begin opens a transaction that the test ends.
func (b bench) begin(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// want looks at all that is committed: that many orders, each with its COMPLETED, whose result names it and whose history is whole; and
// nothing else.
func (b bench) want(t *testing.T, orders int) {
	t.Helper()
	rows, err := b.pool.Query(t.Context(), `SELECT o.id::text, l.id FROM orders o FULL JOIN opsledger.operations l ON l.id = o.operation_id`)
	if err != nil {
		t.Fatal(err)
	}
	type pair struct {
		order     pgtype.Text
		operation pgtype.UUID
	}
	pairs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p pair, err error) {
		return p, row.Scan(&p.order, &p.operation)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pairs) != orders {
		t.Errorf("%d orders or records, want %d", len(pairs), orders)
	}
	for _, p := range pairs {
		if !p.order.Valid || !p.operation.Valid {
			t.Errorf("an order without its record, or a record without its order: %v", p)
			continue
		}
		op, _, err := b.store.Get(t.Context(), p.operation.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if op.State != ledger.Completed || op.Result == nil || op.Result.Resource.ID != p.order.String {
			t.Errorf("order %s is %s with the result %v", p.order.String, op.State, op.Result)
		}
		events, err := b.store.Events(t.Context(), op.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := ledger.VerifyChain(events, op.LastHash); err != nil || uint64(len(events)) != op.Sequence {
			t.Errorf("%d events of %d: %v", len(events), op.Sequence, err)
		}
	}
}

func TestOrderAndRecordAreCommittedTogether(t *testing.T) {
	b := newBench(t, pgtest.Get(t))
	first, err := b.place(t.Context(), chair)
	if err != nil || first.Replayed {
		t.Fatalf("got %+v: %v", first, err)
	}
	b.want(t, 1)
	if again, err := b.place(t.Context(), chair); err != nil || again != (receipt{Order: first.Order, Replayed: true}) {
		t.Errorf("placed again: %+v: %v", again, err)
	}
	other := chair
	other.Cents++
	if _, err := b.place(t.Context(), other); !errors.Is(err, ledger.ErrFingerprintConflict) {
		t.Errorf("another order under its key: got %v, want ErrFingerprintConflict", err)
	}
	b.want(t, 1)
}

func TestRollbackLeavesNeither(t *testing.T) {
	b := newBench(t, pgtest.Get(t))
	impossible := errors.New("the shop has second thoughts")
	b.beforeCommit = func() error { return impossible }
	if _, err := b.place(t.Context(), chair); !errors.Is(err, impossible) {
		t.Errorf("got %v, want the shop's own error", err)
	}
	b.want(t, 0)
	b.beforeCommit = nil
	free := chair
	free.Cents = 0
	if _, err := b.place(t.Context(), free); err == nil {
		t.Error("the table takes an order that costs nothing")
	}
	b.want(t, 0)
	if r, err := b.place(t.Context(), chair); err != nil || r.Replayed { // no record is in the way
		t.Errorf("got %+v: %v", r, err)
	}
	b.want(t, 1)
}

// TestClaimCommittedBefore is the other form: the claim is an earlier transaction's, for instance ledgerd's, and only the report is part
// of the one that writes the order.
func TestClaimCommittedBefore(t *testing.T) {
	b := newBench(t, pgtest.Get(t))
	claimID := ledger.ClaimID(uuid.NewString())
	answer, err := b.claim(t.Context(), ledger.New(b.store, b.contracts), claimID, chair)
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatalf("got %v: %v", answer.Outcome, err)
	}
	id := answer.Operation.ID
	tx := b.begin(t)
	if _, err := b.complete(t.Context(), tx, id, claimID, chair); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if op, _, err := b.store.Get(t.Context(), id); err != nil || op.State != ledger.Processing {
		t.Errorf("rolled back, it is %s: %v", op.State, err)
	}
	tx = b.begin(t)
	if _, err := b.complete(t.Context(), tx, id, claimID, chair); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want(t, 1)
}

// TestLoserWaitsForTheWinner: a replay if the winner has committed, the grant if it has not.
func TestLoserWaitsForTheWinner(t *testing.T) {
	for name, commit := range map[string]bool{"the winner commits": true, "the winner rolls back": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, pgtest.Get(t))
			winner, loser := b.begin(t), b.begin(t)
			placed, err := b.placeIn(t.Context(), winner, chair)
			if err != nil {
				t.Fatal(err)
			}
			var late receipt
			done := make(chan error, 1)
			go func() {
				var err error
				late, err = b.placeIn(t.Context(), loser, chair)
				done <- err
			}()
			b.awaitLock(t, done)
			end := winner.Rollback
			if commit {
				end = winner.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if err := loser.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if late.Replayed != commit || commit && late.Order != placed.Order {
				t.Errorf("the winner got %+v, the loser %+v", placed, late)
			}
			b.want(t, 1)
		})
	}
}

// awaitLock returns when a transaction waits for another one.
func (b bench) awaitLock(t *testing.T, done <-chan error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		var waiting bool
		err := b.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
		select {
		case err := <-done:
			t.Fatalf("the loser did not wait: %v", err)
		case <-tick.C:
		}
	}
	t.Fatal("the loser does not wait for a lock")
}

func TestManyAtOnce(t *testing.T) {
	b := newBench(t, pgtest.Get(t))
	const callers = 16
	receipts := make([]receipt, callers)
	errs := make([]error, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() { receipts[i], errs[i] = b.place(t.Context(), chair) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	first := 0
	for _, r := range receipts {
		if !r.Replayed {
			first++
		}
		if r.Order != receipts[0].Order {
			t.Errorf("order %s, and order %s", r.Order, receipts[0].Order)
		}
	}
	if first != 1 {
		t.Errorf("%d placed it, want 1", first)
	}
	b.want(t, 1)
}

// A release of the shop that declares something else judges what was claimed before by what was declared then.
func TestOrdersOfAnEarlierContract(t *testing.T) {
	b := newBench(t, pgtest.Get(t))
	first, err := b.place(t.Context(), chair)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := contract.Parse("contracts.yaml", []byte("tools: {orders.place: {effect: unsafe, request: {ignore: [cents]}}}"))
	if err != nil {
		t.Fatal(err)
	}
	later, err := openWith(t.Context(), b.dsn, b.ring, declared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(later.close)
	again, err := later.place(t.Context(), chair)
	if err != nil || !again.Replayed || again.Order != first.Order {
		t.Errorf("the same order: %v, %v", again, err)
	}
	dearer := chair
	dearer.Cents++
	if _, err := later.place(t.Context(), dearer); !errors.Is(err, ledger.ErrFingerprintConflict) {
		t.Errorf("another price, which did count: %v", err)
	}
	b.want(t, 1)
	fresh := dearer
	fresh.Key = "basket-18"
	if _, err := later.place(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	fresh.Cents++ // no longer counts
	if r, err := later.place(t.Context(), fresh); err != nil || !r.Replayed {
		t.Errorf("under the contract in force: %v, %v", r, err)
	}
	if _, err := b.place(t.Context(), fresh); err != nil {
		t.Errorf("at the earlier release, which never knew it: %v", err)
	}
}
