// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"sync"
	"time"
)

// Breadth bounds searches that no index narrows: each reads all that a store has. One at a time does, and none for a while after one that took too
// long: the next one would, too. It may be used by many at once.
type Breadth struct {
	turn chan struct{}

	mu    sync.Mutex
	until time.Time
}

// narrowFor is how long no such search is tried again. It is read with a clock of the process.
const narrowFor = 5 * time.Minute

// NewBreadth makes one that lets all through.
func NewBreadth() *Breadth { return &Breadth{turn: make(chan struct{}, 1)} }

// Enter waits for the turn of a search, or refuses it by saying how to narrow it. leave is told whether it took too long.
func (b *Breadth) Enter(ctx context.Context, now func() time.Time) (leave func(tooLong bool), err error) {
	select {
	case b.turn <- struct{}{}: // also if ctx is over: then it is cut off, and not for others
	default:
		select {
		case b.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, SearchTooBroad()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now().Before(b.until) {
		<-b.turn
		return nil, SearchTooBroad()
	}
	return func(tooLong bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if tooLong {
			b.until = now().Add(narrowFor)
		}
		<-b.turn
	}, nil
}
