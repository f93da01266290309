// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

// write is one row's part of a change.
type write struct {
	was, next *ledger.Operation
	event     *ledger.Event
}

func (w write) creates() bool { return w.was == nil }

// statement that writes row and event, or nothing.
func (w write) statement() (string, []any) {
	switch {
	case w.creates():
		return insertRow, insertArgs(w.next, w.event)
	case w.event == nil:
		return renewRow, updateArgs(w.was, w.next)
	default:
		return updateRow, append(updateArgs(w.was, w.next), eventArgs(w.event)...)
	}
}

// plan checks that a change fits what was read. An error is a fault of the caller's code, not of the database.
func plan(op ledger.OperationID, view ledger.View, change ledger.Change) ([]write, error) {
	writes := []write{{was: view.Current, next: change.Next, event: change.Event}}
	if change.Next.ID != op {
		return nil, errors.New("postgres: the change is of another operation than the one read")
	}
	if c := change.Companion; c != nil {
		was, ok := view.Related[c.Next.ID]
		if !ok || c.Companion != nil || c.Next.ID == op {
			return nil, errors.New("postgres: a companion must be one of the related operations that were read")
		}
		writes = append(writes, write{was: &was, next: c.Next, event: c.Event})
	}
	for _, w := range writes {
		if err := w.check(); err != nil {
			return nil, err
		}
	}
	return writes, nil
}

func (w write) check() error {
	switch e := w.event; {
	case w.was != nil && w.was.KeyHash != w.next.KeyHash:
		return fmt.Errorf("postgres: operation %s belongs to another key with the same first 128 bits of its hash", w.next.ID)
	case w.was == nil && e == nil:
		return errors.New("postgres: a new operation needs an event")
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

// sendWrites sends all of a change in one round trip, with what else the batch holds; each statement must change one row.
func sendWrites(ctx context.Context, to sender, b *pgx.Batch, writes []write) error {
	for _, w := range writes {
		sql, args := w.statement()
		b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				return errRace
			}
			return nil
		})
	}
	return to.SendBatch(ctx, b).Close()
}

// errUnseen says that the outcome of a COMMIT can't be seen.
var errUnseen = errors.New("the outcome of the commit is not known")

// commit ends a transaction. Errors: errUnseen; one that is ErrStoreUnavailable if the change is there but not durable; else nothing
// was written.
func (s *Store) commit(ctx context.Context, conn *pgx.Conn, creates bool) error {
	before, after := failpoint.StoreUpdateBeforeCommit, failpoint.StoreUpdateAfterCommit
	if creates {
		before, after = failpoint.StoreCreateBeforeCommit, failpoint.StoreCreateAfterCommit
	}
	if err := failpoint.Hit(ctx, before); err != nil {
		_, _ = conn.Exec(ctx, "ROLLBACK")
		return err
	}
	if s.opts.CommitFault != nil {
		if apply, err := s.opts.CommitFault(); err != nil {
			end := "ROLLBACK"
			if apply {
				end = "COMMIT"
			}
			_, _ = conn.Exec(ctx, end)
			return errUnseen
		}
	}
	delete(conn.PgConn().CustomData(), warned)
	tag, err := conn.Exec(ctx, "COMMIT")
	var pg *pgconn.PgError
	switch {
	case conn.PgConn().CustomData()[warned] != nil:
		return fmt.Errorf("%w: no standby has confirmed the commit", ledger.ErrStoreUnavailable)
	case errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR":
		return err // the server says that it rolled back
	case err != nil:
		return errUnseen
	case tag.String() != "COMMIT":
		return errRace // a transaction that had failed was rolled back
	}
	if err := failpoint.Hit(ctx, after); err != nil {
		return errUnseen
	}
	return nil
}

// confirm finds out on a fresh connection what became of a COMMIT whose outcome could not be seen, by running the same writes again: that
// waits for the lost commit where it still runs. Who finds what it wanted to write has succeeded, once that is as durable as a commit of
// its own. A write that changes its row shows that nothing was committed; the decision is then too old to be kept, and is taken anew.
func (u *update) confirm(writes []write) (outcome, error) {
	ctx, cancel := u.store.detached(u.ctx, confirmBound)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, u.store.pool.Config().ConnConfig.Copy())
	if err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, begin); err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	for _, w := range writes {
		sql, args := w.statement()
		tag, err := conn.Exec(ctx, sql, args...)
		if err != nil {
			if lostRace(err) {
				return lost, nil
			}
			return settled, unavailable("confirm a commit", err)
		}
		if tag.RowsAffected() == 1 {
			_, _ = conn.Exec(ctx, "ROLLBACK") // closing it does the same
			return failed, unavailable("commit", errUnseen)
		}
		ours, err := w.isThere(ctx, conn)
		if err != nil {
			return settled, unavailable("confirm a commit", err)
		}
		if !ours {
			return lost, nil
		}
		if _, err := conn.Exec(ctx, touchRow, id(w.next.ID)); err != nil {
			return settled, unavailable("confirm a commit", err)
		}
	}
	switch err := u.store.commit(ctx, conn, writes[0].creates()); {
	case err == nil:
		return settled, nil
	case errors.Is(err, ledger.ErrStoreUnavailable):
		return settled, err
	default:
		return settled, unavailable("confirm a commit", err)
	}
}

// isThere reports whether the row's history holds this very event, or, for a deadline without one, the row this very deadline.
func (w write) isThere(ctx context.Context, conn *pgx.Conn) (bool, error) {
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
