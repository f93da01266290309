// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/guard"
	"github.com/opsledger/opsledger/test/traces/table"
)

func traces(t *testing.T) []table.Row {
	t.Helper()
	rows, err := table.Rows()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// verdictsOf are those by which a file's traces are judged; with its guards on none may speak.
func verdictsOf(t *testing.T, file string) (names []string) {
	for _, r := range traces(t) {
		if r.Scenario == strings.TrimSuffix(filepath.Base(file), ".txt") && r.Verdict != "" {
			names = append(names, r.Verdict)
		}
	}
	return names
}

// TestTracesNameWhatThereIs: the table has every trace, each guard is in it, and what it names is there.
func TestTracesNameWhatThereIs(t *testing.T) {
	source, err := os.ReadFile("../guard/guard.go")
	if err != nil {
		t.Fatal(err)
	}
	guards, told := map[guard.Guard]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`Guard = "([a-z-]+)"`).FindAllSubmatch(source, -1) {
		guards[guard.Guard(m[1])] = false
	}
	rows := traces(t)
	for _, r := range rows {
		told[r.Trace] = true
		for _, g := range r.Without {
			if _, ok := guards[g]; !ok {
				t.Errorf("%s: there is no guard %q", r.Trace, g)
			}
			guards[g] = true
		}
		if r.Scenario == "" {
			continue
		}
		if _, ok := verdicts[r.Verdict]; !ok && r.Verdict != "" {
			t.Errorf("%s: there is no verdict %q", r.Trace, r.Verdict)
		}
		if _, err := os.Stat(filepath.Join("testdata/scenarios", r.Scenario+".txt")); err != nil {
			t.Errorf("%s: %v", r.Trace, err)
		}
		if r.Covered != "" && !slices.ContainsFunc(rows, func(o table.Row) bool {
			return o.Scenario == r.Scenario && o.Verdict != "" && slices.Contains(o.Without, r.Without[0]) && slices.Contains(o.Without, guard.Guard(r.Covered))
		}) {
			t.Errorf("%s: %s is said to be covered by %s, and no line is without both", r.Trace, r.Guards(), r.Covered)
		}
	}
	for g, used := range guards {
		if !used {
			t.Errorf("no trace is there for the guard %s", g)
		}
	}
	for n := range 38 {
		if name := "T" + strconv.Itoa(n+1); !told[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}
