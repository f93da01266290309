// SPDX-License-Identifier: Apache-2.0

// Package table is traces.txt: which scenario tells each trace, the guard that it is there for, and what must not happen.
//
// It depends on package guard.
package table

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/opsledger/opsledger/guard"
)

//go:embed traces.txt
var text string

// Row is a line of the table.
type Row struct {
	Trace string
	// Scenario is a file of ledger/testdata/scenarios without its ending; empty: see Package.
	Scenario string
	// Package and Test are of what no scenario can tell: a test, and the same with Unguarded behind its name, which passes if the guard is
	// missed.
	Package, Test string
	// Without are the guards that are switched off; none: nothing is, and Why says why.
	Without []guard.Guard
	// Verdict is what must not happen, and does without them.
	Verdict string
	// Covered, if set, is another guard that stands in the way as well, so that nothing happens.
	Covered string
	// Stores, if set, says what else stands in the way in SQLite and PostgreSQL.
	Stores string
	Why    string
}

// Name tells a row from the others.
func (r Row) Name() string { return r.Scenario + "/" + r.Guards() }

// Guards are the names of those that are switched off.
func (r Row) Guards() string {
	names := make([]string, len(r.Without))
	for i, g := range r.Without {
		names[i] = string(g)
	}
	return strings.Join(names, "+")
}

// Rows reads the table.
func Rows() ([]Row, error) {
	var rows []Row
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.Split(line, "|")
		if len(part) != 4 && len(part) != 5 {
			return nil, fmt.Errorf("%q has neither four parts nor five", line)
		}
		for i := range part {
			part[i] = strings.TrimSpace(part[i])
		}
		rows = append(rows, row(part))
	}
	return rows, nil
}

func row(part []string) Row {
	r := Row{Trace: part[0], Scenario: part[1], Verdict: part[3]}
	if part[2] == "-" {
		return Row{Trace: r.Trace, Why: r.Verdict}
	}
	if where, test, ok := strings.Cut(r.Scenario, "."); ok {
		r.Scenario, r.Package, r.Test = "", where, test
	}
	for g := range strings.SplitSeq(part[2], "+") {
		r.Without = append(r.Without, guard.Guard(g))
	}
	if by, ok := strings.CutPrefix(r.Verdict, "covered by "); ok {
		r.Verdict, r.Covered = "", by
	}
	if len(part) == 5 {
		r.Stores = strings.TrimPrefix(part[4], "stores: ")
	}
	return r
}
