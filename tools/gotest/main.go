// SPDX-License-Identifier: Apache-2.0

// Command gotest runs go test over packages and counts what happened.
//
// It shows one line a package, the whole output of everything that failed (also of a package that did not compile), every
// skipped test with its reason, and ends with the line "N passed, N failed, N skipped". What is counted are leaves: tests
// and subtests that have no subtests of their own. A parent counts only when it failed or was skipped by itself.
//
// It exits 1 when anything failed, when a skip gives no reason, and when no test ran at all: a run that proves nothing is
// not a success. With -tag, tests in files behind each of the build tags run in a pass of their own; they are found by parsing sources.
//
// It depends on the standard library and the go command. It never uses cached test results: some tests start programs
// that the cache does not watch.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// pass is one run of go test.
type pass struct {
	name string
	args []string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gotest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	race := flags.Bool("race", false, "run with the race detector")
	parallel := flags.Int("p", 2, "packages at the same time")
	timeout := flags.Duration("timeout", 30*time.Minute, "bound for the tests of one package")
	tags := flags.String("tag", "", "build tags, each of whose tests run in a pass of their own, separated by commas")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	common := []string{
		"test", "-json", "-count=1",
		"-p=" + strconv.Itoa(*parallel),
		"-timeout=" + timeout.String(),
	}
	if *race {
		common = append(common, "-race")
	}
	passes := []pass{{name: strings.Join(patterns, " "), args: slices.Concat(common, patterns)}}
	for _, tag := range strings.FieldsFunc(*tags, func(r rune) bool { return r == ',' }) {
		found, err := taggedTests(".", tag, patterns)
		if err != nil {
			fmt.Fprintf(stderr, "gotest: find tests behind the tag: %v\n", err)
			return 2
		}
		if len(found.tests) > 0 {
			only := []string{"-tags=" + tag, "-run=^(" + strings.Join(found.tests, "|") + ")$"}
			passes = append(passes, pass{name: "build tag " + tag, args: slices.Concat(common, only, found.packages)})
		}
	}

	rep := newReport(stdout)
	for _, p := range passes {
		fmt.Fprintf(stdout, "== %s\n", p.name)
		if err := runPass(ctx, p, rep, stderr); err != nil {
			rep.passFailed(p.name, err)
		}
		rep.endPass()
	}
	return rep.finish()
}

// runPass runs go test once and feeds its events to the report.
func runPass(ctx context.Context, p pass, rep *report, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", p.args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := rep.read(bufio.NewReader(out))
	if err := cmd.Wait(); err != nil {
		return err
	}
	if readErr != nil && !errors.Is(readErr, io.EOF) {
		return fmt.Errorf("read the output of go test: %w", readErr)
	}
	return nil
}
