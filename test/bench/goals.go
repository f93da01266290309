// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// goal is a ratio within one run on one machine: absolute rates of a shared machine mean nothing a day later.
type goal struct {
	ID, Text string
	// Bound is what is realistic; AtMost: less is better.
	Bound  float64
	AtMost bool
	// In one round; no number where a part is missing.
	In func(all samples, round int) float64
	// Cost, of a ratio of rates, is what the ratio would be if all had the processors to themselves and nothing else to wait for: that of
	// the processor time of all processes for one unit. Others on the machine move it less.
	Cost func(all samples, round int) float64
	// Of is what is profiled when the goal is missed.
	Of variant
}

// verdict on a goal: by the median of the rounds.
type verdict struct {
	goal
	spread
	Costs spread
	Met   bool
}

func (all samples) at(target string, callers, round int) sample {
	list := all[variant{target, callers}]
	if round >= len(list) {
		return sample{Failed: "was not run"}
	}
	return list[round]
}

// best is pgbench with the number of clients that was fastest in a round.
func (all samples) best(round int) sample {
	top := sample{Failed: "was not run"}
	for v, list := range all {
		if v.Target == targetYardstick && round < len(list) {
			if s := list[round]; math.IsNaN(top.rate()) || s.rate() > top.rate() {
				top = s
			}
		}
	}
	return top
}

func rates(a, b sample) float64 { return ratio(a.rate(), b.rate()) }

// costs is the inverse of rates where processors are what both wait for.
func costs(a, b sample) float64 {
	return ratio(b.perUnit(b.Server+b.Postgres+b.Client), a.perUnit(a.Server+a.Postgres+a.Client))
}

// between makes both of two targets.
func between(a, b func(all samples, round int) sample) (in, cost func(all samples, round int) float64) {
	in = func(all samples, r int) float64 { return rates(a(all, r), b(all, r)) }
	cost = func(all samples, r int) float64 { return costs(a(all, r), b(all, r)) }
	return in, cost
}

// of a target at a number of callers.
func of(target string, callers int) func(all samples, round int) sample {
	return func(all samples, r int) sample { return all.at(target, callers, r) }
}

// The numbers are those of the project's goals; each has a column in docs/benchmarks.md.
func goals() []goal {
	var list []goal
	for _, c := range []int{128, 512} {
		bound := func(at128, at512 float64) float64 {
			if c == 128 {
				return at128
			}
			return at512
		}
		at := fmt.Sprintf(", c=%d", c)
		served, stored := variant{targetPostgres, c}, variant{targetStorePostgres, c}
		toEcho, toEchoCost := between(of(targetPostgres, c), of(targetEcho, c))
		store, storeCost := between(of(targetStorePostgres, c), samples.best)
		whole, wholeCost := between(of(targetPostgres, c), samples.best)
		list = append(list,
			goal{
				ID: "1", Text: "durable calls/s of ledgerd / calls/s of the echo server" + at, Bound: bound(.55, .60), Of: served,
				In: toEcho, Cost: toEchoCost,
			},
			goal{
				ID: "1b", Text: "processor time a call of ledgerd / of the echo server" + at, Bound: 1.6, AtMost: true, Of: served,
				In: func(all samples, r int) float64 {
					ours, echo := all.at(targetPostgres, c, r), all.at(targetEcho, c, r)
					return ratio(ours.perUnit(ours.Server), echo.perUnit(echo.Server))
				},
			},
			goal{
				ID: "2", Text: "units/s of the store / of the best pgbench" + at, Bound: bound(4, 6), Of: stored,
				In: store, Cost: storeCost,
			},
			goal{
				ID: "2b", Text: "units/s of ledgerd / of the best pgbench" + at, Bound: bound(2, 3), Of: served,
				In: whole, Cost: wholeCost,
			},
		)
	}
	onSQLite, onSQLiteCost := between(of(targetSQLite, 128), of(targetPostgres, 128))
	return append(list,
		goal{
			ID: "1c", Text: "median unit of ledgerd / (of pgbench + of the echo server), c=1", Bound: 1.25, AtMost: true, Of: variant{targetPostgres, 1},
			In: func(all samples, r int) float64 {
				ours, pgbench, echo := all.at(targetPostgres, 1, r), all.at(targetYardstick, 1, r), all.at(targetEcho, 1, r)
				if ours.Failed+pgbench.Failed+echo.Failed != "" {
					return math.NaN()
				}
				return ratio(float64(ours.P50), float64(pgbench.P50+echo.P50)) // a unit of the echo server is two calls, as ours is
			},
		},
		goal{
			ID: "2c", Text: "PostgreSQL's processor time a unit, of the store / of the best pgbench, c=512", Bound: .12, AtMost: true, Of: variant{targetStorePostgres, 512},
			In: func(all samples, r int) float64 {
				ours, best := all.at(targetStorePostgres, 512, r), all.best(r)
				return ratio(ours.perUnit(ours.Postgres), best.perUnit(best.Postgres))
			},
		},
		goal{
			ID: "5", Text: "units/s of ledgerd on SQLite / on PostgreSQL, c=128", Bound: 1, Of: variant{targetSQLite, 128},
			In: onSQLite, Cost: onSQLiteCost,
		},
	)
}

func judge(g goal, all samples, rounds int) verdict {
	var values, costs []float64
	for r := range rounds {
		values = append(values, g.In(all, r))
		if g.Cost != nil {
			costs = append(costs, g.Cost(all, r))
		}
	}
	v := verdict{goal: g, spread: spreadOf(values), Costs: spreadOf(costs)}
	v.Met = v.Median >= g.Bound
	if g.AtMost {
		v.Met = v.Median <= g.Bound
	}
	return v
}
