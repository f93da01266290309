// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Breaker says whether the loops ask a tool's target.
type Breaker uint8

// The states of a breaker.
const (
	// BreakerClosed: it is asked, within its limits.
	BreakerClosed Breaker = iota
	// BreakerOpen: it has answered nobody for a while, or wants to be left alone, and nothing is asked.
	BreakerOpen
	// BreakerHalfOpen: one question at a time is let through, to see whether it works again.
	BreakerHalfOpen
)

// Standing is how it stands between all loops on a store and a tool's target. The zero value is that of a tool that was never asked.
type Standing struct {
	Breaker Breaker
	// OpenUntil is when the breaker lets the next question through; zero where it is closed.
	OpenUntil time.Time
	// LeftUntil is how long the target wants to be left alone; zero: it does not.
	LeftUntil time.Time
	// Failures in a row.
	Failures int
	// Asking is how many may be asking now.
	Asking int
}

// Standings reads how it stands with all tools whose targets were ever asked. One whose record this release can't read is left out: its loop
// asks nothing. Errors are those of the store.
func Standings(ctx context.Context, store ledger.GateStore) (map[ledger.Tool]Standing, error) {
	documents, now, err := store.Gates(ctx)
	if err != nil {
		return nil, err
	}
	all := make(map[ledger.Tool]Standing, len(documents))
	for tool, document := range documents {
		if g, err := readGate(document); err == nil {
			all[tool] = g.standing(now)
		}
	}
	return all, nil
}

func (g gate) standing(now time.Time) Standing {
	s := Standing{Failures: g.Failures, OpenUntil: g.OpenUntil}
	switch {
	case g.closed().After(now):
		s.Breaker = BreakerOpen
	case g.Opened == 0:
	default:
		s.Breaker = BreakerHalfOpen
	}
	if g.LeftUntil.After(now) {
		s.LeftUntil = g.LeftUntil
	}
	for _, turn := range g.Turns {
		if turn.Until.After(now) {
			s.Asking++
		}
	}
	return s
}
