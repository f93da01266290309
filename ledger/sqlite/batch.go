// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
)

// job is what one call wants of a batch: that its writes are made, or that it is decided there.
type job struct {
	reads ledger.ReadSet
	// view is what the writes were decided on.
	view   ledger.View
	writes []write
	// caller, if set, wants something that has not begun: a batch does nothing for one that has gone. Reports go on.
	caller context.Context

	decide func(ledger.View) (ledger.Change, error)
	// deciding is held while decide runs; gone: its caller has left, and it may not run any more.
	deciding sync.Mutex
	gone     bool
}

type call = coalesce.Call[*job, outcome]

func (j *job) creates() bool { return len(j.writes) > 0 && j.writes[0].was == nil }

// abandon returns when decide does not run and will not.
func (j *job) abandon() {
	j.deciding.Lock()
	defer j.deciding.Unlock()
	j.gone = true
}

// panicked carries a panic to the goroutine that it belongs to.
type panicked struct{ value any }

func (p *panicked) Error() string { return "a decision panicked" }

func (j *job) decideOn(view ledger.View) (change ledger.Change, err error) {
	j.deciding.Lock()
	defer j.deciding.Unlock()
	if j.gone {
		return ledger.Change{}, unavailable("decide", context.Canceled)
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicked{v}
		}
	}()
	return j.decide(view)
}

// run writes one batch. There is one at a time.
func (s *Store) run(calls []*call) {
	s.writing.Lock()
	defer s.writing.Unlock()
	defer func() {
		if v := recover(); v != nil {
			s.drop()
			answerAll(calls, settled, &panicked{v})
		}
	}()
	s.transact(calls)
}

func answerAll(calls []*call, what outcome, err error) {
	for _, c := range calls {
		c.Answer(what, err)
	}
}

// pending is a call that is answered after the commit: it has written, or its decision rests on what others of the batch have.
type pending struct {
	*call
	wrote bool
	err   error
}

// transact serves calls in one transaction, in order, and answers each.
//
// A call that loses its race changes nothing, nor does one whose row a constraint refuses: each is answered alone, and the others go on.
// Where a statement fails in another way SQLite may have ended the transaction, and where a call was written in part it has to be
// ended. Then each call gets one of its own, so that nobody fails for another's row.
func (s *Store) transact(calls []*call) {
	ctx, cancel := context.WithTimeout(s.life, s.bound)
	defer cancel()
	m, err := s.begin(ctx)
	if err != nil {
		what, err := failure("begin", err)
		answerAll(calls, what, err)
		return
	}
	s.stats.writeBatches.Add(1)
	s.stats.writes.Add(uint64(len(calls)))
	var waiting []pending
	for i, c := range calls {
		wrote, what, err := s.serve(ctx, m, c.In)
		switch {
		case errors.Is(err, errBroken):
			s.undo()
			if len(calls) == 1 {
				c.Answer(failure("write", err))
				return
			}
			for _, p := range waiting {
				s.transact([]*call{p.call})
			}
			for _, c := range calls[i:] {
				s.transact([]*call{c})
			}
			return
		case wrote, what == settled && c.In.decide != nil:
			waiting = append(waiting, pending{c, wrote, err})
		default:
			c.Answer(what, err)
		}
	}
	s.finish(ctx, waiting)
}

// errBroken says that the transaction may not go on.
var errBroken = errors.New("the transaction can't go on")

// broken joins it to what happened, unless that has changed nothing.
func broken(err error) error {
	if err == nil || clean(err) {
		return err
	}
	return errors.Join(errBroken, err)
}

// serve does what one call wants, and reports whether it wrote.
func (s *Store) serve(ctx context.Context, m meta, j *job) (wrote bool, what outcome, err error) {
	if j.caller != nil && j.caller.Err() != nil {
		return false, settled, unavailable("wait", j.caller.Err())
	}
	if j.decide == nil {
		if err := s.holds(m, j); err != nil {
			return refuse(err)
		}
	} else {
		view, err := readView(s.writer, s.now(), j.reads)
		if err != nil {
			return refuse(err)
		}
		change, err := j.decideOn(view)
		if err != nil || change.Next == nil {
			return false, settled, err
		}
		if j.writes, err = plan(j.reads.ID, view, change); err != nil {
			return false, settled, err
		}
		if err := failpoint.Hit(ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
			return false, failed, unavailable("write", err)
		}
	}
	if err := s.apply(j.writes); err != nil {
		return refuse(err)
	}
	return true, settled, nil
}

func refuse(err error) (wrote bool, what outcome, _ error) {
	if err = broken(err); errors.Is(err, errBroken) {
		return false, failed, err
	}
	what, err = failure("write", err)
	return false, what, err
}

// holds finds out whether all that a decision was taken on, but the row itself, is still as it was: the row has its compare-and-swap.
// The transaction holds the write lock, so the decision is as good as one that was taken in it.
func (s *Store) holds(m meta, j *job) error {
	if j.view.Timeline != m.timeline || j.view.Watermark != m.watermark {
		return errRace
	}
	if w := j.writes[0]; w.unpaused && m.paused.Has(w.next.Tool) {
		return errRace
	}
	for _, id := range j.reads.Related {
		was, read := j.view.Related[id]
		now, err := query(background, s.writer, scanLease, selectLease, id[:])
		if err != nil {
			return err
		}
		if read != (len(now) > 0) || read && (was.Sequence != now[0].sequence || was.LastHash != now[0].hash || !was.Grant.LeaseUntil.Equal(now[0].until)) {
			return errRace
		}
	}
	if j.reads.Siblings != nil {
		now, err := siblings(s.writer, j.reads)
		if err != nil {
			return err
		}
		if !slices.Equal(now, j.view.UnknownSiblings) {
			return errRace
		}
	}
	return nil
}

// apply makes the writes of one call: both of a pair, or none.
func (s *Store) apply(writes []write) error {
	if len(writes) == 1 {
		return writes[0].apply(s.writer)
	}
	if _, err := s.writer.exec(background, savepoint); err != nil {
		return err
	}
	var err error
	for _, w := range writes {
		if err = w.apply(s.writer); err != nil {
			break
		}
	}
	if err != nil && !constrained(err) {
		return err
	}
	after := []string{release}
	if err != nil {
		after = []string{undo, release}
	}
	for _, sql := range after {
		if _, endErr := s.writer.exec(background, sql); endErr != nil {
			return endErr
		}
	}
	return whole(err)
}

// finish commits what was written, and answers who waits for it.
func (s *Store) finish(ctx context.Context, waiting []pending) {
	if !slices.ContainsFunc(waiting, func(p pending) bool { return p.wrote }) {
		s.undo()
		tell(waiting)
		return
	}
	err := s.commit(ctx, waiting)
	switch {
	case err == nil:
		tell(waiting)
	case errors.Is(err, errUnseen):
		s.stats.confirmed.Add(1)
		s.drop()
		s.confirm(waiting)
	default:
		s.undo()
		failAll(waiting, "commit", err)
	}
}

// tell answers after the commit.
func tell(waiting []pending) {
	for _, p := range waiting {
		p.Answer(settled, p.err)
	}
}

func failAll(waiting []pending, step string, err error) {
	for _, p := range waiting {
		p.Answer(failed, unavailable(step, err))
	}
}

// begin opens the transaction in which a batch is written.
func (s *Store) begin(ctx context.Context) (meta, error) {
	if err := s.life.Err(); err != nil {
		return meta{}, err
	}
	if s.writer == nil {
		if err := s.connectWriter(ctx); err != nil {
			return meta{}, err
		}
	}
	if err := s.lock(ctx); err != nil {
		if ctx.Err() == nil {
			s.drop()
		}
		return meta{}, err
	}
	m, err := readMeta(s.writer)
	if err != nil {
		s.undo()
		return m, err
	}
	s.met.Store(&m)
	return m, nil
}

// lock begins a transaction that holds the file's write lock. That goes to whoever asks in the moment when it is free, and a process
// whose batches follow each other leaves few such moments: it is asked for every millisecond or so, where SQLite's own way would get to
// a tenth of a second between two times.
func (s *Store) lock(ctx context.Context) error {
	for {
		if _, err := s.writer.exec(background, begin); !busy(err) {
			return err
		}
		if pause(ctx, 1); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// undo ends the transaction. If it can't be said to have ended, the next one gets another connection.
func (s *Store) undo() {
	if s.writer == nil {
		return
	}
	if _, err := s.writer.exec(background, rollback); err != nil {
		s.drop()
	}
}

// drop closes the connection, and with it a transaction that is open.
func (s *Store) drop() {
	if s.writer != nil {
		_ = s.writer.close()
		s.writer = nil
	}
}

// lease is what a compare-and-swap looks at.
type lease struct {
	sequence uint64
	until    time.Time
	hash     [32]byte
}

func scanLease(r *row) (lease, error) { return lease{uint64(r.integer()), r.time(), r.digest()}, nil }
