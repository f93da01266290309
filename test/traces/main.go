// SPDX-License-Identifier: Apache-2.0

// Command traces runs the traces that broke earlier versions of the state table: with all guards on, over the decision, the service and both
// stores, and once more without the guard that each is there for, which must be seen by who looks at the target. It prints one line for
// each line of the table, and fails where one is not as it says.
//
// It depends on the go command and on package table.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/opsledger/opsledger/test/traces/table"
)

// systems that a scenario runs on.
var systems = []string{"decide", "service", "sqlite", "postgres"}

func main() {
	if err := run(os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "traces:", err)
		os.Exit(1)
	}
}

func run(stdout, stderr io.Writer) error {
	rows, err := table.Rows()
	if err != nil {
		return err
	}
	names, packages := []string{"TestScenarios", "TestTraces"}, []string{"./ledger"}
	for _, r := range rows {
		if r.Test != "" {
			names = append(names, r.Test, r.Test+"Unguarded")
			packages = append(packages, "./"+r.Package)
		}
	}
	only := "^(" + strings.Join(names, "|") + ")$/^t[0-9]"
	args := []string{"test", "-tags=guards", "-json", "-count=1", "-timeout=15m", "-run=" + only}
	cmd := exec.Command("go", slices.Concat(args, slices.Compact(slices.Sorted(slices.Values(packages))))...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	seen, err := read(out)
	if err != nil {
		return err
	}
	_ = cmd.Wait() // a failed test is in what was seen; a package that does not build is the absence of all
	return report(stdout, rows, seen)
}

// results of tests by their names.
type results map[string]*result

// result of a test; said is what it logged of a trace without its guard.
type result struct{ action, said, output string }

func read(r io.Reader) (results, error) {
	seen := results{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(in.Bytes(), &e) != nil {
			continue
		}
		if seen[e.Test] == nil {
			seen[e.Test] = &result{}
		}
		switch e.Action {
		case "output":
			seen[e.Test].output += e.Output
			if _, what, ok := strings.Cut(e.Output, ": without: "); ok {
				seen[e.Test].said = strings.TrimSpace(what)
			}
		case "pass", "fail", "skip":
			seen[e.Test].action = e.Action
		}
	}
	return seen, in.Err()
}

// report prints a line for each of the table, with a cell for each system: with the guard, and without it.
func report(w io.Writer, rows []table.Row, seen results) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TRACE\tTOLD BY\tGUARD\t"+strings.ToUpper(strings.Join(systems, "\t"))+"\tWITHOUT THE GUARD")
	var wrong []string
	for _, r := range rows {
		told, guards, cells, what := r.Scenario, r.Guards(), slices.Repeat([]string{"-"}, len(systems)), r.Why
		switch {
		case r.Test != "":
			told = r.Package + " " + r.Test
			cells[0], what = seen.cell(r.Test, r.Test+"Unguarded")
		case r.Scenario != "":
			for i := len(systems) - 1; i >= 0; i-- { // what is shown is the first system's
				cells[i], what = seen.cell("TestScenarios/"+r.Scenario+"/"+systems[i], "TestTraces/"+r.Name()+"/"+systems[i])
			}
		default:
			told, guards = "-", "-"
		}
		for _, c := range cells {
			if strings.Contains(c, bad) {
				wrong = append(wrong, r.Trace+" "+guards)
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", r.Trace, told, guards, strings.Join(cells, "\t"), what)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if wrong = slices.Compact(wrong); len(wrong) > 0 {
		return fmt.Errorf("%d lines are not as the table says: %s\n%s", len(wrong), strings.Join(wrong, ", "), seen.failures())
	}
	_, err := fmt.Fprintf(w, "%d lines are as the table says: ok with the guard; without it red, or held by what else the line names\n", len(rows))
	return err
}

// bad marks a cell that is not as the table says.
const bad = "WRONG"

// cell is what has become of a trace with its guard and without, and what happened then. What was skipped has not been shown.
func (seen results) cell(on, off string) (cell, what string) {
	with, without := seen[on], seen[off]
	cell = "ok"
	if with == nil || with.action != "pass" {
		cell = bad
	}
	switch {
	case without == nil || without.action != "pass":
		return cell + "/" + bad, ""
	case strings.HasPrefix(without.said, "nothing"):
		return cell + "/held", without.said
	default:
		return cell + "/red", without.said
	}
}

// failures is what the failed tests printed.
func (seen results) failures() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if r := seen[name]; r.action == "fail" || name == "" {
			out.WriteString(r.output)
		}
	}
	return out.String()
}
