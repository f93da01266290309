// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// Durations keep their unit: a lease of 2 s is stored as 2 s, is over for a Claim and for recovery after 2 s and not before, and a number without its unit is
// refused where durations are written down.
func TestC31(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			w, claim := r.node.dial(t, billing), request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)
			claim.Lease = durationpb.New(2 * time.Second)
			g := w.grant(t, claim)
			if left := g.GetLease().AsDuration(); left > 2*time.Second || left < time.Second {
				t.Errorf("the grant says that its lease is of %v", left)
			}
			row := r.row(t, g.GetOperationId())
			granted, lease := row.instant(t, "grant_time"), row.instant(t, "grant_lease_until")
			for column, want := range map[string]time.Duration{"grant_lease_until": 2 * time.Second, "grant_send_until": 2 * time.Second, "last_send": 2 * time.Second, "first_start": 0} {
				if got := row.instant(t, column).Sub(granted); got != want {
					t.Errorf("%s is %v after the grant, want %v", column, got, want)
				}
			}
			for column, want := range map[string]time.Duration{"terms_key_retention": 24 * time.Hour, "terms_effect_within": askedEffectWithin} {
				if got := row[column]; got != number(uint64(want)) {
					t.Errorf("%s is %s ns, want %v", column, got, want)
				}
			}
			op := w.view(t, g.GetOperationId())
			if got := op.GetSettleTime().AsTime().Sub(granted); got != 2*time.Second+askedEffectWithin {
				t.Errorf("the settle time is %v after the grant", got)
			}

			leaseEnds(t, r.node.dial(t, billing), func() *pb.ClaimRequest { return again(claim) }, lease, false)
			var asked time.Time
			eventually(t, "recovery has asked", func() bool {
				for _, e := range r.ft.account(t).Entries {
					if e.Kind == target.Query && e.Key == g.GetDownstreamKey() {
						asked = e.Time
					}
				}
				return !asked.IsZero()
			})
			const poll = 1200 * time.Millisecond // of the loop, with its jitter
			if after := asked.Sub(lease); after < 0 || after > poll+2*time.Second {
				t.Errorf("recovery asked %v after the lease", after)
			}
			wantUnits(t)
		})
	}
}

// wantUnits fails unless a duration without its unit is refused, in a contract and as a setting.
func wantUnits(t *testing.T) {
	program, err := plainBinary()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if err := os.WriteFile(path, []byte("tools:\n  t:\n    effect: unsafe\n    send_within: 30\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"contracts", "check", path}, {"config", "print", "--drain-delay", "30"}} {
		text, err := exec.CommandContext(within(t), program, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(text), "must be a number with its unit") {
			t.Errorf("ledgerd %s: %v, %s", args[0], err, text)
		}
	}
}
