// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// begun are the timelines that a store has told of.
type begun struct {
	mu  sync.Mutex
	all []ledger.Timeline
}

func (b *begun) note(t ledger.Timeline) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, t)
}

// causes of those that were told since the last call.
func (b *begun) causes() (causes []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.all {
		causes = append(causes, string(t.Cause))
	}
	b.all = nil
	return causes
}

// seen is what a decision on a key is given.
func seen(t *testing.T, s ledger.Store, name string) (last ledger.View) {
	t.Helper()
	err := s.Update(t.Context(), reads(key(name)), func(v ledger.View) (ledger.Change, error) {
		last = v
		return ledger.Change{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// elsewhere lets the database remember another server than the one that it is on, as it does after a failover, and ends all connections.
func (d data) elsewhere(t *testing.T, set string) {
	t.Helper()
	d.execute(t, "UPDATE meta SET "+set)
	d.execute(t, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
}

// TestAnotherServerBeginsATimeline: one for each change, however many connections and processes meet it, and before anything is decided.
func TestAnotherServerBeginsATimeline(t *testing.T) {
	for name, c := range map[string]struct {
		set, cause string
		failover   postgres.Failover
		begins     bool
	}{
		"another timeline":                   {"server_timeline = server_timeline + 1", "failover", postgres.FailoverLossy, true},
		"another server":                     {"server_id = '1'", "other server", postgres.FailoverLossy, true},
		"another timeline, declared":         {"server_timeline = server_timeline + 1", "switched", postgres.FailoverLossless, false},
		"another server, declared":           {"server_id = '1'", "switched", postgres.FailoverLossless, false},
		"another timeline, of a tool":        {"server_timeline = server_timeline + 1", "", postgres.FailoverIgnored, false},
		"the first server that is looked at": {"server_id = NULL, server_timeline = NULL", "", postgres.FailoverLossy, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness{}.New(t).(data)
			var told begun
			opts := postgres.Options{Failover: c.failover, OnTimeline: told.note}
			one, two := d.open(t, opts), d.open(t, opts)
			mustPut(t, one, "before", "")
			before := seen(t, two, "before")
			d.elsewhere(t, c.set)
			var group sync.WaitGroup
			for _, s := range []*postgres.Store{one, two} {
				for range 8 {
					group.Go(func() {
						if _, _, err := s.Get(t.Context(), key("before").Hash().OperationID()); err != nil {
							t.Error(err)
						}
					})
				}
			}
			group.Wait()
			if got := strings.Join(told.causes(), ", "); got != c.cause {
				t.Errorf("told of %q, want %q", got, c.cause)
			}
			for _, s := range []*postgres.Store{one, two} {
				v := seen(t, s, "absent")
				if c.begins != (v.Timeline > before.Timeline) || c.begins == v.Watermark.At.IsZero() {
					t.Errorf("timeline %d after %d, watermark %+v", v.Timeline, before.Timeline, v.Watermark)
				}
				if c.begins && (v.Watermark.At.Before(before.Now) || !v.Watermark.LostSince.Before(before.Now)) {
					t.Errorf("watermark %+v, at %v", v.Watermark, before.Now)
				}
			}
			kept, err := one.Timelines(t.Context())
			if want := map[bool]int{true: 2, false: 1}[c.cause != ""]; err != nil || len(kept) != want || kept[len(kept)-1].LostSince.IsZero() == c.begins {
				t.Errorf("kept: %+v, %v", kept, err)
			}
			d.elsewhere(t, "paused = paused") // the connections are new, and the server is not
			if seen(t, one, "absent"); len(told.causes()) > 0 {
				t.Error("the same server has begun a timeline once more")
			}
		})
	}
}

// TestLostCommitBeginsATimeline: where a server can't be told from a copy of it that is older, what this process has been told can.
func TestLostCommitBeginsATimeline(t *testing.T) {
	loses := map[string]string{
		"the row":        "DELETE FROM operations",
		"its last event": "UPDATE operations SET sequence = 1, version = 1, last_hash = decode(repeat('00', 32), 'hex')",
	}
	for name, sql := range loses {
		for _, failover := range []postgres.Failover{postgres.FailoverLossy, postgres.FailoverLossless} {
			t.Run(name, func(t *testing.T) {
				d := harness{}.New(t).(data)
				var told begun
				opts := postgres.Options{Failover: failover, OnTimeline: told.note}
				s := d.open(t, opts)
				mustPut(t, s, "k", "")
				mustPut(t, s, "k", "once more")
				d.elsewhere(t, "paused = paused")
				if v := seen(t, s, "absent"); v.Timeline != 1 || len(told.causes()) > 0 {
					t.Fatalf("timeline %d: nothing is lost yet", v.Timeline)
				}
				d.execute(t, sql)
				d.elsewhere(t, "paused = paused")
				if v := seen(t, s, "absent"); v.Timeline == 1 || v.Watermark.At.IsZero() || strings.Join(told.causes(), ", ") != "lost commit" {
					t.Errorf("timeline %d, watermark %+v: an acknowledged commit is missing", v.Timeline, v.Watermark)
				}
				d.elsewhere(t, "paused = paused") // it is known now
				if seen(t, s, "absent"); len(told.causes()) > 0 {
					t.Error("the same loss has begun another timeline")
				}
			})
		}
	}
	t.Run("what retention has forgotten is not lost", func(t *testing.T) {
		d := harness{}.New(t).(data)
		s := d.open(t, postgres.Options{})
		mustPut(t, s, "k", "")
		d.execute(t, "INSERT INTO forgotten (tool, final_time) SELECT tool, update_time FROM operations")
		d.execute(t, "DELETE FROM operations")
		d.elsewhere(t, "paused = paused")
		if v := seen(t, s, "absent"); v.Timeline != 1 {
			t.Errorf("timeline %d began because a key was forgotten", v.Timeline)
		}
	})
}

// TestOlderTimelineIsRefused: a primary of before, or a copy of it, is not written to until a person has said that it was restored.
func TestOlderTimelineIsRefused(t *testing.T) {
	d := harness{}.New(t).(data)
	refused := make(chan error, 100)
	s := d.open(t, postgres.Options{OnRefused: func(err error) { refused <- err }})
	seen(t, s, "absent")
	d.elsewhere(t, "server_timeline = server_timeline + 1")
	second := seen(t, s, "absent").Timeline
	d.elsewhere(t, "timeline = 1, watermark_time = NULL, watermark_lost_since = NULL")
	err := s.Update(t.Context(), reads(key("k")), put(key("k"), ""))
	if !errors.Is(err, ledger.ErrStoreUnavailable) || !strings.Contains(err.Error(), "ledgerd restored") {
		t.Fatalf("got %v, want ErrStoreUnavailable that says what to do", err)
	}
	if told := <-refused; told.Error() != err.Error() {
		t.Errorf("told %v, want %v", told, err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("ready: got %v", err)
	}
	tool := d.open(t, postgres.Options{Failover: postgres.FailoverIgnored})
	restored, err := tool.Restored(t.Context(), time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	v := seen(t, s, "absent")
	if v.Timeline != restored.Number || v.Timeline < second {
		t.Errorf("timeline %d, after %d was seen and %d restored", v.Timeline, second, restored.Number)
	}
}

// TestDecisionOfBeforeIsTakenAnew: what was read at the server before can't be written at the next one, where what it rests on may be missing.
func TestDecisionOfBeforeIsTakenAnew(t *testing.T) {
	for name, write := range map[string]func(ledger.View) (ledger.Change, error){
		"a new row": put(key("k"), ""),
		"an answer to a call that was sent again": func(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := harness{}.New(t).(data)
			s := d.open(t, postgres.Options{})
			if name != "a new row" { // by another process: this one would guess
				mustPut(t, d.open(t, postgres.Options{}), "k", "")
			}
			var decided []uint32
			err := s.Update(t.Context(), reads(key("k")), func(v ledger.View) (ledger.Change, error) {
				if decided = append(decided, v.Timeline); len(decided) == 1 {
					d.elsewhere(t, "server_timeline = server_timeline + 1")
					// Another call has found the dead connections, so that the write does not meet one.
					if _, _, err := s.Get(t.Context(), key("absent").Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
						t.Error(err)
					}
				}
				return write(v)
			})
			if err != nil || len(decided) < 2 || decided[len(decided)-1] == decided[0] {
				t.Errorf("decided in timelines %v, then %v: want it taken anew in the next one", decided, err)
			}
		})
	}
}

// inTx puts a row in a transaction of the caller, on a connection that nobody has recognized.
func (d data) inTx(t *testing.T) error {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return postgres.InTx(tx).Update(t.Context(), reads(key("in a transaction")), put(key("in a transaction"), ""))
	})
}

// TestInTxRefusesAnotherServer: nobody has recognized the connections of a team's own pool.
func TestInTxRefusesAnotherServer(t *testing.T) {
	d := harness{}.New(t).(data)
	d.elsewhere(t, "server_timeline = server_timeline + 1")
	if err := d.inTx(t); !errors.Is(err, ledger.ErrStoreUnavailable) || !strings.Contains(err.Error(), "another one") {
		t.Errorf("got %v, want ErrStoreUnavailable that says why", err)
	}
	if err := errors.Join(d.open(t, postgres.Options{}).Ready(t.Context()), d.inTx(t)); err != nil {
		t.Errorf("once a store has been there: %v", err)
	}
}

// TestServerThatDoesNotTell: who it is can only be said by a person, but what was acknowledged is missed there, too.
func TestServerThatDoesNotTell(t *testing.T) {
	server := pgtest.Own(t, pgtest.Options{})
	super := data{dsn: server.DSN(migrated(t, server))}
	super.execute(t, "UPDATE meta SET server_id = NULL, server_timeline = NULL")
	super.execute(t, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	super.execute(t, "CREATE ROLE plain LOGIN")
	super.execute(t, "GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
	d := data{dsn: super.dsn + " user=plain"}
	s := d.open(t, postgres.Options{})
	if told, err := s.Recognized(t.Context()); told || err != nil {
		t.Fatalf("recognized: %v, %v", told, err)
	}
	mustPut(t, s, "k", "")
	super.elsewhere(t, "paused = paused")
	if v := seen(t, s, "absent"); v.Timeline != 1 {
		t.Errorf("timeline %d: nothing was lost", v.Timeline)
	}
	if err := d.inTx(t); err != nil {
		t.Errorf("in a transaction of the caller: %v", err)
	}
	super.execute(t, "DELETE FROM operations")
	super.elsewhere(t, "paused = paused")
	if v := seen(t, s, "absent"); v.Timeline == 1 {
		t.Error("an acknowledged commit is missing, and no timeline has begun")
	}
}

// either is where the one or the other server is reached.
func either(t *testing.T, servers ...*pgtest.Server) string {
	t.Helper()
	var hosts, ports []string
	for _, s := range servers {
		c, err := pgx.ParseConfig(s.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		hosts, ports = append(hosts, c.Host), append(ports, strconv.Itoa(int(c.Port)))
	}
	return "host=" + strings.Join(hosts, ",") + " port=" + strings.Join(ports, ",")
}

// TestPromotedStandby: over a real failover, in which the standby lacks the last commit.
func TestPromotedStandby(t *testing.T) {
	primary := pgtest.Own(t, pgtest.Options{})
	const database = "postgres" // one of its own could not be removed
	if err := (data{dsn: primary.DSN(database)}).open(t, postgres.Options{}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	standby := primary.Standby(t)
	d := data{dsn: either(t, primary, standby) + " dbname=" + database + " user=ledger target_session_attrs=read-write"}
	var told begun
	s := d.open(t, postgres.Options{OnTimeline: told.note})
	mustPut(t, s, "kept", "")
	if err := errors.Join(standby.CatchUp(t.Context()), standby.PauseReceiving(t.Context())); err != nil {
		t.Fatal(err)
	}
	kept := seen(t, s, "kept").Current.UpdateTime
	mustPut(t, s, "lost", "")
	if err := errors.Join(primary.Kill(t.Context()), standby.Promote(t.Context())); err != nil {
		t.Fatal(err)
	}
	v := seen(t, s, "lost")
	if v.Current != nil || v.Timeline == 1 || v.Watermark.At.Before(kept) {
		t.Errorf("the lost row is there: %v; timeline %d, watermark %+v", v.Current != nil, v.Timeline, v.Watermark)
	}
	// By the last commit that came over, less the skew of clocks and the time of a call.
	if off := kept.Sub(v.Watermark.LostSince); off < 0 || off > 10*time.Minute {
		t.Errorf("lost since %v, %v before the last commit that was kept", v.Watermark.LostSince, off)
	}
	if got := strings.Join(told.causes(), ", "); got != "failover" && got != "lost commit" {
		t.Errorf("told of %q", got)
	}
}
