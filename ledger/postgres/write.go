// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

// write is one row's part of a change; without a row it is a touch, which changes nothing.
type write struct {
	id        ledger.OperationID
	was, next *ledger.Operation
	event     *ledger.Event
	// slots that the row takes with it.
	slots []ledger.TakenSlot
	// guess, if set, is of the database as a whole, and what the write depends on besides its row. With unlike it also depends on that there
	// is no UNKNOWN operation like the new one.
	guess  *meta
	unlike bool
	// unpaused: it is written only while its tool is not paused.
	unpaused bool
	// caller, if set, wants something that has not begun: a batch does nothing for one that has gone. Reports go on.
	caller context.Context
	// timeline that it was decided in: on a server that has begun a later one it is lost.
	timeline uint32
}

func (w write) touches() bool { return w.next == nil }

func (w write) creates() bool { return w.was == nil && w.next != nil }

// parts are a change's rows after it, and their events.
func parts(writes []write) (rows []operation, events []event) {
	for _, w := range writes {
		rows, events = append(rows, w.next), append(events, w.event)
	}
	return rows, events
}

// inserted is the statement that inserts rows, and what it is given.
func inserted(writes []write, g guard) (string, []any) {
	rows, events := parts(writes)
	given := g.args(args(args(args(args(nil, insertColumns, rows), eventColumns, events), dueColumns, writes), guardColumns, writes))
	if len(writes) <= single {
		return insertOne, given
	}
	return insertMany, given
}

// updated is the statement that changes rows, and what it is given.
func updated(writes []write, g guard) (string, []any) {
	rows, events := parts(writes)
	given := g.args(args(args(args(args(args(nil, swapColumns, writes), mutableColumns, rows), eventColumns, events), dueColumns, writes), guardColumns[:2], writes))
	if len(writes) <= single {
		return updateOne, given
	}
	return updateMany, given
}

// plan checks that a change fits what was read. An error is a fault of the caller's code, not of the database.
func plan(op ledger.OperationID, view ledger.View, change ledger.Change) ([]write, error) {
	writes := []write{{id: change.Next.ID, was: view.Current, next: change.Next, event: change.Event, slots: change.Slots, unpaused: change.UnlessPaused, timeline: view.Timeline}}
	if change.Next.ID != op {
		return nil, errors.New("postgres: the change is of another operation than the one read")
	}
	if c := change.Companion; c != nil {
		was, ok := view.Related[c.Next.ID]
		if !ok || c.Companion != nil || c.Next.ID == op {
			return nil, errors.New("postgres: a companion must be one of the related operations that were read")
		}
		writes = append(writes, write{id: c.Next.ID, was: &was, next: c.Next, event: c.Event, timeline: view.Timeline})
	}
	if err := checkSlots(view, change.Slots); err != nil {
		return nil, err
	}
	for _, w := range writes {
		if err := w.check(); err != nil {
			return nil, err
		}
		if !holdsAll(mutableColumns, w.next) || w.creates() && !holdsAll(identityColumns, w.next) || !holdsAll(eventColumns, w.event) {
			return nil, errUnstorable
		}
	}
	return writes, nil
}

// errUnstorable is a fault of the caller's code, found before it can spoil a batch.
var errUnstorable = errors.New("postgres: the row has a text or a time that the database can't hold")

func (w write) check() error {
	switch e := w.event; {
	case w.was != nil && w.was.KeyHash != w.next.KeyHash:
		return fmt.Errorf("postgres: operation %s belongs to another key with the same first 128 bits of its hash", w.next.ID)
	case w.was == nil && e == nil:
		return errors.New("postgres: a new operation needs an event")
	case e == nil && len(w.slots) > 0:
		return errors.New("postgres: slots are taken with an event")
	case e == nil && w.next.Sequence != w.was.Sequence:
		return errors.New("postgres: the sequence moves only with an event")
	case e == nil:
		return nil
	case e.OperationID != w.next.ID || e.Sequence != w.next.Sequence || e.Hash != w.next.LastHash:
		return errors.New("postgres: the event does not belong to the row")
	case w.was == nil && e.Sequence != 1, w.was != nil && e.Sequence != w.was.Sequence+1:
		return errors.New("postgres: the event does not follow the last one")
	default:
		return nil
	}
}

// sendWrites sends all of a change in one round trip, with what else the batch holds; each write must change its row, and take its slots.
func sendWrites(ctx context.Context, to sender, b *pgx.Batch, writes []write) error {
	won := map[ledger.OperationID]bool{}
	queueWrites(b, writes, guard{}, won)
	if err := to.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	for _, w := range writes {
		if !w.touches() && !won[w.id] {
			return errRace
		}
	}
	return nil
}

// errUnseen says that the outcome of a COMMIT can't be seen.
var errUnseen = errors.New("the outcome of the commit is not known")

// points are the failpoints around a commit.
func points(creates bool) (before, after failpoint.Name) {
	if creates {
		return failpoint.StoreCreateBeforeCommit, failpoint.StoreCreateAfterCommit
	}
	return failpoint.StoreUpdateBeforeCommit, failpoint.StoreUpdateAfterCommit
}

// commit ends a transaction. Errors: errUnseen; one that is ErrStoreUnavailable if the change is there but not durable; else nothing
// was written.
func (s *Store) commit(ctx context.Context, conn *pgx.Conn, creates bool) error {
	before, after := points(creates)
	if err := failpoint.Hit(ctx, before); err != nil {
		_, _ = conn.Exec(ctx, rollback)
		return err
	}
	if s.opts.CommitFault != nil {
		if apply, err := s.opts.CommitFault(); err != nil {
			end := rollback
			if apply {
				end = commit
			}
			_, _ = conn.Exec(ctx, end)
			return errUnseen
		}
	}
	b := &pgx.Batch{}
	b.Queue(commit)
	if err := answered(conn, s.send(ctx, conn, b)); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, after); err != nil {
		return errUnseen
	}
	return nil
}

// answered reads the answer to a COMMIT, the last one of a batch, and tells what became of it: by the answer, and by the warnings since
// the answer before it.
func answered(conn *pgx.Conn, results pgx.BatchResults) error {
	delete(conn.PgConn().CustomData(), warned)
	tag, err := results.Exec()
	_ = results.Close()
	var pg *pgconn.PgError
	switch {
	case conn.PgConn().CustomData()[warned] != nil:
		return fmt.Errorf("%w: no standby has confirmed the commit", ledger.ErrStoreUnavailable)
	case errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR":
		return err // the server says that it rolled back
	case err != nil:
		return errUnseen
	case tag.String() != commit:
		return errRace // a transaction that had failed was rolled back
	default:
		return nil
	}
}

// confirm finds out on a fresh connection what became of a COMMIT whose outcome could not be seen, by running the same writes again: that
// waits for the lost commit where it still runs. Who finds what it wanted to write has succeeded, once that is as durable as a commit of
// its own. A write that changes its row shows that nothing was committed; the decision is then too old to be kept, and is taken anew.
//
// A batch goes to the server with its COMMIT, so a server that has not come to it yet has no lock to wait for. What was not there is
// looked for once more behind the row's lock, before it is decided anew: from there on, either the new decision is written, and the old one
// loses its race, or it is not known what the old one will do, and nothing else is told.
//
// Each caller of a batch confirms for itself: one that has to wait keeps no other from its answer.
func (u *update) confirm() (outcome, error) {
	s, writes := u.store, u.writes
	s.stats.confirmed.Add(1)
	ctx, cancel := s.detached(u.ctx, confirmBound)
	defer cancel()
	conn, leave, err := s.enterAlone(ctx)
	if err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	defer leave()
	if _, err := conn.Exec(ctx, begin); err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	for _, w := range writes {
		w.slots, w.guess, w.unlike, w.unpaused = nil, nil, false, false // as they were, if the row was written
		won := map[ledger.OperationID]bool{}
		b := &pgx.Batch{}
		queueWrites(b, []write{w}, guard{}, won)
		switch err := s.send(ctx, conn, b).Close(); {
		case lostRace(err):
			u.stray, u.alone = writes, true
			return lost, nil
		case err != nil:
			return settled, unavailable("confirm a commit", err)
		case won[w.id]: // rolled back when it leaves
			u.stray, u.alone = writes, true
			return failed, unavailable("commit", errUnseen)
		}
		ours, err := w.isThere(ctx, conn)
		if err != nil {
			return settled, unavailable("confirm a commit", err)
		}
		if !ours {
			return lost, nil
		}
		if _, err := conn.Exec(ctx, touchRows, pgtype.FlatArray[pgtype.UUID]{uuid(w.id)}); err != nil {
			return settled, unavailable("confirm a commit", err)
		}
	}
	switch err := s.commit(ctx, conn.Conn(), writes[0].creates()); {
	case err == nil:
		return settled, nil
	case errors.Is(err, ledger.ErrStoreUnavailable):
		return settled, err
	default:
		return settled, unavailable("confirm a commit", err)
	}
}

// areThere reports whether there are writes, and all of them were made.
func areThere(ctx context.Context, conn querier, writes []write) (bool, error) {
	for _, w := range writes {
		if there, err := w.isThere(ctx, conn); err != nil || !there {
			return false, err
		}
	}
	return len(writes) > 0, nil
}

// isThere reports whether the row's history holds this very event, or, for a deadline without one, the row this very deadline.
func (w write) isThere(ctx context.Context, conn querier) (bool, error) {
	if w.event == nil {
		var sequence int64
		var lease stamp
		err := conn.QueryRow(ctx, selectLease, id(w.next.ID)).Scan(&sequence, &lease)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil && uint64(sequence) == w.next.Sequence && w.next.Grant.LeaseUntil.Equal(time.Time(lease)), err
	}
	var hash []byte
	err := conn.QueryRow(ctx, selectHash, id(w.next.ID), int64(w.event.Sequence)).Scan(&hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil && string(hash) == string(w.event.Hash[:]), err
}
