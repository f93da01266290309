// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"
)

// spread is what the rounds gave. There is no mean: one bad round would move it.
type spread struct {
	Min, Median, Max float64
	Rounds           int
}

// spreadOf leaves out what is no number: a round in which a part of a ratio is missing.
func spreadOf(values []float64) spread {
	var kept []float64
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return spread{Min: math.NaN(), Median: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(kept)
	middle := kept[len(kept)/2]
	if len(kept)%2 == 0 {
		middle = (middle + kept[len(kept)/2-1]) / 2
	}
	return spread{Min: kept[0], Median: middle, Max: kept[len(kept)-1], Rounds: len(kept)}
}

// percentile of sorted durations, by the nearest rank. None: zero.
func percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

// ratio is not a number where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}
