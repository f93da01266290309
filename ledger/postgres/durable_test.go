// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// withoutStandby runs an update whose commit waits for a standby until the wait is cancelled, and returns its error. One that does not
// wait has no such help.
func withoutStandby(t *testing.T, conn *pgx.Conn, update func() error) error {
	t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- update() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		select {
		case err := <-answer:
			return err
		case <-tick.C:
			if _, err := conn.Exec(t.Context(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("the update does not end")
	return nil
}

// claimed inserts a row by a command, or leaves the one that is there.
func claimed(k ledger.Key, commandID string) func(ledger.View) (ledger.Change, error) {
	return func(v ledger.View) (ledger.Change, error) {
		if v.Current != nil {
			return ledger.Change{}, nil
		}
		c, err := put(k, "")(v)
		c.Event.Command, c.Event.CommandID, c.Event.CommandDigest = ledger.KindClaim, commandID, "content"
		c.Event.Seal([32]byte{})
		c.Next.LastHash = c.Event.Hash
		return c, err
	}
}

// TestResentAnswerWaitsForItsStandby is I15: what an earlier copy of the call wrote may be on no standby yet.
func TestResentAnswerWaitsForItsStandby(t *testing.T) {
	d, wait := replicated(t)
	s := d.open(t, postgres.Options{})
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	k := key("k")
	under := func(commandID string) func() error {
		return func() error {
			return s.Update(t.Context(), ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: commandID}, claimed(k, commandID))
		}
	}
	wait("missing")
	for _, c := range []struct {
		name, commandID string
		durable         bool
	}{
		{"the first copy", "c", true},
		{"sent again", "c", true},
		{"and again", "c", true},
		{"a command without an id", "", true},
		{"another's", "other", false},
	} {
		err := withoutStandby(t, conn, under(c.commandID))
		if c.durable && !errors.Is(err, ledger.ErrStoreUnavailable) || !c.durable && err != nil {
			t.Errorf("%s, without a standby: got %v", c.name, err)
		}
	}
	wait("")
	if err := under("c")(); err != nil {
		t.Errorf("sent again, with its standbys: %v", err)
	}
	if got := history(t, s, k); len(got) != 1 {
		t.Errorf("history %q, want one event", got)
	}
}

func TestWarningsArriveWhateverTheServerIsTold(t *testing.T) {
	d, wait := replicated(t)
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("ALTER SYSTEM SET client_min_messages = error")
	run("ALTER ROLE CURRENT_USER SET client_min_messages = error")
	wait("missing") // reloads
	for name, dsn := range map[string]string{
		"server and role": "", "options": " options='-c client_min_messages=error'", "DSN": " client_min_messages=error",
		"DSN in another case": " Client_Min_Messages=error",
	} {
		s := data{dsn: d.dsn + dsn}.open(t, postgres.Options{})
		err := withoutStandby(t, conn, func() error { return s.Update(t.Context(), reads(key(name)), put(key(name), "")) })
		if !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: got %v, want ErrStoreUnavailable", name, err)
		}
	}
	wait("")
}

// silentPeer accepts connections and says nothing, until it is healed: then it passes new ones on.
func silentPeer(t *testing.T, network, addr string) (peer string, heal func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var healed atomic.Bool
	var group sync.WaitGroup
	var conns []net.Conn
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			if !healed.Load() {
				continue
			}
			server, err := net.Dial(network, addr)
			if err != nil {
				continue
			}
			conns = append(conns, server)
			group.Go(func() { _, _ = io.Copy(server, conn); _ = server.Close() })
			group.Go(func() { _, _ = io.Copy(conn, server); _ = conn.Close() })
		}
	})
	t.Cleanup(func() { // after the store's: it was opened later
		_ = listener.Close()
		group.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return listener.Addr().String(), func() { healed.Store(true) }
}

func TestSilentPeerBlocksThePoolForAShortTime(t *testing.T) {
	server := pgtest.Any(t, pgtest.Proxies)
	name := migrated(t, server)
	peer, heal := silentPeer(t, "tcp", server.Addr())
	dsn, err := server.TCPDSN(peer, name)
	if err != nil {
		t.Fatal(err)
	}
	s := data{dsn: dsn}.open(t, postgres.Options{})
	var group sync.WaitGroup
	for range 8 { // as many as the pool has
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := s.Ready(ctx); !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("got %v, want ErrStoreUnavailable", err)
			}
		})
	}
	group.Wait()
	heal()
	if err := s.Update(t.Context(), reads(key("k")), put(key("k"), "")); err != nil {
		t.Errorf("when the peer answers again: %v", err)
	}
}

func TestDatabaseThatTakesNoWritesIsNotReady(t *testing.T) {
	pgtest.Any(t, pgtest.OwnDatabase) // it alters it
	d := harness{}.New(t).(data)
	writable := data{dsn: d.dsn + " default_transaction_read_only=off"}
	alter := func(what string) {
		writable.execute(t, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' "+what+"'; END $$")
	}
	read := func(s ledger.Store) { // leaves an idle connection in the pool
		t.Helper()
		if _, _, err := s.Get(t.Context(), key("absent").Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("got %v: it can still be read", err)
		}
	}
	for name, use := range map[string]func(ledger.Store) error{
		"ready":  func(s ledger.Store) error { return s.Ready(t.Context()) },
		"update": func(s ledger.Store) error { return s.Update(t.Context(), reads(key("k")), put(key("k"), "")) },
	} {
		alter("SET default_transaction_read_only = on")
		s := d.open(t, postgres.Options{})
		if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("got %v, want ErrStoreUnavailable with its reason", err)
		}
		read(s)
		if err := use(s); !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: got %v, want ErrStoreUnavailable", name, err)
		}
		read(s)
		alter("RESET default_transaction_read_only")
		if err := use(s); err != nil { // not on the connection of before
			t.Errorf("%s, when it takes writes again: %v", name, err)
		}
	}
}

func TestStandbyIsNotReady(t *testing.T) {
	server := pgtest.Own(t, pgtest.Options{})
	const name = "postgres" // a database of its own could not be removed
	if err := errors.Join(data{dsn: server.DSN(name)}.open(t, postgres.Options{}).Migrate(t.Context()), server.Demote(t.Context())); err != nil {
		t.Fatal(err)
	}
	s := data{dsn: server.DSN(name)}.open(t, postgres.Options{})
	if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("ready: got %v, want ErrStoreUnavailable with its reason", err)
	}
	if err := s.Update(t.Context(), reads(key("k")), put(key("k"), "")); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("update: got %v, want ErrStoreUnavailable", err)
	}
}

func TestUnsafeSettingsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		server *pgtest.Server
		want   []string
	}{
		"for tests": {pgtest.Get(t), []string{"fsync", "full_page_writes"}},
		"durable":   {pgtest.Own(t, pgtest.Options{Durable: true}), nil},
	} {
		s := data{dsn: c.server.DSN(c.server.Database(t))}.open(t, postgres.Options{})
		got, err := s.UnsafeSettings(t.Context())
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
}
