// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// TestInvariantsWithAClockThatIsSet is TestInvariants while somebody sets the store's clock, forward and back, in a process that has looked
// at it before: the judge counts true time.
func TestInvariantsWithAClockThatIsSet(t *testing.T) {
	steadyRapid(t, 2000)
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		s := newLedgerSystem(r.contracts)
		clock := ledger.NewClock(func() time.Duration { return s.clock.Sub(shelfBegins) }, nil)
		s.service.Watching(clock)
		r.sys, r.shelf = s, s.shelf
		store := &memoryStore{shelf: s.shelf}
		for range 10 + below(t, "steps", 51) {
			r.act()
			if below(t, "set the clock", 6) > 0 {
				continue
			}
			if err := clock.Look(context.Background(), store); err != nil { // so that this process knows how it was before
				t.Fatal(err)
			}
			by := oneOf(t, "by", []time.Duration{3 * time.Second, minute, 10 * minute, 10 * minute, 3 * time.Hour})
			if below(t, "back", 2) == 0 {
				by = -by
			}
			s.set += by
			r.t.Logf("the clock is set by %s, to %s", by, s.shown().Format("15:04:05"))
		}
		r.finish()
	})
}
