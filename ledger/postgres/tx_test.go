// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
)

// begun is a transaction of a caller who also has a table of its own.
func (d data) begun(t *testing.T, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	conn := d.connect(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	if _, err := conn.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS business (n int)"); err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if _, err := conn.Exec(t.Context(), "SET deadlock_timeout = '20ms'"); err != nil && !(errors.As(err, &pg) && pg.Code == "42501") {
		t.Fatal(err) // where the role may not, a deadlock only takes longer
	}
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// business writes a row of the caller.
func business(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "INSERT INTO business VALUES (1)"); err != nil {
		t.Fatal(err)
	}
}

func (d data) wantBusiness(t *testing.T, want int) {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	var got int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM business").Scan(&got); err != nil || got != want {
		t.Errorf("%d business rows, want %d: %v", got, want, err)
	}
}

func mustCommit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// later runs an update beside the test.
func later(t *testing.T, s ledger.Store, k ledger.Key, decide func(ledger.View) (ledger.Change, error)) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Update(t.Context(), reads(k), decide) }()
	return done
}

// awaitLock returns when a transaction has waited that long for another.
func (d data) awaitLock(t *testing.T, long time.Duration) {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	until(t, "somebody waits for a lock", func() (waiting bool) {
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start >= $1)`, long).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		return waiting
	})
}

func TestTransactionHoldsBothOrNeither(t *testing.T) {
	d := harness{}.New(t).(data)
	s, k := d.open(t, postgres.Options{}), key("k")
	for _, c := range []struct {
		name   string
		end    func(pgx.Tx) error
		events int
	}{
		{"rolled back", func(tx pgx.Tx) error { return tx.Rollback(t.Context()) }, 0},
		{"committed", func(tx pgx.Tx) error { return tx.Commit(t.Context()) }, 2},
	} {
		tx := d.begun(t, pgx.ReadCommitted)
		for range 2 { // what it wrote itself, it sees
			if err := postgres.InTx(tx).Update(t.Context(), reads(k), put(k, "")); err != nil {
				t.Fatal(err)
			}
		}
		business(t, tx)
		if got := history(t, s, k); len(got) != 0 {
			t.Errorf("%s: %d events are seen before the end", c.name, len(got))
		}
		if err := c.end(tx); err != nil {
			t.Fatal(err)
		}
		if got := history(t, s, k); len(got) != c.events {
			t.Errorf("%s: %d events, want %d", c.name, len(got), c.events)
		}
		d.wantBusiness(t, c.events/2)
	}
}

func TestLoserWaitsForTheOtherTransaction(t *testing.T) {
	for _, c := range []struct {
		name      string
		there     bool // before both
		committed bool
		want      []string
	}{
		{"a new key, committed", false, true, []string{"first", "second"}},
		{"a new key, rolled back", false, false, []string{"second"}},
		{"a change, committed", true, true, []string{"there", "first", "second"}},
		{"a change, rolled back", true, false, []string{"there", "second"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := harness{}.New(t).(data)
			s, k := d.open(t, postgres.Options{}), key("k")
			if c.there {
				if err := s.Update(t.Context(), reads(k), put(k, "there")); err != nil {
					t.Fatal(err)
				}
			}
			first, second := d.begun(t, pgx.ReadCommitted), d.begun(t, pgx.ReadCommitted)
			if err := postgres.InTx(first).Update(t.Context(), reads(k), put(k, "first")); err != nil {
				t.Fatal(err)
			}
			done := later(t, postgres.InTx(second), k, put(k, "second"))
			d.awaitLock(t, 0)
			end := first.Rollback
			if c.committed {
				end = first.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			mustCommit(t, second)
			if diff := cmp.Diff(c.want, history(t, s, k)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWaitedDecisionIsTakenAnew: its times would be those of before the wait.
func TestWaitedDecisionIsTakenAnew(t *testing.T) {
	d := harness{}.New(t).(data)
	s, k := d.open(t, postgres.Options{}), key("k")
	first, second := d.begun(t, pgx.ReadCommitted), d.begun(t, pgx.ReadCommitted)
	if err := postgres.InTx(first).Update(t.Context(), reads(k), put(k, "first")); err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	done := later(t, postgres.InTx(second), k, func(v ledger.View) (ledger.Change, error) {
		times = append(times, v.Now)
		return put(k, "second")(v)
	})
	d.awaitLock(t, 1100*time.Millisecond)
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustCommit(t, second)
	if len(times) != 2 || times[1].Sub(times[0]) < time.Second {
		t.Errorf("decided at %v, want again after the wait", times)
	}
	if got := history(t, s, k); len(got) != 1 {
		t.Errorf("history %q, want one event", got)
	}
}

// TestReadThatDoesNotFit: a serializable transaction may fail where it only reads. One that has read what a second one changed, and
// changed what this one reads, has no place in any order of the three.
func TestReadThatDoesNotFit(t *testing.T) {
	d := harness{}.New(t).(data)
	k := key("k")
	middle, last, reader := d.begun(t, pgx.Serializable), d.begun(t, pgx.Serializable), d.begun(t, pgx.Serializable)
	count := func(tx pgx.Tx) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM business"); err != nil {
			t.Fatal(err)
		}
	}
	count(middle)
	business(t, last)
	mustCommit(t, last)
	count(reader) // takes the snapshot
	if err := postgres.InTx(middle).Update(t.Context(), reads(k), put(k, "")); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, middle)
	if _, err := postgres.InTx(reader).Events(t.Context(), k.Hash().OperationID()); !errors.Is(err, postgres.ErrRetryTransaction) {
		t.Errorf("got %v, want ErrRetryTransaction", err)
	}
}

// TestOldSnapshotDecidesNothing: also not that nothing is to be written.
func TestOldSnapshotDecidesNothing(t *testing.T) {
	d := harness{}.New(t).(data)
	s, k := d.open(t, postgres.Options{}), key("k")
	if err := s.Update(t.Context(), reads(k), put(k, "there")); err != nil {
		t.Fatal(err)
	}
	tx := d.begun(t, pgx.RepeatableRead)
	business(t, tx) // takes the snapshot
	if err := s.Update(t.Context(), reads(k), put(k, "newer")); err != nil {
		t.Fatal(err)
	}
	err := postgres.InTx(tx).Update(t.Context(), reads(k), func(ledger.View) (ledger.Change, error) {
		t.Error("it is decided on the old snapshot")
		return ledger.Change{}, nil
	})
	if !errors.Is(err, postgres.ErrRetryTransaction) {
		t.Errorf("got %v, want ErrRetryTransaction", err)
	}
}

// TestLostSnapshotAbortsTheTransaction: a caller who overlooks the error can't commit its own rows alone.
func TestLostSnapshotAbortsTheTransaction(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, there := range []bool{false, true} {
			d := harness{}.New(t).(data)
			s, k := d.open(t, postgres.Options{}), key("k")
			if there {
				if err := s.Update(t.Context(), reads(k), put(k, "there")); err != nil {
					t.Fatal(err)
				}
			}
			tx := d.begun(t, level)
			business(t, tx) // takes the snapshot
			if err := s.Update(t.Context(), reads(k), put(k, "faster")); err != nil {
				t.Fatal(err)
			}
			err := postgres.InTx(tx).Update(t.Context(), reads(k), put(k, "slower"))
			if !errors.Is(err, postgres.ErrRetryTransaction) || !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("%s, there %t: got %v, want ErrRetryTransaction", level, there, err)
			}
			if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
				t.Errorf("%s, there %t: commit: got %v, want a rollback", level, there, err)
			}
			d.wantBusiness(t, 0)
		}
	}
}

func TestDeadlockIsTheCallers(t *testing.T) {
	d := harness{}.New(t).(data)
	s, a, b := d.open(t, postgres.Options{}), key("a"), key("b")
	first, second := d.begun(t, pgx.ReadCommitted), d.begun(t, pgx.ReadCommitted)
	for k, tx := range map[ledger.Key]pgx.Tx{a: first, b: second} {
		if err := postgres.InTx(tx).Update(t.Context(), reads(k), put(k, "")); err != nil {
			t.Fatal(err)
		}
	}
	transactions := []pgx.Tx{first, second}
	crossed := []<-chan error{later(t, postgres.InTx(first), b, put(b, "")), later(t, postgres.InTx(second), a, put(a, ""))}
	var err error
	loser := 0
	select { // the other one goes on when the loser has ended
	case err = <-crossed[0]:
	case err = <-crossed[1]:
		loser = 1
	}
	if !errors.Is(err, postgres.ErrRetryTransaction) {
		t.Errorf("got %v, want ErrRetryTransaction", err)
	}
	if err := transactions[loser].Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-crossed[1-loser]; err != nil {
		t.Fatal(err)
	}
	mustCommit(t, transactions[1-loser])
	for _, k := range []ledger.Key{a, b} {
		if got := history(t, s, k); len(got) != 1 {
			t.Errorf("history %q, want one event", got)
		}
	}
}

// TestRefusalLeavesTheTransactionAsItWas: it can go on, and holds no lock that others would wait for.
func TestRefusalLeavesTheTransactionAsItWas(t *testing.T) {
	d := harness{}.New(t).(data)
	s, k := d.open(t, postgres.Options{}), key("k")
	if err := s.Update(t.Context(), reads(k), put(k, "there")); err != nil {
		t.Fatal(err)
	}
	tx := d.begun(t, pgx.ReadCommitted)
	refusal := &ledger.Refusal{Err: ledger.ErrFingerprintConflict}
	err := postgres.InTx(tx).Update(t.Context(), reads(k), func(ledger.View) (ledger.Change, error) { return ledger.Change{}, refusal })
	if !errors.Is(err, refusal) {
		t.Fatalf("got %v, want the refusal", err)
	}
	if _, _, err := postgres.InTx(tx).Get(t.Context(), key("absent").Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("got %v, want ErrOperationNotFound", err)
	}
	business(t, tx)
	if err := s.Update(t.Context(), reads(k), put(k, "another")); err != nil {
		t.Errorf("another writer, while the transaction is open: %v", err)
	}
	mustCommit(t, tx)
	d.wantBusiness(t, 1)
}

// TestHalfOfAPairIsNeverKept: also not by a caller who overlooks the error, where the server has no reason to abort the transaction.
func TestHalfOfAPairIsNeverKept(t *testing.T) {
	d := harness{}.New(t).(data)
	s, k, original := d.open(t, postgres.Options{}), key("k"), key("original")
	if err := s.Update(t.Context(), reads(original), put(original, "")); err != nil {
		t.Fatal(err)
	}
	tx := d.begun(t, pgx.ReadCommitted)
	both := reads(k)
	both.Related = []ledger.OperationID{original.Hash().OperationID()}
	decisions := 0
	err := postgres.InTx(tx).Update(t.Context(), both, func(v ledger.View) (ledger.Change, error) {
		decisions++
		was := v.Related[both.Related[0]]
		companion, err := put(original, "linked")(ledger.View{Now: v.Now, Timeline: v.Timeline, Current: &was})
		if err != nil {
			return ledger.Change{}, err
		}
		if err := s.Update(t.Context(), reads(original), put(original, "faster")); err != nil {
			return ledger.Change{}, err
		}
		change, err := put(k, "")(v)
		change.Companion = &companion
		return change, err
	})
	if !errors.Is(err, postgres.ErrRetryTransaction) {
		t.Errorf("got %v, want ErrRetryTransaction", err)
	}
	mustCommit(t, tx)
	if got := history(t, s, k); got != nil {
		t.Errorf("history %q, want none: its companion is not there", got)
	}
	if got := history(t, s, original); len(got) != 1+decisions {
		t.Errorf("the companion has %d events, want %d", len(got), 1+decisions)
	}
}

// TestContextThatEndsLeavesNothing: what was written before it ended is taken back, although the transaction lives.
func TestContextThatEndsLeavesNothing(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	for name, after := range map[string]int{"before the write": 0, "after the write": 1} {
		k := key(name)
		tx := d.begun(t, pgx.ReadCommitted)
		ctx, hangUp := context.WithCancel(t.Context())
		err := postgres.InTx(&countedTx{Tx: tx, left: after + 1, last: hangUp}).Update(ctx, reads(k), put(k, ""))
		if !errors.Is(err, ledger.ErrStoreUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want ErrStoreUnavailable", name, err)
		}
		mustCommit(t, tx)
		if got := history(t, s, k); got != nil {
			t.Errorf("%s: history %q, want none", name, got)
		}
	}
}

// countedTx calls last when that many batches have been answered.
type countedTx struct {
	pgx.Tx
	left int
	last func()
}

func (c *countedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return countedResults{c.Tx.SendBatch(ctx, b), c}
}

type countedResults struct {
	pgx.BatchResults
	of *countedTx
}

func (r countedResults) Close() error {
	err := r.BatchResults.Close()
	if r.of.left--; r.of.left == 0 {
		r.of.last()
	}
	return err
}

func TestTransactionThatCantBeTrusted(t *testing.T) {
	d := harness{}.New(t).(data)
	k := key("k")
	for name, set := range map[string]string{
		"asynchronous": "SET LOCAL synchronous_commit = off", "read-only": "SET TRANSACTION READ ONLY", "elsewhere": "SET LOCAL search_path = pg_catalog",
	} {
		tx := d.begun(t, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		// Of its own savepoint, so that the transaction is there to be asked again.
		err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			return postgres.InTx(tx).Update(t.Context(), reads(k), put(k, ""))
		})
		if !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: got %v, want ErrStoreUnavailable", name, err)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			t.Errorf("%s: the driver's error is shown", name)
		}
		if err := postgres.InTx(tx).Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: ready: got %v, want ErrStoreUnavailable", name, err)
		}
		_ = tx.Rollback(t.Context())
	}
	tx := d.begun(t, pgx.ReadCommitted)
	if err := postgres.InTx(tx).Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	_ = tx.Rollback(t.Context())
}

// TestResentAnswerInTxWaitsForTheStandbys is I15, although the transaction writes nothing else: its COMMIT says that none has confirmed.
func TestResentAnswerInTxWaitsForTheStandbys(t *testing.T) {
	d, wait := replicated(t)
	s, k := d.open(t, postgres.Options{}), key("k")
	resent := ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: "c"}
	if err := s.Update(t.Context(), resent, claimed(k, "c")); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	warned := false
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warned = warned || n.SeverityUnlocalized == "WARNING" }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	beside := d.connect(t)
	defer func() { _ = beside.Close(t.Context()) }()
	wait("missing")
	err = withoutStandby(t, beside, func() error {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			return postgres.InTx(tx).Update(t.Context(), resent, claimed(k, "c"))
		})
	})
	wait("")
	if err != nil || !warned {
		t.Errorf("warned %t, want a warning: %v", warned, err)
	}
	if got := history(t, s, k); len(got) != 1 {
		t.Errorf("history %q, want one event", got)
	}
}
