// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// The loop itself does not see the outcome of its COMMIT, of the one that takes a check, once or twice in a row, or of the one with what it has found. It asks about an
// operation as often as it has taken a check, and the operation completes once.
func TestC41Recovered(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			for _, f := range []loopFault{
				{name: "the check, once", times: 1}, {name: "the check, twice in a row", times: 2}, {name: "the finding", after: 1, times: 1},
			} {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					r := newRecovering(t, store, nodeOptions{args: []string{"--recovery", "off"}})
					fired := f.inLoop(t, r)
					w := r.node.dial(t, billing)
					claim := request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)
					g := w.grant(t, claim)
					if _, err := r.ft.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"}); err != nil {
						t.Fatal(err)
					}
					w.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
					fired()
					op := r.settles(t, g.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
					if op.GetNeedsAttention() || op.GetAttempts() != 1 {
						t.Errorf("there were %d grants; somebody has to look at it: %v", op.GetAttempts(), op.GetNeedsAttention())
					}
					// The grant, its mark, each check that was taken, and the success.
					checks := 1
					if f.after == 0 && f.times == 2 { // the first one was taken without the loop's knowledge
						checks = 2
					}
					if n := len(r.history(t, g.GetOperationId())); n != 3+checks {
						t.Errorf("the operation has %d events, want %d", n, 3+checks)
					}
					if n := r.ft.account(t).Queries(target.Payments, g.GetDownstreamKey()); n != 1 {
						t.Errorf("the target was asked %d times, want once", n)
					}
					r.ft.wantAccount(t, target.Payments, g.GetDownstreamKey(), 1, 1)
				})
			}
		})
	}
}

// loopFault is what happens to the COMMITs of a process that recovers: after some, so many are lost to it.
type loopFault struct {
	name         string
	after, times int
}

// inLoop starts the process, and returns what fails the test unless the fault has happened.
func (f loopFault) inLoop(t *testing.T, r recovering) func() {
	t.Helper()
	o := nodeOptions{recovers: true, args: append(r.args, "--reload-interval", "1h")}
	if r.store == "sqlite" {
		held := filepath.Join(t.TempDir(), "held") // what comes behind the fault makes it
		order := fmt.Sprintf("%d*error->1*hold(%s)", f.times, held)
		if f.after > 0 {
			order = fmt.Sprintf("%d*off->", f.after) + order
		}
		o.failpoints = "store.update.after-commit=" + order
		r.start(t, o)
		return func() {
			eventually(t, "the commits were lost", func() bool { return os.Remove(held) == nil })
		}
	}
	proxy, err := faultproxy.Start("tcp", pgtest.Get(t).Addr(), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	o.store = postgresURL(proxy.Addr().String(), r.database)
	r.start(t, o)
	_, sent := faultproxy.PgxStatement("COMMIT")
	trap := proxy.Arm(faultproxy.Rule{
		Point: sent, Nth: f.after + 1, Times: f.times,
		Cut: faultproxy.Cut{
			What: faultproxy.DropAnswer, How: faultproxy.RST, Await: faultproxy.PostgresMessage(faultproxy.ServerToClient, 'C', "commit"),
		},
	})
	return func() {
		if err := trap.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
}
