// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// synchronous is the setting that names the standbys for which commits wait.
const synchronous = "synchronous_standby_names"

// Standby starts a server that follows s by streaming replication, and returns when it does. It has the options of s, and a clock of its own where s has one. It
// can be read, and ends with the test. No commit waits for it until Synchronous says so.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	f, err := s.copied(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(f.set("primary_conninfo", s.followedBy(f)), f.set("wal_retrieve_retry_interval", "100ms"), f.write("standby.signal", nil))
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(f.dir)))
	}
	standby := f.started(t)
	standby.primary = s
	if err := standby.until(ctx, receiving); err != nil {
		t.Fatal(err)
	}
	return standby
}

// receiving is true on a standby that is connected to its primary.
const receiving = "EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"

// followedBy is how a standby on these files reaches s, and what it is called there.
func (s *Server) followedBy(f files) string {
	return fmt.Sprintf("host=%s port=%d user=ledger application_name=%s", s.dir, s.port, f.name())
}

// name of a server among others.
func (f files) name() string { return filepath.Base(f.dir) }

// Synchronous lets each commit of s wait, from now on, until all of these standbys have it on disk; none: no commit waits any more. It restarts the server, since
// nothing else says that all of its processes know.
func (s *Server) Synchronous(ctx context.Context, standbys ...*Server) error {
	var names []string
	for _, standby := range standbys {
		names = append(names, `"`+standby.name()+`"`)
	}
	value := strings.Join(names, ", ")
	if len(names) > 0 {
		value = fmt.Sprintf("FIRST %d (%s)", len(names), value)
	}
	if err := s.exec(ctx, "ALTER SYSTEM SET "+synchronous+" = "+quoted(value)); err != nil {
		return err
	}
	if err := s.Restart(ctx, Fast); err != nil {
		return err
	}
	return s.until(ctx, "count(*) = $1 FROM pg_stat_replication WHERE sync_state = 'sync'", len(names))
}

// PauseReceiving cuts a standby off its primary: when it returns, nothing arrives any more. What has arrived stays.
func (s *Server) PauseReceiving(ctx context.Context) error {
	return s.receive(ctx, "", "NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// ResumeReceiving connects a standby with its primary again, and returns when it is.
func (s *Server) ResumeReceiving(ctx context.Context) error {
	return s.receive(ctx, s.primary.followedBy(s.files), receiving)
}

func (s *Server) receive(ctx context.Context, from, until string) error {
	if err := s.exec(ctx, "ALTER SYSTEM SET primary_conninfo = "+quoted(from)); err != nil {
		return err
	}
	if err := s.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return s.until(ctx, until)
}

// CatchUp waits until a standby shows all that its primary has committed by now.
func (s *Server) CatchUp(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.primary.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	var written string
	err = conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::TEXT").Scan(&written)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return s.until(ctx, "pg_last_wal_replay_lsn() >= $1::TEXT::PG_LSN", written)
}

// Promote makes a primary of a standby, on the next timeline. It returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	if err := s.exec(ctx, "SELECT pg_promote()"); err != nil { // it waits, and says no when it has waited in vain
		return err
	}
	return s.until(ctx, "NOT pg_is_in_recovery()")
}

// Timeline is the one on which a primary writes.
func (s *Server) Timeline(ctx context.Context) (timeline int, err error) {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return 0, fmt.Errorf("pgtest: %w", err)
	}
	// Not that of pg_control_checkpoint: until the first checkpoint after a promotion it is the old one.
	err = conn.QueryRow(ctx, "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::BIT(32)::INT").Scan(&timeline)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return 0, fmt.Errorf("pgtest: %w", err)
	}
	return timeline, nil
}

func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
}

// until polls, since a server gives no sign: it asks until the answer is yes.
func (s *Server) until(ctx context.Context, question string, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var yes bool
		if err := conn.QueryRow(ctx, "SELECT "+question, args...).Scan(&yes); err != nil {
			return fmt.Errorf("pgtest: %s: %w", question, err)
		}
		if yes {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pgtest: %s: %w", question, ctx.Err())
		}
	}
}
