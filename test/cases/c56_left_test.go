// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// leftContracts have a tool for each way in which recovery goes on, and a refund that is forgotten before its charge.
const leftContracts = refundContracts + `
  card.regranted:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: regrant, key_retention: 24h, effect_within: 60s}
    retention: {retry_window: 24h, completed: 24h, history: 36h, tombstone: 48h}
  card.by-hand:
    effect: unsafe
    retention: {retry_window: 24h, completed: 24h, history: 36h, tombstone: 48h}
`

// C56 for all that is not settled, is contradicted, or is still needed: two sweepers leave it as it is, byte by byte, at each end of a window and after ten years.
func TestC56LeavesUnsettled(t *testing.T) {
	person := ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-a"}
	loop := ledger.Actor{Kind: ledger.ActorRecovery, Name: "loop"}
	resource := func(id string) ledger.Complete {
		return ledger.Complete{Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: id}}}
	}
	rejected := ledger.Complete{Rejected: &ledger.Failure{Kind: ledger.Declined}, SentExactlyOnce: true}
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			s := newStill(t, store, leftContracts)
			do := func(id ledger.OperationID, command string, cmd ledger.Command) {
				t.Helper()
				_, err := s.Do(t.Context(), id, command, func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return cmd, nil })
				if err != nil {
					t.Fatalf("%T: %v", cmd, err)
				}
			}
			granted := func(tool ledger.Tool, key string, of ledger.OperationID) *ledger.Operation {
				t.Helper()
				answer, err := s.claimAs(t, ledger.Claim{
					Key: ledger.Key{Scope: "team", Tool: tool, Task: ledger.Task(key), Key: key}, IntentTime: s.time(), Compensates: of,
				})
				if err != nil || answer.Outcome != ledger.OutcomeGranted {
					t.Fatal(key, answer.Outcome, err)
				}
				return answer.Operation
			}
			unknown := func(op *ledger.Operation) *ledger.Operation {
				t.Helper()
				do(op.ID, string(op.Grant.ClaimID), ledger.MarkUnknown{ClaimID: op.Grant.ClaimID, Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: billing}})
				return op
			}
			held := func(op *ledger.Operation) *ledger.Operation {
				t.Helper()
				command := claimID()
				do(op.ID, string(command), ledger.TakeOver{CommandID: ledger.CommandID(command), Actor: person, ExpectedVersion: s.op(t, op.ID).Version, Reason: "r"})
				return op
			}
			ends := func(op *ledger.Operation, cs ...ledger.Complete) *ledger.Operation {
				t.Helper()
				for _, c := range cs {
					s.ends(t, op, c)
				}
				return op
			}
			neverSent := ledger.Complete{NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent}}
			charge := func(key string) *ledger.Operation { return granted("card.charge", key, ledger.OperationID{}) }
			left := map[string]*ledger.Operation{
				"PROCESSING":              charge("running"),
				"UNKNOWN":                 unknown(charge("unknown")),
				"queued":                  unknown(granted("card.by-hand", "queued", ledger.OperationID{})),
				"held":                    held(unknown(charge("held"))),
				"held while it runs":      held(charge("held-running")),
				"RECEIVED and held":       held(ends(charge("held-received"), neverSent)),
				"a kept success":          ends(held(charge("kept")), resource("ch_1")),
				"contradicted FAILED":     ends(charge("failed"), rejected, resource("ch_2")),
				"contradicted COMPLETED":  ends(charge("completed"), resource("ch_3"), resource("ch_4")),
				"an original":             ends(charge("original"), resource("ch_5")),
				"a contradicted refund's": ends(charge("original-2"), resource("ch_6")),
			}
			doubted := granted("card.regranted", "doubted", ledger.OperationID{})
			left["RECEIVED in doubt"] = doubted
			s.now.Add(int64(10 * time.Minute / time.Microsecond))
			do(doubted.ID, "", ledger.Regrant{Actor: loop})
			refund := granted("card.refund", "refund", left["an original"].ID)
			left["a refund"] = refund
			left["a contradicted refund"] = ends(granted("card.refund", "refund-2", left["a contradicted refund's"].ID), rejected, resource("re_2"))
			was, history := map[string]ledger.Operation{}, map[string][]ledger.Event{}
			events := func(id ledger.OperationID) []ledger.Event {
				t.Helper()
				all, err := s.Events(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				return all
			}
			for name, op := range left {
				was[name], history[name] = s.op(t, op.ID), events(op.ID)
			}
			for name, want := range map[string]ledger.State{"RECEIVED in doubt": ledger.Received, "contradicted FAILED": ledger.Failed, "an original": ledger.Completed, "a refund": ledger.Processing} {
				if op := was[name]; op.State != want || name == "RECEIVED in doubt" && !op.MayHaveApplied {
					t.Fatalf("%s is %v", name, op.State)
				}
			}
			if was["queued"].Custody != ledger.Queued || was["a kept success"].Detail.Kept == nil || !was["contradicted COMPLETED"].NeedsAttention {
				t.Fatal("what is queued, kept or contradicted is not")
			}
			begin := s.time()
			for _, after := range []time.Duration{time.Hour, 2 * time.Hour, 24 * time.Hour, 36 * time.Hour, 48 * time.Hour, 10 * 365 * 24 * time.Hour} {
				s.now.Store(begin.Add(after).UnixMicro())
				s.sweepTwice(t)
				for name, op := range left {
					got, _, err := s.store.Get(t.Context(), op.ID)
					if err != nil {
						t.Errorf("after %v, %s: %v", after, name, err)
						continue
					}
					if diff := cmp.Diff(was[name], got); diff != "" {
						t.Errorf("after %v, %s has changed (-was +is):\n%s", after, name, diff)
					}
					if diff := cmp.Diff(history[name], events(op.ID)); diff != "" {
						t.Errorf("after %v, the history of %s has changed (-was +is):\n%s", after, name, diff)
					}
				}
			}
			s.ends(t, refund, resource("re_1")) // it was all that the original was kept for
			s.sweepTwice(t)
			// After ten years its key may be forgotten, too: the one sweeper may come to it right after the other one has retired it.
			op, _, err := s.store.Get(t.Context(), left["an original"].ID)
			if forgotten := errors.Is(err, ledger.ErrOperationNotFound); !forgotten && (err != nil || op.State != ledger.Retired) {
				t.Errorf("once its refund is settled, the original is %v, %v", op.State, err)
			}
		})
	}
}
