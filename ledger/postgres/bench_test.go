// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// contractsOfNobody: each tool has the default contract.
type contractsOfNobody struct{}

func (contractsOfNobody) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	return ledger.DefaultContract(tool), false
}

// unit claims a new key and completes it: two calls, two durable commits.
func unit(b testing.TB, l *ledger.Ledger, ring *fingerprint.Ring) {
	ctx := b.Context()
	claim := ledger.Claim{
		Key:     ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "task-1", Key: uuid.NewString()},
		ClaimID: ledger.ClaimID(uuid.NewString()), WorkerID: "worker", Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "spiffe://test/agent"},
		ToolAllowed: true, IntentTime: time.Now(), TargetSummary: "a ticket",
	}
	request, err := fingerprint.NewRequest(ring, claim, ledger.DefaultContract(claim.Key.Tool), []byte(`{"title":"broken","amount":"12.50"}`))
	if err != nil {
		b.Error(err)
		return
	}
	answer, err := l.Claim(ctx, claim, request)
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		b.Errorf("claim: %v, %v", answer.Outcome, err)
		return
	}
	_, err = l.Do(ctx, answer.Operation.ID, string(claim.ClaimID), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Complete{ClaimID: claim.ClaimID, Actor: claim.Actor, Succeeded: &ledger.Result{
			Resource: ledger.ResourceRef{Type: "ticket", ID: claim.Key.Key}, Payload: []byte(strings.Repeat("x", 150)),
		}}, nil
	})
	if err != nil {
		b.Errorf("complete: %v", err)
	}
}

// BenchmarkUnits is claim-then-complete by many callers, on a server that keeps what it commits.
func BenchmarkUnits(b *testing.B) {
	secret, err := fingerprint.NewRandomSecret("s1")
	if err != nil {
		b.Fatal(err)
	}
	ring, err := fingerprint.NewRing("s1", secret)
	if err != nil {
		b.Fatal(err)
	}
	server := pgtest.Own(b, pgtest.Options{Durable: true, Settings: map[string]string{"shared_buffers": "512MB", "max_wal_size": "8GB"}})
	for _, callers := range []int{1, 16, 128, 512} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s, err := postgres.Open(b.Context(), server.DSN(server.Database(b)), postgres.Options{MaxConns: 16})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if err := s.Migrate(b.Context()); err != nil {
				b.Fatal(err)
			}
			l := ledger.New(s, contractsOfNobody{})
			unit(b, l, ring) // connects and prepares
			before := s.Stats()
			var next atomic.Int64
			var group sync.WaitGroup
			b.ResetTimer()
			for range callers {
				group.Go(func() {
					for next.Add(1) <= int64(b.N) {
						unit(b, l, ring)
					}
				})
			}
			group.Wait()
			b.StopTimer()
			after, units := s.Stats(), float64(b.N)
			b.ReportMetric(units/b.Elapsed().Seconds(), "units/s")
			b.ReportMetric(float64(after.Statements-before.Statements)/units, "statements/unit")
			b.ReportMetric(float64(after.Reads-before.Reads)/float64(after.ReadBatches-before.ReadBatches), "reads/batch")
			b.ReportMetric(float64(after.Writes-before.Writes)/float64(after.WriteBatches-before.WriteBatches), "writes/batch")
			b.ReportMetric(0, "ns/op")
		})
	}
}
