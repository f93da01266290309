// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// awaiting starts a wait whose look is counted; the channel has its error when it has ended.
func awaiting(ctx context.Context, l *ledger.Ledger, id ledger.OperationID, wait time.Duration, looks *[]time.Duration, done *bool) <-chan error {
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		ended <- l.Await(ctx, id, wait, func(context.Context) (bool, error) {
			*looks = append(*looks, time.Since(began))
			return *done, nil
		})
	}()
	return ended
}

// TestAwaitEndsWithTheCurrentView: the last look is taken when the wait ends, not up to a pause before.
func TestAwaitEndsWithTheCurrentView(t *testing.T) {
	for name, tt := range map[string]struct{ wait, drain, last time.Duration }{
		"its time is over":  {wait: 2 * time.Second, last: 2 * time.Second},
		"the server drains": {wait: time.Minute, drain: 100 * time.Millisecond, last: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ledger.New(nil, declared{})
				var looks []time.Duration
				var done bool
				ended := awaiting(t.Context(), l, ledger.OperationID{1}, tt.wait, &looks, &done)
				if tt.drain > 0 {
					time.Sleep(tt.drain)
					l.Drain()
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if last := looks[len(looks)-1]; last != tt.last {
					t.Errorf("looked at %v, the last time at %v, want %v", looks, last, tt.last)
				}
			})
		})
	}
}

// TestAwaitIsWokenByAChange: a change made in this process is seen at once, not at the next look.
func TestAwaitIsWokenByAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		system := newLedgerSystem(declared{})
		claim := ledger.Claim{
			Key: ledger.Key{Scope: "a", Tool: "tickets.create", Task: "t", Key: "k"}, ClaimID: "c1", WorkerID: "w",
			Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "agent"}, ToolAllowed: true, IntentTime: system.now(),
		}
		id := claim.Key.Hash().OperationID()
		var looks []time.Duration
		var done bool
		ended := awaiting(t.Context(), system.service, id, time.Minute, &looks, &done)
		time.Sleep(1600 * time.Millisecond) // between two looks that are a second apart
		synctest.Wait()
		done = true
		if _, err := system.apply(id, claim); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if last := looks[len(looks)-1]; last != 1600*time.Millisecond {
			t.Errorf("looked at %v, the last time at %v, want 1.6s", looks, last)
		}
	})
}
