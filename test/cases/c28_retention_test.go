// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// C28, retention: a process whose clock is a minute fast retires nothing early, and one whose clock is a minute slow nothing late. On SQLite one clock is that of
// all, and wrong for all.
func TestC28Retention(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			contracts := agedFile(t)
			serves, fast, slow := newClockFile(t, 0), newClockFile(t, time.Minute), newClockFile(t, -time.Minute)
			if store == "sqlite" {
				serves = newClockFile(t, time.Minute)
				fast, slow = serves, serves
			}
			e := fresh(t, store, nodeOptions{clock: serves, args: []string{"--contracts", contracts}})
			w := e.node.dial(t, billing)
			r := request("card.charge", unique(t), "K", `{"amount":1}`)
			id := w.grant(t, r).GetOperationId()
			w.applied(t, completion(id, r.GetClaimId(), "charge", "ch_1"))
			settled := time.Now()
			e.age(t, id, 24*time.Hour-50*time.Second)
			sweepBy := func(clock clockFile) {
				t.Helper()
				n := e.start(t, nodeOptions{recovers: true, clock: clock, args: []string{"--contracts", contracts}})
				eventually(t, "retention has passed", func() bool { return n.metric(t, "ledger_retention_last_success_seconds") > 0 })
				n.kill(t)
			}
			sweepBy(fast)
			if row := e.row(t, id); time.Since(settled) < 50*time.Second && row["state"] != number(uint64(ledger.Completed)) {
				t.Errorf("by a fast clock it is in state %s before its day is over", row["state"])
			}
			e.age(t, id, 50*time.Second)
			sweepBy(slow)
			if row := e.row(t, id); row["state"] != number(uint64(ledger.Retired)) {
				t.Errorf("by a slow clock it is in state %s after its day", row["state"])
			}
		})
	}
}
