// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

// gathered is what one round trip reads for any number of read sets: the same statements, however many there are.
type gathered struct {
	sets  []ledger.ReadSet
	clock clock

	meta meta
	// now is the database's own time.
	now  time.Time
	rows map[ledger.OperationID]*gatheredRow
	// owners are whose the slots are; owned are their rows, which are read after that.
	owners map[ledger.Slot]ledger.OperationID
	owned  map[ledger.OperationID]*gatheredRow
	each   []gatheredSet // as the sets
	// forgotten is until when keys of tools were.
	forgotten map[string]time.Time
}

// gatheredRow is one row, for all sets that name it.
type gatheredRow struct {
	ledger.Operation
	// err says why it can't be used: it is of a newer release, or damaged.
	err error
	// taken: who comes now gets a copy.
	taken bool
}

// gatheredSet is what is read for one set alone.
type gatheredSet struct {
	prior    []ledger.Event
	err      error
	siblings []ledger.OperationID
	unknowns int64
}

// sender sends a batch: a connection, or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// gather adds to a batch all that the sets name. It is filled when the batch has been sent.
func gather(b *pgx.Batch, sets []ledger.ReadSet, c clock) *gathered {
	g := &gathered{sets: sets, clock: c, rows: map[ledger.OperationID]*gatheredRow{}, each: make([]gatheredSet, len(sets))}
	b.Queue(selectMeta).QueryRow(func(row pgx.Row) (err error) {
		g.meta, g.now, err = scanMeta(row)
		return err
	})
	g.addRows(b)
	g.addPrior(b)
	g.addSiblings(b)
	g.addUnknowns(b)
	g.addForgotten(b)
	g.addOwners(b)
	return g
}

func (g *gathered) addRows(b *pgx.Batch) {
	var ids pgtype.FlatArray[pgtype.UUID]
	for _, set := range g.sets {
		for _, op := range append([]ledger.OperationID{set.ID}, set.Related...) {
			if _, ok := g.rows[op]; !ok {
				g.rows[op] = nil
				ids = append(ids, uuid(op))
			}
		}
	}
	b.Queue(selectRows, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			o, err := scanRow(rows)
			if err != nil && !errors.Is(err, errDamaged) && !errors.Is(err, ledger.ErrRecordTooNew) {
				return err
			}
			g.rows[o.ID] = &gatheredRow{Operation: o, err: err}
		}
		return rows.Err()
	})
}

func (g *gathered) addPrior(b *pgx.Batch) {
	var numbers pgtype.FlatArray[int64]
	var ids pgtype.FlatArray[pgtype.UUID]
	var commands pgtype.FlatArray[string]
	for n, set := range g.sets {
		if set.CommandID != "" && isText(set.CommandID) {
			numbers, ids, commands = append(numbers, int64(n)), append(ids, uuid(set.ID)), append(commands, set.CommandID)
		}
	}
	if len(numbers) == 0 {
		return
	}
	b.Queue(selectPrior, numbers, ids, commands).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n int64
			e, err := scanEvent(rows, &n)
			if rows.Err() != nil {
				return rows.Err()
			}
			g.each[n].prior, g.each[n].err = append(g.each[n].prior, e), errors.Join(g.each[n].err, err)
		}
		return rows.Err()
	})
}

func (g *gathered) addSiblings(b *pgx.Batch) {
	var numbers pgtype.FlatArray[int64]
	var selves pgtype.FlatArray[pgtype.UUID]
	var scopes, tasks, tools, subjects pgtype.FlatArray[string]
	for n, set := range g.sets {
		if q := set.Siblings; q != nil && isText(string(q.Scope)+string(q.Task)+string(q.Tool)) {
			numbers, selves = append(numbers, int64(n)), append(selves, uuid(set.ID))
			scopes, tasks, tools = append(scopes, string(q.Scope)), append(tasks, string(q.Task)), append(tools, string(q.Tool))
			subjects = append(subjects, literal(q.SubjectDigests))
		}
	}
	if len(numbers) == 0 {
		return
	}
	b.Queue(selectSiblings, numbers, scopes, tasks, tools, selves, subjects).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n int64
			var u pgtype.UUID
			if err := rows.Scan(&n, &u); err != nil {
				return err
			}
			g.each[n].siblings = append(g.each[n].siblings, u.Bytes)
		}
		return rows.Err()
	})
}

func (g *gathered) addUnknowns(b *pgx.Batch) {
	var numbers, limits pgtype.FlatArray[int64]
	var tools pgtype.FlatArray[string]
	for n, set := range g.sets {
		if u := set.Unknowns; u != nil && isText(string(u.Tool)) {
			numbers, tools, limits = append(numbers, int64(n)), append(tools, string(u.Tool)), append(limits, int64(u.Limit))
		}
	}
	if len(numbers) == 0 {
		return
	}
	b.Queue(countUnknowns, numbers, tools, limits).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n, count int64
			if err := rows.Scan(&n, &count); err != nil {
				return err
			}
			g.each[n].unknowns = count
		}
		return rows.Err()
	})
}

// literal is an array of bytea as text.
func literal(values [][]byte) string {
	elements := make([]string, len(values))
	for i, v := range values {
		elements[i] = `"\\x` + hex.EncodeToString(v) + `"`
	}
	return "{" + strings.Join(elements, ",") + "}"
}

// usable reports what makes all of it useless.
func (g *gathered) usable() error { return supported(g.meta.schema) }

// only is what was read for the only set.
func (g *gathered) only() (ledger.View, error) {
	if err := g.usable(); err != nil {
		return ledger.View{}, err
	}
	return g.view(0)
}

// view is what was read for the set of that number.
func (g *gathered) view(n int) (ledger.View, error) {
	set, own := g.sets[n], g.each[n]
	v := ledger.View{
		Now: g.clock.now(g.now), Timeline: uint32(g.meta.timeline), Watermark: g.meta.watermark, Paused: g.meta.paused,
		Prior: own.prior, UnknownSiblings: own.siblings, Unknowns: int(own.unknowns), Forgotten: g.forgotten[string(set.Forgotten)],
	}
	if len(set.Related) > 0 {
		v.Related = make(map[ledger.OperationID]ledger.Operation, len(set.Related))
	}
	if current := g.rows[set.ID]; current != nil {
		o, err := current.take()
		if err != nil {
			return ledger.View{}, err
		}
		v.Current = &o
	}
	for _, op := range set.Related {
		related := g.rows[op]
		if related == nil {
			continue
		}
		o, err := related.take()
		if err != nil {
			return ledger.View{}, err
		}
		v.Related[op] = o
	}
	if err := g.addOwnersTo(&v, set.Slots); err != nil {
		return ledger.View{}, err
	}
	return v, own.err
}

// take gives each taker a row of its own.
func (r *gatheredRow) take() (ledger.Operation, error) {
	if r.err != nil {
		return ledger.Operation{}, r.err
	}
	if r.taken {
		return r.Clone(), nil
	}
	r.taken = true
	return r.Operation, nil
}
