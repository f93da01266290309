// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/test/faultproxy"
)

// makeTable makes a table of numbers on a server.
func makeTable(t *testing.T, s *Server) {
	t.Helper()
	if err := s.exec(t.Context(), "CREATE TABLE kept (n INT)"); err != nil {
		t.Fatal(err)
	}
}

func insert(t *testing.T, s *Server, n int) {
	t.Helper()
	if err := s.exec(t.Context(), fmt.Sprintf("INSERT INTO kept VALUES (%d)", n)); err != nil {
		t.Fatal(err)
	}
}

// wantKept fails unless exactly these numbers are there.
func wantKept(t *testing.T, dsn string, want ...int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	rows, err := conn.Query(t.Context(), "SELECT n FROM kept ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pgx.CollectRows(rows, pgx.RowTo[int]); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v is there, want %v: %v", got, want, err)
	}
}

// identity is a server's system identifier and timeline.
func identity(t *testing.T, s *Server) (system string, timeline int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), "SELECT system_identifier::TEXT FROM pg_control_system()").Scan(&system); err != nil {
		t.Fatal(err)
	}
	if timeline, err = s.Timeline(t.Context()); err != nil {
		t.Fatal(err)
	}
	return system, timeline
}

// TestAPromotedStandbyHasWhatArrived: clients reach it by the address that was the primary's, and by a list of both.
func TestAPromotedStandbyHasWhatArrived(t *testing.T) {
	primary := Own(t, Options{Durable: true})
	front, err := faultproxy.Start("tcp", primary.Addr(), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	makeTable(t, primary)
	standby := primary.Standby(t)
	insert(t, primary, 1)
	if err := standby.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantKept(t, standby.DSN("postgres"), 1)
	if err := standby.PauseReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert(t, primary, 2)
	system, timeline := identity(t, primary)
	byFront, err := primary.TCPDSN(front.Addr().String(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(primary.Addr(), ":")
	other, otherPort, _ := strings.Cut(standby.Addr(), ":")
	byList := fmt.Sprintf("host=%s,%s port=%s,%s user=ledger dbname=postgres sslmode=disable target_session_attrs=read-write", other, host, otherPort, port)
	for _, dsn := range []string{byFront, byList} {
		wantKept(t, dsn, 1, 2)
	}
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	front.Redirect("tcp", standby.Addr())
	insert(t, standby, 3)
	for _, dsn := range []string{byFront, byList} {
		wantKept(t, dsn, 1, 3)
	}
	if s, l := identity(t, standby); s != system || l != timeline+1 {
		t.Errorf("system %s on timeline %d has become %s on %d", system, timeline, s, l)
	}
}

func TestACommitWaitsForASynchronousStandby(t *testing.T) {
	primary := Own(t, Options{Durable: true})
	makeTable(t, primary)
	standby := primary.Standby(t)
	if err := primary.Synchronous(t.Context(), standby); err != nil {
		t.Fatal(err)
	}
	insert(t, primary, 1)
	if err := standby.PauseReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
	committed := make(chan error, 1)
	go func() { committed <- primary.exec(context.WithoutCancel(t.Context()), "INSERT INTO kept VALUES (2)") }()
	if err := primary.until(t.Context(), "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"); err != nil {
		t.Fatal(err)
	}
	if err := standby.ResumeReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert(t, standby, 3) // it waits for nobody itself
	wantKept(t, standby.DSN("postgres"), 1, 2, 3)
}

func TestNoCommitWaitsAnyMore(t *testing.T) {
	primary := Own(t, Options{Durable: true})
	makeTable(t, primary)
	standby := primary.Standby(t)
	for _, step := range []func() error{
		func() error { return primary.Synchronous(t.Context(), standby) },
		func() error { return primary.Synchronous(t.Context()) },
		func() error { return standby.PauseReceiving(t.Context()) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	insert(t, primary, 1)
	wantKept(t, primary.DSN("postgres"), 1)
	wantKept(t, standby.DSN("postgres"))
}

func TestAStandbyHasItsOwnClock(t *testing.T) {
	primary := Own(t, Options{Clock: true})
	standby := primary.Standby(t)
	if err := standby.SetClock(10 * time.Minute); err != nil {
		t.Fatal(err)
	}
	for s, off := range map[*Server]time.Duration{primary: 0, standby: 10 * time.Minute} {
		if err := s.until(t.Context(), "abs(extract(epoch FROM clock_timestamp() - $1)) < 5", time.Now().Add(off)); err != nil {
			t.Error(err)
		}
	}
}
