// SPDX-License-Identifier: Apache-2.0

// Package coalesce turns many calls into few: what arrives while a batch is under way goes into the next one. There is no timer and no
// window: a lone call waits for nobody, and under load a batch is as large as what has arrived in the meantime (group commit).
//
// It depends on the standard library alone, and knows nothing of what a batch does.
package coalesce

import (
	"context"
	"errors"
	"slices"
	"sync"
)

var (
	// ErrFull says that as many calls wait as may. Nothing was done for this one.
	ErrFull = errors.New("too many calls wait")
	// errUnanswered is a fault of the function that runs batches.
	errUnanswered = errors.New("coalesce: the batch has not answered this call")
)

// Options bound a queue.
type Options struct {
	// Batch is how many calls one batch has at most.
	Batch int
	// Queue is how many calls may wait at a time.
	Queue int
	// Batches is how many may be under way at once. Beside one that runs, another begins only where Crowd calls wait: two small batches
	// cost more than one of both.
	Batches, Crowd int
}

// Queue is a queue in front of something that serves many calls at the cost of few. It holds no goroutine while nothing is to do.
type Queue[In, Out any] struct {
	run  func([]*Call[In, Out])
	opts Options

	mu      sync.Mutex
	waiting []*Call[In, Out]
	running int
	gone    int // callers that have left since all were looked at
}

// Call is one call in a batch.
type Call[In, Out any] struct {
	In In

	ctx      context.Context
	done     chan struct{}
	out      Out
	err      error
	answered bool
}

// New makes a queue. run gets one batch at a time, oldest call first, and answers every call of it before it returns; it may be called from
// several goroutines at once where Options allow several batches.
func New[In, Out any](o Options, run func([]*Call[In, Out])) *Queue[In, Out] {
	return &Queue[In, Out]{run: run, opts: o}
}

// Do waits for this call's own answer. When the context ends, a call that still waits is taken out of the queue; one that is in a batch
// goes on, and its answer is lost: who wants it gives a context that does not end. Errors: ErrFull, the context's, or the answer's.
func (q *Queue[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	var none Out
	if err := ctx.Err(); err != nil {
		return none, err
	}
	c := &Call[In, Out]{In: in, ctx: ctx, done: make(chan struct{})}
	if !q.add(c) {
		return none, ErrFull
	}
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		q.mu.Lock()
		q.gone++
		q.mu.Unlock()
		return none, ctx.Err()
	}
}

// Context is the caller's. It may end while the batch goes on.
func (c *Call[In, Out]) Context() context.Context { return c.ctx }

// Answer gives a call its answer, at once: a batch need not be over. Only the first one counts.
func (c *Call[In, Out]) Answer(out Out, err error) {
	if c.answered {
		return
	}
	c.answered = true
	c.out, c.err = out, err
	close(c.done)
}

// Waiting is how many calls wait for a batch now.
func (q *Queue[In, Out]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

func (q *Queue[In, Out]) add(c *Call[In, Out]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.opts.Queue && q.gone > 0 {
		q.drop()
	}
	if len(q.waiting) >= q.opts.Queue {
		return false
	}
	q.waiting = append(q.waiting, c)
	if q.running == 0 || (q.running < q.opts.Batches && len(q.waiting) >= q.opts.Crowd) {
		q.running++
		go q.drain()
	}
	return true
}

// drain runs batches until nothing waits.
func (q *Queue[In, Out]) drain() {
	for batch := q.take(); len(batch) > 0; batch = q.take() {
		q.run(batch)
		for _, c := range batch {
			var none Out
			c.Answer(none, errUnanswered)
		}
	}
}

// take is the next batch, without the calls whose callers have gone. Where there is none, its goroutine counts as gone.
func (q *Queue[In, Out]) take() []*Call[In, Out] {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := make([]*Call[In, Out], 0, min(len(q.waiting), q.opts.Batch))
	for len(q.waiting) > 0 && len(batch) < q.opts.Batch {
		if c := q.waiting[0]; c.ctx.Err() == nil {
			batch = append(batch, c)
		}
		q.waiting[0] = nil // so that it can be collected before the array is
		q.waiting = q.waiting[1:]
	}
	if len(batch) == 0 {
		q.running--
		return nil
	}
	return batch
}

// drop makes room for others where callers have gone. It looks at all that wait, so it is done only where some may have.
func (q *Queue[In, Out]) drop() {
	q.gone = 0
	q.waiting = slices.DeleteFunc(q.waiting, func(c *Call[In, Out]) bool { return c.ctx.Err() != nil })
}
