// SPDX-License-Identifier: Apache-2.0

// Command bench measures the ledger against what it could be at most: a bare echo server over the same TLS, and pgbench with the work that
// a unit leaves in PostgreSQL. A unit is a Claim of a new key, then a Complete with a result of 200 bytes: two calls, two durable commits.
//
// Everything runs in one go, in rounds that take each variant in turn, because only ratios within a round mean anything: a shared machine's
// speed drifts by a third within minutes. The variants are real processes with mutual TLS (ledgerd on either store, the echo server; the
// load is a process of its own with several connections), the stores alone in this process, and pgbench on the same server and schema.
//
// Beside what is timed, figures are counted that do not drift: bytes of PostgreSQL's log, allocations, statements, calls a commit. They have
// limits (limits.go); the package's tests check these, so that make test does, and so does this program, which fails when one is broken.
//
// It depends on PostgreSQL's programs, on pgbench among them, on the go command, and on Linux's /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if beChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options of a run.
type options struct {
	rounds, connections int
	plan                plan
	callers, clients    []int
	profiles            bool
	markdown            string
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "one short round of few variants, no profiles")
	rounds := flags.Int("rounds", 5, "rounds; each takes every variant once")
	seconds := flags.Float64("seconds", 3, "seconds that each variant is measured for in a round")
	warm := flags.Float64("warm", .5, "seconds that it runs before")
	connections := flags.Int("connections", 4, "connections of the load to each server")
	callers := flags.String("callers", "1,16,128,512", "numbers of callers")
	clients := flags.String("clients", "1,8,16,32,64", "numbers of clients of pgbench; the best one counts")
	profiles := flags.Bool("profiles", true, "profile each variant whose goal is missed, after the rounds")
	markdown := flags.String("markdown", "", "file to write the page to")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if *quick {
		for name, set := range map[string]func(){
			"rounds": func() { *rounds = 1 }, "seconds": func() { *seconds = 1 }, "callers": func() { *callers = "1,128" },
			"clients": func() { *clients = "1,16" }, "profiles": func() { *profiles = false },
		} {
			if !given[name] {
				set()
			}
		}
	}
	o := options{
		rounds: *rounds, connections: *connections, profiles: *profiles, markdown: *markdown,
		plan: plan{Warm: time.Duration(*warm * float64(time.Second)), Window: time.Duration(*seconds * float64(time.Second))},
	}
	var err error
	if o.callers, err = numbers(*callers); err != nil {
		return options{}, fmt.Errorf("-callers: %w", err)
	}
	if o.clients, err = numbers(*clients); err != nil {
		return options{}, fmt.Errorf("-clients: %w", err)
	}
	if o.rounds < 1 || o.connections < 1 || o.plan.Window < 100*time.Millisecond || o.plan.Warm < 0 {
		return options{}, errors.New("-rounds and -connections must be at least 1, -seconds at least 0.1, -warm not negative")
	}
	return o, nil
}

func numbers(list string) ([]int, error) {
	var out []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, errors.New("must be whole numbers from 1 on, with commas between them")
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, o.connections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r := report{Date: time.Now(), Commit: commit(ctx)}
	if r.Machine, err = machine(ctx, b); err != nil {
		return err
	}
	r.Method = fmt.Sprintf("%d rounds of %v each variant after %v of warming up, %d connections of the load to each server",
		o.rounds, o.plan.Window, o.plan.Warm, o.connections)
	fmt.Fprintln(stderr, "counting")
	if r.Figures, r.Log, err = countFigures(ctx, b.site, o.connections); err != nil {
		return err
	}
	if r.Samples, err = b.rounds(ctx, o.rounds, o.plan, groups(o.callers, o.clients), stderr); err != nil {
		return err
	}
	for _, g := range goals() {
		if v := judge(g, r.Samples, o.rounds); v.Rounds > 0 {
			r.Verdicts = append(r.Verdicts, v)
		}
	}
	if o.profiles {
		if r.Profiles, err = b.profilesOfShort(ctx, r.Verdicts, o.plan, stderr); err != nil {
			return err
		}
	}
	r.text(stdout)
	if o.markdown != "" {
		if err := writePage(o.markdown, r); err != nil {
			return err
		}
	}
	return broken(r.Figures)
}

// profilesOfShort profiles what missed a goal, each variant once.
func (b *bench) profilesOfShort(ctx context.Context, verdicts []verdict, p plan, progress io.Writer) ([]profiled, error) {
	var out []profiled
	for _, v := range verdicts {
		if v.Met || slices.ContainsFunc(out, func(p profiled) bool { return p.Of == v.Of }) {
			continue
		}
		fmt.Fprintf(progress, "profiling %v\n", v.Of)
		found, err := b.profile(ctx, v.Of, p)
		if err != nil {
			return nil, err
		}
		out = append(out, found)
	}
	return out, nil
}

func writePage(path string, r report) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	r.markdown(file)
	return file.Close()
}

// broken names the figures that are beyond their limits.
func broken(figures []figure) error {
	var faults []error
	for _, f := range figures {
		if !f.ok() {
			faults = append(faults, fmt.Errorf("%s: %.1f is beyond its limit (%s)", f.Name, f.Value, f.Why))
		}
	}
	return errors.Join(faults...)
}
