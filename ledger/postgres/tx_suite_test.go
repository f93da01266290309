// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/storetest"
)

// notInTx are the cases of the suite that say nothing about a store on a caller's transaction, by their names, with the reason.
var notInTx = map[string]string{
	"a_commit_that_failed_is_found_or_decided_again":    "COMMIT is the caller's, and so is its outcome",
	"a_commit_that_keeps_failing_is_said_to_be_unknown": "COMMIT is the caller's, and so is its outcome",
	"a_crowd_whose_commits_are_not_seen":                "COMMIT is the caller's, and so is its outcome",
	"a_change_that_overtakes_an_unseen_commit":          "COMMIT is the caller's, and so is its outcome",
	"slots_whose_commit_is_not_seen":                    "COMMIT is the caller's, and so is its outcome",
	"a_caller_that_hangs_up_after_the_write_began":      "the transaction ends with the context, and nothing is written",
	"a_closed_store":               "it has nothing to close: it ends with the transaction",
	"a_store_that_is_opened_again": "it has nothing to close: it ends with the transaction",
	"versions_of_contracts":        "a Store keeps them: they belong to no transaction",
	"gates_of_tools":               "a Store keeps them: they belong to no transaction",
	"failpoints":                   "they lie around COMMIT, which is the caller's",
}

// TestStoreInTx runs the suite with a transaction per call, as a caller who follows the documentation runs them.
func TestStoreInTx(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(strings.ReplaceAll(string(level), " ", "-"), func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, txHarness{level})
		})
	}
}

type txHarness struct{ level pgx.TxIsoLevel }

func (h txHarness) New(t *testing.T) storetest.Data {
	t.Helper()
	if reason, ok := notInTx[path.Base(t.Name())]; ok {
		t.Skip(reason)
	}
	return txData{data: harness{}.New(t).(data), level: h.level}
}

type txData struct {
	data
	level pgx.TxIsoLevel
}

func (d txData) Open(t *testing.T, opts storetest.Options) ledger.Store {
	t.Helper()
	return txPerCall{pool: d.pool(t), level: d.level, now: opts.Now}
}

// pool is the caller's own.
func (d data) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// txPerCall begins, commits and runs again whole transactions, as is left to the caller.
type txPerCall struct {
	pool  *pgxpool.Pool
	level pgx.TxIsoLevel
	now   func(time.Time) time.Time
}

func (s txPerCall) in(ctx context.Context, f func(*postgres.TxStore) error) (err error) {
	for range 70 { // more than there are callers who may be faster
		err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: s.level}, func(tx pgx.Tx) error { return f(postgres.InTxAt(tx, s.now)) })
		var pg *pgconn.PgError
		switch {
		case errors.Is(err, postgres.ErrRetryTransaction), errors.As(err, &pg) && pg.Code == "40001": // of COMMIT
		case err != nil && ctx.Err() != nil:
			return ledger.ErrStoreUnavailable
		default:
			return err
		}
	}
	return err
}

func (s txPerCall) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	return s.in(ctx, func(t *postgres.TxStore) error { return t.Update(ctx, reads, decide) })
}

func (s txPerCall) Get(ctx context.Context, id ledger.OperationID) (o ledger.Operation, now time.Time, err error) {
	err = s.in(ctx, func(t *postgres.TxStore) error { o, now, err = t.Get(ctx, id); return err })
	return o, now, err
}

func (s txPerCall) ByDownstreamKey(ctx context.Context, key string) (id ledger.OperationID, err error) {
	err = s.in(ctx, func(t *postgres.TxStore) error { id, err = t.ByDownstreamKey(ctx, key); return err })
	return id, err
}

func (s txPerCall) List(ctx context.Context, q ledger.Listing) (page []ledger.Operation, now time.Time, err error) {
	err = s.in(ctx, func(t *postgres.TxStore) error { page, now, err = t.List(ctx, q); return err })
	return page, now, err
}

func (s txPerCall) Due(ctx context.Context, q ledger.DueQuery) (page ledger.DuePage, err error) {
	err = s.in(ctx, func(t *postgres.TxStore) error { page, err = t.Due(ctx, q); return err })
	return page, err
}

func (s txPerCall) Events(ctx context.Context, id ledger.OperationID) (events []ledger.Event, err error) {
	err = s.in(ctx, func(t *postgres.TxStore) error { events, err = t.Events(ctx, id); return err })
	return events, err
}

func (s txPerCall) Ready(ctx context.Context) error {
	return s.in(ctx, func(t *postgres.TxStore) error { return t.Ready(ctx) })
}

func (s txPerCall) Close() error { return nil }
