// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectOwners = `SELECT slot, operation_id FROM slots WHERE slot = ANY($1::bytea[])`

	// Each changes one row, or it has lost its race. They are sent in the order of the slots, and so are their locks taken.
	insertSlot = `INSERT INTO slots (slot, operation_id) VALUES ($1, $2) ON CONFLICT (slot) DO NOTHING`
	swapSlot   = `UPDATE slots SET operation_id = $2 WHERE slot = $1 AND operation_id = $3`
)

// selectOwned reads the owners' rows apart: a table that is spread by slots can't be joined with one that is spread by ids.
var selectOwned = `SELECT ` + allColumns + ` FROM operations WHERE id IN (SELECT operation_id FROM slots WHERE slot = ANY($1::bytea[]))`

// addOwners reads whose the slots are, and then their rows. A slot that changes hands in between looks as if its owner were not there any
// more, and can't be taken from that one any more, either.
func (g *gathered) addOwners(b *pgx.Batch) {
	var slots pgtype.FlatArray[octetString]
	seen := map[ledger.Slot]bool{}
	for _, set := range g.sets {
		for _, slot := range set.Slots {
			if !seen[slot] {
				seen[slot] = true
				slots = append(slots, slot[:])
			}
		}
	}
	if len(slots) == 0 {
		return
	}
	g.owners, g.owned = map[ledger.Slot]ledger.OperationID{}, map[ledger.OperationID]*gatheredRow{}
	b.Queue(selectOwners, slots).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var slot []byte
			var owner pgtype.UUID
			if err := rows.Scan(&slot, &owner); err != nil {
				return err
			}
			g.owners[ledger.Slot(slot)] = owner.Bytes
		}
		return rows.Err()
	})
	b.Queue(selectOwned, slots).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			o, err := listed(scanRow(rows))
			if err != nil && !errors.Is(err, errDamaged) {
				return err
			}
			g.owned[o.ID] = &gatheredRow{Operation: o, err: err}
		}
		return rows.Err()
	})
}

// addOwnersTo a view, for the slots of its set.
func (g *gathered) addOwnersTo(v *ledger.View, slots []ledger.Slot) error {
	for _, slot := range slots {
		owner, ok := g.owners[slot]
		if !ok {
			continue
		}
		if v.Owners == nil {
			v.Owners = make(map[ledger.Slot]ledger.Operation, len(slots))
		}
		row := g.owned[owner]
		if row == nil {
			v.Owners[slot] = ledger.Operation{ID: owner, State: ledger.Retired}
			continue
		}
		o, err := row.take()
		if err != nil {
			return err
		}
		v.Owners[slot] = o
	}
	return nil
}

// checkSlots is plan's look at the slots that a change takes.
func checkSlots(view ledger.View, slots []ledger.TakenSlot) error {
	for i, taken := range slots {
		switch {
		case view.Owners[taken.Slot].ID != taken.From:
			return errors.New("postgres: a slot must be taken from whom it was read to belong to")
		case i > 0 && bytes.Compare(slots[i-1].Slot[:], taken.Slot[:]) >= 0:
			return errors.New("postgres: slots are taken in their order, each once")
		}
	}
	return nil
}

// queueSlots adds the statements that take a write's slots. Where one is lost, so is the write.
func queueSlots(b *pgx.Batch, w write, won map[ledger.OperationID]bool) {
	note := func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != 1 {
			delete(won, w.id)
		}
		return nil
	}
	for _, taken := range w.slots {
		if taken.From.IsZero() {
			b.Queue(insertSlot, taken.Slot[:], uuid(w.id)).Exec(note)
		} else {
			b.Queue(swapSlot, taken.Slot[:], uuid(w.id), uuid(taken.From)).Exec(note)
		}
	}
}
