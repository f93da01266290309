// SPDX-License-Identifier: Apache-2.0

//go:build guards

package ledger_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/opsledger/opsledger/guard"
	"github.com/opsledger/opsledger/test/traces/table"
)

// TestTraces runs each trace without its guard. Its lines are said as ever, whatever comes of them: what counts is not that a line is answered
// otherwise, but that the trace's verdict speaks.
func TestTraces(t *testing.T) {
	systems := systems(t)
	for _, r := range traces(t) {
		if r.Scenario == "" {
			continue
		}
		t.Run(r.Name(), func(t *testing.T) {
			for _, s := range systems {
				t.Run(s.name, func(t *testing.T) {
					what, where := unguarded(t, r, s)
					held := r.Covered
					if s.stores {
						held += r.Stores
					}
					switch {
					case held != "" && what != "":
						t.Errorf("%s, %s: %q did not hold", what, where, held)
					case held != "":
						t.Logf("without: nothing, %s holds", held)
					case what == "":
						t.Errorf("nothing has happened without it, and %q was to", r.Verdict)
					default:
						t.Logf("without: %s, %s", what, where)
					}
				})
			}
		})
	}
}

// unguarded says what a trace comes to without its guards, and after which line.
func unguarded(t *testing.T, r table.Row, s namedSystem) (what, where string) {
	text, err := os.ReadFile(filepath.Join("testdata/scenarios", r.Scenario+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	contracts := declared{}
	run := newScript(s.make(t, contracts), contracts)
	run.unguarded = true
	judges := []string{r.Verdict}
	if r.Covered != "" {
		judges = verdictsOf(t, r.Scenario)
	}
	guard.Without(r.Without...)
	t.Cleanup(func() { guard.Without() })
	datadriven.RunTestFromString(t, string(text), func(t *testing.T, td *datadriven.TestData) string {
		run.run(newLine(t, td))
		for _, verdict := range judges {
			if what == "" {
				if what = verdicts[verdict](run); what != "" {
					where = "line " + strings.TrimPrefix(td.Pos, "<string>:")
				}
			}
		}
		return td.Expected
	})
	return what, where
}
