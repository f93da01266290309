// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

// write is one row's part of a change.
type write struct {
	was, next *ledger.Operation
	event     *ledger.Event
}

// plan checks that a change fits what was read. An error is a fault of the caller's code, not of the database.
func plan(op ledger.OperationID, view ledger.View, change ledger.Change) ([]write, error) {
	writes := []write{{was: view.Current, next: change.Next, event: change.Event}}
	if change.Next.ID != op {
		return nil, errors.New("sqlite: the change is of another operation than the one read")
	}
	if c := change.Companion; c != nil {
		was, ok := view.Related[c.Next.ID]
		if !ok || c.Companion != nil || c.Next.ID == op {
			return nil, errors.New("sqlite: a companion must be one of the related operations that were read")
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
		return fmt.Errorf("sqlite: operation %s belongs to another key with the same first 128 bits of its hash", w.next.ID)
	case w.was == nil && e == nil:
		return errors.New("sqlite: a new operation needs an event")
	case e == nil && w.next.Sequence != w.was.Sequence:
		return errors.New("sqlite: the sequence moves only with an event")
	case e == nil:
		return nil
	case e.OperationID != w.next.ID || e.Sequence != w.next.Sequence || e.Hash != w.next.LastHash:
		return errors.New("sqlite: the event does not belong to the row")
	case w.was == nil && e.Sequence != 1, w.was != nil && e.Sequence != w.was.Sequence+1:
		return errors.New("sqlite: the event does not follow the last one")
	default:
		return nil
	}
}

// apply writes row and event, or returns errRace with nothing that may be committed.
func (w write) apply(ctx context.Context, tx *transaction) error {
	statement, args := updateRow, []any(nil)
	if w.was == nil {
		statement, args = insertRow, insertArgs(w.next)
	} else {
		args = updateArgs(w.was, w.next)
	}
	res, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return errRace
	}
	if w.event == nil {
		return nil
	}
	_, err = tx.ExecContext(ctx, insertEvent, eventArgs(w.event)...)
	return err
}

// errUnseen says that the outcome of a COMMIT can't be seen.
var errUnseen = errors.New("the outcome of the commit is not known")

// commit ends a transaction. Errors other than errUnseen: nothing was written.
func (s *Store) commit(ctx context.Context, tx *transaction, creates bool) error {
	before, after := failpoint.StoreUpdateBeforeCommit, failpoint.StoreUpdateAfterCommit
	if creates {
		before, after = failpoint.StoreCreateBeforeCommit, failpoint.StoreCreateAfterCommit
	}
	if err := failpoint.Hit(ctx, before); err != nil {
		return err
	}
	if s.opts.CommitFault != nil {
		if apply, err := s.opts.CommitFault(); err != nil {
			if apply {
				_, _ = tx.ExecContext(ctx, "COMMIT")
			}
			return errUnseen
		}
	}
	// Whatever COMMIT says but success (disk full, I/O error, interrupted), the log may or may not have got it.
	if _, err := tx.ExecContext(ctx, "COMMIT"); err != nil {
		return errUnseen
	}
	tx.open = false
	if err := failpoint.Hit(ctx, after); err != nil {
		return errUnseen
	}
	return nil
}

// confirm finds out what became of a COMMIT whose outcome could not be seen, by running the same writes again. Who finds what it wanted to
// write has succeeded. A write that changes its row shows that nothing was committed; the decision is then taken anew.
func (u *update) confirm(writes []write) (outcome, error) {
	// The bound counts anew: the one before may have ended the commit.
	ctx, cancel := u.store.detached(u.ctx)
	defer cancel()
	tx, err := u.store.begin(ctx)
	if err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	defer u.store.release(tx)
	for _, w := range writes {
		err := w.apply(ctx, tx)
		if err == nil {
			return failed, unavailable("commit", errUnseen)
		}
		if !errors.Is(err, errRace) && !lostRace(err) {
			return settled, unavailable("confirm a commit", err)
		}
		ours, err := w.isThere(ctx, tx)
		if err != nil {
			return settled, unavailable("confirm a commit", err)
		}
		if !ours {
			return lost, nil
		}
	}
	if err := u.store.commit(ctx, tx, writes[0].was == nil); err != nil {
		return settled, unavailable("confirm a commit", err)
	}
	return settled, nil
}

// isThere reports whether the row's history holds this very event, or, for a deadline without one, the row this very deadline.
func (w write) isThere(ctx context.Context, tx *transaction) (bool, error) {
	if w.event == nil {
		var sequence int64
		var lease stamp
		err := tx.QueryRowContext(ctx, selectLease, w.next.ID[:]).Scan(&sequence, &lease)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil && uint64(sequence) == w.next.Sequence && w.next.Grant.LeaseUntil.Equal(time.Time(lease)), err
	}
	var hash []byte
	err := tx.QueryRowContext(ctx, selectHash, w.next.ID[:], int64(w.event.Sequence)).Scan(&hash)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && string(hash) == string(w.event.Hash[:]), err
}
