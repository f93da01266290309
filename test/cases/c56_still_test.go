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
	store interface {
		ledger.Store
		ledger.AgedStore
	}
	contracts *contract.Set
	ring      *fingerprint.Ring
	now       atomic.Int64 // in microseconds
}

func newStill(t *testing.T, store string) *still {
	t.Helper()
	s := &still{}
	s.now.Store(time.Now().UnixMicro())
	clock := func(time.Time) time.Time { return time.UnixMicro(s.now.Load()).UTC() }
	e := newStore(t, store)
	var migrate func(context.Context) error
	if store == "sqlite" {
		opened, err := sqlite.Open(t.Context(), e.database, sqlite.Options{Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		s.store, migrate = opened, opened.Migrate
	} else {
		opened, err := postgres.Open(t.Context(), e.dsn, postgres.Options{Now: clock, MaxConns: 8})
		if err != nil {
			t.Fatal(err)
		}
		s.store, migrate = opened, opened.Migrate
	}
	t.Cleanup(func() { _ = s.store.Close() })
	if err := migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.contracts, err = contract.Parse("contracts.yaml", []byte(agedContracts)); err != nil {
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

func (s *still) claim(t *testing.T, key string, intent time.Time) (ledger.Answer, error) {
	t.Helper()
	claim := ledger.Claim{
		Key: ledger.Key{Scope: "team", Tool: "card.charge", Task: ledger.Task("task of " + key), Key: key}, ClaimID: claimID(), WorkerID: "w",
		Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: billing}, ToolAllowed: true, IntentTime: intent,
	}
	c, _ := s.contracts.Contract(claim.Key.Tool)
	request, err := fingerprint.NewRequest(s.ring, claim, c, []byte(`{"amount":1}`))
	if err != nil {
		t.Fatal(err)
	}
	return s.Claim(t.Context(), claim, request)
}

// completed claims a key, decided five minutes ahead of the ledger's time, and completes it at once.
func (s *still) completed(t *testing.T, key string) ledger.OperationID {
	t.Helper()
	answer, err := s.claim(t, key, time.UnixMicro(s.now.Load()).Add(5*time.Minute))
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatal(answer.Outcome, err)
	}
	s.report(t, answer)
	return answer.Operation.ID
}

// report says that what was granted has succeeded.
func (s *still) report(t *testing.T, granted ledger.Answer) {
	t.Helper()
	held := granted.Operation.Grant.ClaimID
	_, err := s.Do(t.Context(), granted.Operation.ID, string(held), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Complete{ClaimID: held, Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_1"}}}, nil
	})
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
		w, err := recovery.NewSweeper(s.Ledger, s.store, recovery.SweepOptions{Youngest: s.contracts.Youngest})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			if _, err := w.RunOnce(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func codeOf(err error) codes.Code { return status.Code(err) }
