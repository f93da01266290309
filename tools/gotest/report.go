// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// event is one line of go test -json (go doc test2json, go help buildjson).
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
	ImportPath  string
}

// test is what is known about one test or subtest.
type test struct {
	action      string // pass, fail, skip; empty while it runs
	output      []string
	hasChildren bool
	childFailed bool
}

// pkg is what is known about one package in one pass.
type pkg struct {
	tests  map[string]*test
	order  []string
	output []string
}

// report counts events and prints what a reader needs. It is not safe for concurrent use.
type report struct {
	w        io.Writer
	pkgs     map[string]*pkg
	passed   int
	failures []string
	skips    []string
	// seen is the number of failures when the present pass began: an exit code without one is a failure of its own.
	seen int
}

func newReport(w io.Writer) *report {
	return &report{w: w, pkgs: map[string]*pkg{}}
}

// read consumes a stream of events until its end. Lines that are no events are shown as they are.
func (r *report) read(in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line string) {
	var ev event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &ev) != nil || ev.Action == "" {
		if strings.TrimSpace(line) != "" {
			fmt.Fprintln(r.w, strings.TrimRight(line, "\n"))
		}
		return
	}
	switch ev.Action {
	case "build-output":
		fmt.Fprint(r.w, ev.Output)
		return
	case "build-fail", "start", "pause", "cont", "bench", "attr", "artifacts":
		return
	}
	p := r.pkgs[ev.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		r.pkgs[ev.Package] = p
	}
	if ev.Test == "" {
		r.packageEvent(p, ev)
		return
	}
	p.testEvent(ev)
}

func (p *pkg) testEvent(ev event) {
	t := p.tests[ev.Test]
	if t == nil {
		t = &test{}
		p.tests[ev.Test] = t
		p.order = append(p.order, ev.Test)
		for _, parent := range p.parents(ev.Test) {
			parent.hasChildren = true
		}
	}
	switch ev.Action {
	case "output":
		t.output = append(t.output, ev.Output)
	case "pass", "fail", "skip":
		t.action = ev.Action
		if ev.Action == "pass" {
			t.output = nil
		}
		if ev.Action == "fail" {
			for _, parent := range p.parents(ev.Test) {
				parent.childFailed = true
			}
		}
	}
}

// parents returns the known tests around a subtest. A name may hold slashes of its own, so every prefix is tried.
func (p *pkg) parents(name string) []*test {
	var out []*test
	for i, c := range name {
		if c == '/' {
			if t := p.tests[name[:i]]; t != nil {
				out = append(out, t)
			}
		}
	}
	return out
}

func (r *report) packageEvent(p *pkg, ev event) {
	switch ev.Action {
	case "output":
		p.output = append(p.output, ev.Output)
	case "pass", "fail", "skip":
		r.endPackage(p, ev)
		delete(r.pkgs, ev.Package)
	}
}

// endPackage counts the leaves of a package and prints its failures at once, so that a long run shows them early.
func (r *report) endPackage(p *pkg, ev event) {
	p.endUnfinished()
	passed, skipped, failedBefore := 0, 0, len(r.failures)
	for _, name := range p.order {
		t := p.tests[name]
		full := ev.Package + " " + name
		switch {
		case t.action == "pass" && !t.hasChildren:
			passed++
		case t.action == "fail" && t.childFailed:
			// Its subtest is the failure; what the parent said may still explain it.
			if said(t.output) != "" {
				fmt.Fprint(r.w, strings.Join(t.output, ""))
			}
		case t.action == "fail":
			r.fail(full, t.output)
		case t.action == "skip":
			reason := said(t.output)
			if reason == "" {
				r.fail(full, []string{"    skipped without a reason\n"})
				continue
			}
			skipped++
			r.skips = append(r.skips, full+": "+reason)
		}
	}
	if ev.Action == "fail" && len(r.failures) == failedBefore {
		name := ev.Package + " (package)"
		if ev.FailedBuild != "" {
			name = ev.Package + " (does not build)"
		}
		r.fail(name, p.output)
	}
	r.passed += passed
	failed := len(r.failures) - failedBefore
	switch {
	case failed > 0:
		fmt.Fprintf(r.w, "FAIL %s %.1fs: %d passed, %d failed, %d skipped\n", ev.Package, ev.Elapsed, passed, failed, skipped)
	case len(p.order) > 0:
		fmt.Fprintf(r.w, "ok   %s %.1fs: %d passed, %d skipped\n", ev.Package, ev.Elapsed, passed, skipped)
	}
}

// endUnfinished fails the tests whose end was never reported: the process died under them (a timeout, os.Exit, a kill).
func (p *pkg) endUnfinished() {
	for i := len(p.order) - 1; i >= 0; i-- { // subtests come after their parents
		t := p.tests[p.order[i]]
		if t.action != "" {
			continue
		}
		t.action = "fail"
		if !t.childFailed {
			t.output = append(t.output, "    the test did not end\n")
		}
		for _, parent := range p.parents(p.order[i]) {
			parent.childFailed = true
		}
	}
}

// frame says whether a line is one that the testing package prints around a test.
func frame(line string) bool {
	s := strings.TrimSpace(line)
	return s == "" || strings.HasPrefix(s, "=== ") || strings.HasPrefix(s, "--- ")
}

// said joins what a test printed itself: for a skipped one, its reason.
func said(output []string) string {
	var parts []string
	for _, line := range output {
		if !frame(line) {
			parts = append(parts, strings.TrimSpace(line))
		}
	}
	return strings.Join(parts, " ")
}

func (r *report) fail(name string, output []string) {
	r.failures = append(r.failures, name)
	fmt.Fprintf(r.w, "--- FAIL %s\n%s", name, strings.Join(output, ""))
}

// endPass closes packages whose end was never reported, as happens when go test itself is killed.
func (r *report) endPass() {
	var left []string
	for name := range r.pkgs {
		left = append(left, name)
	}
	sort.Strings(left)
	for _, name := range left {
		r.endPackage(r.pkgs[name], event{Action: "fail", Package: name})
	}
	r.pkgs = map[string]*pkg{}
	r.seen = len(r.failures)
}

// passFailed records that go test itself failed. It is counted only where no test of the pass explains it.
func (r *report) passFailed(name string, err error) {
	if len(r.failures) == r.seen && len(r.pkgs) == 0 {
		r.fail("go test, "+name, []string{"    " + err.Error() + "\n"})
	}
}

// finish prints the summary, whose last line is the count, and returns the exit code.
func (r *report) finish() int {
	if len(r.failures) > 0 {
		fmt.Fprintln(r.w, "\nfailed:")
		for _, f := range r.failures {
			fmt.Fprintln(r.w, "  "+f)
		}
	}
	if len(r.skips) > 0 {
		fmt.Fprintln(r.w, "\nskipped:")
		for _, s := range r.skips {
			fmt.Fprintln(r.w, "  "+s)
		}
	}
	code := 0
	if len(r.failures) > 0 {
		code = 1
	}
	if r.passed == 0 && code == 0 {
		fmt.Fprintln(r.w, "\nno test passed: a run without tests proves nothing")
		code = 1
	}
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failures), len(r.skips))
	return code
}
