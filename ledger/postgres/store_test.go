// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/storetest"
	"github.com/opsledger/opsledger/test/pgtest"
)

func TestStore(t *testing.T) { storetest.Run(t, harness{}) }

func TestStoreForOperators(t *testing.T) { storetest.RunOperators(t, harness{}) }

func TestStoreKeepsSecrets(t *testing.T) { storetest.RunSecrets(t, harness{}) }

func TestStoreForgets(t *testing.T) { storetest.RunAged(t, harness{}) }

func TestStoreKnowsItsTimelines(t *testing.T) { storetest.RunTimelines(t, harness{}) }

type harness struct{}

func (harness) New(t *testing.T) storetest.Data {
	t.Helper()
	server := pgtest.Any(t)
	return data{dsn: server.DSN(migrated(t, server))}
}

// migrated makes a database with the schema of this release.
func migrated(t *testing.T, server *pgtest.Server) string {
	t.Helper()
	return server.Prepared(t, "ledger", func(dsn string) error {
		s, err := postgres.Open(t.Context(), dsn, postgres.Options{})
		if err != nil {
			return err
		}
		if err := errors.Join(s.Migrate(t.Context()), s.Close()); err != nil {
			return err
		}
		return pgtest.AfterMigrate(t.Context(), dsn)
	})
}

type data struct{ dsn string }

func (d data) open(t *testing.T, opts postgres.Options) *postgres.Store {
	t.Helper()
	opts.MaxConns = 8
	s, err := postgres.Open(t.Context(), d.dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (d data) Open(t *testing.T, opts storetest.Options) ledger.Store {
	t.Helper()
	t.Cleanup(func() { d.wantKept(t) })
	return d.open(t, postgres.Options{Now: opts.Now, CommitFault: opts.CommitFault})
}

// wantKept compares what is kept of rows beside them with the rows.
func (d data) wantKept(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, d.dsn)
	if err != nil {
		return // the test has taken the server away
	}
	defer func() { _ = conn.Close(ctx) }()
	const (
		due     = `SELECT next_check_time, id, hashtextextended(tool, 0) FROM operations WHERE next_check_time IS NOT NULL`
		unknown = `SELECT create_time, id FROM operations WHERE state = 5`
	)
	for what, sql := range map[string]string{
		"due, and not noted":     due + ` EXCEPT SELECT next_check_time, operation_id, tool_key FROM due`,
		"noted as due":           `SELECT next_check_time, operation_id, tool_key FROM due EXCEPT ` + due,
		"UNKNOWN, and not noted": unknown + ` EXCEPT SELECT create_time, operation_id FROM unknown`,
		"noted as UNKNOWN":       `SELECT create_time, operation_id FROM unknown EXCEPT ` + unknown,
	} {
		var n int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM (`+sql+`) AS rows`).Scan(&n); err != nil || n > 0 {
			t.Errorf("%d rows are %s: %v", n, what, err)
		}
	}
}

// connect opens a connection beside the store.
func (d data) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (d data) Row(t *testing.T, id ledger.OperationID) (row string) {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), "SELECT o::text FROM operations o WHERE id = $1", id.String()).Scan(&row); err != nil {
		t.Fatal(err)
	}
	return row
}

func (d data) Alter(t *testing.T, id ledger.OperationID, set string) error {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	tag, err := conn.Exec(t.Context(), "UPDATE operations SET "+set+" WHERE id = $1", id.String())
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows were altered", tag.RowsAffected())
	}
	return err
}
