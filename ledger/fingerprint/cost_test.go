// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fingerprint

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"
)

// What it may cost: so many times what the standard library takes to validate the
// request and hash it, and so many times as much for each byte of the largest request as for
// each of a usual one. A test fails only when it is clearly beyond, by slack.
const (
	mostOfValidating = 4.0
	mostOfUsual      = 1.3
	slack            = 1.1
)

// TestCost measures processor time, in rounds in which all that is compared takes
// turns, and takes the middle one of the rounds' ratios: a machine that is slow for
// a while, for other processes, is slow for all of a round.
func TestCost(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("the race detector's own cost is larger than what is measured here")
	}
	secret := testSecret(t, "k1", 0)
	for _, shape := range shapes(t) {
		t.Run(shape.name, func(t *testing.T) {
			usual, largest := []byte(shape.build(2<<10)), []byte(shape.build(MaxSize))
			ours := func(input []byte) func() {
				return func() {
					c, err := Canonicalize(input, shape.rules)
					if err != nil {
						t.Fatal(err)
					}
					Digest(c, Relations{}, secret)
				}
			}
			theirs := func(input []byte) func() {
				return func() {
					json.Valid(input)
					sha256.Sum256(input)
				}
			}
			strict := func(input []byte) func() {
				return func() {
					_ = jsontext.Value(input).IsValid()
					sha256.Sum256(input)
				}
			}
			small, large := MaxSize/len(usual)/8+1, 1
			cost := inRounds([]work{
				{small, ours(usual)},
				{small, theirs(usual)},
				{small, strict(usual)},
				{large, ours(largest)},
				{large, theirs(largest)},
				{large, strict(largest)},
			})
			for i, input := range [][]byte{usual, largest} {
				standard := middle(cost, func(round []float64) float64 { return round[3*i] / round[3*i+1] })
				t.Logf("%6d bytes: %.1f ns a byte, %.2f times encoding/json and SHA-256, %.2f times jsontext and SHA-256", len(input),
					middle(cost, func(round []float64) float64 { return round[3*i] / float64(len(input)) }), standard,
					middle(cost, func(round []float64) float64 { return round[3*i] / round[3*i+2] }))
				if standard > mostOfValidating*slack {
					t.Errorf("%d bytes cost %.2f times what validating and hashing do", len(input), standard)
				}
			}
			ratio := middle(cost, func(round []float64) float64 {
				return round[3] / float64(len(largest)) / round[0] * float64(len(usual))
			})
			t.Logf("a byte of the largest costs %.2f times one of the usual", ratio)
			if ratio > mostOfUsual*slack {
				t.Errorf("a byte of the largest costs %.2f times one of the usual", ratio)
			}
		})
	}
}

// work is done so many times in a row in each round.
type work struct {
	times int
	do    func()
}

// inRounds measures each work in each round, in nanoseconds for once.
func inRounds(all []work) (rounds [][]float64) {
	for range 21 {
		round := make([]float64, len(all))
		for i, w := range all {
			begin := processorTime()
			for range w.times {
				w.do()
			}
			round[i] = float64(processorTime()-begin) / float64(w.times)
		}
		rounds = append(rounds, round)
	}
	return rounds
}

// middle is the median of what f makes of each round.
func middle(rounds [][]float64, f func(round []float64) float64) float64 {
	var all []float64
	for _, round := range rounds {
		all = append(all, f(round))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(os.NewSyscallError("clock_gettime", err))
	}
	return time.Duration(t.Nano())
}
