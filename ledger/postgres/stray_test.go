// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// stalled is a server's process that has a batch and does not come to it, until it is let go.
type stalled struct {
	t     *testing.T
	watch *pgx.Conn
	pid   int
}

// stop stops the store's only connection at the server.
func (s *stalled) stop() {
	s.t.Helper()
	err := s.watch.QueryRow(s.t.Context(),
		"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ledgerd'").Scan(&s.pid)
	if err = errors.Join(err, syscall.Kill(s.pid, syscall.SIGSTOP)); err != nil {
		s.t.Error(err)
	}
}

// letGo returns when the process has done what it had, and ended: its client has gone.
func (s *stalled) letGo() {
	s.t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGCONT); err != nil {
		s.t.Error(err)
	}
	until(s.t, "the server's process has ended", func() (ended bool) {
		err := s.watch.QueryRow(s.t.Context(), "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", s.pid).Scan(&ended)
		return err == nil && ended
	})
}

// TestHangingConnectionIsLeft: those who share a batch with it go on to another one.
func TestHangingConnectionIsLeft(t *testing.T) {
	server := pgtest.Get(t)
	d := data{dsn: server.DSN(migrated(t, server))}
	s := d.open(t, postgres.Options{})
	hanging := &stalled{t: t, watch: d.connect(t)}
	defer func() { _ = hanging.watch.Close(context.WithoutCancel(t.Context())) }()
	mustPut(t, s, "k", "")
	hanging.stop()
	defer hanging.letGo()
	done := []<-chan error{later(t, s, key("a"), put(key("a"), "")), later(t, s, key("b"), put(key("b"), ""))}
	for _, answer := range done {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
}

// atLock is a tracer that is called before a row is locked.
type atLock struct{ do func() }

func (*atLock) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*atLock) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*atLock) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*atLock) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (a *atLock) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "FOR UPDATE") && a.do != nil {
			do := a.do
			a.do = nil
			do()
		}
	}
	return ctx
}

// TestServerThatComesLateToABatch has it, COMMIT and all, when its client is already told that the connection is lost, and has found
// nothing. The change is made once, and what is told is what comes of it.
func TestServerThatComesLateToABatch(t *testing.T) {
	for name, c := range map[string]struct {
		there   bool   // the row, before
		late    string // when the server comes to it
		nothing bool   // the second decision writes nothing
		decided int
		err     error
		want    []string
	}{
		"a new row, before it is looked for again":             {late: "before", decided: 1, want: []string{"1"}},
		"a new row, while it is decided again":                 {late: "deciding", decided: 2, want: []string{"1"}},
		"a new row, after it was decided again":                {late: "after", decided: 2, want: []string{"2"}},
		"a new row, after a second decision that does nothing": {late: "after", nothing: true, decided: 3, err: ledger.ErrStoreUnavailable, want: []string{"1"}},
		"a change, before it is looked for again":              {there: true, late: "before", decided: 1, want: []string{"there", "1"}},
		"a change, while it is decided again":                  {there: true, late: "deciding", decided: 2, want: []string{"there", "2"}},
		"a change, after it was decided again":                 {there: true, late: "after", decided: 2, want: []string{"there", "2"}},
		"a change, after a second decision that does nothing":  {there: true, late: "after", nothing: true, decided: 3, err: ledger.ErrStoreUnavailable, want: []string{"there", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			direct, through, proxy := proxiedTo(t, pgtest.Get(t))
			lock := &atLock{}
			s, plain := through.open(t, postgres.Options{Tracer: lock}), direct.open(t, postgres.Options{ApplicationName: "beside"})
			if c.there {
				mustPut(t, plain, "k", "there")
			}
			server := &stalled{t: t, watch: direct.connect(t)}
			defer func() { _ = server.watch.Close(context.WithoutCancel(t.Context())) }()
			defer func() { _ = syscall.Kill(server.pid, syscall.SIGCONT) }() // whatever has failed
			for range 2 {                                                    // each statement is prepared, on one connection
				mustPut(t, s, "warm", "")
			}
			decided := 0
			err := s.Update(t.Context(), reads(key("k")), func(v ledger.View) (ledger.Change, error) {
				switch decided++; {
				case decided == 1:
					server.stop()
					proxy.Arm(cuts["cut while it runs"])
					if c.late == "before" {
						lock.do = server.letGo
					}
				case decided == 2 && c.late == "deciding":
					server.letGo()
				case c.nothing:
					return ledger.Change{}, nil
				}
				return put(key("k"), string(rune('0'+decided)))(v)
			})
			if c.late == "after" {
				server.letGo()
			}
			if decided != c.decided || !errors.Is(err, c.err) {
				t.Errorf("decided %d times, want %d: %v, want %v", decided, c.decided, err, c.err)
			}
			if diff := cmp.Diff(c.want, history(t, plain, key("k"))); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}
