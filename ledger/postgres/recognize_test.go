// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
)

// TestConnectionsOfBeforeAreGivenUp: a primary of before that was not stopped still answers on the connections that it has. Nobody decides there any
// more who has seen the next one.
func TestConnectionsOfBeforeAreGivenUp(t *testing.T) {
	primary := pgtest.Own(t, pgtest.Options{})
	direct := data{dsn: primary.DSN("postgres")}
	if err := direct.open(t, postgres.Options{}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start("tcp", primary.Addr(), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	dsn, err := primary.TCPDSN(proxy.Addr().String(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	s := data{dsn: dsn}.open(t, postgres.Options{})
	mustPut(t, s, "kept", "")
	standby := primary.Standby(t)
	if err := errors.Join(standby.CatchUp(t.Context()), standby.PauseReceiving(t.Context()), standby.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(standby.Addr(), ":")
	proxy.Redirect("tcp", host+":"+port)

	// While the connection of before is in use, another one is made.
	conn := direct.connect(t)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	lock, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE operations"); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, _, err := s.Get(t.Context(), key("kept").Hash().OperationID())
		waited <- err
	}()
	const waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
	for waiting := false; !waiting; {
		if err := conn.QueryRow(t.Context(), waits).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Timelines(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lock.Rollback(t.Context()), <-waited); err != nil {
		t.Fatal(err)
	}
	if v := seen(t, s, "lost"); v.Timeline == 1 {
		t.Error("a decision is taken at the primary of before")
	}
	mustPut(t, s, "new", "")
	var written bool
	if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM operations WHERE id = $1)", key("new").Hash().OperationID().String()).Scan(&written); err != nil || written {
		t.Errorf("written at the primary of before: %v, %v", written, err)
	}
}

// TestAForgottenKeyIsNotLost: also where its last change came long after it was settled.
func TestAForgottenKeyIsNotLost(t *testing.T) {
	d := harness{}.New(t).(data)
	var told begun
	s := d.open(t, postgres.Options{OnTimeline: told.note})
	k := key("old")
	settled := time.Now().Add(-48 * time.Hour).UTC().Truncate(time.Microsecond)
	mustPut(t, s, "old", "")
	err := s.Update(t.Context(), reads(k), func(v ledger.View) (ledger.Change, error) {
		c, err := put(k, "retired")(v)
		c.Next.State, c.Next.FinalTime, c.Next.Detail.RetiredFrom = ledger.Retired, settled, ledger.Completed
		return c, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := s.ForgetKeys(t.Context(), []ledger.Tombstone{{ID: k.Hash().OperationID(), FinalTime: settled}}); err != nil || gone != 1 {
		t.Fatalf("%d forgotten, %v", gone, err)
	}
	d.elsewhere(t, "paused = paused")
	if v := seen(t, s, "absent"); v.Timeline != 1 {
		t.Errorf("timeline %d began (%v) because a key was forgotten", v.Timeline, told.causes())
	}
}

// TestAServerThatDoesNotAnswerIsGivenUp: while it is asked who it is, too. The pool has places again when it is back.
func TestAServerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	_, through, proxy := proxied(t)
	s := through.open(t, postgres.Options{})
	seen(t, s, "absent")
	proxy.CutNow(faultproxy.RST)
	const places = 8
	asked := faultproxy.PostgresMessage(faultproxy.ClientToServer, 'P', "pg_is_in_recovery()")
	silent := proxy.Arm(faultproxy.Rule{Point: asked, Times: places, Cut: faultproxy.Cut{What: faultproxy.DropAnswer, Delay: time.Hour}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 2 * places {
		go func() { _, _ = s.Timelines(ctx) }()
	}
	<-ctx.Done()
	silent.Disarm()
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestATimelineThatNoStandbyHasIsTold: it has begun all the same, and nobody else will say so.
func TestATimelineThatNoStandbyHasIsTold(t *testing.T) {
	d, wait := replicated(t)
	var told begun
	s := d.open(t, postgres.Options{OnTimeline: told.note})
	seen(t, s, "absent")
	wait("missing")
	d.elsewhere(t, "server_timeline = server_timeline + 1 WHERE set_config('synchronous_commit', 'local', true) <> ''")
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	for began := false; !began; {
		_ = withoutStandby(t, conn, func() error { return s.Ready(t.Context()) })
		if err := conn.QueryRow(t.Context(), "SELECT timeline > 1 FROM meta").Scan(&began); err != nil {
			t.Fatal(err)
		}
	}
	wait("")
	if got := strings.Join(told.causes(), ", "); got != "failover" {
		t.Errorf("told of %q", got)
	}
}
