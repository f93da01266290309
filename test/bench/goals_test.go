// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// run10 is a sample of ten seconds.
func run10(units int, p50 time.Duration, server, postgres float64) sample {
	return sample{outcome: outcome{Units: units, Seconds: 10, P50: p50}, Server: server, Postgres: postgres}
}

// TestGoals computes each goal from numbers that make it easy to check by hand.
func TestGoals(t *testing.T) {
	all := samples{}
	for _, c := range []int{1, 128, 512} {
		all[variant{targetEcho, c}] = []sample{run10(10_000, 1*time.Millisecond, 10, 0)}
		all[variant{targetPostgres, c}] = []sample{run10(4_000, 6*time.Millisecond, 8, 6)}
		all[variant{targetSQLite, c}] = []sample{run10(5_000, 0, 8, 0)}
		all[variant{targetStorePostgres, c}] = []sample{run10(9_000, 0, 5, 9)}
	}
	all[variant{targetYardstick, 1}] = []sample{run10(500, 3*time.Millisecond, 0, 5)}
	all[variant{targetYardstick, 16}] = []sample{run10(1_500, 0, 0, 6)}
	all[variant{targetYardstick, 64}] = []sample{run10(1_000, 0, 0, 100)}
	want := map[string]string{
		"1 c=128": "0.40 short", "1 c=512": "0.40 short", // 400 units against 1000
		"1b c=128": "2.00 short", "1b c=512": "2.00 short", // 2 ms of processor time against 1
		"1c c=1":  "1.50 short", // 6 ms against 3 + 1
		"2 c=128": "6.00 met", "2 c=512": "6.00 met",
		"2b c=128": "2.67 met", "2b c=512": "2.67 short",
		"2c c=512": "0.25 short", // 1 ms against 4
		"5 c=128":  "1.25 met",
	}
	got := map[string]string{}
	for _, g := range goals() {
		v := judge(g, all, 1)
		word := "short"
		if v.Met {
			word = "met"
		}
		got[g.ID+g.Text[strings.LastIndex(g.Text, " c="):]] = fmt.Sprintf("%.2f %s", v.Median, word)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestCostsAreOfAllProcesses: what a unit takes of ledgerd, PostgreSQL and the load, against all of pgbench.
func TestCostsAreOfAllProcesses(t *testing.T) {
	ours := sample{outcome: outcome{Units: 100, Seconds: 10}, Server: 1, Postgres: 2, Client: 1}
	theirs := sample{outcome: outcome{Units: 50, Seconds: 10}, Postgres: 5, Client: 1}
	if got := costs(ours, theirs); got != 3 { // 120 ms a unit against 40
		t.Errorf("%v, want 3", got)
	}
	theirs.Failed = "refused"
	if got := costs(ours, theirs); !math.IsNaN(got) {
		t.Errorf("%v of a run that failed", got)
	}
}

func TestGoalsWithoutAllOfTheirParts(t *testing.T) {
	half := samples{
		{targetEcho, 128}:      {run10(10_000, 0, 10, 0), run10(10_000, 0, 10, 0)},
		{targetPostgres, 128}:  {run10(4_000, 0, 8, 6), {Failed: "refused", outcome: outcome{Units: 9_000, Seconds: 10}}},
		{targetYardstick, 128}: {{Failed: "refused", outcome: outcome{Units: 9_000, Seconds: 10}}, run10(1_000, 0, 0, 1)},
	}
	first := goals()[0]
	if v := judge(first, half, 2); v.Rounds != 1 || v.Median != .4 {
		t.Errorf("a round that failed counts: %+v", v.spread)
	}
	for _, g := range goals() {
		if v := judge(g, samples{}, 2); v.Rounds != 0 || v.Met {
			t.Errorf("%s without samples: %+v, %v", g.ID, v.spread, v.Met)
		}
	}
	if !math.IsNaN(half.best(0).rate()) || half.best(1).rate() != 100 {
		t.Error("the best pgbench is one that has failed")
	}
}

func TestGroupsHoldEveryVariantOnce(t *testing.T) {
	list := groups([]int{1, 16, 128}, []int{1, 8, 16, 32})
	all := slices.Concat(list...)
	if len(list) != 3 || len(all) != 3*5+4 {
		t.Fatalf("%d groups, %d variants", len(list), len(all))
	}
	seen := map[variant]bool{}
	for _, v := range all {
		if seen[v] {
			t.Errorf("%v runs twice", v)
		}
		seen[v] = true
	}
	if !slices.Contains(list[0], variant{targetYardstick, 1}) {
		t.Error("pgbench with one client does not run beside the others with one caller")
	}
}
