// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fingerprint

import (
	"crypto/sha256"
	"encoding/json"
	"math"
	"os"
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
	slack            = 1.25
)

// TestCost measures processor time, in rounds that take turns, and compares the
// best of each: other processes, and the order, weigh alike on all of them.
func TestCost(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("the race detector's own cost is larger than what is measured here")
	}
	secret := testSecret(t, "k1", 0)
	for _, shape := range shapes(t) {
		t.Run(shape.name, func(t *testing.T) {
			var perByte []float64
			for _, size := range []int{2 << 10, MaxSize} {
				input := []byte(shape.build(size))
				cost := bestOf(MaxSize/size/8+1, []func(){
					func() {
						c, err := Canonicalize(input, shape.rules)
						if err != nil {
							t.Fatal(err)
						}
						Digest(c, Relations{}, secret)
					},
					func() { json.Valid(input) },
					func() { _ = jsontext.Value(input).IsValid() },
					func() { sha256.Sum256(input) },
				})
				ours, hash := cost[0], cost[3]
				standard, strict := ours/(cost[1]+hash), ours/(cost[2]+hash)
				perByte = append(perByte, ours/float64(len(input)))
				t.Logf("%6d bytes: %.1f ns a byte, %.2f times encoding/json and SHA-256, %.2f times jsontext and SHA-256",
					len(input), perByte[len(perByte)-1], standard, strict)
				if standard > mostOfValidating*slack {
					t.Errorf("%d bytes cost %.2f times what validating and hashing do", len(input), standard)
				}
			}
			ratio := perByte[1] / perByte[0]
			t.Logf("a byte of the largest costs %.2f times one of the usual", ratio)
			if ratio > mostOfUsual*slack {
				t.Errorf("a byte of the largest costs %.2f times one of the usual", ratio)
			}
		})
	}
}

// bestOf measures each function n times in a row, in rounds, and returns the
// best of each in nanoseconds.
func bestOf(n int, functions []func()) []float64 {
	const rounds = 15
	best := make([]float64, len(functions))
	for i := range best {
		best[i] = math.Inf(1)
	}
	for range rounds {
		for i, f := range functions {
			begin := processorTime()
			for range n {
				f()
			}
			best[i] = min(best[i], float64(processorTime()-begin)/float64(n))
		}
	}
	return best
}

func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(os.NewSyscallError("clock_gettime", err))
	}
	return time.Duration(t.Nano())
}
