// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
)

// withoutIntents lets a key come without saying when it was decided on.
const withoutIntents = `tools:
  card.charge:
    effect: keyed
    require_intent_time: false
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
    retention: {retry_window: 24h, completed: 24h, history: 36h}
`

// at is the ledger of a process that starts at a time.
func (s *still) at(t *testing.T, now time.Time, contracts string) {
	t.Helper()
	var err error
	if s.contracts, err = contract.Parse("contracts.yaml", []byte(contracts)); err != nil {
		t.Fatal(err)
	}
	s.now.Store(now.UnixMicro())
	s.Ledger = ledger.New(s.store, s.contracts)
}

// TestQuarantineToTheSecond: after a restore an absent key that was decided on before is investigated, for ever where it says when that was, less the skew
// of its clock; without that, until nobody may try it again.
func TestQuarantineToTheSecond(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			s := newStill(t, store, agedContracts)
			restorable, ok := s.store.(ledger.RestoreStore)
			if !ok {
				t.Fatalf("%T is no ledger.RestoreStore", s.store)
			}
			settled, err := s.claim(t, "settled", time.UnixMicro(s.now.Load()))
			if err != nil {
				t.Fatal(err)
			}
			s.report(t, settled)
			open, err := s.claim(t, "open", time.UnixMicro(s.now.Load()))
			if err != nil {
				t.Fatal(err)
			}
			begins := time.UnixMicro(s.now.Load()).Add(10 * time.Second).UTC()
			s.now.Store(begins.UnixMicro())
			lost := begins.Add(-time.Hour)
			next, err := restorable.Restored(t.Context(), lost)
			if err != nil {
				t.Fatal(err)
			}

			const skew = 5 * time.Minute
			for _, c := range []struct {
				name          string
				contracts     string
				after, intent time.Duration // since the quarantine began
				unknown       bool
				first         time.Time
			}{
				{"decided just before", agedContracts, 0, skew - time.Second, true, begins.Add(-time.Second)},
				{"decided then", agedContracts, 0, skew, false, time.Time{}},
				{"decided just before, a day later", agedContracts, 24 * time.Hour, skew - time.Second, true, begins.Add(-time.Second)},
				{"without a time", withoutIntents, 0, 0, true, lost},
				{"without a time, at its end", withoutIntents, 24*time.Hour - time.Second, 0, true, lost},
				{"without a time, after it", withoutIntents, 24 * time.Hour, 0, false, time.Time{}},
				{"without a time, long after it", withoutIntents, 48 * time.Hour, 0, false, time.Time{}},
			} {
				s.at(t, begins.Add(c.after), c.contracts)
				var intent time.Time
				if c.contracts == agedContracts {
					intent = begins.Add(c.intent)
				}
				answer, err := s.claim(t, c.name, intent)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					continue
				}
				op := s.op(t, answer.Operation.ID)
				if c.unknown != (answer.Outcome == ledger.OutcomeUnknown) || !c.unknown && answer.Outcome != ledger.OutcomeGranted {
					t.Errorf("%s: told %v", c.name, answer.Outcome)
				}
				if c.unknown && (op.State != ledger.Unknown || !op.MayHaveApplied || !op.FirstStart.Equal(c.first) || op.Attempts != 0) {
					t.Errorf("%s: %v, in doubt: %v, first start %v, want %v; %d attempts", c.name, op.State, op.MayHaveApplied, op.FirstStart, c.first, op.Attempts)
				}
				if op.Grant.Epoch>>32 != uint64(next.Number) {
					t.Errorf("%s: epoch %d is not of timeline %d", c.name, op.Grant.Epoch, next.Number)
				}
			}

			s.at(t, begins, agedContracts)
			if answer, err := s.claim(t, "settled", begins); err != nil || answer.Outcome != ledger.OutcomeCompleted {
				t.Errorf("what was settled: told %v, %v", answer.Outcome, err)
			}
			if answer, err := s.claim(t, "open", begins); err != nil || answer.Outcome != ledger.OutcomeUnknown {
				t.Errorf("what was under way: told %v, %v", answer.Outcome, err)
			}
			op := s.op(t, open.Operation.ID)
			if op.Grant.Epoch <= open.Operation.Grant.Epoch || op.Grant.ClaimID != "" || op.Timeline != next.Number {
				t.Errorf("what was under way is of timeline %d, has epoch %d after %d, and a holder: %v", op.Timeline, op.Grant.Epoch, open.Operation.Grant.Epoch, op.Grant.ClaimID != "")
			}
			s.report(t, open) // its holder was not lost after all
			if op = s.op(t, open.Operation.ID); op.State != ledger.Completed {
				t.Errorf("the report of what was under way has left it %v", op.State)
			}
		})
	}
}
