// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/opsledger/opsledger/ledger"
)

// ErrRetryTransaction says that another transaction was in the way: roll this one back, and run all of it again on a new one. What is
// ErrRetryTransaction is ledger.ErrStoreUnavailable, too.
var ErrRetryTransaction = errors.New("another transaction was in the way: roll back, and run the whole transaction again")

// errRetry is it, as it is returned.
var errRetry = fmt.Errorf("%w: %w", ledger.ErrStoreUnavailable, ErrRetryTransaction)

// staleAfter is how old a decision may be when it has been written. Who waited for another transaction to end decides anew: a grant's
// times count from the decision.
const staleAfter = time.Second

// TxStore is a ledger.Store on a transaction of the caller.
type TxStore struct {
	tx    pgx.Tx
	clock clock
}

var _ ledger.Store = (*TxStore)(nil)

// InTx makes a store of a transaction that the caller has begun, on a database that Store.Migrate has given the ledger's tables:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		l := ledger.New(postgres.InTx(tx), contracts)
//		answer, err := l.Claim(ctx, claim, request) // goes on only if it is granted
//		...                                         // the business rows
//		_, err = l.Do(ctx, id, claimID, complete)   // with the result
//		return err
//	})
//
// The business rows, the result and COMPLETED are committed together or not at all, whatever crashes. It runs no BEGIN, COMMIT or
// ROLLBACK; a savepoint makes that each change is in the transaction in whole or not at all. It is the ledger's form for one team:
// whoever may write these tables can grant anything, and nothing here asks who the caller is. It is not for the shared ledger.
//
// What is different from ledgerd:
//
//   - Whoever claims a key that another open transaction has claimed waits until that one ends, instead of being told "in progress".
//     Then it gets what was committed, or the grant if that was rolled back. The wait is bounded by the context, lock_timeout and
//     statement_timeout alone; ledgerd and its loop, where they meet such a transaction, give up after seconds: the store is unavailable.
//   - Nothing holds before the caller's COMMIT, not even a grant: no call to another system may be made within the transaction. It
//     would keep others waiting, and what it did stays when the transaction is rolled back.
//   - Serialization failures, deadlocks and races lost again and again are the caller's: ErrRetryTransaction. Under READ COMMITTED a
//     lost race is decided again inside; under REPEATABLE READ and SERIALIZABLE the transaction's snapshot is too old for that, and
//     what is read of other operations is as old as that snapshot. COMMIT itself may fail, too.
//   - A COMMIT whose outcome could not be seen, or that warned that no standby has confirmed it, is the caller's: the same Claim, in a
//     new transaction, tells what became of it.
//   - Who waits in another Ledger for the operation (Await) is not woken; it finds the change at its next look after COMMIT.
//   - A write does not go on when the context ends; within a statement, that ends the connection, and with it the transaction.
//   - Each call has the database's time of that call, not one time for the transaction.
//   - Contracts that change are the caller's: Store.SaveContracts keeps each version before anything is claimed under it, and
//     fingerprint.Versions finds the one that a record was made with. One that can't be found makes the record ledger.ErrRecordTooNew.
//
// What decide refuses, ledger.ErrOperationNotFound and ledger.ErrRecordTooNew leave the transaction as it was before the store was called,
// without new locks, and it may go on. After any other error nothing of the call is in it, and it must be rolled back: what the server
// has refused makes COMMIT a ROLLBACK.
//
// The tables (operations, events, due, unknown, slots, forgotten, meta) are found by the transaction's search_path: a schema of their own is behind the team's, whose
// tables then must not have these names. synchronous_commit must be on or remote_apply. Like its transaction, a TxStore is for one
// goroutine at a time.
func InTx(tx pgx.Tx) *TxStore { return &TxStore{tx: tx} }

// Update reads, decides and writes, on the transaction.
func (t *TxStore) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	for range maxRaces {
		if err := t.attempt(ctx, reads, decide); !errors.Is(err, errRace) {
			return err
		}
	}
	return fmt.Errorf("%w: %d races lost in a row", errRetry, maxRaces)
}

// attempt is one decision. With errRace it left nothing behind.
func (t *TxStore) attempt(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	view, decided, err := t.read(ctx, reads)
	if err != nil {
		return t.failure(ctx, "read", err)
	}
	change, err := decide(view)
	if err != nil || change.Next == nil {
		t.undo(ctx)
		return err
	}
	writes, err := plan(reads.ID, view, change)
	if err != nil {
		t.undo(ctx)
		return err
	}
	if err := t.write(ctx, writes, decided); err != nil {
		return t.failure(ctx, "write", err)
	}
	return t.release(ctx)
}

// read sets the savepoint, locks the row and reads all that the decision needs, in one round trip. The time beside the view is the
// database's. The lock makes the decision a fresh one; and it gives the transaction an id, also when it is released: COMMIT then waits
// for the standbys although nothing may have been written, as an answer to a resent call must.
func (t *TxStore) read(ctx context.Context, reads ledger.ReadSet) (ledger.View, time.Time, error) {
	var locked int64
	var commits string
	var same bool
	sameServer := selectSameServer
	if tells, err := t.tells(ctx); err != nil {
		return ledger.View{}, time.Time{}, err
	} else if !tells {
		sameServer = selectNoServer
	}
	b := &pgx.Batch{}
	b.Queue(savepoint)
	b.Queue(lockRow, id(reads.ID)).Exec(func(tag pgconn.CommandTag) error {
		locked = tag.RowsAffected()
		return nil
	})
	b.Queue(selectCommit).QueryRow(func(row pgx.Row) error { return row.Scan(&commits) })
	b.Queue(sameServer).QueryRow(func(row pgx.Row) error { return row.Scan(&same) })
	g := gather(b, []ledger.ReadSet{reads}, t.clock)
	if err := t.tx.SendBatch(ctx, b).Close(); err != nil {
		return ledger.View{}, time.Time{}, err
	}
	view, err := g.only()
	switch {
	case err != nil:
		return ledger.View{}, time.Time{}, err
	case !safeCommits(commits):
		return ledger.View{}, time.Time{}, errUnsafeCommits
	case !same:
		return ledger.View{}, time.Time{}, errOther
	case view.Current != nil && locked == 0: // inserted between the two: its history may be newer than the row
		return ledger.View{}, time.Time{}, errRace
	}
	return view, g.now, nil
}

// tellsOf is where a connection notes whether its server tells which one it is.
const tellsOf = "opsledger.tells"

// tells asks that once on a connection, behind a savepoint: where the server does not tell, the question would end the transaction.
func (t *TxStore) tells(ctx context.Context) (bool, error) {
	noted := t.tx.Conn().PgConn().CustomData()
	if tells, ok := noted[tellsOf].(bool); ok {
		return tells, nil
	}
	if _, err := t.tx.Exec(ctx, savepoint); err != nil {
		return false, err
	}
	here, _, err := identify(ctx, t.tx)
	if err = errors.Join(err, t.end(ctx, undo)); err != nil {
		return false, err
	}
	noted[tellsOf] = here != server{}
	return here != server{}, nil
}

func (t *TxStore) write(ctx context.Context, writes []write, decided time.Time) error {
	if err := sendWrites(ctx, t.tx, &pgx.Batch{}, writes); err != nil {
		return err
	}
	var now time.Time
	if err := t.tx.QueryRow(ctx, selectNow).Scan(&now); err != nil {
		return err
	}
	if now.Sub(decided) > staleAfter {
		return errRace
	}
	return nil
}

// failure ends an attempt. What the server has refused leaves the transaction aborted, so that not even a caller who overlooks the error
// can commit the business rows alone.
func (t *TxStore) failure(ctx context.Context, step string, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code == uniqueViolation {
		t.undo(ctx)
	}
	switch {
	case errors.Is(err, errRace), pg != nil && pg.Code == uniqueViolation:
		return errRace
	case lostRace(err):
		return errRetry
	case errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrStoreUnavailable):
		return err
	}
	if err := refused(err); err != nil {
		return err
	}
	return unavailable(step, err)
}

// undo takes back what the attempt wrote and locked. Where it fails, the transaction can't be committed.
func (t *TxStore) undo(ctx context.Context) { _ = t.end(ctx, undo) }

func (t *TxStore) release(ctx context.Context) error {
	if err := t.end(ctx, release); err != nil {
		return unavailable("release the savepoint", err)
	}
	return nil
}

// end ends the savepoint also when the caller has hung up: a context that is over would leave it as it is, and the connection, too.
func (t *TxStore) end(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	_, err := t.tx.Exec(ctx, sql)
	return err
}

func (t *TxStore) reading() reading {
	return reading{from: t.tx, clock: t.clock, again: func(_ context.Context, read func() error) error {
		err := read()
		if lostRace(err) {
			return errRetry
		}
		return err
	}}
}

// Get reads one operation with the database's time, as the transaction sees it.
func (t *TxStore) Get(ctx context.Context, op ledger.OperationID) (ledger.Operation, time.Time, error) {
	var v ledger.View
	err := t.reading().again(ctx, func() (err error) {
		b := &pgx.Batch{}
		g := gather(b, []ledger.ReadSet{{ID: op}}, t.clock)
		if err = t.tx.SendBatch(ctx, b).Close(); err == nil {
			v, err = g.only()
		}
		return err
	})
	return got(v, err)
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (t *TxStore) ByDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	return t.reading().byDownstreamKey(ctx, downstreamKey)
}

// List returns a page, as the transaction sees it.
func (t *TxStore) List(ctx context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	return t.reading().list(ctx, q)
}

// Events returns a whole history.
func (t *TxStore) Events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	return t.reading().events(ctx, op)
}

// Ready reports whether the transaction can write, and finds a schema that this release reads and writes.
func (t *TxStore) Ready(ctx context.Context) error { return t.reading().ready(ctx) }

// Close does nothing: the transaction is the caller's.
func (t *TxStore) Close() error { return nil }
