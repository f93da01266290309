// SPDX-License-Identifier: Apache-2.0

// Command cases runs the numbered cases: faults that others really had, as tests of this ledger over every store. It prints one line
// for each case, test and store, then the tables that tests have logged, and fails for a case without a test on one of the stores, for a skip and for a failure.
//
// The tests are TestCxx/STORE/..., or TestCxxPart/STORE/... for a part of a case, in this folder; they drive real ledgerd processes with real mTLS.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

// served says which cases are served: whole, or the part that this release can show.
var served = map[string]string{
	"C07": "whole", "C09": "whole", "C11": "whole", "C12": "whole", "C14": "whole", "C16": "whole", "C22": "whole", "C24": "whole", "C37": "whole", "C39": "whole",
	"C35": "whole", "C41": "whole", "C49": "whole", "C01": "whole", "C05": "whole", "C20": "whole", "C28": "whole", "C31": "whole", "C32": "whole", "C43": "whole", "C47": "whole", "C50": "whole", "C53": "whole", "C69": "whole",
	"C26": "whole", "C63": "whole", "C67": "whole",
	"C56": "whole",
	"C44": "from Go",
}

// stores over which each case runs.
var stores = []string{"postgres", "sqlite"}

func main() {
	only := flag.String("run", "C", "run only cases whose id begins so")
	flag.Parse()
	if err := run(*only, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(1)
	}
}

// row is the result of one test of one case over one store.
type row struct{ id, test, store, result string }

func run(only string, stdout, stderr io.Writer) error {
	cmd := exec.Command("go", "test", "-json", "-count=1", "-timeout=30m", "-run", "^Test"+only, "./test/cases")
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	rows, tables, failures, err := read(out)
	if err != nil {
		return err
	}
	_ = cmd.Wait() // a failed test is in the rows; a package that does not build is the absence of all
	return errors.Join(report(stdout, rows, only), notBlank(stdout, tables), notBlank(stdout, failures))
}

func notBlank(w io.Writer, failures string) error {
	_, err := io.WriteString(w, failures)
	return err
}

// tableMark begins the lines of tables in the logs of tests.
const tableMark = "| "

// read collects the results of leaf tests, the lines of tables, and what the failed ones printed.
func read(r io.Reader) (rows []row, tables, failures string, err error) {
	output := map[string]*strings.Builder{}
	results := map[string]string{}
	var all, lines strings.Builder
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(in.Bytes(), &e) != nil {
			continue
		}
		switch e.Action {
		case "output":
			if output[e.Test] == nil {
				output[e.Test] = &strings.Builder{}
			}
			output[e.Test].WriteString(e.Output)
			if line := strings.TrimSpace(e.Output); strings.HasPrefix(line, tableMark) {
				_, store, _ := strings.Cut(e.Test, "/")
				fmt.Fprintf(&lines, "%s  %-8s  %s\n", strings.TrimPrefix(e.Test[:min(len(e.Test), len("TestC01"))], "Test"), store, strings.TrimPrefix(line, tableMark))
			}
		case "pass", "fail", "skip":
			results[e.Test] = e.Action
		}
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if result := results[name]; result != "pass" && output[name] != nil {
			all.WriteString(output[name].String())
		}
		if leaf(name, results) {
			rows = append(rows, split(name, results[name]))
		}
	}
	return rows, lines.String(), all.String(), in.Err()
}

// leaf: a test without subtests, or one that failed by itself.
func leaf(name string, results map[string]string) bool {
	if !strings.HasPrefix(name, "TestC") {
		return false
	}
	for other, result := range results {
		if strings.HasPrefix(other, name+"/") && (results[name] != "fail" || result == "fail") {
			return false
		}
	}
	return true
}

func split(name, result string) row {
	parts := strings.SplitN(name, "/", 3)
	id := strings.TrimPrefix(parts[0], "Test")
	more := id[min(len(id), len("C01")):] // TestC01Recovered is a part of C01
	r := row{id: strings.TrimSuffix(id, more), test: more, result: result}
	if len(parts) > 1 {
		r.store = parts[1]
	}
	if len(parts) > 2 {
		r.test = strings.TrimSpace(r.test + " " + parts[2])
	}
	return r
}

func report(w io.Writer, rows []row, only string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CASE\tSERVED\tTEST\tSTORE\tRESULT")
	passed, red := map[string]bool{}, []string{}
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", r.id, served[r.id], r.test, r.store, r.result)
		if r.result != "pass" {
			red = append(red, r.id+" "+r.store+": "+r.result)
			continue
		}
		passed[r.id+r.store] = true
	}
	for _, id := range slices.Sorted(maps.Keys(served)) {
		for _, store := range stores {
			if strings.HasPrefix(id, only) && !passed[id+store] {
				fmt.Fprintf(tw, "%s\t%s\t-\t%s\tno test\n", id, served[id], store)
				red = append(red, id+" "+store+": no test has passed")
			}
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(red) > 0 {
		return fmt.Errorf("%d red: %s", len(red), strings.Join(red, "; "))
	}
	_, err := fmt.Fprintf(w, "%d tests of %d cases passed\n", len(rows), len(passed)/len(stores))
	return err
}
