// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// systems are what every scenario runs on.
func systems(t *testing.T) []namedSystem {
	database := &scenarioDatabase{t: t}
	return []namedSystem{
		{name: "decide", make: func(_ *testing.T, c declared) system { return decideSystem{shelf: newShelf(), contracts: c} }},
		{name: "service", make: func(_ *testing.T, c declared) system { return newLedgerSystem(c) }},
		{name: "sqlite", make: newSQLiteSystem, stores: true},
		{name: "postgres", make: database.system, stores: true},
	}
}

type namedSystem struct {
	name string
	make func(*testing.T, declared) system
	// stores: it runs over a real store.
	stores bool
}

// TestScenarios runs every file of testdata/scenarios. Their expectations are written by hand against the state table: the flag that
// would rewrite them fails the test instead.
func TestScenarios(t *testing.T) {
	if f := flag.Lookup("rewrite"); f != nil && f.Value.String() != "false" {
		t.Fatal("scenarios are written by hand: nothing rewrites them")
	}
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	systems := systems(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			for _, s := range systems {
				t.Run(s.name, func(t *testing.T) {
					contracts := declared{}
					run := newScript(s.make(t, contracts), contracts)
					run.verdicts = verdictsOf(t, file)
					runScenario(t, file, run)
				})
			}
		})
	}
}

func runScenario(t *testing.T, file string, s *script) {
	text, err := os.ReadFile(file) // as text: nothing here holds the file open for writing
	if err != nil {
		t.Fatal(err)
	}
	datadriven.RunTestFromString(t, string(text), s.line)
}
