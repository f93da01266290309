// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// agedContracts let what is settled go after a day, its history after a day and a half, its key after two. For ten years nobody is missed who could ask the target, so that
// only retention may move what is old.
const agedContracts = `tools:
  card.charge:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [], checks: {give_up_after: 87600h}}
    retention: {retry_window: 24h, completed: 24h, history: 36h, tombstone: 48h}
`

// agedFile is a file with them.
func agedFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if err := os.WriteFile(path, []byte(agedContracts), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sweepers start at once, and are there until each has come to the end of what is old.
func sweepers(t *testing.T, e *env, contracts string, many int) (swept func()) {
	t.Helper()
	var nodes []*node
	for range many {
		nodes = append(nodes, e.start(t, nodeOptions{recovers: true, args: []string{"--contracts", contracts}}))
	}
	return func() {
		t.Helper()
		for _, n := range nodes {
			eventually(t, "retention has passed", func() bool { return n.metric(t, "ledger_retention_last_success_seconds") > 0 })
			n.kill(t)
		}
	}
}

// decidedThen is a Claim of the same key and body, with the time of an intent that is so old.
func decidedThen(r *pb.ClaimRequest, ago time.Duration) *pb.ClaimRequest {
	c := again(r)
	c.IntentTime = timestamppb.New(time.Now().Add(-ago))
	return c
}

// C56 with real processes: records of 25 hours in every state, and two that sweep at once. What is unsettled stays as it is; what is settled is retired, and its
// key is refused; then it is forgotten, and refused for its age.
func TestC56(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			contracts := agedFile(t)
			e := fresh(t, store, nodeOptions{args: []string{"--contracts", contracts}})
			w := e.node.dial(t, billing)
			claim := func(name string) (*pb.ClaimRequest, string) {
				r := request("card.charge", unique(t), name, `{"amount":1}`)
				return r, w.grant(t, r).GetOperationId()
			}
			completed, completedID := claim("completed")
			w.applied(t, completion(completedID, completed.GetClaimId(), "charge", "ch_1"))
			reserved := request("card.charge", unique(t), "reserved", `{"amount":1}`)
			reserved.Reserve = true
			reservedID := w.grant(t, reserved).GetOperationId()
			contradicted, contradictedID := claim("contradicted")
			w.applied(t, &pb.CompleteRequest{OperationId: contradictedID, ClaimId: contradicted.GetClaimId(), Outcome: &pb.CompleteRequest_Rejected{
				Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "card_declined"},
			}, SentExactlyOnce: true})
			w.complete(t, completion(contradictedID, contradicted.GetClaimId(), "charge", "ch_2"))
			unknown, unknownID := claim("unknown")
			w.markUnknown(t, unknownID, unknown.GetClaimId())
			_, runningID := claim("running")
			left := map[string]string{"contradicted": contradictedID, "unknown": unknownID, "running": runningID}
			old := func(by time.Duration) {
				for _, id := range []string{completedID, reservedID, contradictedID, unknownID, runningID} {
					if e.row(t, id) != nil {
						e.age(t, id, by)
					}
				}
			}
			replay := w.claim(t, again(completed))
			wantOutcome(t, replay, "REPLAY")
			old(25 * time.Hour)
			was := map[string]snapshot{}
			for name, id := range left {
				was[name] = e.snapshot(t, id)
			}

			sweepers(t, e, contracts, 2)()
			if row := e.row(t, completedID); row["state"] != number(uint64(ledger.Retired)) || len(e.history(t, completedID)) == 0 {
				t.Errorf("what was completed has the state %s", row["state"])
			}
			_, err := w.tryClaim(t, decidedThen(completed, 25*time.Hour))
			wantRetired(t, err, "COMPLETED")
			_, err = w.tryClaim(t, sameKey(completed, `{"amount":2}`))
			wantRetired(t, err, "")
			_, err = w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: completedID}})
			if code := codeOf(err); code != codes.NotFound {
				t.Errorf("what is retired is looked up with %v", code)
			}
			expired := w.claim(t, decidedThen(reserved, 25*time.Hour))
			wantOutcome(t, expired, "FAILED")
			if kind := expired.GetFailed().GetKind(); kind != pb.FailureKind_FAILURE_KIND_EXPIRED {
				t.Errorf("what nobody wanted has failed as %v", kind)
			}
			for name, id := range left {
				t.Run(name, func(t *testing.T) { e.wantUnchanged(t, id, was[name]) })
			}

			old(12 * time.Hour)
			sweepers(t, e, contracts, 1)()
			if row := e.row(t, completedID); row == nil || len(e.history(t, completedID)) != 0 {
				t.Error("its history is not forgotten, or its key is")
			}
			old(12 * time.Hour)
			sweepers(t, e, contracts, 2)()
			if e.row(t, completedID) != nil {
				t.Error("the key is not forgotten")
			}
			e.storesNothing(t, func() {
				_, err = w.tryClaim(t, decidedThen(completed, 49*time.Hour))
				wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_KEY_TOO_OLD)
			})
			_, err = w.tryClaim(t, decidedThen(reserved, 49*time.Hour))
			wantRetired(t, err, "FAILED")
			old(9 * 365 * 24 * time.Hour)
			sweepers(t, e, contracts, 1)()
			for name, id := range left {
				if row := e.row(t, id); row["state"] != was[name].Row["state"] || row["sequence"] != was[name].Row["sequence"] {
					t.Errorf("after nine years, %s has the state %s and %s events", name, row["state"], row["sequence"])
				}
			}
		})
	}
}

// C56 while others claim: 64 of them ask for keys that two processes retire, and then forget. None of them is ever told to execute.
func TestC56Racing(t *testing.T) {
	const keys, claimers = 64, 64
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			contracts := agedFile(t)
			e := fresh(t, store, nodeOptions{args: []string{"--contracts", contracts}})
			w := e.node.dial(t, billing)
			requests, ids := make([]*pb.ClaimRequest, keys), make([]string, keys)
			for i := range requests {
				requests[i] = request("card.charge", unique(t), "K", `{"amount":1}`)
				ids[i] = w.grant(t, requests[i]).GetOperationId()
				w.applied(t, completion(ids[i], requests[i].GetClaimId(), "charge", fmt.Sprint("ch_", i)))
			}
			workers := make([]*worker, claimers)
			for i := range workers {
				workers[i] = e.node.dial(t, billing)
			}
			race := func(age time.Duration, allowed map[string]bool) {
				t.Helper()
				for _, id := range ids {
					e.age(t, id, 25*time.Hour)
				}
				var over atomic.Bool
				var told sync.Map
				var group sync.WaitGroup
				for i, w := range workers {
					group.Go(func() {
						for n := 0; !over.Load(); n++ {
							answer, err := w.tryClaim(t, decidedThen(requests[(i+n)%keys], age))
							name := reasonIn(err)
							if err == nil {
								name = outcome(answer)
							}
							told.Store(name, true)
						}
					})
				}
				sweepers(t, e, contracts, 2)()
				over.Store(true)
				group.Wait()
				told.Range(func(name, _ any) bool {
					if !allowed[name.(string)] {
						t.Errorf("after %v somebody was told %v", age, name)
					}
					return true
				})
			}
			race(25*time.Hour, map[string]bool{"REPLAY": true, "KEY_RETIRED": true})
			for i, id := range ids {
				if row := e.row(t, id); row["state"] != number(uint64(ledger.Retired)) || row["attempts"] != "1" {
					t.Errorf("key %d has the state %s after %s grants", i, row["state"], row["attempts"])
				}
			}
			race(50*time.Hour, map[string]bool{"KEY_RETIRED": true, "KEY_TOO_OLD": true})
			if operations, events := e.counts(t); operations != "0" || events != "0" {
				t.Errorf("%s operations and %s events are left", operations, events)
			}
		})
	}
}

// wantRetired fails unless a key is refused as retired, with that outcome.
func wantRetired(t *testing.T, err error, outcome string) {
	t.Helper()
	wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_KEY_RETIRED)
	if got := detail[*errdetails.ErrorInfo](err).GetMetadata()["outcome"]; got != outcome {
		t.Errorf("it is said to be %q, want %q", got, outcome)
	}
}

// reasonIn is the reason of a refusal.
func reasonIn(err error) string {
	if info := detail[interface{ GetReason() string }](err); info != nil {
		return info.GetReason()
	}
	return fmt.Sprint(err)
}

// C56 and C31 to the second, over each store with a clock that stands still between the steps: what is settled is kept for as long as the contract says, and not a
// second longer or shorter.
func TestC56ToTheSecond(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newStill(t, store, agedContracts)
			id := r.completed(t, "K")
			op := r.op(t, id)
			final := op.FinalTime
			for _, step := range []struct {
				after time.Duration
				state ledger.State // 0: forgotten
				told  error
			}{
				{24*time.Hour - time.Second, ledger.Completed, nil},
				{24 * time.Hour, ledger.Retired, ledger.ErrKeyRetired},
				{24*time.Hour + time.Second, ledger.Retired, ledger.ErrKeyRetired},
				{36*time.Hour - time.Second, ledger.Retired, ledger.ErrKeyRetired},
				{36 * time.Hour, ledger.Retired, ledger.ErrKeyRetired},
				{48*time.Hour - time.Second, ledger.Retired, ledger.ErrKeyRetired},
				{48 * time.Hour, 0, ledger.ErrKeyTooOld},
				{48*time.Hour + time.Second, 0, ledger.ErrKeyTooOld},
			} {
				r.now.Store(final.Add(step.after).UnixMicro())
				r.sweepTwice(t)
				got, _, err := r.store.Get(t.Context(), id)
				if (step.state == 0) != errors.Is(err, ledger.ErrOperationNotFound) || got.State != step.state {
					t.Errorf("after %v: %v, %v", step.after, got.State, err)
				}
				if step.state == ledger.Retired && (!got.FinalTime.Equal(final) || got.Result != nil) {
					t.Errorf("after %v: it was settled at %v, and has a result: %v", step.after, got.FinalTime, got.Result != nil)
				}
				events, err := r.Events(t.Context(), id)
				if (len(events) > 0) != (step.after < 36*time.Hour) || err != nil && step.state != 0 {
					t.Errorf("after %v it has %d events, %v", step.after, len(events), err)
				}
				answer, err := r.claim(t, "K", op.IntentTime)
				if !errors.Is(err, step.told) || err == nil && answer.Outcome != ledger.OutcomeCompleted {
					t.Errorf("after %v a claim is told %v, %v", step.after, answer.Outcome, err)
				}
			}
		})
	}
}

// C31: what the ledger says it keeps is what it keeps, in the units of the contract: a day is 86400 seconds after settlement, by the stored columns.
func TestC31Retention(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			contracts := agedFile(t)
			e := fresh(t, store, nodeOptions{args: []string{"--contracts", contracts}})
			w := e.node.dial(t, billing)
			r := request("card.charge", unique(t), "K", `{"amount":1}`)
			g := w.grant(t, r)
			if row := e.row(t, g.GetOperationId()); row.instant(t, "grant_lease_until").Sub(row.instant(t, "grant_time")) != 30*time.Second {
				t.Error("the lease is not 30 s")
			}
			w.applied(t, completion(g.GetOperationId(), r.GetClaimId(), "charge", "ch_1"))
			until := w.claim(t, again(r)).GetRememberedUntil().AsTime()
			if kept := until.Sub(e.row(t, g.GetOperationId()).instant(t, "final_time")); kept != 86400*time.Second {
				t.Errorf("it is kept for %v, want 24h", kept)
			}
			e.age(t, g.GetOperationId(), 24*time.Hour-time.Minute)
			sweepers(t, e, contracts, 1)()
			wantOutcome(t, w.claim(t, again(r)), "REPLAY")
			e.age(t, g.GetOperationId(), time.Minute)
			sweepers(t, e, contracts, 1)()
			_, err := w.tryClaim(t, again(r))
			wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_KEY_RETIRED)
		})
	}
}

// claimID draws one.
func claimID() ledger.ClaimID { return ledger.ClaimID(uuid.NewString()) }
