// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// execute runs a statement beside the store.
func (d data) execute(t *testing.T, sql string) {
	t.Helper()
	conn := d.connect(t)
	_, err := conn.Exec(t.Context(), sql)
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func TestLostRaceDecidesAgainOnAFreshRead(t *testing.T) {
	d := harness{}.New(t).(data)
	s, other := d.open(t, postgres.Options{}), d.open(t, postgres.Options{})
	for _, k := range []ledger.Key{key("lost at the insert"), key("lost at the change")} {
		if k.Key == "lost at the change" {
			if err := s.Update(t.Context(), reads(k), put(k, "0")); err != nil {
				t.Fatal(err)
			}
		}
		var seen []uint64
		err := s.Update(t.Context(), reads(k), func(v ledger.View) (ledger.Change, error) {
			sequence := uint64(0)
			if v.Current != nil {
				sequence = v.Current.Sequence
			}
			if seen = append(seen, sequence); len(seen) == 1 {
				if err := other.Update(t.Context(), reads(k), put(k, "faster")); err != nil {
					t.Error(err)
				}
			}
			return put(k, "slower")(v)
		})
		if err != nil {
			t.Errorf("%s: %v", k.Key, err)
		}
		if len(seen) != 2 || seen[1] != seen[0]+1 {
			t.Errorf("%s: decided on sequences %v, want two that follow each other", k.Key, seen)
		}
		if got := history(t, s, k); got[len(got)-2] != "faster" || got[len(got)-1] != "slower" {
			t.Errorf("%s: history %q", k.Key, got)
		}
	}
}

func TestErrorsHoldNoValues(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	k := key("k")
	k.Task = "canary-task"
	if err := s.Update(t.Context(), reads(k), put(k, "canary-note")); err != nil {
		t.Fatal(err)
	}
	spoilt := func(spoil func(*ledger.Operation)) error {
		return s.Update(t.Context(), reads(k), func(v ledger.View) (ledger.Change, error) {
			c, err := put(k, "canary-note")(v)
			spoil(c.Next)
			return c, err
		})
	}
	for name, err := range map[string]error{
		"a broken rule":       spoilt(func(o *ledger.Operation) { o.Custodian = "canary-person" }),
		"a text with a zero":  spoilt(func(o *ledger.Operation) { o.Grant.ClaimID = "canary\x00claim" }),
		"a time out of range": spoilt(func(o *ledger.Operation) { o.FirstStart = time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC) }),
	} {
		if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "300000") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, dsn := range []string{"host=canary port=canary password=canary", "postgres://canary:canary@canary:port/"} {
		if _, err := postgres.Open(t.Context(), dsn, postgres.Options{}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("open: %v", err)
		}
	}
	absent, err := postgres.Open(t.Context(), "host=/nonexistent-canary user=canary password=canary dbname=canary", postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := absent.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) || strings.Contains(err.Error(), "canary") {
		t.Errorf("ready: %v", err)
	}
	if err := absent.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnsafeCommitsAreRefused(t *testing.T) {
	for _, setting := range []string{"off", "local", "remote_write"} {
		if _, err := postgres.Open(t.Context(), "host=/x synchronous_commit="+setting, postgres.Options{}); err == nil {
			t.Errorf("synchronous_commit=%s is taken", setting)
		}
	}
	for _, setting := range []string{"Synchronous_Commit=off", "synchronous_commit=on SYNCHRONOUS_COMMIT=off"} {
		if _, err := postgres.Open(t.Context(), "host=/x "+setting, postgres.Options{}); err == nil {
			t.Errorf("%s is taken", setting)
		}
	}
}

func TestSessionsHaveTheirLimits(t *testing.T) {
	pgtest.Any(t, pgtest.OwnDatabase) // it looks at the only other connection
	d := harness{}.New(t).(data)
	d.dsn += " statement_timeout=7s"
	s := d.open(t, postgres.Options{})
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	var before, during string
	settings := "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings" +
		" WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'synchronous_commit')"
	if err := conn.QueryRow(t.Context(), settings).Scan(&before); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := conn.QueryRow(t.Context(), "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").
		Scan(&during)
	if err != nil || during != "ledgerd" {
		t.Errorf("the store's connection is called %q: %v", during, err)
	}
	if !strings.Contains(before, "statement_timeout=7000") {
		t.Errorf("settings %q: the DSN's own is not in force", before)
	}
}

func TestLockedRowIsUnavailableInTime(t *testing.T) {
	d := harness{}.New(t).(data)
	d.dsn += " lock_timeout=50ms"
	s := d.open(t, postgres.Options{})
	k := key("k")
	if err := s.Update(t.Context(), reads(k), put(k, "n")); err != nil {
		t.Fatal(err)
	}
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE operations IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), reads(k), put(k, "n")); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("got %v, want ErrStoreUnavailable", err)
	}
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), reads(k), put(k, "n")); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsCallsUnderWay(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE operations, events IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 3)
	go func() { answers <- s.Update(t.Context(), reads(key("k")), put(key("k"), "n")) }()
	go func() {
		_, err := s.Events(t.Context(), key("k").Hash().OperationID())
		answers <- err
	}()
	watcher := d.connect(t) // in a transaction the view never changes
	defer func() { _ = watcher.Close(t.Context()) }()
	until(t, "both wait for the lock", func() bool {
		var n int
		err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&n)
		return err == nil && n == 2
	})
	go func() { // behind the update's batch
		_, _, err := s.Get(t.Context(), key("k").Hash().OperationID())
		answers <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := <-answers; !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("got %v, want ErrStoreUnavailable", err)
		}
	}
}

func TestSchemaVersions(t *testing.T) {
	server := pgtest.Any(t)
	d := data{dsn: server.DSN(server.Database(t))}
	s := d.open(t, postgres.Options{})
	if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("without a schema: got %v, want ErrStoreUnavailable", err)
	}
	var group sync.WaitGroup
	for range 3 { // instances that start at once
		group.Go(func() {
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for version, ok := range map[string]bool{"0": false, "1": true, "2": true, "3": false} {
		d.execute(t, "UPDATE meta SET schema_version = "+version)
		k := key("version " + version)
		for what, err := range map[string]error{
			"ready":  s.Ready(t.Context()),
			"update": s.Update(t.Context(), reads(k), put(k, "n")),
		} {
			if ok != (err == nil) || err != nil && !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("schema %s, %s: %v", version, what, err)
			}
		}
	}
}

func TestTimelineAndWatermarkAreRead(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, postgres.Options{})
	d.execute(t, "UPDATE meta SET timeline = 4000000000, watermark_time = '2026-01-02 03:04:05Z', watermark_lost_since = '2026-01-01 00:00:00Z'")
	err := s.Update(t.Context(), reads(key("k")), func(v ledger.View) (ledger.Change, error) {
		want := ledger.Watermark{
			At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), LostSince: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		}
		if v.Timeline != 4000000000 || v.Watermark != want {
			t.Errorf("timeline %d, watermark %v", v.Timeline, v.Watermark)
		}
		return ledger.Change{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}
