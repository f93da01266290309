// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// meta is the one row of the table of that name.
type meta struct {
	timeline  uint32
	watermark ledger.Watermark
	paused    ledger.PausedTools
}

// noTools is the list of no tools as it is stored.
const noTools = "[]"

func scanMeta(r *row) (meta, error) {
	schema := r.integer()
	m := meta{timeline: uint32(r.integer()), watermark: ledger.Watermark{At: r.time(), LostSince: r.time()}}
	if paused := r.text(); paused != noTools && json.Unmarshal([]byte(paused), &m.paused) != nil {
		r.damaged = true
	}
	if r.damaged {
		return meta{}, errDamaged
	}
	return m, supported(int(schema))
}

// readMeta refuses a schema that this release does not work on.
func readMeta(c *conn) (meta, error) { return only(query(background, c, scanMeta, selectMeta)) }

// only is the one row that a statement must return.
func only[T any](found []T, err error) (T, error) {
	var none T
	switch {
	case err != nil:
		return none, err
	case len(found) == 0:
		return none, errDamaged
	}
	return found[0], nil
}

// start is what every decision begins with.
type start struct {
	meta    meta
	current *ledger.Operation
}

// scanStart reads the columns of selectView.
func scanStart(r *row) (start, error) {
	m, err := scanMeta(r)
	if err != nil || r.values[r.at+mutableCount] == nil { // no operation has this id
		return start{meta: m}, err
	}
	o, err := scanRow(r)
	return start{m, &o}, err
}

// readView reads all that a decision needs, in the transaction that is open.
func readView(c *conn, now time.Time, reads ledger.ReadSet) (ledger.View, error) {
	from, err := only(query(background, c, scanStart, selectView, reads.ID[:]))
	if err != nil {
		return ledger.View{}, err
	}
	view := ledger.View{
		Now: now, Timeline: from.meta.timeline, Watermark: from.meta.watermark, Paused: from.meta.paused, Current: from.current,
	}
	if view.Current != nil {
		if reads.CommandID != "" { // what does not exist has no history either
			if view.Prior, err = query(background, c, scanEvent, selectPrior, reads.ID[:], reads.CommandID); err != nil {
				return ledger.View{}, err
			}
		}
	}
	if len(reads.Related) > 0 {
		related, err := query(background, c, scanRow, selectRows, idList(reads.Related))
		if err != nil {
			return ledger.View{}, err
		}
		view.Related = make(map[ledger.OperationID]ledger.Operation, len(related))
		for i := range related {
			view.Related[related[i].ID] = related[i]
		}
	}
	if u := reads.Unknowns; u != nil {
		count, err := only(query(background, c, func(r *row) (int64, error) { return r.integer(), nil }, countUnknowns, string(u.Tool), int64(u.Limit)))
		if err != nil {
			return ledger.View{}, err
		}
		view.Unknowns = int(count)
	}
	if reads.Forgotten != "" {
		times, err := query(background, c, func(r *row) (time.Time, error) { return r.time(), nil }, selectForgotten, string(reads.Forgotten))
		if err != nil {
			return ledger.View{}, err
		}
		if len(times) > 0 {
			view.Forgotten = times[0]
		}
	}
	if len(reads.Slots) > 0 {
		if view.Owners, err = owners(c, reads.Slots); err != nil {
			return ledger.View{}, err
		}
	}
	if reads.Siblings != nil {
		if view.UnknownSiblings, err = siblings(c, reads); err != nil {
			return ledger.View{}, err
		}
	}
	return view, nil
}

// owners of slots, also those that a newer release has written, or that are not there any more.
func owners(c *conn, slots []ledger.Slot) (map[ledger.Slot]ledger.Operation, error) {
	found := make(map[ledger.Slot]ledger.Operation, len(slots))
	for _, slot := range slots {
		ids, err := query(background, c, scanID, selectOwner, slot[:])
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			continue
		}
		rows, err := query(background, c, scanListed, selectRow, ids[0][:])
		if err != nil {
			return nil, err
		}
		rows = append(rows, ledger.Operation{ID: ids[0], State: ledger.Retired})
		found[slot] = rows[0]
	}
	return found, nil
}

func siblings(c *conn, reads ledger.ReadSet) ([]ledger.OperationID, error) {
	q := reads.Siblings
	subjects := ""
	for _, d := range q.SubjectDigests {
		subjects += fmt.Sprintf("<%X>", d)
	}
	return query(background, c, scanID, selectSiblings,
		string(q.Scope), string(q.Task), string(q.Tool), reads.ID[:], subjects, int64(len(q.SubjectDigests)))
}

// view reads in a transaction of its own. now is before it, so that the rows are at least as new as the time says.
func (s *Store) view(ctx context.Context, now time.Time, reads ledger.ReadSet) (view ledger.View, err error) {
	err = s.readers.use(ctx, func(c *conn) (err error) {
		if _, err := c.exec(background, beginRead); err != nil {
			return err
		}
		defer func() {
			if _, endErr := c.exec(background, commit); endErr != nil {
				err = errUnended
			}
		}()
		view, err = readView(c, now, reads)
		return err
	})
	return view, err
}

// one runs a statement that finds one row at most, on its own.
func one[T any](ctx context.Context, s *Store, scan func(*row) (T, error), sql string, args ...any) (T, error) {
	var found []T
	err := s.readers.use(ctx, func(c *conn) (err error) {
		found, err = query(background, c, scan, sql, args...)
		return err
	})
	var none T
	switch {
	case err != nil:
		return none, readError("read", err)
	case len(found) == 0:
		return none, ledger.ErrOperationNotFound
	}
	return found[0], nil
}

// read runs a statement that only reads, on its own. It can be interrupted.
func read[T any](ctx context.Context, s *Store, scan func(*row) (T, error), sql string, args ...any) (found []T, err error) {
	err = s.readers.use(ctx, func(c *conn) (err error) {
		found, err = query(ctx, c, scan, sql, args...)
		return err
	})
	return found, err
}

// readError keeps the errors that mean something, and hides the rest.
func readError(step string, err error) error {
	if err == nil || errors.Is(err, ledger.ErrRecordTooNew) || errors.Is(err, ledger.ErrStoreUnavailable) {
		return err
	}
	return unavailable(step, err)
}

// Get reads one operation with the store's time.
func (s *Store) Get(ctx context.Context, op ledger.OperationID) (ledger.Operation, time.Time, error) {
	now := s.now() // before the read, so that the row is at least as new as the time says
	o, err := one(ctx, s, scanRow, selectRow, op[:])
	if err != nil {
		return ledger.Operation{}, time.Time{}, err
	}
	return o, now, nil
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (s *Store) ByDownstreamKey(ctx context.Context, downstreamKey string) (ledger.OperationID, error) {
	return one(ctx, s, scanID, selectByDownstream, downstreamKey)
}

// List returns a page. A record of a newer release has its place in it, but no state.
func (s *Store) List(ctx context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	now, horizon := s.now(), s.flights.horizon()
	statement, after := listByCreate, ledger.DuePosition{Time: q.AfterTime, ID: q.AfterID}
	if q.Task != "" {
		statement = listByTask
	}
	args := []any{string(q.Scope), string(q.Task), position(after.Time), after.ID[:]}
	if !q.UpdatedAfter.IsZero() {
		statement = listByUpdate
		if after.Time.Before(q.UpdatedAfter) {
			// The first page begins after all rows of that very time.
			args[2], args[3] = position(q.UpdatedAfter), lastID[:]
		}
		args = append(args, horizon)
	}
	subjects, states := digests(q.SubjectDigests), numberList(q.States)
	page, err := read(ctx, s, scanListed, statement, append(args, subjects, subjects, states, states, int64(q.Limit))...)
	return page, now, readError("list", err)
}

// Due returns a page of due operations.
func (s *Store) Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.DuePage{}, err
	}
	defer done()
	now := s.now()
	found, err := read(ctx, s, func(r *row) (ledger.LookedAt, error) {
		return ledger.LookedAt{DuePosition: ledger.DuePosition{Time: r.time(), ID: r.id()}, Wanted: r.boolean(), Last: r.boolean()}, nil
	}, selectDue, instant(now), position(q.After.Time), q.After.ID[:], int64(q.Limit), jsonList(q.Without), int64(q.Scanned()))
	page := ledger.PageOf(found, q.Limit)
	page.Now = now
	return page, readError("due", err)
}

// Events returns a whole history.
func (s *Store) Events(ctx context.Context, op ledger.OperationID) ([]ledger.Event, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	events, err := read(ctx, s, scanEvent, selectEvents, op[:])
	return events, readError("events", err)
}

// lastID comes after all ids.
var lastID = ledger.OperationID{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// position is a time to begin at: unset means before all.
func position(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixMicro()
}

// digests is a JSON list of digests, as hex() writes them.
func digests(list [][]byte) string {
	out := make([]string, len(list))
	for i, d := range list {
		out[i] = strings.ToUpper(hex.EncodeToString(d))
	}
	return jsonList(out)
}

func idList(list []ledger.OperationID) string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = hex.EncodeToString(list[i][:])
	}
	return jsonList(out)
}

func numberList[T ~uint8](list []T) string {
	out := make([]int, len(list)) // not uint8, which JSON would make one string of
	for i, n := range list {
		out[i] = int(n)
	}
	return jsonList(out)
}

func jsonList[T any](v []T) string {
	if len(v) == 0 {
		return "[]"
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("sqlite: %T is not a list", v))
	}
	return string(b)
}
