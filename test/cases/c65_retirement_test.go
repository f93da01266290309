// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// refundContracts keep a charge for a day, and its refund for an hour: who refunded it is forgotten while it can still be refunded.
const refundContracts = `tools:
  card.charge:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
    retention: {retry_window: 24h, completed: 24h, history: 36h, tombstone: 48h}
    compensation: {tool: card.refund, require_unchanged: false, per_original: 1}
  card.refund:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
    retention: {retry_window: 1h, completed: 1h, history: 1h, tombstone: 2h}
`

// refunded is a charge, and who was told to refund it.
type refunded struct {
	charge  ledger.Operation
	granted []ledger.Operation
}

// refunds are charges whose refunds race retention: many claimers and two sweepers, on two ledgers.
type refunds struct {
	ledgers []*still
	charges []*refunded
	round   int
}

const refundsAtOnce = 64

func newRefunds(t *testing.T, store string, many int) *refunds {
	s := newStill(t, store, refundContracts)
	r := &refunds{ledgers: []*still{s, s.beside(t)}}
	for i := range many {
		id := s.completed(t, fmt.Sprint("charge-", i))
		r.charges = append(r.charges, &refunded{charge: s.op(t, id)})
		r.to(s.time().Add(time.Second)) // each is settled at its own time
	}
	return r
}

func (r *refunds) to(now time.Time) { r.ledgers[0].now.Store(now.UnixMicro()) }

// retire is what a sweeper does with what may be old enough.
func (s *still) retire(t *testing.T, id ledger.OperationID) {
	_, err := s.Do(t.Context(), id, "", func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return ledger.Retire{}, nil })
	if err != nil && !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Error(err)
	}
}

func (r *refunds) refund(t *testing.T, by int, of *refunded, key string) (ledger.Answer, error) {
	s := r.ledgers[by%len(r.ledgers)]
	return s.claimAs(t, ledger.Claim{
		Key:        ledger.Key{Scope: "team", Tool: "card.refund", Task: ledger.Task(key), Key: key}, // no task waits for another one's refund
		IntentTime: s.time().Add(5 * time.Minute), Compensates: of.charge.ID,
	})
}

// race lets as many claim a refund of a charge at once, each under a key of its own, when it becomes the given time. Meanwhile two sweep without a pause, and two do what
// sweepers do with that charge and its refunds, which are so met in between as often as can be.
func (r *refunds) race(t *testing.T, of *refunded, end time.Time) {
	t.Helper()
	r.round++
	refundsBefore := of.granted
	var swept, claimed sync.WaitGroup
	var over atomic.Bool
	for i := range r.ledgers {
		swept.Go(func() {
			for !over.Load() {
				r.ledgers[i].sweep(t)
			}
		})
		swept.Go(func() {
			for !over.Load() {
				r.ledgers[i].retire(t, of.charge.ID)
				for _, g := range refundsBefore {
					r.ledgers[i].retire(t, g.ID)
				}
			}
		})
	}
	answers, begin := make([]ledger.Answer, refundsAtOnce), make(chan struct{})
	for i := range refundsAtOnce {
		claimed.Go(func() {
			<-begin
			var err error
			answers[i], err = r.refund(t, i, of, fmt.Sprintf("refund-%d-%d", r.round, i))
			if err != nil && !errors.Is(err, ledger.ErrDuplicateIntent) && !errors.Is(err, ledger.ErrOriginalHasNoEffect) {
				t.Error(err)
			}
		})
	}
	r.to(end)
	close(begin)
	claimed.Wait()
	over.Store(true)
	swept.Wait()
	for i := range answers {
		if answers[i].Outcome == ledger.OutcomeGranted {
			of.granted = append(of.granted, *answers[i].Operation)
		}
	}
}

// C65 against retention: a charge becomes old while 64 refund it. It is refunded once, and kept as long as that is not settled; or it is retired, and nobody refunds it.
func TestC65RacingRetirement(t *testing.T) {
	const many = 24
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRefunds(t, store, many)
			retired := 0
			for i, c := range r.charges {
				end := c.charge.FinalTime.Add(24 * time.Hour)
				r.to(end.Add(-time.Second))
				r.race(t, c, end)
				r.ledgers[0].sweepTwice(t)
				state := r.ledgers[0].op(t, c.charge.ID).State
				switch {
				case len(c.granted) == 1 && state == ledger.Completed:
				case len(c.granted) == 0 && state == ledger.Retired:
					retired++
				default:
					t.Errorf("charge %d is %v, and %d were told to refund it", i, state, len(c.granted))
				}
			}
			t.Logf("%d of %d charges were retired, the others are being refunded", retired, many)
		})
	}
}

// C65 after the refund: it is retired while others ask for one, then its key is forgotten, then the charge is retired. Nobody is told to refund it again, be it under the
// key that is forgotten; a refund that failed makes room for one, until it is forgotten.
func TestC65RacingForgottenRefunds(t *testing.T) {
	const many = 4
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRefunds(t, store, many)
			s := r.ledgers[0]
			for _, c := range r.charges {
				r.race(t, c, s.time().Add(10*time.Minute))
			}
			refund, failure := ledger.Complete{Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: "re_1"}}},
				ledger.Complete{Rejected: &ledger.Failure{Kind: ledger.Declined}, SentExactlyOnce: true}
			settled := make([]time.Time, many)
			for i, c := range r.charges {
				if len(c.granted) != 1 {
					t.Fatalf("%d were told to refund charge %d", len(c.granted), i)
				}
				how := refund
				if i >= many/2 {
					how = failure
				}
				s.ends(t, &c.granted[0], how)
				settled[i] = s.time()
				r.to(settled[i].Add(2 * time.Second))
			}
			raced := func(i int, hours time.Duration, granted int) {
				t.Helper()
				r.to(settled[i].Add(hours*time.Hour - time.Second))
				r.race(t, r.charges[i], settled[i].Add(hours*time.Hour))
				if got := len(r.charges[i].granted); got != granted {
					t.Errorf("after %d hours, %d were told to refund charge %d, want %d", hours, got, i, granted)
				}
			}
			for i, c := range r.charges[:many-1] { // of the last one, nobody asks while its failed refund is remembered
				if i < many/2 {
					raced(i, 1, 1)
					continue
				}
				raced(i, 1, 2)
				s.ends(t, &c.granted[1], refund)
			}
			s.sweepTwice(t)
			r.to(settled[many-1].Add(time.Hour))
			s.sweepTwice(t)
			for i, c := range r.charges {
				if got := s.op(t, c.granted[0].ID).State; got != ledger.Retired {
					t.Errorf("the refund of charge %d is %v", i, got)
				}
			}
			for i, c := range r.charges[:many-1] {
				raced(i, 2, len(c.granted))
			}
			r.to(settled[many-1].Add(2 * time.Hour))
			s.sweepTwice(t)
			for i, c := range r.charges {
				raced(i, 3, len(c.granted))
			}
			r.to(settled[many-1].Add(4 * time.Hour))
			s.sweepTwice(t)
			for i, c := range r.charges {
				for _, op := range c.granted {
					if _, _, err := s.store.Get(t.Context(), op.ID); !errors.Is(err, ledger.ErrOperationNotFound) {
						t.Errorf("a refund of charge %d is not forgotten: %v", i, err)
					}
					if _, err := r.refund(t, i, c, string(op.Task)); !errors.Is(err, ledger.ErrKeyTooOld) {
						t.Errorf("the forgotten refund of charge %d under its own key, with an intent of now: %v", i, err)
					}
				}
				end := c.charge.FinalTime.Add(24 * time.Hour)
				was := len(c.granted)
				r.to(end.Add(-time.Second))
				r.race(t, c, end)
				if got := len(c.granted); got != was {
					t.Errorf("while charge %d was retired, %d were told to refund it, want %d", i, got, was)
				}
				s.sweepTwice(t)
				if got := s.op(t, c.charge.ID).State; got != ledger.Retired {
					t.Errorf("charge %d is %v in the end", i, got)
				}
			}
		})
	}
}
