// SPDX-License-Identifier: Apache-2.0

// Package pgtest gives tests a real PostgreSQL without containers: one throwaway server per test binary, a fresh database per test.
//
// The server dies with its test binary, also when that is killed. A suite's TestMain calls Main, which stops the server and removes
// its files. Where no PostgreSQL is installed, a test is skipped with the package's name to install; with CI set it fails.
//
// Tests that can use any server take that of Any; with OPSLEDGER_TEST_POSTGRES_URL set, all others are skipped.
//
// It depends on pgx.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds initdb and the first connection on a loaded machine.
const startTimeout = 60 * time.Second

var (
	shared    = sync.OnceValues(startShared)
	isRunning atomic.Pointer[Server]
	databases atomic.Int64
)

func startShared() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s, err := Start(ctx, Options{})
	if err == nil {
		isRunning.Store(s)
	}
	return s, err
}

// Main is the TestMain of a package that uses Get: it runs the tests, stops the shared server, and returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if s := isRunning.Load(); s != nil {
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(code, 1)
		}
	}
	return code
}

// Get returns the server that all tests of this binary share, without durability.
func Get(t testing.TB) *Server {
	t.Helper()
	onlyOurs(t)
	s, err := shared()
	require(t, err)
	return s
}

// Own starts a server for one test, which stops it at its end.
func Own(t testing.TB, opts Options) *Server {
	t.Helper()
	onlyOurs(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s, err := Start(ctx, opts)
	require(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// require skips where PostgreSQL is missing, but never in CI, and where its clock can not be set.
func require(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrNoFaketime), errors.Is(err, ErrNoBinaries) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// Database makes an empty database for one test and returns its name. On a server of Any it may be a schema; DSN knows.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	if s.foreign != nil {
		return s.foreign.make(t, s)
	}
	return s.database(t, "")
}

func (s *Server) database(t testing.TB, options string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	s.admin(t, t.Context(), "CREATE DATABASE "+name+options)
	t.Cleanup(func() {
		s.admin(t, context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	return name
}

// Prepared makes a database for one test as a copy of one that prepare has filled before: a schema is then made once per server and
// not once per test. Prepare is given a DSN and must leave no connection behind. What is prepared goes by its name. On a server that is
// not ours there is no copy: not each engine can make one.
func (s *Server) Prepared(t testing.TB, name string, prepare func(dsn string) error) string {
	t.Helper()
	if s.foreign != nil {
		own := s.foreign.make(t, s)
		if err := prepare(s.DSN(own)); err != nil {
			t.Fatal(err)
		}
		return own
	}
	template := "template_" + name
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.prepared[template] {
		s.admin(t, t.Context(), "CREATE DATABASE "+template)
		if err := prepare(s.DSN(template)); err != nil {
			s.admin(t, context.WithoutCancel(t.Context()), "DROP DATABASE "+template+" WITH (FORCE)") // so that the next test fails for the same reason
			t.Fatal(err)
		}
		if s.prepared == nil {
			s.prepared = map[string]bool{}
		}
		s.prepared[template] = true
	}
	return s.database(t, " TEMPLATE "+template)
}

// Password is set for the user ledger, kept as the server's password_encryption says.
func (s *Server) Password(t testing.TB, password string) {
	t.Helper()
	s.admin(t, t.Context(), "ALTER USER ledger PASSWORD '"+password+"'")
}

func (s *Server) admin(t testing.TB, ctx context.Context, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dsn := s.DSN("postgres")
	if s.foreign != nil {
		dsn = s.foreign.of("")
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatal(err)
	}
}
