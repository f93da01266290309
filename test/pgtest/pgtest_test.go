// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) {
	// These tests are of servers that we start, also of one that stands for somebody else's.
	for _, name := range []string{urlVariable, afterVariable} {
		if err := os.Unsetenv(name); err != nil {
			panic(err)
		}
	}
	os.Exit(Main(m))
}

func TestDatabasesAreFreshAndReachableBothWays(t *testing.T) {
	s := Get(t)
	first, second := s.Database(t), s.Database(t)
	if first == second {
		t.Fatal("two databases have one name")
	}
	tcp, err := s.TCPDSN(s.Addr(), second)
	if err != nil {
		t.Fatal(err)
	}
	for name, dsn := range map[string]string{first: s.DSN(first), second: tcp} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&got); err != nil || got != name {
			t.Errorf("connected to %q, want %q: %v", got, name, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestOwnServerIsDurableAndLogsStatements(t *testing.T) {
	s := Own(t, Options{Durable: true, LogStatements: true})
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var fsync string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('fsync') || $1", "-canary").Scan(&fsync); err != nil || fsync != "on-canary" {
		t.Errorf("fsync is %q: %v", fsync, err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(s.LogFile())
	if err != nil || !strings.Contains(string(log), "canary") {
		t.Errorf("the log of %d bytes does not hold the statement's parameter: %v", len(log), err)
	}
}

func TestPreparedDatabasesAreCopies(t *testing.T) {
	s := Get(t)
	runs := 0
	prepare := func(dsn string) error {
		runs++
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), "CREATE TABLE prepared (n int); INSERT INTO prepared VALUES (1)")
		return errors.Join(err, conn.Close(t.Context()))
	}
	for range 2 {
		conn, err := pgx.Connect(t.Context(), s.DSN(s.Prepared(t, "table", prepare)))
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := conn.QueryRow(t.Context(), "UPDATE prepared SET n = n + 1 RETURNING n").Scan(&n); err != nil || n != 2 {
			t.Errorf("the copy holds %d, want 2: %v", n, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if runs != 1 {
		t.Errorf("prepared %d times, want once", runs)
	}
}
