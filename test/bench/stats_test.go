// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   spread
	}{
		{"one round", []float64{3}, spread{3, 3, 3, 1}},
		{"an odd number of rounds, unsorted", []float64{5, 1, 2}, spread{1, 2, 5, 3}},
		{"an even number of rounds", []float64{4, 1, 2, 10}, spread{1, 3, 10, 4}},
		{"rounds without a number do not count", []float64{math.NaN(), 2, math.Inf(1), 4}, spread{2, 3, 4, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := spreadOf(tt.values); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
	if got := spreadOf(nil); got.Rounds != 0 || !math.IsNaN(got.Median) {
		t.Errorf("no rounds gave %+v", got)
	}
	if !math.IsNaN(ratio(1, 0)) || ratio(1, 4) != .25 {
		t.Error("a ratio to nothing is no number")
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	tests := []struct {
		name    string
		sorted  []time.Duration
		percent int
		want    time.Duration
	}{
		{"none", nil, 50, 0},
		{"one is every percentile", hundred[:1], 99, 1},
		{"median of two is the first", hundred[:2], 50, 1},
		{"the worst but one of a hundred", hundred, 99, 99},
		{"the worst of ten", hundred[:10], 99, 10},
		{"the least", hundred, 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := percentile(tt.sorted, tt.percent); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}
