// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"sync"
	"time"
)

// waiters are the callers of this process that wait for an operation to move. A change made here wakes them at once; one made by
// another instance is seen at the next look. Nothing depends on a wake-up.
type waiters struct {
	mu      *sync.Mutex
	waiting map[OperationID]*bell
	drained chan struct{}
	once    *sync.Once
}

type bell struct {
	ring  chan struct{}
	users int
}

func newWaiters() waiters {
	return waiters{mu: &sync.Mutex{}, waiting: map[OperationID]*bell{}, drained: make(chan struct{}), once: &sync.Once{}}
}

func (w waiters) wake(id OperationID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b, ok := w.waiting[id]; ok {
		close(b.ring)
		delete(w.waiting, id)
	}
}

func (w waiters) listen(id OperationID) (ring <-chan struct{}, stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.waiting[id]
	if !ok {
		b = &bell{ring: make(chan struct{})}
		w.waiting[id] = b
	}
	b.users++
	return b.ring, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if b.users--; b.users == 0 && w.waiting[id] == b {
			delete(w.waiting, id)
		}
	}
}

// Drain ends all waits: each caller gets the current view.
func (l *Ledger) Drain() { l.waiters.once.Do(func() { close(l.waiters.drained) }) }

// The pauses between looks at an operation that another instance may move.
const (
	firstLook = 50 * time.Millisecond
	lastLook  = time.Second
)

// Await calls look until it reports that there is nothing to wait for, or until wait or the context ends; look's last call is the
// current view. It returns the first error of look, never the context's: a wait that ends is no failure.
func (l *Ledger) Await(ctx context.Context, id OperationID, wait time.Duration, look func(context.Context) (done bool, err error)) error {
	// The last look must still fit into the caller's deadline, so only the waiting is cut short.
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pause := firstLook
	for {
		ring, stop := l.waiters.listen(id) // before looking, so that no change is missed
		done, err := look(ctx)
		if done || err != nil || waiting.Err() != nil {
			stop()
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ring:
		case <-timer.C:
			pause = min(2*pause, lastLook)
		case <-waiting.Done():
		case <-l.waiters.drained:
			cancel() // the next look is the last
		}
		timer.Stop()
		stop()
	}
}

// Watch calls look when the operation has moved in this process, and else after each pause, until look reports that it has seen enough or the
// context ends. It does not look at once.
func (l *Ledger) Watch(ctx context.Context, id OperationID, pause time.Duration, look func(context.Context) (enough bool)) {
	for {
		ring, stop := l.waiters.listen(id)
		timer := time.NewTimer(pause)
		select {
		case <-ring:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		stop()
		if ctx.Err() != nil || look(ctx) {
			return
		}
	}
}
