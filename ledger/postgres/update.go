// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
	"github.com/opsledger/opsledger/ledger/recent"
)

const (
	// maxRaces bounds how often a lost race is decided again, maxFailures how often a step before COMMIT may fail.
	maxRaces    = 16
	maxFailures = 3
	// maxTogether is how many lost races make an update go alone.
	maxTogether = 2
	// fullRetry is when those may come again for whom there was no room: a full queue is served in about that time.
	fullRetry = 500 * time.Millisecond
)

// full refuses a call because too many wait. Who wants to begin something is told so. What is said of an operation that exists may be the
// truth about an effect, which is never refused for load: for that the store is not there, and everybody sends it again.
func full(begins bool) error {
	if begins {
		return &ledger.Refusal{Err: ledger.ErrRateLimited, RetryAfter: fullRetry}
	}
	return &ledger.Refusal{Err: ledger.ErrStoreUnavailable, RetryAfter: fullRetry}
}

// enqueue waits for a call's answer. Those who want to begin something may fill three quarters of a queue: who reports is refused last.
func enqueue[In, Out any](ctx context.Context, s *Store, q *coalesce.Queue[In, Out], in In, begins bool) (Out, error) {
	var none Out
	if begins && q.Waiting() >= s.opts.Queue-s.opts.Queue/4 {
		return none, full(begins)
	}
	out, err := q.Do(ctx, in)
	var p *panicked
	switch {
	case errors.As(err, &p):
		panic(p.value) // where it is caught, if anywhere, for this caller alone
	case errors.Is(err, coalesce.ErrFull):
		err = full(begins)
	}
	return out, err
}

// outcome of one attempt.
type outcome int

const (
	// settled: the error, if any, is the answer.
	settled outcome = iota
	// lost: somebody else was faster; nothing was written.
	lost
	// failed: the database could not be used; nothing was written.
	failed
	// unseen: it may have been written or not.
	unseen
)

// update is one call of Update.
type update struct {
	store  *Store
	reads  ledger.ReadSet
	decide func(ledger.View) (ledger.Change, error)
	// ctx is the caller's, until a write begins.
	ctx      context.Context
	cancel   context.CancelFunc
	bounded  bool
	detached bool
	// alone: no longer in batches.
	alone bool
	// guesses: it may still be decided on a guess; wrong: that did not hold. from is the one that the last decision was taken on, if any.
	guesses, wrong bool
	from           recent.Guess
	// change and writes of the last decision.
	change ledger.Change
	writes []write
	// stray are writes whose commit was not seen, and which were not there when that was looked at: the server may still come to them.
	stray []write
}

// Update reads, decides and writes.
func (s *Store) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	if s.life.Err() != nil {
		return errClosed
	}
	u := &update{store: s, reads: reads, decide: decide, guesses: true, ctx: ctx, cancel: func() {}}
	defer func() { u.cancel() }()
	races, failures := 0, 0
	for {
		what, err := u.attempt()
		if what == unseen {
			what, err = u.confirm()
		}
		switch what {
		case settled:
			return err
		case lost:
			if races++; races >= maxRaces {
				return fmt.Errorf("%w: %d races lost in a row", ledger.ErrStoreUnavailable, races)
			}
			if races < maxTogether {
				continue // whoever was faster is there already
			}
			u.alone = true
		case failed:
			if failures++; failures >= maxFailures || u.ctx.Err() != nil {
				return err
			}
		}
		pause(u.ctx, races+failures)
	}
}

// pause keeps those who collided from colliding again.
func pause(ctx context.Context, n int) {
	limit := min(time.Millisecond<<min(n, 10), 50*time.Millisecond)
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// bound bounds what comes by the store's own limit, if nothing does yet.
func (u *update) bound() error {
	if u.bounded {
		return nil
	}
	ctx, cancel, err := u.store.enter(u.ctx)
	if err == nil {
		u.bounded, u.ctx, u.cancel = true, ctx, cancel
	}
	return err
}

// detach lets the write go on when the caller hangs up, under the store's own bound.
func (u *update) detach() {
	if u.detached {
		return
	}
	u.detached, u.bounded = true, true
	before := u.cancel
	ctx, cancel := u.store.detached(u.ctx, callBound)
	u.ctx, u.cancel = ctx, func() { cancel(); before() }
}

// detached returns a context that only the bound and the store's life end.
func (s *Store) detached(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	stop := context.AfterFunc(s.life, cancel)
	return out, func() { stop(); cancel() }
}

// attempt reads in a batch, decides, and writes in another one. What can't be written in a batch is written alone.
func (u *update) attempt() (outcome, error) {
	if u.guesses && !u.alone {
		u.guesses = false
		if settles, what, err := u.guessed(); settles {
			return what, err
		}
	}
	if err := u.bound(); err != nil {
		return settled, err
	}
	if u.alone {
		return u.byItself(nil)
	}
	// Only who wants to begin something asks what else is not settled.
	view, err := enqueue(u.ctx, u.store, u.store.reads, u.reads, u.reads.Siblings != nil)
	if err != nil {
		return u.failure("read", err)
	}
	u.store.recent.Read(u.reads, view.Current != nil, u.wrong)
	u.wrong = false
	writes, what, err := u.decided(view)
	if len(writes) == 0 {
		return what, err
	}
	switch {
	case len(writes) > 1, len(writes[0].slots) > 0: // in a batch, the one could be written without the other
		return u.byItself(writes)
	case u.store.turns.taken(u.reads.ID):
		u.alone = true
		return u.byItself(nil)
	}
	if err = u.together(writes[0]); errors.Is(err, errAlone) {
		u.alone = true
		return u.byItself(nil)
	}
	return u.written(err)
}

// decided is what the decision wants written; where that is nothing, what the attempt comes to. With something to write, the caller can't
// hang up any more.
func (u *update) decided(view ledger.View) ([]write, outcome, error) {
	u.from = recent.Guess{}
	change, err := u.decide(view)
	if err != nil {
		return nil, settled, err
	}
	if change.Next == nil {
		if !u.mayBeResent(view) {
			return nil, settled, nil
		}
		u.writes = []write{{id: u.reads.ID, timeline: view.Timeline}}
		u.detach()
		return u.writes, settled, nil
	}
	if u.writes, err = plan(u.reads.ID, view, change); err != nil {
		return nil, settled, err
	}
	u.change = change
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		return nil, failed, unavailable("write", err)
	}
	return u.writes, settled, nil
}

// mayBeResent: the decision may answer a command with what an earlier copy of it has written, which may not have reached a standby yet.
// What has no id can't be told from a copy. A touch makes such an answer as durable as one that writes: it returns when the standbys have
// all that the answer rests on.
func (u *update) mayBeResent(view ledger.View) bool {
	return view.Current != nil && (len(view.Prior) > 0 || u.reads.CommandID == "")
}

// together writes in a batch.
func (u *update) together(w write) error {
	before, after := points(w.creates())
	if err := failpoint.Hit(u.ctx, before); err != nil {
		return err
	}
	if _, err := enqueue(u.ctx, u.store, u.store.writes, w, w.creates()); err != nil {
		return err
	}
	if failpoint.Hit(u.ctx, after) != nil {
		return errUnseen
	}
	return nil
}

// byItself writes in a transaction of its own, where it may wait for the row. Without writes it decides there, behind the row's lock: many
// who write one row then queue instead of colliding.
func (u *update) byItself(writes []write) (outcome, error) {
	u.store.stats.alone.Add(1)
	leave, err := u.store.turns.take(u.ctx, u.reads.ID)
	if err != nil {
		return failed, unavailable("wait", err)
	}
	defer leave()
	conn, release, err := u.store.enterAlone(u.ctx)
	if err != nil {
		return failed, unavailable("connect", err)
	}
	defer release()
	b := &pgx.Batch{}
	b.Queue(begin)
	if writes == nil {
		b.Queue(lockRow, id(u.reads.ID))
		g := gather(b, []ledger.ReadSet{u.reads}, u.store.opts.Now)
		if err := u.store.send(u.ctx, conn, b).Close(); err != nil {
			u.store.suspect(u.ctx, err)
			return u.failure("read", err)
		}
		view, err := g.only()
		if err != nil {
			return u.failure("read", err)
		}
		there, err := areThere(u.ctx, conn, u.stray)
		if err != nil {
			return u.failure("read", err)
		}
		if there {
			u.writes = []write{{id: u.reads.ID, timeline: view.Timeline}} // as durable as a commit that was seen
			writes = u.writes
		} else {
			var what outcome
			writes, what, err = u.decided(view)
			switch nothing := len(writes) == 0 || writes[0].touches(); {
			case nothing && u.mayStillCome(view): // and then something else would have been told
				return failed, unavailable("commit", errUnseen)
			case len(writes) == 0:
				return what, err
			}
		}
		b = &pgx.Batch{}
	}
	if !u.store.madeIn(conn.Conn(), writes) {
		return lost, nil
	}
	if err := sendWrites(u.ctx, counted{u.store, conn}, b, writes); err != nil {
		u.store.suspect(u.ctx, err)
		return u.failure("write", err)
	}
	err = u.store.commit(u.ctx, conn.Conn(), writes[0].creates())
	u.store.suspect(u.ctx, err)
	return u.written(err)
}

// mayStillCome reports whether the server may still make a stray write: its row is as it was decided on. A write that is made now keeps
// it from that.
func (u *update) mayStillCome(view ledger.View) bool {
	if len(u.stray) == 0 {
		return false
	}
	was, is := u.stray[0].was, view.Current
	if was == nil || is == nil {
		return was == is
	}
	return was.Sequence == is.Sequence && was.Grant.LeaseUntil.Equal(is.Grant.LeaseUntil)
}

// written tells what became of a write.
func (u *update) written(err error) (outcome, error) {
	switch {
	case err == nil:
		if !u.writes[0].touches() {
			u.store.recent.Wrote(u.from, u.change)
			u.store.recognized.acknowledged(u.change.Next, u.writes[0].timeline)
		}
		return settled, nil
	case errors.Is(err, errUnseen) && u.writes[0].touches(): // nothing was at stake
		return failed, unavailable("confirm", err)
	case errors.Is(err, errUnseen):
		return unseen, nil
	default:
		return u.failure("write", err)
	}
}

// errRace says that a write changed no row.
var errRace = errors.New("somebody else was faster")

// failure tells what an attempt comes to that wrote nothing.
func (u *update) failure(step string, err error) (outcome, error) {
	switch {
	case errors.Is(err, errRace), lostRace(err):
		return lost, nil
	case errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrStoreUnavailable), errors.Is(err, ledger.ErrRateLimited):
		return settled, err
	case errors.Is(err, errDamaged):
		return settled, unavailable(step, err)
	}
	if err := refused(err); err != nil {
		return settled, err
	}
	return failed, unavailable(step, err)
}
