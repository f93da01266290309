// SPDX-License-Identifier: Apache-2.0

package coalesce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

type (
	queue = Queue[int, int]
	call  = Call[int, int]
)

// gate runs batches one step at a time: each batch is told, and waits until it may answer.
type gate struct {
	batches chan []int
	answer  chan func(*call)
}

func newGate() *gate {
	return &gate{batches: make(chan []int), answer: make(chan func(*call))}
}

func (g *gate) run(batch []*call) {
	var in []int
	for _, c := range batch {
		in = append(in, c.In)
	}
	g.batches <- in
	answer := <-g.answer
	for _, c := range batch {
		answer(c)
	}
}

func double(c *call) { c.Answer(2*c.In, nil) }

// calls makes calls in order and waits until each of them waits or is in a batch.
func calls(ctx context.Context, q *queue, group *sync.WaitGroup, in []int, outs map[int]error, mu *sync.Mutex) {
	for _, n := range in {
		group.Go(func() {
			out, err := q.Do(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && out != 2*n {
				err = errors.New("another call's answer")
			}
			outs[n] = err
		})
		synctest.Wait()
	}
}

func TestCallsThatArriveDuringABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(Options{Batch: 3, Queue: 100, Batches: 1}, g.run)
		outs, mu, group := map[int]error{}, sync.Mutex{}, sync.WaitGroup{}
		calls(t.Context(), q, &group, []int{1, 2, 3, 4, 5}, outs, &mu)
		for _, want := range [][]int{{1}, {2, 3, 4}, {5}} {
			if diff := cmp.Diff(want, <-g.batches); diff != "" {
				t.Errorf("batch (-want +got):\n%s", diff)
			}
			g.answer <- double
		}
		group.Wait()
		if diff := cmp.Diff(map[int]error{1: nil, 2: nil, 3: nil, 4: nil, 5: nil}, outs); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		synctest.Wait()
		if q.running != 0 {
			t.Errorf("%d goroutines are left", q.running)
		}
	})
}

func TestASecondBatchBeginsOnlyInACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(Options{Batch: 10, Queue: 100, Batches: 2, Crowd: 3}, g.run)
		outs, mu, group := map[int]error{}, sync.Mutex{}, sync.WaitGroup{}
		calls(t.Context(), q, &group, []int{1}, outs, &mu)
		<-g.batches
		calls(t.Context(), q, &group, []int{2, 3}, outs, &mu)
		select {
		case b := <-g.batches:
			t.Errorf("two calls began a batch beside the first: %v", b)
		default:
		}
		calls(t.Context(), q, &group, []int{4}, outs, &mu)
		if diff := cmp.Diff([]int{2, 3, 4}, <-g.batches); diff != "" {
			t.Errorf("batch (-want +got):\n%s", diff)
		}
		g.answer <- double
		g.answer <- double
		group.Wait()
	})
}

func TestAFullQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(Options{Batch: 10, Queue: 2, Batches: 1}, g.run)
		outs, mu, group := map[int]error{}, sync.Mutex{}, sync.WaitGroup{}
		calls(t.Context(), q, &group, []int{1}, outs, &mu)
		<-g.batches
		left, leave := context.WithCancel(t.Context())
		calls(left, q, &group, []int{2}, outs, &mu)
		calls(t.Context(), q, &group, []int{3}, outs, &mu)
		if n := q.Waiting(); n != 2 {
			t.Errorf("%d calls wait, want 2", n)
		}
		if _, err := q.Do(t.Context(), 4); !errors.Is(err, ErrFull) {
			t.Errorf("the third call that waits: %v, want ErrFull", err)
		}
		leave() // makes room
		synctest.Wait()
		calls(t.Context(), q, &group, []int{5}, outs, &mu)
		g.answer <- double
		if diff := cmp.Diff([]int{3, 5}, <-g.batches); diff != "" {
			t.Errorf("the one that left is not in the batch (-want +got):\n%s", diff)
		}
		g.answer <- double
		group.Wait()
		if !errors.Is(outs[2], context.Canceled) {
			t.Errorf("the one that left: %v, want its context's error", outs[2])
		}
	})
}

func TestEachCallHasItsOwnFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poisoned := errors.New("poisoned")
		q := New(Options{Batch: 10, Queue: 10, Batches: 1}, func(batch []*call) {
			for _, c := range batch {
				switch c.In {
				case 1:
					c.Answer(0, poisoned)
					c.Answer(0, nil) // too late
				case 2: // forgotten
				default:
					double(c)
				}
			}
		})
		outs, mu, group := map[int]error{}, sync.Mutex{}, sync.WaitGroup{}
		calls(t.Context(), q, &group, []int{1, 2, 3}, outs, &mu)
		group.Wait()
		for n, want := range map[int]error{1: poisoned, 2: errUnanswered, 3: nil} {
			if !errors.Is(outs[n], want) {
				t.Errorf("call %d: %v, want %v", n, outs[n], want)
			}
		}
	})
}

func TestACallerThatLeavesABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(Options{Batch: 10, Queue: 10, Batches: 1}, g.run)
		ctx, leave := context.WithCancel(t.Context())
		outs, mu, group := map[int]error{}, sync.Mutex{}, sync.WaitGroup{}
		calls(ctx, q, &group, []int{1}, outs, &mu)
		<-g.batches
		leave()
		group.Wait()
		if !errors.Is(outs[1], context.Canceled) {
			t.Errorf("%v, want the context's error", outs[1])
		}
		if _, err := q.Do(ctx, 2); !errors.Is(err, context.Canceled) {
			t.Errorf("a call after that: %v, want the context's error", err)
		}
		g.answer <- double // the batch goes on
	})
}
