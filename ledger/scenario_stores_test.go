// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/sqlite"
	"github.com/opsledger/opsledger/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// storeSystem runs on the service over a real store, whose clock the test moves.
type storeSystem struct {
	served
	t     *testing.T
	store ledger.Store
	clock *simulated
	// exec runs a statement behind the store's back, moment writes a time in one.
	exec   func(statement string)
	moment func(time.Time) string
	tables []string // that a failover may lose rows of
	marked time.Time
}

// simulated is a store's clock that only the test moves.
type simulated struct {
	mu   sync.Mutex
	time time.Time
}

func (c *simulated) now(time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *simulated) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
}

func newStoreSystem(t *testing.T, store ledger.Store, clock *simulated, contracts declared) *storeSystem {
	return &storeSystem{
		served: served{ledger.New(store, contracts)}, t: t, store: store, clock: clock, marked: shelfBegins,
		tables: []string{"operations", "events", "slots"},
	}
}

// scenarioDatabase is one database for all files of a test, each of which finds it empty.
type scenarioDatabase struct {
	t   *testing.T // whose end is the database's
	dsn string
}

func (d *scenarioDatabase) system(t *testing.T, contracts declared) system {
	server := pgtest.Get(t)
	if d.dsn == "" {
		d.dsn = server.DSN(server.Database(d.t))
		s, err := postgres.Open(t.Context(), d.dsn, postgres.Options{})
		if err == nil {
			err = errors.Join(s.Migrate(t.Context()), s.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	clock := &simulated{time: shelfBegins}
	store, err := postgres.Open(t.Context(), d.dsn, postgres.Options{Now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := newStoreSystem(t, store, clock, contracts)
	s.tables = append(s.tables, "due", "unknown")
	s.moment = func(at time.Time) string { return at.Format("'2006-01-02T15:04:05.999999Z'") }
	s.exec = func(statement string) {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for _, table := range s.tables {
		s.exec("DELETE FROM " + table + "; DROP TABLE IF EXISTS marked_" + table)
	}
	s.exec("UPDATE meta SET timeline = 1, watermark_time = NULL, watermark_lost_since = NULL")
	return s
}

// migratedFile is a SQLite file with the schema of this release, to be copied.
var migratedFile = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "scenarios")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "ledger.db")
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.Migrate(context.Background()), s.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func newSQLiteSystem(t *testing.T, contracts declared) system {
	path := filepath.Join(t.TempDir(), "ledger.db")
	empty, err := migratedFile()
	if err == nil {
		err = os.WriteFile(path, empty, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	clock := &simulated{time: shelfBegins}
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{Now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	db, err := sql.Open("sqlite", "file:"+url.PathEscape(path)+"?_pragma=busy_timeout(2000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := newStoreSystem(t, store, clock, contracts)
	s.moment = func(at time.Time) string { return strconv.FormatInt(at.UnixMicro(), 10) }
	s.exec = func(statement string) {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return s
}

func (s *storeSystem) now() time.Time          { return s.clock.now(time.Time{}) }
func (s *storeSystem) advance(d time.Duration) { s.clock.advance(d) }

func (s *storeSystem) read(id ledger.OperationID) (*ledger.Operation, []ledger.Event) {
	op, _, err := s.store.Get(s.t.Context(), id)
	if errors.Is(err, ledger.ErrOperationNotFound) {
		return nil, nil
	}
	events, failed := s.store.Events(s.t.Context(), id)
	if err := errors.Join(err, failed); err != nil {
		s.t.Fatal(err)
	}
	return &op, events
}

func (s *storeSystem) mark() {
	s.marked = s.now()
	for _, table := range s.tables {
		s.exec("DROP TABLE IF EXISTS marked_" + table)
		s.exec("CREATE TABLE marked_" + table + " AS SELECT * FROM " + table)
	}
}

// failOver happens to the database behind a process that goes on: what that remembers is of before.
func (s *storeSystem) failOver(lossless bool) {
	s.exec("UPDATE meta SET timeline = timeline + 1")
	if lossless {
		return
	}
	for _, table := range s.tables {
		s.exec("CREATE TABLE IF NOT EXISTS marked_" + table + " AS SELECT * FROM " + table + " WHERE false")
		s.exec("DELETE FROM " + table)
		s.exec("INSERT INTO " + table + " SELECT * FROM marked_" + table)
	}
	s.exec("UPDATE meta SET watermark_time = " + s.moment(s.now()) + ", watermark_lost_since = " + s.moment(s.marked))
}
