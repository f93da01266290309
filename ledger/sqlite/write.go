// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

// write is one row's part of a change.
type write struct {
	was, next *ledger.Operation
	event     *ledger.Event
	// slots that the row takes with it.
	slots []ledger.TakenSlot
	// unpaused: it is written only while its tool is not paused.
	unpaused bool
	// row and appended are what its statements are given. They are made where it is planned, by the caller: the writer is one goroutine, for
	// which all others wait.
	row, appended []any
}

// plan checks that a change fits what was read. An error is a fault of the caller's code, not of the database.
func plan(op ledger.OperationID, view ledger.View, change ledger.Change) ([]write, error) {
	writes := []write{{was: view.Current, next: change.Next, event: change.Event, slots: change.Slots, unpaused: change.UnlessPaused}}
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
	for _, taken := range change.Slots {
		if view.Owners[taken.Slot].ID != taken.From {
			return nil, errors.New("sqlite: a slot must be taken from whom it was read to belong to")
		}
	}
	for i := range writes {
		if err := writes[i].check(); err != nil {
			return nil, err
		}
		writes[i].prepare()
	}
	return writes, nil
}

func (w write) check() error {
	switch e := w.event; {
	case w.was != nil && w.was.KeyHash != w.next.KeyHash:
		return fmt.Errorf("sqlite: operation %s belongs to another key with the same first 128 bits of its hash", w.next.ID)
	case w.was == nil && e == nil:
		return errors.New("sqlite: a new operation needs an event")
	case e == nil && len(w.slots) > 0:
		return errors.New("sqlite: slots are taken with an event")
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

func (w *write) prepare() {
	if w.was == nil {
		w.row = insertArgs(w.next)
	} else {
		w.row = updateArgs(w.was, w.next, w.event)
	}
	if w.event != nil {
		w.appended = eventArgs(w.event)
	}
}

// apply writes row, event and slots. Of its errors, errRace and a constraint's have written nothing; after a tornError the row is written,
// and not all that belongs to it. It runs under the write lock: a slot that is seen to be nobody else's is won.
func (w write) apply(c *conn) error {
	for _, taken := range w.slots {
		owners, err := query(background, c, scanID, selectOwner, taken.Slot[:])
		if err != nil {
			return err
		}
		if len(owners) > 0 && owners[0] != taken.From || len(owners) == 0 && !taken.From.IsZero() {
			return errRace
		}
	}
	statement := updateRow
	if w.was == nil {
		statement = insertRow
	}
	n, err := c.exec(background, statement, w.row...)
	switch {
	case err != nil:
		return err
	case n != 1:
		return errRace
	case w.event == nil:
		return nil
	}
	if _, err = c.exec(background, insertEvent, w.appended...); err != nil {
		return &tornError{err}
	}
	for _, taken := range w.slots {
		if _, err = c.exec(background, takeSlot, taken.Slot[:], w.next.ID[:]); err != nil {
			return &tornError{err}
		}
	}
	return nil
}

// tornError says that a change was written in part.
type tornError struct{ error }

func (e *tornError) Unwrap() error { return e.error }

// errUnseen says that the outcome of a COMMIT can't be seen.
var errUnseen = errors.New("the outcome of the commit is not known")

// commit ends a transaction. Errors other than errUnseen: nothing was written.
func (s *Store) commit(ctx context.Context, waiting []pending) error {
	creates := func(p pending) bool { return p.wrote && p.In.creates() }
	changes := func(p pending) bool { return p.wrote && !p.In.creates() }
	hit := func(which func(pending) bool, point failpoint.Name) error {
		if !slices.ContainsFunc(waiting, which) {
			return nil
		}
		return failpoint.Hit(ctx, point)
	}
	if err := cmp.Or(hit(creates, failpoint.StoreCreateBeforeCommit), hit(changes, failpoint.StoreUpdateBeforeCommit)); err != nil {
		return err
	}
	if s.opts.CommitFault != nil {
		if apply, err := s.opts.CommitFault(); err != nil {
			if apply {
				_, _ = s.writer.exec(background, commit)
			}
			return errUnseen
		}
	}
	// Whatever COMMIT says but success (disk full, I/O error), the log may or may not have got it.
	if _, err := s.writer.exec(background, commit); err != nil {
		return errUnseen
	}
	if err := cmp.Or(hit(creates, failpoint.StoreCreateAfterCommit), hit(changes, failpoint.StoreUpdateAfterCommit)); err != nil {
		return errUnseen
	}
	return nil
}

// confirm finds out what became of a COMMIT whose outcome could not be seen, by running the same writes again. Who finds what it wanted to
// write has succeeded. One write that changes its row shows that nothing of the batch was committed; all of it is then decided anew.
func (s *Store) confirm(waiting []pending) {
	// The bound counts anew: the one before may have ended the commit.
	ctx, cancel := context.WithTimeout(s.life, s.bound)
	defer cancel()
	var ours []pending
	unknown := func(err error) {
		for _, p := range waiting {
			if p.wrote {
				p.Answer(settled, unavailable("confirm a commit", err))
			} else {
				p.Answer(failed, unavailable("confirm a commit", err))
			}
		}
	}
	if _, err := s.begin(ctx); err != nil {
		unknown(err)
		return
	}
	for _, p := range waiting {
		if !p.wrote {
			continue
		}
		there, err := s.isThere(p.In.writes)
		switch {
		case errors.Is(err, errUncommitted):
			s.undo()
			failAll(waiting, "commit", errUnseen)
			return
		case err != nil:
			s.undo()
			unknown(err)
			return
		case there:
			ours = append(ours, p)
		}
	}
	if err := s.commit(ctx, ours); err != nil {
		s.drop()
		unknown(err)
		return
	}
	tell(ours)
	failAll(waiting, "commit", errUnseen) // the others: somebody has overtaken them, or they have to be decided anew
}

// errUncommitted says that a write of a batch, made again, was not there yet.
var errUncommitted = errors.New("nothing was committed")

// isThere makes writes again, and reports whether all of them were there.
func (s *Store) isThere(writes []write) (bool, error) {
	for _, w := range writes {
		err := w.apply(s.writer)
		var torn *tornError
		switch {
		case err == nil, errors.As(err, &torn):
			return false, errUncommitted
		case !errors.Is(err, errRace) && !lostRace(err):
			return false, err
		}
		if ours, err := w.isThere(s.writer); err != nil || !ours {
			return false, err
		}
	}
	return true, nil
}

// isThere reports whether the row's history holds this very event, or, for a deadline without one, the row this very deadline.
func (w write) isThere(c *conn) (bool, error) {
	if w.event == nil {
		found, err := query(background, c, scanLease, selectLease, w.next.ID[:])
		return len(found) > 0 && found[0].sequence == w.next.Sequence && found[0].until.Equal(w.next.Grant.LeaseUntil), err
	}
	hashes, err := query(background, c, func(r *row) ([32]byte, error) { return r.digest(), nil },
		selectHash, w.next.ID[:], int64(w.event.Sequence))
	return len(hashes) > 0 && hashes[0] == w.event.Hash, err
}
