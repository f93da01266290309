// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/test/pgtest"
)

// result is what was seen of one engine.
type result struct {
	version, collation      string
	passed, failed, skipped string
	c69                     string
	// failures are the tests that failed, and reasons those of skips, with how often each was given.
	failures, reasons map[string]int
}

// look starts the engine and asks it what it is: not what it was meant to be.
func (e engine) look(ctx context.Context, r *result) (*pgtest.Server, error) {
	server, err := pgtest.Start(ctx, pgtest.Options{})
	if err != nil {
		return nil, err
	}
	var language bool
	err = administer(ctx, server, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT current_setting('server_version'), 'a' < 'B'").Scan(&r.version, &language)
	})
	if r.collation = "bytes"; language {
		r.collation = "language"
	}
	if err == nil && (language != e.language || strings.Split(r.version, ".")[0] != e.major) {
		err = errors.New("the server is not what was asked for")
	}
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

func administer(ctx context.Context, server *pgtest.Server, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(ctx))
}

// borrowed is the URL of a server as somebody else would lend it: a database, and a role that may do nothing beside.
func borrowed(ctx context.Context, server *pgtest.Server) (string, error) {
	return "postgres://guest@" + server.Addr() + "/shelf?sslmode=disable", administer(ctx, server, func(conn *pgx.Conn) error {
		for _, sql := range []string{"CREATE ROLE guest LOGIN", "CREATE DATABASE shelf OWNER guest"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e engine) runTests(ctx context.Context, r *result) error {
	said, failed := command(ctx, "go", "run", "./tools/gotest", "-p=1", "-tag=failpoints", "./ledger/postgres", "./migrations", "./test/engines")
	r.count(said)
	if !e.schemas { // ledgerd processes have a server of their own
		cases, err := command(ctx, "go", "run", "./test/cases", "-run", "C69")
		said = append(said, cases...)
		failed = errors.Join(failed, err)
		if r.c69 = "FAILED"; err == nil {
			r.c69 = casesPassed(cases)
		}
	}
	log := filepath.Join(cache, e.name+".log")
	if err := os.WriteFile(log, said, 0o644); err != nil {
		return err
	}
	return failed
}

func command(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return out, err
}

var (
	// lastLine is how gotest ends, failLine how it names a test that failed, and skipLine one that was skipped: package, test, place, reason.
	lastLine = regexp.MustCompile(`(?m)^(\d+) passed, (\d+) failed, (\d+) skipped$`)
	failLine = regexp.MustCompile(`(?m)^  (\S+ .*)$`)
	skipLine = regexp.MustCompile(`(?m)^  \S+ \S+: \S+\.go:\d+: (.*)$`)
	caseLine = regexp.MustCompile(`(?m)^(\d+) tests of \d+ cases passed$`)
)

// count reads the report of gotest.
func (r *result) count(said []byte) {
	if m := lastLine.FindSubmatch(said); m != nil {
		r.passed, r.failed, r.skipped = string(m[1]), string(m[2]), string(m[3])
	}
	r.failures, r.reasons = map[string]int{}, map[string]int{}
	before, skips, _ := bytes.Cut(said, []byte("\nskipped:\n"))
	if i := bytes.LastIndex(before, []byte("\nfailed:\n")); i >= 0 {
		for _, m := range failLine.FindAllSubmatch(before[i:], -1) {
			r.failures[string(m[1])]++
		}
	}
	for _, m := range skipLine.FindAllSubmatch(skips, -1) {
		r.reasons[string(m[1])]++
	}
	if n, err := strconv.Atoi(r.skipped); err == nil {
		for _, known := range r.reasons {
			n -= known
		}
		if n > 0 {
			r.reasons["see its log"] = n
		}
	}
}

func casesPassed(said []byte) string {
	if m := caseLine.FindSubmatch(said); m != nil {
		return string(m[1]) + " passed"
	}
	return "not counted"
}
