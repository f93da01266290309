// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// The rows of target-answers.tsv that leave something to be found out, with the loop that finds it out: an action whose outcome is unknown, to its end, and each
// answer to the query.
func TestC35Recovered(t *testing.T) {
	rows := targetAnswers(t)
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(rows)) {
				row := rows[name]
				for _, try := range answersTried[name] {
					switch {
					case row.state == "unknown, next check later with backoff":
						t.Run(try.name, func(t *testing.T) {
							t.Parallel()
							askedLater(t, newRecovering(t, store, nodeOptions{}), row, try)
						})
					case row.call == "query":
						t.Run(try.name, func(t *testing.T) {
							t.Parallel()
							r := newRecovering(t, store, nodeOptions{})
							a := act(t, r.env, r.ft, try)
							stands := standsAs[row.state]
							custody := pb.Custody_CUSTODY_AUTOMATION
							if stands.reason != 0 {
								custody = pb.Custody_CUSTODY_QUEUED
							}
							r.settles(t, a.operation, stands.state, custody, stands.reason)
							a.wantRow(t, r.env, row)
						})
					case row.state == "unknown":
						t.Run(try.name, func(t *testing.T) {
							t.Parallel()
							foundOut(t, newRecovering(t, store, nodeOptions{}), try)
						})
					}
				}
			}
		})
	}
}

// askedLater fails unless the outcome stays unknown and the target is asked again, later than the last time, and not before it said.
func askedLater(t *testing.T, r recovering, row answerRow, try answered) {
	a := act(t, r.env, r.ft, try)
	var asked []time.Time
	eventually(t, "it was asked again", func() bool {
		asked = nil
		for _, e := range r.ft.account(t).Entries {
			if e.Kind == target.Query && e.Key == a.key {
				asked = append(asked, e.Time)
			}
		}
		return len(asked) > 1 && a.w.view(t, a.operation).GetNextCheckTime().AsTime().After(asked[1])
	})
	if gap := asked[1].Sub(asked[0]); gap < try.knobs[len(try.knobs)-1].RetryAfter {
		t.Errorf("the target was asked again after %v", gap)
	}
	a.wantRow(t, r.env, row)
}

// foundOut fails unless what the target has made is found, and what it has not made is made by a second worker, under the same key.
func foundOut(t *testing.T, r recovering, try answered) {
	for i, k := range try.knobs {
		if k.Fault == target.FaultLateCommit { // within what the contract states
			try.knobs = slices.Clone(try.knobs)
			try.knobs[i].Delay = askedEffectWithin / 2
		}
	}
	a := act(t, r.env, r.ft, try)
	wantOutcome(t, a.w.claim(t, again(a.claim)), "UNKNOWN")
	sends := 1
	if try.effects == 0 {
		r.settles(t, a.operation, pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_AUTOMATION, 0)
		if err := r.ft.Server.SetKnobs(target.Payments); err != nil {
			t.Fatal(err)
		}
		second, next := r.node.dial(t, billing), again(a.claim)
		if g := second.grant(t, next); g.GetDownstreamKey() != a.key {
			t.Errorf("the second attempt has the key %q, want %q", g.GetDownstreamKey(), a.key)
		}
		a.send(t, second, a.ft.Client, next.GetClaimId())
		sends++
	}
	r.settles(t, a.operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	wantOutcome(t, a.w.claim(t, again(a.claim)), "REPLAY")
	r.ft.wantAccount(t, target.Payments, a.key, 1, sends)
}
