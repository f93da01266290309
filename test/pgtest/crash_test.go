// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestCrashKeepsWhatWasCommitted(t *testing.T) {
	s := Own(t, Options{Durable: true})
	connect := func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := connect()
	for _, sql := range []string{"CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (42)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection of before is alive")
	}
	_ = conn.Close(t.Context())
	conn = connect()
	defer func() { _ = conn.Close(t.Context()) }()
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil || n != 42 {
		t.Errorf("%d is left, want 42: %v", n, err)
	}
}
