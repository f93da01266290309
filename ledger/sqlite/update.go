// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
	"github.com/opsledger/opsledger/ledger/recent"
)

// maxFailures bounds how often a step may fail.
const maxFailures = 3

// fullRetry is how long a call is asked to wait that found the queue full.
const fullRetry = 500 * time.Millisecond

// outcome of one attempt.
type outcome int

const (
	// settled: the error, if any, is the answer.
	settled outcome = iota
	// lost: somebody else was faster; nothing was written.
	lost
	// failed: the file could not be used; nothing was written.
	failed
)

// update is one call of Update.
type update struct {
	store  *Store
	reads  ledger.ReadSet
	decide func(ledger.View) (ledger.Change, error)
	// ctx is the caller's, until a write begins.
	ctx      context.Context
	cancel   context.CancelFunc
	detached bool
	// inside: it has lost a race, and decides in the transaction of its batch, where it can't lose another.
	inside bool
	// guesses: it may still be decided on a guess; wrong: that did not hold.
	guesses, wrong bool
}

// Update reads, decides and writes.
//
// The first decision is taken on what a reader sees. It can lose a race, in the batch that is to write it, because what it rests on
// has changed. Then it is taken once more by that batch's successor itself, in the transaction that holds the file's write lock, so
// that no crowd around one operation, in this process or another, keeps a call from being decided.
func (s *Store) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	if s.life.Err() != nil {
		return errClosed
	}
	u := &update{store: s, reads: reads, decide: decide, guesses: true, ctx: ctx, cancel: func() {}}
	defer func() { u.cancel() }()
	defer s.flights.end(u)
	for failures := 0; ; {
		what, err := u.attempt()
		switch {
		case what == settled:
			return err
		case what == lost && u.inside:
			return fmt.Errorf("%w: the change collides with the very rows that it was decided on", ledger.ErrStoreUnavailable)
		case what == lost:
			u.inside = true
		default:
			if failures++; failures >= maxFailures || u.ctx.Err() != nil {
				return err
			}
			pause(u.ctx, failures)
		}
	}
}

// pause keeps processes that collided from colliding again.
func pause(ctx context.Context, n int) {
	timer := time.NewTimer(rand.N(time.Millisecond << n))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// detach lets the write go on when the caller hangs up, under the store's own bound. That holds from the decision on, also while the
// write still waits for its batch: a caller that hung up can't tell, and what it sends again finds what it decided.
func (u *update) detach() {
	if u.detached {
		return
	}
	u.detached = true
	u.ctx, u.cancel = context.WithTimeout(u.store.life, u.store.bound)
}

func (u *update) attempt() (outcome, error) {
	if u.inside {
		return u.enqueue(&job{reads: u.reads, decide: u.decide})
	}
	now := u.store.flights.begin(u, u.store.now)
	if u.guesses {
		u.guesses = false
		if what, err := u.guessed(now); what != lost {
			return what, err
		}
	}
	view, err := u.store.view(u.ctx, now, u.reads)
	if err != nil {
		return failure("read", err)
	}
	u.store.recent.Read(u.reads, view.Current != nil, u.wrong)
	u.wrong = false
	// What writes nothing may be told at once: a reader sees only what is on the disk, see connect.
	change, err := u.decide(view)
	if err != nil || change.Next == nil {
		return settled, err
	}
	writes, err := plan(u.reads.ID, view, change)
	if err != nil {
		return settled, err
	}
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		return failed, unavailable("write", err)
	}
	return u.write(recent.Guess{}, change, &job{reads: u.reads, view: view, writes: writes})
}

// guessed attempts to write what is decided on a guess. Where that did not settle the call, it is lost, and nothing was written.
func (u *update) guessed(now time.Time) (outcome, error) {
	if err := u.ctx.Err(); err != nil {
		return failed, unavailable("wait", err)
	}
	met := u.store.met.Load()
	if met == nil {
		return lost, nil
	}
	g, ok := u.store.recent.Guess(u.reads)
	if !ok {
		return lost, nil
	}
	view := g.At(now, met.timeline, met.watermark)
	view.Paused = met.paused
	change, err := u.decide(view)
	if err != nil || change.Next == nil || change.Companion != nil {
		return lost, nil
	}
	writes, err := plan(u.reads.ID, view, change)
	if err != nil {
		return settled, err
	}
	j := &job{reads: u.reads, view: view, writes: writes}
	if j.creates() {
		j.caller = u.ctx
	}
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		return failed, unavailable("write", err)
	}
	what, err := u.write(g, change, j)
	u.wrong = what == lost
	return what, err
}

// write waits for the batch that writes a change, and remembers it.
func (u *update) write(from recent.Guess, change ledger.Change, j *job) (outcome, error) {
	what, err := u.enqueue(j)
	if what == settled && err == nil {
		u.store.recent.Wrote(from, change)
	}
	return what, err
}

// enqueue waits for the batch that takes the job.
func (u *update) enqueue(j *job) (outcome, error) {
	s := u.store
	creates := j.creates()
	if creates {
		defer s.creating.Add(-1)
		if s.creating.Add(1) > int64(s.opts.Queue-s.opts.Queue/4) {
			return settled, full(creates)
		}
	}
	what, err := s.queue.Do(u.ctx, j)
	var p *panicked
	switch {
	case errors.As(err, &p):
		panic(p.value) // on the goroutine of the caller whose function it was
	case errors.Is(err, coalesce.ErrFull):
		return settled, full(creates)
	case err != nil && u.ctx.Err() != nil && !errors.Is(err, ledger.ErrStoreUnavailable):
		j.abandon()
		return failed, unavailable("wait for the batch", u.ctx.Err())
	}
	return what, err
}

// full refuses a call because too many wait. What is new may be asked for later. What is said of an operation that exists may be the
// truth about an effect, which is never refused for load: for that the store is not there, and everybody sends it again.
func full(creates bool) error {
	if creates {
		return &ledger.Refusal{Err: ledger.ErrRateLimited, RetryAfter: fullRetry}
	}
	return &ledger.Refusal{Err: ledger.ErrStoreUnavailable, RetryAfter: fullRetry}
}

// errRace says that a write changed no row, or that what it rests on has changed.
var errRace = errors.New("somebody else was faster")

// failure is the outcome of a step that wrote nothing.
func failure(step string, err error) (outcome, error) {
	switch {
	case errors.Is(err, errRace), lostRace(err):
		return lost, nil
	case errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrStoreUnavailable):
		return settled, err
	case errors.Is(err, errDamaged):
		return settled, unavailable(step, err)
	}
	if err := refused(err); err != nil {
		return settled, err
	}
	return failed, unavailable(step, err)
}

// flights are the calls whose decision has a time and may not have been written yet. Who follows what has changed, in the order of these
// times, is shown nothing from the first of them on: what comes in behind the place where the follower is would be lost to it. That
// holds among the calls of one process.
type flights struct {
	mu    sync.Mutex
	since map[*update]time.Time
}

// begin takes the time of a decision.
func (f *flights) begin(u *update, now func() time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := now()
	if f.since == nil {
		f.since = map[*update]time.Time{}
	}
	if _, again := f.since[u]; !again {
		f.since[u] = at
	}
	return at
}

func (f *flights) end(u *update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.since, u)
}

// horizon is the first time, in microseconds, of which more may come.
func (f *flights) horizon() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := int64(math.MaxInt64)
	for _, at := range f.since {
		first = min(first, at.UnixMicro())
	}
	return first
}
