// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// BenchmarkClaimThenComplete measures units of two durable commits each: a new key is claimed, then completed. So many callers wait at a
// time. Only ratios of runs that alternate on one machine mean anything.
func BenchmarkClaimThenComplete(b *testing.B) {
	for _, callers := range []int{1, 16, 128, 512} {
		b.Run(fmt.Sprintf("c=%d", callers), func(b *testing.B) {
			s := harness{}.new(b).open(b, sqlite.Options{})
			l := ledger.New(s, contracts{})
			result := ledger.Result{Resource: ledger.ResourceRef{Type: "ticket", ID: "T-1"}, Payload: make([]byte, 200)}
			var next atomic.Int64
			var group sync.WaitGroup
			b.ResetTimer()
			for range callers {
				group.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						if err := unit(b.Context(), l, fmt.Sprint("key ", n), result); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "units/s")
		})
	}
}

// unit claims and completes one key.
func unit(ctx context.Context, l *ledger.Ledger, key string, result ledger.Result) error {
	claim := ledger.Claim{
		Key: ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "task-1", Key: key}, ClaimID: ledger.ClaimID(uuid.NewString()),
		WorkerID: "worker", Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "spiffe://test/agent"}, ToolAllowed: true,
		IntentTime: time.Now(),
	}
	a, err := l.Claim(ctx, claim, request{})
	if err != nil {
		return err
	}
	if a.Grant == nil {
		return errors.New("a new key was not granted")
	}
	_, err = l.Do(ctx, a.Operation.ID, string(claim.ClaimID), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Complete{ClaimID: claim.ClaimID, Actor: claim.Actor, Succeeded: &result}, nil
	})
	return err
}

type contracts struct{}

func (contracts) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	return ledger.DefaultContract(tool), false
}

// request is one whose fields are all the same.
type request struct{}

func (request) Fingerprint(*ledger.Fingerprint) (ledger.Fingerprint, error) {
	return ledger.Fingerprint{Spec: 1, SecretID: "s1", Contract: "default", Digest: [32]byte{1}, Categories: map[string]ledger.CategoryDigest{"amount": {1}, "recipient": {2}}}, nil
}

func (request) SubjectDigest(ledger.Fingerprint) ([]byte, error) { return nil, nil }

func (request) SubjectDigests() [][]byte { return nil }

func (request) Slots() ([]ledger.UniqueSlot, error) { return nil, nil }
