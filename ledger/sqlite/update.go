// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

const (
	// maxRaces bounds how often a lost race is decided again, maxFailures how often a step before COMMIT may fail.
	maxRaces    = 16
	maxFailures = 3
)

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
}

// Update reads, decides and writes. Races can be lost only where the outcome of a commit was not seen: an immediate transaction keeps
// others out.
func (s *Store) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	ctx, cancel, err := s.enter(ctx)
	if err != nil {
		return err
	}
	u := &update{store: s, reads: reads, decide: decide, ctx: ctx, cancel: cancel}
	defer func() { u.cancel() }()
	races, failures := 0, 0
	for {
		what, err := u.attempt()
		switch what {
		case settled:
			return err
		case lost:
			if races++; races >= maxRaces {
				return fmt.Errorf("%w: %d races lost in a row", ledger.ErrStoreUnavailable, races)
			}
		case failed:
			if failures++; failures >= maxFailures || u.ctx.Err() != nil {
				return err
			}
		}
		pause(u.ctx, races+failures)
	}
}

// pause keeps processes that collided from colliding again.
func pause(ctx context.Context, n int) {
	limit := min(time.Millisecond<<min(n, 10), 50*time.Millisecond)
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// detach lets the write go on when the caller hangs up, under the store's own bound.
func (u *update) detach() {
	if u.detached {
		return
	}
	u.detached = true
	before := u.cancel
	ctx, cancel := u.store.detached(u.ctx)
	u.ctx, u.cancel = ctx, func() { cancel(); before() }
}

// detached returns a context that only the store's own bound and life end.
func (s *Store) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	stop := context.AfterFunc(s.life, cancel)
	return out, func() { stop(); cancel() }
}

func (u *update) attempt() (outcome, error) {
	tx, err := u.store.begin(u.ctx)
	if err != nil {
		return failed, unavailable("begin", err)
	}
	defer u.store.release(tx)
	view, err := u.read(tx)
	if err != nil {
		return failure("read", err)
	}
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
	for _, w := range writes {
		if err := w.apply(u.ctx, tx); err != nil {
			return failure("write", err)
		}
	}
	err = u.store.commit(u.ctx, tx, writes[0].was == nil)
	if err == nil {
		return settled, nil
	}
	if !errors.Is(err, errUnseen) {
		return failed, unavailable("commit", err)
	}
	u.store.release(tx)
	return u.confirm(writes)
}

// errRace says that a write changed no row.
var errRace = errors.New("somebody else was faster")

// failure is the outcome of an attempt that wrote nothing.
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

// transaction holds the one connection that writes, and the file's write lock.
type transaction struct {
	*sql.Conn
	open bool
}

func (s *Store) begin(ctx context.Context) (*transaction, error) {
	conn, err := s.writer.Conn(ctx)
	if err != nil {
		return nil, err
	}
	tx := &transaction{Conn: conn}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		s.release(tx)
		return nil, err
	}
	tx.open = true
	return tx, nil
}

// release gives the connection back, without a transaction. It may be called again.
func (s *Store) release(tx *transaction) {
	if tx.open {
		tx.open = false
		ctx, cancel := s.detached(s.life)
		defer cancel()
		if _, err := tx.ExecContext(ctx, "ROLLBACK"); err != nil {
			// Perhaps SQLite has rolled back by itself, perhaps not: the next one gets another connection.
			_ = tx.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
	_ = tx.Close()
}

// read reads all that the decision needs.
func (u *update) read(tx *transaction) (ledger.View, error) {
	view := ledger.View{Now: u.store.now(), Related: map[ledger.OperationID]ledger.Operation{}}
	var schema int
	err := tx.QueryRowContext(u.ctx, selectMeta).
		Scan(&schema, &view.Timeline, (*stamp)(&view.Watermark.At), (*stamp)(&view.Watermark.LostSince))
	if err != nil {
		return ledger.View{}, err
	}
	if err := supported(schema); err != nil {
		return ledger.View{}, err
	}
	current, err := query(u.ctx, tx, scanRow, selectRow, u.reads.ID[:])
	if err != nil {
		return ledger.View{}, err
	}
	if len(current) > 0 {
		view.Current = &current[0]
		view.Now = latest(view.Now, current[0].UpdateTime)
	}
	if u.reads.CommandID != "" {
		if view.Prior, err = query(u.ctx, tx, scanEvent, selectPrior, u.reads.ID[:], u.reads.CommandID); err != nil {
			return ledger.View{}, err
		}
	}
	if len(u.reads.Related) > 0 {
		related, err := query(u.ctx, tx, scanRow, selectRows, idList(u.reads.Related))
		if err != nil {
			return ledger.View{}, err
		}
		for _, r := range related {
			view.Related[r.ID] = r
			view.Now = latest(view.Now, r.UpdateTime)
		}
	}
	if q := u.reads.Siblings; q != nil {
		view.UnknownSiblings, err = query(u.ctx, tx, scanID, selectSiblings,
			string(q.Scope), string(q.Task), string(q.Tool), u.reads.ID[:], digests(q.SubjectDigests))
		if err != nil {
			return ledger.View{}, err
		}
	}
	return view, nil
}
