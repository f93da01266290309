// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
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

func TestStoreKeepsSecrets(t *testing.T) { storetest.RunSecrets(t, harness{}) }

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
	return d.open(t, postgres.Options{Now: opts.Now, CommitFault: opts.CommitFault})
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
