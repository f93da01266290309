// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// TestSearchesThatReadAll: one at a time, and none for a while after one that took too long.
func TestSearchesThatReadAll(t *testing.T) {
	b, clock := ledger.NewBreadth(), time.Unix(1000, 0)
	now := func() time.Time { return clock }
	leave, err := b.Enter(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(t.Context())
	end()
	var refused *ledger.Refusal
	if _, err := b.Enter(over, now); !errors.As(err, &refused) || len(refused.Violations) != 1 || refused.Violations[0].Field != "scope" {
		t.Errorf("beside another one: %v", err)
	}
	next := make(chan error)
	go func() {
		leave, err := b.Enter(t.Context(), now)
		if err == nil {
			leave(true)
		}
		next <- err
	}()
	leave(false)
	if err := <-next; err != nil {
		t.Errorf("after it: %v", err)
	}
	for range 2 {
		if _, err := b.Enter(t.Context(), now); !errors.Is(err, ledger.ErrValidation) {
			t.Errorf("after one that took too long: %v", err)
		}
	}
	clock = clock.Add(5 * time.Minute)
	if leave, err = b.Enter(t.Context(), now); err != nil {
		t.Fatalf("later: %v", err)
	}
	leave(false)
}
