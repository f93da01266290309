// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
)

var (
	commitBound, commitSent = faultproxy.PgxStatement("COMMIT")
	commitAnswered          = faultproxy.PostgresMessage(faultproxy.ServerToClient, 'C', "commit")
)

// proxied is a database that is reached through a proxy, and also without one.
func proxied(t *testing.T) (direct, through data, proxy *faultproxy.Proxy) {
	t.Helper()
	return proxiedTo(t, pgtest.Any(t, pgtest.Proxies))
}

func proxiedTo(t *testing.T, server *pgtest.Server) (direct, through data, proxy *faultproxy.Proxy) {
	t.Helper()
	name := migrated(t, server)
	proxy, err := faultproxy.Start("tcp", server.Addr(), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	dsn, err := server.TCPDSN(proxy.Addr().String(), name)
	if err != nil {
		t.Fatal(err)
	}
	return data{dsn: server.DSN(name)}, data{dsn: dsn}, proxy
}

func key(name string) ledger.Key {
	return ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "task-1", Key: name}
}

// put inserts a row, or appends a note to it.
func put(k ledger.Key, note string) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		hash := k.Hash()
		next := ledger.Operation{
			ID: hash.OperationID(), KeyHash: hash, Scope: k.Scope, Principal: "agent", Tool: k.Tool, Task: k.Task,
			CreateTime: v.Now, Timeline: v.Timeline, Version: 1, State: ledger.Received, Custody: ledger.Automation,
		}
		if v.Current != nil {
			next = v.Current.Clone()
		}
		next.Sequence++
		next.UpdateTime = v.Now
		e := ledger.Event{
			OperationID: next.ID, Sequence: next.Sequence, Version: next.Version, Time: v.Now, Kind: ledger.EventNote, ToState: next.State, Note: note,
		}
		e.Seal(next.LastHash)
		next.LastHash = e.Hash
		return ledger.Change{Next: &next, Event: &e}, nil
	}
}

// history verifies the chain and returns its notes.
func history(t *testing.T, s ledger.Store, k ledger.Key) []string {
	t.Helper()
	id := k.Hash().OperationID()
	o, _, err := s.Get(t.Context(), id)
	if errors.Is(err, ledger.ErrOperationNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := ledger.VerifyChain(events, o.LastHash); err != nil {
		t.Fatal(err)
	}
	notes := make([]string, len(events))
	for i, e := range events {
		notes[i] = e.Note
	}
	return notes
}

func reads(k ledger.Key) ledger.ReadSet { return ledger.ReadSet{ID: k.Hash().OperationID()} }

// cuts are the ways in which a connection can be lost around COMMIT.
var cuts = map[string]faultproxy.Rule{
	"the request is lost": {Point: commitBound, Incomplete: true, Cut: faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}},
	"the answer is lost":  {Point: commitSent, Cut: faultproxy.Cut{What: faultproxy.DropAnswer, Await: commitAnswered}},
	"cut while it runs":   {Point: commitSent, Cut: faultproxy.Cut{What: faultproxy.DropAnswer, How: faultproxy.RST}},
}

// awaitCuts fails the test if the point was not reached: then it has shown nothing.
func awaitCuts(t *testing.T, trap *faultproxy.Trap) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := trap.Wait(ctx); err != nil {
		t.Error(err)
	}
}

func TestAmbiguousCommitIsSettled(t *testing.T) {
	direct, through, proxy := proxied(t)
	s, plain := through.open(t, postgres.Options{}), direct.open(t, postgres.Options{})
	for name, rule := range cuts {
		k := key(name)
		for i, want := range [][]string{{"first"}, {"first", "second"}} {
			trap := proxy.Arm(rule)
			if err := s.Update(t.Context(), reads(k), put(k, want[i])); err != nil {
				t.Errorf("%s, write %d: %v", name, i, err)
			}
			awaitCuts(t, trap)
			if got := history(t, plain, k); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, write %d: history %q, want %q", name, i, got, want)
			}
		}
	}
}

func TestAmbiguousCommitOfABatchIsSettledForEachCall(t *testing.T) {
	for name, rule := range cuts {
		t.Run(name, func(t *testing.T) {
			direct, through, proxy := proxied(t)
			g := newGate()
			s, plain := through.open(t, postgres.Options{CommitFault: g.hook}), direct.open(t, postgres.Options{})
			var calls []func() error
			for i := range 24 {
				k := fmt.Sprint(i)
				if i%2 == 0 {
					mustPut(t, plain, k, "there")
				}
				calls = append(calls, putting(t.Context(), s, k, "once"))
			}
			release := gathered(t, s, g, calls...)
			rule.Nth = 2 // the first one is that of the call which they wait for
			trap := proxy.Arm(rule)
			if err := errors.Join(release()...); err != nil {
				t.Error(err)
			}
			awaitCuts(t, trap)
			for i := range calls {
				if got, want := history(t, plain, key(fmt.Sprint(i))), 2-i%2; len(got) != want {
					t.Errorf("call %d: history %q, want %d events", i, got, want)
				}
			}
			if n := s.Stats().Confirmed; n != uint64(len(calls)) {
				t.Errorf("%d calls found out what became of their commit, want %d", n, len(calls))
			}
		})
	}
}

func TestCommitThatStaysAmbiguousIsUnavailable(t *testing.T) {
	direct, through, proxy := proxied(t)
	s, plain := through.open(t, postgres.Options{}), direct.open(t, postgres.Options{})
	for name, rule := range cuts {
		k := key(name)
		rule.Times = 2 // the commit, and the one that confirms it
		if rule.Incomplete {
			rule.Times = 3 // nothing was committed: each is a new attempt
		}
		trap := proxy.Arm(rule)
		err := s.Update(t.Context(), reads(k), put(k, "once"))
		// Cut while it runs, it may not have been read: then nothing was committed, the next attempt is cut, and the one after it is not.
		if !errors.Is(err, ledger.ErrStoreUnavailable) && (err != nil || name != "cut while it runs") {
			t.Errorf("%s: got %v, want ErrStoreUnavailable", name, err)
		}
		awaitCuts(t, trap)
		// The call is sent again: what is there decides, not what the first one was told.
		err = s.Update(t.Context(), reads(k), func(v ledger.View) (ledger.Change, error) {
			if v.Current != nil {
				return ledger.Change{}, nil
			}
			return put(k, "once")(v)
		})
		if err != nil {
			t.Errorf("%s, sent again: %v", name, err)
		}
		if got := history(t, plain, k); len(got) != 1 {
			t.Errorf("%s: history %q, want one event", name, got)
		}
	}
}

func TestConnectionLostBeforeCommitIsRetried(t *testing.T) {
	direct, through, proxy := proxied(t)
	s, plain := through.open(t, postgres.Options{}), direct.open(t, postgres.Options{})
	if err := s.Update(t.Context(), reads(key("warm")), put(key("warm"), "")); err != nil { // statements are prepared
		t.Fatal(err)
	}
	for nth := 1; nth <= 4; nth++ { // each is one message of the reads or of the write
		k := key(fmt.Sprint("cut at message ", nth))
		trap := proxy.Arm(faultproxy.Rule{
			Point: faultproxy.PostgresMessage(faultproxy.ClientToServer, 'B', ""), Nth: nth,
			Cut: faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST},
		})
		if err := s.Update(t.Context(), reads(k), put(k, "once")); err != nil {
			t.Errorf("message %d: %v", nth, err)
		}
		awaitCuts(t, trap)
		if got := history(t, plain, k); len(got) != 1 {
			t.Errorf("message %d: history %q, want one event", nth, got)
		}
	}
}

func TestConnectionsThatTheServerClosedAreReplaced(t *testing.T) {
	pgtest.Any(t, pgtest.OwnDatabase) // it closes all that the database has
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	k := key("k")
	for range 3 {
		if err := s.Update(t.Context(), reads(k), put(k, "n")); err != nil {
			t.Fatal(err)
		}
		conn := d.connect(t)
		_, err := conn.Exec(t.Context(),
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		if err := errors.Join(err, conn.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if got := history(t, s, k); len(got) != 3 {
		t.Errorf("history %q, want three events", got)
	}
}

// replicated is a server of its own whose commits wait for a standby that does not exist, once wait is called.
func replicated(t *testing.T) (d data, wait func(standby string)) {
	t.Helper()
	server := pgtest.Own(t, pgtest.Options{Durable: true})
	d = data{dsn: server.DSN(migrated(t, server))}
	return d, func(standby string) {
		t.Helper()
		conn := d.connect(t)
		defer func() { _ = conn.Close(t.Context()) }()
		if _, err := conn.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '"+standby+"'"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT pg_reload_conf()"); err != nil {
			t.Fatal(err)
		}
		until(t, "the setting is in force", func() bool {
			var now string
			err := conn.QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&now)
			return err == nil && now == standby
		})
		if standby != "" {
			until(t, "commits wait", func() bool { return d.commitWaits(t, conn) })
		}
	}
}

// commitWaits reports whether a commit waits for a standby. Whether it does is told to all by a process of the server that may come late to
// a new setting.
func (d data) commitWaits(t *testing.T, watch *pgx.Conn) (waits bool) {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "UPDATE meta SET id = id")
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return waits
		default:
		}
		var cancelled bool
		err := watch.QueryRow(t.Context(), "SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'",
			conn.PgConn().PID()).Scan(&cancelled)
		if err != nil {
			t.Fatal(err)
		}
		waits = waits || cancelled
	}
}

// until polls what gives no sign of itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if ok() {
			return
		}
		<-tick.C
	}
	t.Fatalf("waited too long until %s", what)
}

// waitingFor calls a function of the server with the backend whose commit waits for a standby.
func waitingFor(t *testing.T, conn *pgx.Conn, function string) {
	t.Helper()
	until(t, "a commit waits for a standby", func() bool {
		var done bool
		err := conn.QueryRow(t.Context(), "SELECT "+function+"(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&done)
		return err == nil && done
	})
}

func TestCommitWithoutItsStandbyIsNoSuccess(t *testing.T) {
	d, wait := replicated(t)
	s := d.open(t, postgres.Options{})
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	for _, function := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		for _, note := range []string{"a new row", "a change"} {
			if function == "pg_terminate_backend" && note == "a change" {
				continue // it takes the store's whole bound, and is no other path
			}
			k := key(function)
			wait("missing")
			answer := make(chan error, 1)
			ctx, hangUp := context.WithCancel(t.Context())
			go func() { answer <- s.Update(ctx, reads(k), put(k, note)) }()
			until(t, "a commit waits for a standby", func() bool {
				var n int
				err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n)
				return err == nil && n == 1
			})
			hangUp() // must not end the wait
			waitingFor(t, conn, function)
			if err := <-answer; !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("%s, %s: got %v, want ErrStoreUnavailable", function, note, err)
			}
			wait("")
			// The change is there all the same, and a resend finds it.
			if got := history(t, s, k); len(got) == 0 || got[len(got)-1] != note {
				t.Errorf("%s: history %q, want it to end in %q", function, got, note)
			}
		}
	}
}
