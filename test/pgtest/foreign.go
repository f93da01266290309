// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	// urlVariable names a server that is not ours, as a PostgreSQL URL or keyword string.
	urlVariable = "OPSLEDGER_TEST_POSTGRES_URL"
	// afterVariable names a file of SQL that is run on each database after its migrations.
	afterVariable = "OPSLEDGER_TEST_AFTER_MIGRATE"
)

// foreign is a server that is not ours: it is neither started nor stopped, and what a test makes there goes when the test ends.
type foreign struct {
	// dsn is a keyword string, so that more can be added at its end.
	dsn string
	// schemas says that a test has a schema of its own, not a database: the role may not create one.
	schemas bool
	// addr is host:port, empty where no proxy can stand before it.
	addr string
	// mark is part of each name: other runs may use the same server.
	mark string
}

// Need is what a test needs of any server.
type Need int

const (
	// Proxies stand between a test and the server and read what is said: it is reached by TCP, without TLS.
	Proxies Need = iota + 1
	// OwnDatabase is one that no other test uses, where a schema is not enough.
	OwnDatabase
)

var named = sync.OnceValues(func() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return reach(ctx, os.Getenv(urlVariable))
})

// Any returns the server that OPSLEDGER_TEST_POSTGRES_URL names, whatever engine that is, and without one the server of Get. Each test
// has a database of its own there, or a schema where the role may not create databases. Where the server does not give what a test
// needs, the test is skipped. A run that is killed leaves what it made there: its names begin with opsledger_test_.
func Any(t testing.TB, needs ...Need) *Server {
	t.Helper()
	if os.Getenv(urlVariable) == "" {
		return Get(t)
	}
	s, err := named()
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range needs {
		switch {
		case need == Proxies && s.foreign.addr == "":
			t.Skip("it needs a proxy before the server: " + urlVariable + " must name one by TCP and with sslmode=disable")
		case need == OwnDatabase && s.foreign.schemas:
			t.Skip("it needs a database of its own: the role of " + urlVariable + " may not create one")
		}
	}
	return s
}

// onlyOurs skips a test that needs a server to configure and to stop, where another one is named.
func onlyOurs(t testing.TB) {
	t.Helper()
	if os.Getenv(urlVariable) != "" {
		t.Skip("it needs a server of its own, to configure and to stop: the one of " + urlVariable + " is not ours")
	}
}

// reach connects once, to learn what the role may.
func reach(ctx context.Context, address string) (*Server, error) {
	dsn, err := keywords(address)
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %s: %w", urlVariable, err) // pgx hides the password
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %s: %w", urlVariable, err)
	}
	f := &foreign{dsn: dsn, mark: strings.ToLower(rand.Text()[:8])}
	if cfg.TLSConfig == nil && !filepath.IsAbs(cfg.Host) {
		f.addr = net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	}
	err = conn.QueryRow(ctx, "SELECT NOT (rolcreatedb OR rolsuper) FROM pg_roles WHERE rolname = current_user").Scan(&f.schemas)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return nil, fmt.Errorf("pgtest: %s: %w", urlVariable, err)
	}
	return &Server{foreign: f}, nil
}

// keywords makes a keyword string of a URL of one host; what is none stays as it is.
func keywords(address string) (string, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return address, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("pgtest: %s is no URL of one host", urlVariable) // the error would show it, with its password
	}
	var words []string
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+"='"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)+"'")
		}
	}
	password, _ := u.User.Password()
	add("user", u.User.Username())
	add("password", password)
	add("host", u.Hostname())
	add("port", u.Port())
	add("dbname", strings.TrimPrefix(u.Path, "/"))
	for name := range u.Query() {
		add(name, u.Query().Get(name))
	}
	return strings.Join(words, " "), nil
}

// of is the DSN of a database, or of a schema of the only one. Of a word that is there twice, the last one counts.
func (f *foreign) of(name string) string {
	switch {
	case name == "":
		return f.dsn
	case f.schemas:
		return f.dsn + " search_path=" + name
	default:
		return f.dsn + " dbname=" + name
	}
}

// make creates what a test has for its own.
func (f *foreign) make(t testing.TB, s *Server) string {
	t.Helper()
	name := fmt.Sprintf("opsledger_test_%s_%d", f.mark, databases.Add(1))
	create, drop := "CREATE DATABASE "+name, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"
	if f.schemas {
		create, drop = "CREATE SCHEMA "+name, "DROP SCHEMA IF EXISTS "+name+" CASCADE"
	}
	s.admin(t, t.Context(), create)
	t.Cleanup(func() { s.admin(t, context.Background(), drop) })
	return name
}

// AfterMigrate runs the file that OPSLEDGER_TEST_AFTER_MIGRATE names, if any: how an engine wants the tables of the schema.
func AfterMigrate(ctx context.Context, dsn string) error {
	name := os.Getenv(afterVariable)
	if name == "" {
		return nil
	}
	if !filepath.IsAbs(name) {
		return fmt.Errorf("pgtest: %s must be an absolute path: each package's tests run in their own directory", afterVariable)
	}
	sql, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("pgtest: %s: %w", afterVariable, err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = conn.PgConn().Exec(ctx, string(sql)).ReadAll()
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgtest: %s: %w", name, err)
	}
	return nil
}
