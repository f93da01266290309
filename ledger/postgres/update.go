// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

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
	// failed: the database could not be used; nothing was written.
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
	locked   bool
}

// Update reads, decides and writes.
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
			u.locked = true
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

// detach lets the write go on when the caller hangs up, under the store's own bound.
func (u *update) detach() {
	if u.detached {
		return
	}
	u.detached = true
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

func (u *update) attempt() (outcome, error) {
	conn, err := u.store.pool.Acquire(u.ctx)
	if err != nil {
		return failed, unavailable("connect", err)
	}
	defer conn.Release() // closes it if a transaction is open
	view, err := u.read(conn)
	if err != nil {
		return u.failure(conn, "read", err)
	}
	change, err := u.decide(view)
	switch {
	case err != nil, change.Next == nil && !u.mayBeResent(view):
		u.rollback(conn)
		return settled, err
	case change.Next == nil:
		return u.wait(conn)
	}
	writes, err := plan(u.reads.ID, view, change)
	if err != nil {
		u.rollback(conn)
		return settled, err
	}
	u.detach()
	if err := failpoint.Hit(u.ctx, failpoint.StoreUpdateBetweenReadAndWrite); err != nil {
		u.rollback(conn)
		return failed, unavailable("write", err)
	}
	if err := sendWrites(u.ctx, conn, &pgx.Batch{}, writes); err != nil {
		return u.failure(conn, "write", err)
	}
	switch err := u.store.commit(u.ctx, conn.Conn(), writes[0].creates()); {
	case err == nil:
		return settled, nil
	case errors.Is(err, errUnseen):
		return u.confirm(writes)
	case errors.Is(err, errRace), lostRace(err):
		return lost, nil
	case errors.Is(err, ledger.ErrStoreUnavailable):
		return settled, err
	default:
		return failed, unavailable("commit", err)
	}
}

// mayBeResent: the decision may answer a command with what an earlier copy of it has written, which may not have reached a standby yet.
// What has no id can't be told from a copy.
func (u *update) mayBeResent(view ledger.View) bool {
	return view.Current != nil && (len(view.Prior) > 0 || u.reads.CommandID == "")
}

// wait makes an answer that writes nothing as durable as one that does: it returns when the standbys have all that the answer rests on.
func (u *update) wait(conn *pgxpool.Conn) (outcome, error) {
	u.detach()
	if _, err := conn.Exec(u.ctx, touchRow, id(u.reads.ID)); err != nil {
		return u.failure(conn, "confirm", err)
	}
	switch err := u.store.commit(u.ctx, conn.Conn(), false); {
	case err == nil:
		return settled, nil
	case errors.Is(err, errRace), lostRace(err):
		return lost, nil
	case errors.Is(err, ledger.ErrStoreUnavailable):
		return settled, err
	default: // also where the outcome can't be seen: nothing was at stake
		return failed, unavailable("confirm", err)
	}
}

// errRace says that a write changed no row.
var errRace = errors.New("somebody else was faster")

// failure ends an attempt that wrote nothing.
func (u *update) failure(conn *pgxpool.Conn, step string, err error) (outcome, error) {
	u.rollback(conn)
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
	if u.ctx.Err() == nil && connectionLost(err) {
		u.store.pool.Reset() // a server that has restarted has killed the others, too
	}
	return failed, unavailable(step, err)
}

// rollback gives the connection back in a clean state; if it can't, the pool closes it.
func (u *update) rollback(conn *pgxpool.Conn) {
	if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
		_, _ = conn.Exec(u.ctx, "ROLLBACK")
	}
}

// read begins the transaction and reads all that the decision needs, in one round trip.
func (u *update) read(conn *pgxpool.Conn) (ledger.View, error) {
	b := &pgx.Batch{}
	if u.locked {
		b.Queue(begin)
		b.Queue(lockRow, id(u.reads.ID))
	} else {
		b.Queue(beginRead)
	}
	view, _, err := sendReads(u.ctx, conn, b, u.reads, clock(u.store.opts.Now))
	return view, err
}

// sender sends a batch: a connection, or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// sendReads adds all that a decision needs to what a batch begins with, and reads it in one round trip. The time beside the view is
// the database's own.
func sendReads(ctx context.Context, to sender, b *pgx.Batch, reads ledger.ReadSet, c clock) (ledger.View, time.Time, error) {
	var (
		view                      = ledger.View{Related: map[ledger.OperationID]ledger.Operation{}}
		schema                    int
		timeline                  int64
		now, watermark, lostSince time.Time
		current, related          []ledger.Operation
		queue                     = func(into func(pgx.Rows) error, sql string, args ...any) { b.Queue(sql, args...).Query(into) }
	)
	b.Queue(selectMeta).QueryRow(func(row pgx.Row) error {
		return row.Scan(&now, &schema, &timeline, (*stamp)(&watermark), (*stamp)(&lostSince))
	})
	queue(func(rows pgx.Rows) (err error) { current, err = collectRows(rows); return err }, selectRow, id(reads.ID))
	if reads.CommandID != "" {
		queue(func(rows pgx.Rows) (err error) { view.Prior, err = collectEvents(rows); return err }, selectPrior, id(reads.ID), reads.CommandID)
	}
	if len(reads.Related) > 0 {
		ids := make([]pgtype.UUID, len(reads.Related))
		for i, r := range reads.Related {
			ids[i] = uuid(r)
		}
		queue(func(rows pgx.Rows) (err error) { related, err = collectRows(rows); return err }, selectRows, ids)
	}
	if q := reads.Siblings; q != nil {
		queue(func(rows pgx.Rows) (err error) { view.UnknownSiblings, err = collectIDs(rows); return err },
			selectSiblings, string(q.Scope), string(q.Task), string(q.Tool), id(reads.ID), digests(q.SubjectDigests))
	}
	if err := to.SendBatch(ctx, b).Close(); err != nil {
		return ledger.View{}, time.Time{}, err
	}
	if err := supported(schema); err != nil {
		return ledger.View{}, time.Time{}, err
	}
	view.Now, view.Timeline = c.now(now), uint32(timeline)
	view.Watermark = ledger.Watermark{At: watermark, LostSince: lostSince}
	if len(current) > 0 {
		view.Current = &current[0]
		view.Now = latest(view.Now, current[0].UpdateTime)
	}
	for _, r := range related {
		view.Related[r.ID] = r
		view.Now = latest(view.Now, r.UpdateTime)
	}
	return view, now, nil
}

// latest keeps time from running backwards for a row, also when the server's clock was set back.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
