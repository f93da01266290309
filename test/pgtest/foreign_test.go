// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// execute runs statements on a database and returns the first one's only value, if it has one.
func execute(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if len(results) == 0 || len(results[0].Rows) == 0 {
		return ""
	}
	return string(results[0].Rows[0][0])
}

// someonesServer is a server with a role that may create databases, and one that has a database and may not.
func someonesServer(t *testing.T) *Server {
	t.Helper()
	s := Own(t, Options{})
	for _, sql := range []string{"CREATE ROLE plain LOGIN", "CREATE DATABASE shelf OWNER plain", "CREATE ROLE maker LOGIN CREATEDB"} {
		execute(t, s.DSN("postgres"), sql)
	}
	return s
}

func TestServerThatIsNotOurs(t *testing.T) {
	server := someonesServer(t)
	for name, c := range map[string]struct {
		url     string
		schemas bool
	}{
		"a role that may create databases": {"postgres://maker@" + server.Addr() + "/postgres?sslmode=disable", false},
		"a role that may not":              {"postgres://plain@" + server.Addr() + "/shelf?sslmode=disable", true},
		"keywords, over a socket":          {server.DSN("postgres"), false},
	} {
		s, err := reach(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		if s.foreign.schemas != c.schemas {
			t.Errorf("%s: schemas is %t", name, s.foreign.schemas)
		}
		wantAddr := server.Addr()
		if !strings.Contains(c.url, wantAddr) {
			wantAddr = ""
		}
		if s.Addr() != wantAddr {
			t.Errorf("%s: address %q, want %q", name, s.Addr(), wantAddr)
		}
		t.Run(name, func(t *testing.T) {
			runs := 0
			prepare := func(dsn string) error {
				runs++
				execute(t, dsn, "CREATE TABLE own (n int)")
				return nil
			}
			first, second, empty := s.Prepared(t, "same", prepare), s.Prepared(t, "same", prepare), s.Database(t)
			execute(t, s.DSN(first), "INSERT INTO own VALUES (1)")
			if got := execute(t, s.DSN(second), "SELECT count(*) FROM own"); got != "0" || runs != 2 {
				t.Errorf("the second sees %s rows of the first; prepared %d times", got, runs)
			}
			if got := execute(t, s.DSN(empty), "SELECT to_regclass('own') IS NULL"); got != "t" {
				t.Error("a new one is not empty")
			}
			if wantAddr == "" {
				return
			}
			tcp, err := s.TCPDSN(s.Addr(), first)
			if err != nil {
				t.Fatal(err)
			}
			if got := execute(t, tcp, "SELECT count(*) FROM own"); got != "1" {
				t.Errorf("by way of a proxy's address there are %s rows", got)
			}
		})
		left := execute(t, server.DSN("postgres"), "SELECT count(*) FROM pg_database WHERE datname LIKE 'opsledger%'") +
			execute(t, server.DSN("shelf"), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'opsledger%'")
		if left != "00" {
			t.Errorf("%s: something is left behind: %s", name, left)
		}
	}
	for _, broken := range []string{"postgres://u:canary@host:port/d", "postgres://u:canary@/d?sslmode=wrong", "postgres://u:canary@" + server.Addr() + "/absent"} {
		if _, err := reach(t.Context(), broken); err == nil || !strings.Contains(err.Error(), urlVariable) || strings.Contains(err.Error(), "canary") {
			t.Errorf("got %v, want an error that names the variable, not the password", err)
		}
	}
}

func TestURLsBecomeKeywords(t *testing.T) {
	const password = `it's \ @:/? =`
	u := url.URL{
		Scheme: "postgresql", User: url.UserPassword("some one", password), Host: "[::1]:5433", Path: "/data base",
		RawQuery: "sslmode=disable&application_name=a%20b",
	}
	dsn, err := keywords(u.String())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(dsn + " lock_timeout=1s dbname=other")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(cfg.User, cfg.Password, cfg.Host, cfg.Port, cfg.Database, cfg.RuntimeParams)
	want := fmt.Sprint("some one", password, "::1", 5433, "other", map[string]string{"application_name": "a b", "lock_timeout": "1s"})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// recorder is a test that is skipped without a line in the report.
type recorder struct {
	testing.TB
	skipped string
}

func (r *recorder) Skip(args ...any) {
	r.skipped = fmt.Sprint(args...)
	runtime.Goexit()
}

func TestNeedsThatAServerDoesNotMeetAreSkipped(t *testing.T) {
	server := someonesServer(t)
	t.Setenv(urlVariable, "postgres://plain@/shelf?host="+url.QueryEscape(server.dir)+"&port="+fmt.Sprint(server.port))
	for name, c := range map[string]struct {
		use  func(t testing.TB)
		want string
	}{
		"the shared server": {func(t testing.TB) { Get(t) }, "is not ours"},
		"an own server":     {func(t testing.TB) { Own(t, Options{}) }, "is not ours"},
		"a proxy":           {func(t testing.TB) { Any(t, Proxies) }, "sslmode=disable"},
		"a database":        {func(t testing.TB) { Any(t, OwnDatabase) }, "may not create one"},
		"any":               {func(t testing.TB) { Any(t) }, ""},
	} {
		r := &recorder{TB: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.use(r)
		}()
		<-ended
		if !strings.Contains(r.skipped, c.want) || (c.want == "") != (r.skipped == "") {
			t.Errorf("%s: skipped with %q, want %q in it", name, r.skipped, c.want)
		}
	}
}

func TestFileIsRunAfterMigrations(t *testing.T) {
	s := Get(t)
	dsn := s.DSN(s.Database(t))
	if err := AfterMigrate(t.Context(), dsn); err != nil {
		t.Errorf("without a file: %v", err)
	}
	file := filepath.Join(t.TempDir(), "after.sql")
	if err := os.WriteFile(file, []byte("CREATE TABLE after (n int); INSERT INTO after VALUES (7)"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(afterVariable, file)
	if err := AfterMigrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if got := execute(t, dsn, "SELECT n FROM after"); got != "7" {
		t.Errorf("the file's row is %q", got)
	}
	if err := AfterMigrate(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that fails: got %v, want its name", err)
	}
	t.Setenv(afterVariable, "after.sql")
	if err := AfterMigrate(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path: got %v", err)
	}
}

func TestMissingProgramsAreNamed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(binVariable, dir)
	for _, name := range []string{"initdb", "postgres"} {
		_, err := Start(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), "no "+name) || !strings.Contains(err.Error(), "install") || errors.Is(err, ErrNoBinaries) {
			t.Errorf("got %v, want it to say that %s is missing and what to install", err, name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
