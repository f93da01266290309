// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/opsledger/opsledger/ledger"
)

// lackingRequest has its digests only after it has fetched something, so many times.
type lackingRequest struct {
	digestedRequest
	lacks int
	fetch func(ctx context.Context) error
}

func (r *lackingRequest) Fingerprint(like *ledger.Fingerprint) (ledger.Fingerprint, error) {
	if r.lacks == 0 {
		return r.digestedRequest.Fingerprint(like)
	}
	return ledger.Fingerprint{}, &ledger.Lacking{Fetch: func(ctx context.Context) error {
		r.lacks--
		return r.fetch(ctx)
	}}
}

// TestWhatADecisionLacksIsFetchedOutsideOfIt: the store's double holds its lock while it decides, so a fetch that reads from it within the
// decision would never end.
func TestWhatADecisionLacksIsFetchedOutsideOfIt(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		lacks   int
		fails   error
		want    error
		fetched int
	}{
		"it lacks nothing":              {0, nil, nil, 0},
		"it is there after the fetch":   {1, nil, nil, 1},
		"the fetch fails":               {1, down, down, 1},
		"it is never there":             {1 << 10, nil, ledger.ErrStoreUnavailable, 5},
		"it is there at the second try": {2, nil, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			shelf := newShelf()
			store := &memoryStore{shelf: shelf}
			fetched := 0
			request := &lackingRequest{digestedRequest{fingerprint: ledger.Fingerprint{Spec: 1, Digest: [32]byte{1}}}, c.lacks, nil}
			claim := ledger.Claim{
				Key:     ledger.Key{Scope: "s", Tool: "t", Task: "t1", Key: "k"},
				ClaimID: claimID("c1"), WorkerID: "w", Actor: scriptWorker, ToolAllowed: true, IntentTime: shelf.clock,
			}
			id := claim.Key.Hash().OperationID()
			request.fetch = func(ctx context.Context) error {
				fetched++
				if _, _, err := store.Get(ctx, id); !errors.Is(err, ledger.ErrOperationNotFound) {
					t.Errorf("something was written before it was decided: %v", err)
				}
				return c.fails
			}
			answer, err := ledger.New(store, declared{}).Claim(t.Context(), claim, request)
			if !errors.Is(err, c.want) || fetched != c.fetched {
				t.Errorf("%v, after %d fetches; want %v after %d", err, fetched, c.want, c.fetched)
			}
			if op, _ := shelf.read(id); (op != nil) != (c.want == nil) || (answer.Outcome == ledger.OutcomeGranted) != (c.want == nil) {
				t.Errorf("stored: %v; answered: %v", op, answer.Outcome)
			}
		})
	}
}
