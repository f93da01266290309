// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
	"github.com/opsledger/opsledger/ledger/storetest"
)

func TestStore(t *testing.T) { storetest.Run(t, harness{}) }

func TestStoreForOperators(t *testing.T) { storetest.RunOperators(t, harness{}) }

func TestStoreKeepsSecrets(t *testing.T) { storetest.RunSecrets(t, harness{}) }

func TestStoreForgets(t *testing.T) { storetest.RunAged(t, harness{}) }

func TestStoreKnowsItsTimelines(t *testing.T) { storetest.RunTimelines(t, harness{}) }

type harness struct{}

func (h harness) New(t *testing.T) storetest.Data {
	t.Helper()
	return h.new(t)
}

func (harness) new(t testing.TB) data {
	t.Helper()
	d := data{path: filepath.Join(t.TempDir(), "a file of $1 ? % and #.db")}
	s := d.open(t, sqlite.Options{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

type data struct{ path string }

func (d data) open(t testing.TB, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), d.path, opts)
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
	return d.open(t, sqlite.Options{Now: opts.Now, CommitFault: opts.CommitFault})
}

// raw opens the file without the store.
func (d data) raw(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+url.PathEscape(d.path)+"?_pragma=busy_timeout(2000)")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func (d data) Row(t *testing.T, id ledger.OperationID) (row string) {
	t.Helper()
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), "SELECT * FROM operations WHERE id = ?", id[:])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		row += fmt.Sprintf("%q", values)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return row
}

func (d data) Alter(t *testing.T, id ledger.OperationID, set string) error {
	t.Helper()
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	res, err := db.ExecContext(t.Context(), "UPDATE operations SET "+set+" WHERE id = ?", id[:])
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("%d rows were altered", n))
	}
	return nil
}
