// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/sqlite"
	"github.com/opsledger/opsledger/recovery"
)

// still is a ledger on a store whose clock only the test moves, without a process of its own.
type still struct {
	*ledger.Ledger
	store     stillStore
	env       *env
	contracts *contract.Set
	ring      *fingerprint.Ring
	now       *atomic.Int64 // in microseconds
}

type stillStore interface {
	ledger.Store
	ledger.AgedStore
	Migrate(ctx context.Context) error
}

func newStill(t *testing.T, store, contracts string) *still {
	t.Helper()
	s := &still{env: newStore(t, store), now: &atomic.Int64{}}
	s.now.Store(time.Now().UnixMicro())
	s.open(t)
	if err := s.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.contracts, err = contract.Parse("contracts.yaml", []byte(contracts)); err != nil {
		t.Fatal(err)
	}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	if s.ring, err = fingerprint.NewRing("k1", secret); err != nil {
		t.Fatal(err)
	}
	s.Ledger = ledger.New(s.store, s.contracts)
	return s
}

func (s *still) open(t *testing.T) {
	t.Helper()
	clock := func(time.Time) time.Time { return s.time() }
	var err error
	if s.env.store == "sqlite" {
		s.store, err = sqlite.Open(t.Context(), s.env.database, sqlite.Options{Now: clock})
	} else {
		s.store, err = postgres.Open(t.Context(), s.env.dsn, postgres.Options{Now: clock, MaxConns: 8})
	}
	if err != nil {
		t.Fatal(err)
	}
	opened := s.store
	t.Cleanup(func() { _ = opened.Close() })
}

// beside is another ledger on the same data and clock: on a store of its own, where two may have it open.
func (s *still) beside(t *testing.T) *still {
	t.Helper()
	other := *s
	if s.env.store != "sqlite" {
		other.open(t)
	}
	other.Ledger = ledger.New(other.store, s.contracts)
	return &other
}

func (s *still) time() time.Time { return time.UnixMicro(s.now.Load()).UTC() }

func (s *still) claim(t *testing.T, key string, intent time.Time) (ledger.Answer, error) {
	t.Helper()
	return s.claimAs(t, ledger.Claim{Key: ledger.Key{Scope: "team", Tool: "card.charge", Task: ledger.Task("task of " + key), Key: key}, IntentTime: intent})
}

// claimAs draws a claim_id, and asks for the same as all others.
func (s *still) claimAs(t *testing.T, claim ledger.Claim) (ledger.Answer, error) {
	t.Helper()
	claim.ClaimID, claim.WorkerID, claim.ToolAllowed = claimID(), "w", true
	claim.Actor = ledger.Actor{Kind: ledger.ActorWorker, Name: billing}
	c, _ := s.contracts.Contract(claim.Key.Tool)
	request, err := fingerprint.NewRequest(s.ring, claim, c, []byte(`{"amount":1}`))
	if err != nil {
		return ledger.Answer{}, err
	}
	return s.Claim(t.Context(), claim, request)
}

// completed claims a key, decided five minutes ahead of the ledger's time, and completes it at once.
func (s *still) completed(t *testing.T, key string) ledger.OperationID {
	t.Helper()
	answer, err := s.claim(t, key, s.time().Add(5*time.Minute))
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatal(answer.Outcome, err)
	}
	s.report(t, answer)
	return answer.Operation.ID
}

// report says that what was granted has succeeded.
func (s *still) report(t *testing.T, granted ledger.Answer) {
	t.Helper()
	s.ends(t, granted.Operation, ledger.Complete{Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_1"}}})
}

// ends reports for the holder.
func (s *still) ends(t *testing.T, op *ledger.Operation, c ledger.Complete) {
	t.Helper()
	c.ClaimID, c.Actor = op.Grant.ClaimID, ledger.Actor{Kind: ledger.ActorWorker, Name: billing}
	_, err := s.Do(t.Context(), op.ID, string(c.ClaimID), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return c, nil })
	if err != nil {
		t.Fatal(err)
	}
}

func (s *still) op(t *testing.T, id ledger.OperationID) ledger.Operation {
	t.Helper()
	op, _, err := s.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// sweepTwice lets two sweepers pass at once.
func (s *still) sweepTwice(t *testing.T) {
	t.Helper()
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() { s.sweep(t) })
	}
	group.Wait()
}

// sweep passes once, by a sweeper that remembers nothing.
func (s *still) sweep(t *testing.T) {
	w, err := recovery.NewSweeper(s.Ledger, s.store, recovery.SweepOptions{Youngest: s.contracts.Youngest})
	if err == nil {
		_, err = w.RunOnce(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Error(err)
	}
}

func codeOf(err error) codes.Code { return status.Code(err) }
