// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// A worker is killed before it has sent and after the target has accepted, with a lease of 2 s and a target that remembers its keys for 24 h. When the lease
// is over, its operation is neither blocked nor to be executed: it is unknown, and recovery finds out, or a person has it.
func TestC32(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			var tally counted
			t.Cleanup(func() { t.Logf("effects and requests at the target on %s:\n%s", store, tally.String()) })
			r := newRecovering(t, store, nodeOptions{})
			for _, tool := range []string{"card.charge", "mail.send"} {
				for _, point := range []int{afterClaim, afterAcceptance} {
					t.Run(tool+", "+pointNames[point], func(t *testing.T) {
						t.Parallel()
						c := crash{job: newJob(t, r, tool), victim: "worker", point: point}
						c.killWorker(t)
						c.wantWindows(t)
						c.wantUnknownAfterLease(t)
						c.judge(t, &tally)
					})
				}
			}
		})
	}
}

// wantWindows fails unless the lease and the memory of the target are two settings: the one asked for, and the contract's.
func (c *crash) wantWindows(t *testing.T) {
	t.Helper()
	row := c.row(t, c.operation)
	if got := c.lease.Sub(row.instant(t, "grant_time")); got != 2*time.Second {
		t.Errorf("the lease is of %v, want 2s", got)
	}
	retention := map[string]time.Duration{"card.charge": 24 * time.Hour}[c.errand.Tool]
	if got := row["terms_key_retention"]; got != number(uint64(retention.Nanoseconds())) {
		t.Errorf("the target's keys are remembered for %s ns, want %v", got, retention)
	}
}

// wantUnknownAfterLease claims until the lease is over: at first it is in progress, and then it is unknown, or has been found.
func (c *crash) wantUnknownAfterLease(t *testing.T) {
	t.Helper()
	found := c.point >= afterAcceptance && c.errand.Tool == "card.charge"
	leaseEnds(t, c.node.dial(t, billing), func() *pb.ClaimRequest { return c.claim(t) }, c.lease, found)
}

// leaseEnds claims until the lease is over, and fails unless the answer changes right then: in progress before, and unknown behind it. Where the effect is found in
// a moment, it may be replayed.
func leaseEnds(t *testing.T, asks *worker, claim func() *pb.ClaimRequest, lease time.Time, found bool) {
	t.Helper()
	eventually(t, "the lease is over", func() bool {
		sent := time.Now()
		got := outcome(asks.claim(t, claim()))
		over := !sent.Before(lease)
		switch {
		case got == "UNKNOWN" || got == "REPLAY" && found:
			if time.Now().Before(lease) {
				t.Errorf("a Claim was answered %s within the lease", got)
			}
			return true
		case got != "IN_PROGRESS" || over:
			t.Fatalf("a Claim was answered %s, and the lease was over: %v", got, over)
		}
		return false
	})
}
