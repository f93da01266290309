// SPDX-License-Identifier: Apache-2.0

package main

import (
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/test/pgtest"
)

// columns are one row as the database has it: its columns by name, each as its type and bytes.
type columns map[string]string

// db opens the environment's database beside ledgerd; it is closed with the test.
func (e *env) db(t testing.TB) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", ""
	if e.store == "sqlite" {
		driver = "sqlite"
		dsn = (&url.URL{Scheme: "file", Opaque: url.PathEscape(e.database), RawQuery: "_pragma=busy_timeout(5000)"}).String()
	} else {
		dsn = e.server(t).DSN(e.database)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// server is the PostgreSQL that the environment's database is in.
func (e *env) server(t testing.TB) *pgtest.Server {
	t.Helper()
	if e.own != nil {
		return e.own
	}
	return pgtest.Get(t)
}

// rows reads rows; the statement's parameters are $1, $2, ..., which both engines know.
func (e *env) rows(t testing.TB, query string, args ...any) []columns {
	t.Helper()
	db := e.db(t)
	defer db.Close()
	found, err := db.QueryContext(within(t), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	names, err := found.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var all []columns
	for found.Next() {
		values, into := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := found.Scan(into...); err != nil {
			t.Fatal(err)
		}
		c := columns{}
		for i, name := range names {
			switch v := values[i].(type) {
			case time.Time:
				c[name] = v.UTC().Format(time.RFC3339Nano)
			case []byte:
				c[name] = fmt.Sprintf("%x", v)
			default:
				c[name] = fmt.Sprint(v)
			}
		}
		all = append(all, c)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// exec changes the database beside ledgerd, and returns how many rows it changed.
func (e *env) exec(t testing.TB, statement string, args ...any) int64 {
	t.Helper()
	db := e.db(t)
	defer db.Close()
	done, err := db.ExecContext(within(t), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := done.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// id is an operation id as the engine stores it.
func (e *env) id(t testing.TB, operation string) any {
	t.Helper()
	if e.store != "sqlite" {
		return operation
	}
	id, err := uuid.Parse(operation)
	if err != nil {
		t.Fatal(err)
	}
	return id[:]
}

// row is the operation with all its columns; nil if there is none.
func (e *env) row(t testing.TB, operation string) columns {
	t.Helper()
	found := e.rows(t, "SELECT * FROM operations WHERE id = $1", e.id(t, operation))
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

// history is the operation's events with all their columns, in their order.
func (e *env) history(t testing.TB, operation string) []columns {
	t.Helper()
	return e.rows(t, "SELECT * FROM events WHERE operation_id = $1 ORDER BY sequence", e.id(t, operation))
}

// instant is a column's time.
func (c columns) instant(t testing.TB, column string) time.Time {
	t.Helper()
	if us, err := strconv.ParseInt(c[column], 10, 64); err == nil {
		return time.UnixMicro(us)
	}
	at, err := time.Parse(time.RFC3339Nano, c[column])
	if err != nil {
		t.Fatalf("the column %s has no time: %v", column, err)
	}
	return at
}

// downstreamKey is the column as a grant has it: PostgreSQL keeps it as a uuid.
func (s snapshot) downstreamKey() string { return strings.ReplaceAll(s.Row["downstream_key"], "-", "") }

// snapshot is the operation and its history.
type snapshot struct {
	Row     columns
	History []columns
}

func (e *env) snapshot(t testing.TB, operation string) snapshot {
	t.Helper()
	return snapshot{e.row(t, operation), e.history(t, operation)}
}

// wantUnchanged fails if one byte of the operation or its history is not what it was.
func (e *env) wantUnchanged(t testing.TB, operation string, was snapshot) {
	t.Helper()
	if was.Row == nil {
		t.Error("there was no row to compare with")
	}
	if diff := cmp.Diff(was, e.snapshot(t, operation)); diff != "" {
		t.Errorf("the operation has changed (-before +after):\n%s", diff)
	}
}

// counts are the numbers of operations and events in the whole store.
func (e *env) counts(t testing.TB) (operations, events string) {
	t.Helper()
	c := e.rows(t, "SELECT (SELECT count(*) FROM operations) AS operations, (SELECT count(*) FROM events) AS events")[0]
	return c["operations"], c["events"]
}

// storesNothing runs f and fails if the store has more or fewer rows after it than before.
func (e *env) storesNothing(t testing.TB, f func()) {
	t.Helper()
	operations, events := e.counts(t)
	f()
	if o, v := e.counts(t); o != operations || v != events {
		t.Errorf("operations went from %s to %s, events from %s to %s", operations, o, events, v)
	}
}

// timeColumns are the times of an operation that are counted by the store's clock.
var timeColumns = []string{
	"create_time", "update_time", "grant_time", "grant_lease_until", "grant_send_until", "first_start", "last_send",
	"next_check_time", "check_began", "check_lease_until", "final_time",
}

// age makes an operation look as if so much more time had passed since all that happened to it.
func (e *env) age(t testing.TB, operation string, by time.Duration) {
	t.Helper()
	var set []string
	for _, column := range timeColumns {
		if e.store == "sqlite" {
			set = append(set, fmt.Sprintf("%s = %s - %d", column, column, by.Microseconds()))
		} else {
			set = append(set, fmt.Sprintf("%s = %s - interval '%d microseconds'", column, column, by.Microseconds()))
		}
	}
	if e.store != "sqlite" { // what is kept beside the row moves with it
		past := fmt.Sprintf("- interval '%d microseconds' WHERE operation_id = $1", by.Microseconds())
		e.exec(t, "UPDATE due SET next_check_time = next_check_time "+past, e.id(t, operation))
		e.exec(t, "UPDATE unknown SET create_time = create_time "+past, e.id(t, operation))
	}
	if n := e.exec(t, "UPDATE operations SET "+strings.Join(set, ", ")+" WHERE id = $1", e.id(t, operation)); n != 1 {
		t.Fatalf("%d operations were aged", n)
	}
}

// changed names the columns in which two rows differ, sorted.
func changed(a, b columns) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	return names
}

// operationID is that of a key whose scope is the principal itself, without a subject.
func operationID(principal, tool, task, key string) string {
	return ledger.Key{
		Scope: ledger.Scope(principal), Tool: ledger.Tool(tool), Task: ledger.Task(task), Key: key,
	}.Hash().OperationID().String()
}
