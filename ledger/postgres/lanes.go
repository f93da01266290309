// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
)

type (
	readCall  = coalesce.Call[ledger.ReadSet, ledger.View]
	writeCall = coalesce.Call[write, struct{}]
)

const (
	// defaultBatch is how many calls go into one batch, defaultQueue how many may wait for one, defaultBatches how many are under way.
	defaultBatch   = 512
	defaultQueue   = 8192
	defaultBatches = 2
	// crowd is how many calls have to wait before a second batch begins beside the first.
	crowd = 256
	// pieces are what a batch that has failed is taken apart into.
	pieces = 16
	// rowsPerStatement: finding an element of an array of texts takes time in proportion to its place.
	rowsPerStatement = 128
)

// errAlone says that a write has to be made outside of a batch, where it keeps nobody waiting.
var errAlone = errors.New("the row is held by another transaction")

func (s *Store) openLanes() {
	for _, o := range []struct {
		of        *int
		otherwise int
	}{{&s.opts.Batch, defaultBatch}, {&s.opts.Queue, defaultQueue}, {&s.opts.ReadBatches, defaultBatches}, {&s.opts.WriteBatches, defaultBatches}} {
		if *o.of <= 0 {
			*o.of = o.otherwise
		}
	}
	lane := coalesce.Options{Batch: s.opts.Batch, Queue: s.opts.Queue, Crowd: crowd, Batches: s.opts.ReadBatches}
	s.reads = coalesce.New(lane, s.readBatch)
	lane.Batches = s.opts.WriteBatches
	s.writes = coalesce.New(lane, s.writeBatch)
}

// panicked carries a panic to the goroutine of the call that it belongs to.
type panicked struct{ value any }

func (p *panicked) Error() string { return "it panicked" }

// onBatch runs what a batch does on a connection, under a bound of its own: no caller's end ends it for the others. In traces its statements
// are those of one of its calls.
func (s *Store) onBatch(call context.Context, do func(ctx context.Context, conn *pgxpool.Conn) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicked{v}
		}
	}()
	ctx, cancel := s.detached(call, batchBound)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes it if a transaction is open
	err = do(ctx, conn)
	if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
		_, _ = conn.Exec(ctx, rollback)
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.pool.Reset() // it hangs, and so may others
	}
	s.suspect(ctx, err)
	return err
}

// suspect closes the idle connections where one was lost: a server that has restarted has killed them, too. What became of a commit is
// asked on a new one.
func (s *Store) suspect(ctx context.Context, err error) {
	if errors.Is(err, errUnseen) || ctx.Err() == nil && connectionLost(err) {
		s.pool.Reset()
	}
}

// send sends a batch, and counts it.
func (s *Store) send(ctx context.Context, conn sender, b *pgx.Batch) pgx.BatchResults {
	s.stats.statements.Add(uint64(b.Len()))
	return conn.SendBatch(ctx, b)
}

// counted is a sender whose statements are counted.
type counted struct {
	store *Store
	to    sender
}

func (c counted) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return c.store.send(ctx, c.to, b)
}

// readBatch answers many reads out of one snapshot, which begins after all of them came in.
func (s *Store) readBatch(calls []*readCall) {
	s.stats.readBatches.Add(1)
	s.stats.reads.Add(uint64(len(calls)))
	s.readTogether(calls)
}

func (s *Store) readTogether(calls []*readCall) {
	sets := make([]ledger.ReadSet, len(calls))
	for i, c := range calls {
		sets[i] = c.In
	}
	views, errs := make([]ledger.View, len(calls)), make([]error, len(calls))
	err := s.onBatch(calls[0].Context(), func(ctx context.Context, conn *pgxpool.Conn) error {
		b := &pgx.Batch{}
		b.Queue(beginRead)
		at := time.Now()
		g := gather(b, sets, s.opts.Now)
		b.Queue(rollback)
		if err := s.send(ctx, conn, b).Close(); err != nil {
			return err
		}
		s.seen.saw(g.meta, g.now, at)
		for i := range calls {
			views[i], errs[i] = g.view(i)
		}
		return g.usable()
	})
	switch {
	case err == nil:
	case len(calls) > 1 && oneMayBeAtFault(err):
		apart(calls, s.readTogether)
		return
	default: // also where the table is locked, for which all have waited
		for _, c := range calls {
			c.Answer(ledger.View{}, err)
		}
		return
	}
	for i, c := range calls { // not before all have theirs: the first one may change its own
		c.Answer(views[i], errs[i])
	}
}

// writeBatch makes many writes in one transaction. Each is a compare-and-swap of its own, and is told whether it has lost its race. Of
// two writes of one row the first is in the batch. The other one could only lose, and is told so when it can read what it lost to.
func (s *Store) writeBatch(calls []*writeCall) {
	s.stats.writeBatches.Add(1)
	s.stats.writes.Add(uint64(len(calls)))
	seen := make(map[ledger.OperationID]bool, len(calls))
	together, second := make([]*writeCall, 0, len(calls)), []*writeCall(nil)
	for _, c := range calls {
		switch {
		case c.In.hungUp():
			c.Answer(struct{}{}, unavailable("wait", c.In.caller.Err()))
		case c.In.touches():
			together = append(together, c)
		case seen[c.In.id]:
			second = append(second, c)
		default:
			seen[c.In.id] = true
			together = append(together, c)
		}
	}
	// Transactions that take their locks in one order wait for each other, but not in a circle.
	slices.SortStableFunc(together, func(a, b *writeCall) int { return bytes.Compare(a.In.id[:], b.In.id[:]) })
	if len(together) > 0 { // some may have hung up, and all of them
		s.writeTogether(together)
	}
	for _, c := range second {
		c.Answer(struct{}{}, errRace)
	}
}

func (s *Store) writeTogether(calls []*writeCall) {
	writes := make([]write, len(calls))
	for i, c := range calls {
		writes[i] = c.In
	}
	var won map[ledger.OperationID]bool
	err := s.onBatch(calls[0].Context(), func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		won, err = s.transact(ctx, conn, writes)
		return err
	})
	switch {
	case err == nil:
		for _, c := range calls {
			if c.In.touches() || won[c.In.id] {
				c.Answer(struct{}{}, nil)
			} else {
				c.Answer(struct{}{}, errRace)
			}
		}
		return
	case len(calls) > 1 && (oneMayBeAtFault(err) || oneMayBeInTheWay(err)):
		apart(calls, s.writeTogether)
		return
	case isHeld(err):
		err = errAlone
	}
	for _, c := range calls {
		c.Answer(struct{}{}, err)
	}
}

// apart runs a batch that has failed in parts, beside each other, until the one call is alone whose fault it was: a row that the database
// refuses, or one that another transaction holds.
func apart[C any](calls []C, run func([]C)) {
	var group sync.WaitGroup
	for part := range slices.Chunk(calls, (len(calls)+pieces-1)/pieces) {
		group.Go(func() { run(part) })
	}
	group.Wait()
}

// transact makes all writes in one transaction and one round trip. It returns the ids of those that have not lost their race. The error
// is errUnseen where the transaction may have been committed, ErrStoreUnavailable where it was but is not durable; else it was not.
func (s *Store) transact(ctx context.Context, conn *pgxpool.Conn, writes []write) (map[ledger.OperationID]bool, error) {
	if !s.madeIn(conn.Conn(), writes) {
		return nil, errRace // also for those that were not: it happens once in a failover
	}
	apply, fault := true, error(nil)
	if s.opts.CommitFault != nil {
		apply, fault = s.opts.CommitFault()
	}
	if fault != nil && !apply {
		return nil, errUnseen
	}
	won := make(map[ledger.OperationID]bool, len(writes))
	b := &pgx.Batch{}
	b.Queue(begin).Exec(unread)
	b.Queue(waitShortly).Exec(unread)
	if s.seen.stale() {
		s.seen.look(b)
	}
	g, possible := s.guarded(writes)
	queueWrites(b, possible, g, won)
	n := b.Len()
	b.Queue(commit)
	results := s.send(ctx, conn, b)
	for _, q := range b.QueuedQueries[:n] {
		if err := q.Fn(results); err != nil {
			_ = results.Close()
			return nil, unlessRefused(err)
		}
	}
	if err := answered(conn.Conn(), results); err != nil {
		return nil, err
	}
	if fault != nil {
		return nil, errUnseen
	}
	return won, nil
}

// unread takes the result of a statement that has none.
func unread(pgconn.CommandTag) error { return nil }

// unlessRefused: with its statements the server already has the COMMIT. Only where it says that it has refused one of them, or where
// nothing was sent, was nothing committed.
func unlessRefused(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR" || pgconn.SafeToRetry(err) {
		return err
	}
	return errUnseen
}

// queueWrites adds the statements that make all writes, if what the guard says holds. They note who has not lost its race.
func queueWrites(b *pgx.Batch, writes []write, g guard, won map[ledger.OperationID]bool) {
	var inserts, updates []write
	var touches pgtype.FlatArray[pgtype.UUID]
	for _, w := range writes {
		switch {
		case w.touches():
			touches = append(touches, uuid(w.id))
		case w.creates():
			inserts = append(inserts, w)
		default:
			updates = append(updates, w)
		}
	}
	note := func(rows pgx.Rows) error {
		for rows.Next() {
			var u pgtype.UUID
			if err := rows.Scan(&u); err != nil {
				return err
			}
			won[u.Bytes] = true
		}
		return rows.Err()
	}
	// An insert may have to wait for another transaction's, and does so before this one has locked a row.
	for some := range slices.Chunk(inserts, rowsPerStatement) {
		sql, given := inserted(some, g)
		b.Queue(sql, given...).Query(note)
	}
	for some := range slices.Chunk(updates, rowsPerStatement) {
		sql, given := updated(some, g)
		b.Queue(sql, given...).Query(note)
	}
	// After all rows: of two who want one slot, neither then waits for a row of the other.
	for _, w := range writes {
		queueSlots(b, w, won)
	}
	if len(touches) > 0 {
		b.Queue(touchRows, touches).Exec(unread)
	}
	if moved := toOrFromUnknown(writes); len(moved) > 0 {
		b.Queue(noteUnknown, moved).Exec(unread)
		b.Queue(forgetUnknown, moved).Exec(unread)
	}
}

func toOrFromUnknown(writes []write) (moved pgtype.FlatArray[pgtype.UUID]) {
	is := func(o operation) bool { return o != nil && o.State == ledger.Unknown }
	for _, w := range writes {
		if !w.touches() && is(w.was) != is(w.next) {
			moved = append(moved, uuid(w.id))
		}
	}
	return moved
}
