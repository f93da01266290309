// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"slices"
	"time"

	"github.com/opsledger/opsledger/guard"
)

// Slot is the keyed digest of scope, subject, tool, a unique rule and the values that the rule compares: look-alikes ask for the same one.
// Of the operations that it has belonged to, the store keeps the last.
type Slot [32]byte

// UniqueSlot is a slot that a Claim asks for, and for how long an owner keeps it after it has completed.
type UniqueSlot struct {
	Slot   Slot
	Within time.Duration
}

// holds reports whether a slot's owner stands in the way of its look-alikes: unsettled it always does (also one that a newer release has
// written, whose state can't be read), for the rule's window after it has completed, never after it has failed.
func (d *decision) holds(owner *Operation, u UniqueSlot) bool {
	switch owner.State {
	case Failed, Retired:
		return false
	case Completed:
		return !d.over(owner.FinalTime.Add(u.Within), owner.FinalTime)
	default:
		return guard.Unsettled.On() || !d.over(owner.CreateTime.Add(u.Within), owner.CreateTime)
	}
}

// TakenSlot is a slot that an operation takes with a change.
type TakenSlot struct {
	Slot Slot
	// From is whose it was; zero: nobody's.
	From OperationID
}

// wanted are the slots that a claim asks for, by whose they are.
func (d *decision) wanted(yield func(UniqueSlot, *Operation) bool) {
	c, _ := d.cmd.(Claim)
	for _, u := range c.Slots {
		var owner *Operation
		if o, ok := d.rel.Owners[u.Slot]; ok {
			owner = &o
		}
		if !yield(u, owner) {
			return
		}
	}
}

// lookAlikes are the other operations that hold a slot that a claim asks for.
func (d *decision) lookAlikes() []OperationID {
	var ids []OperationID
	for u, owner := range d.wanted {
		if owner != nil && owner.ID != d.next.ID && d.holds(owner, u) && !slices.Contains(ids, owner.ID) {
			ids = append(ids, owner.ID)
		}
	}
	return ids
}

// takeSlots makes the operation the owner of the slots that nobody holds. A grant also takes those of operations that have completed,
// which it was said to be distinct from (or it is older than the rule), so that the window counts from the last of them. What is not
// settled keeps its slot whoever else is granted: it is what later look-alikes are most likely to repeat.
func (d *decision) takeSlots(granted bool) {
	for u, owner := range d.wanted {
		switch {
		case owner == nil:
			d.taken = append(d.taken, TakenSlot{Slot: u.Slot})
		case !d.holds(owner, u), granted && owner.State.Final():
			d.taken = append(d.taken, TakenSlot{Slot: u.Slot, From: owner.ID})
		}
	}
	slices.SortFunc(d.taken, func(a, b TakenSlot) int { return bytes.Compare(a.Slot[:], b.Slot[:]) })
}

// ownerMayBeLost reports whether a slot that looks free may belong to an operation that a failover has lost.
func (d *decision) ownerMayBeLost() bool {
	if d.terms.Effect == Read {
		return false
	}
	for u, owner := range d.wanted {
		if (owner == nil || !d.holds(owner, u)) && d.mattersStill(u.Within) {
			return true
		}
	}
	return false
}

// rivalMayBeLost is for a key that was inserted behind the watermark what claimNew asks of others: whether a compensation of the same original, or the owner of a
// slot, may have been lost with it.
func (d *decision) rivalMayBeLost() bool {
	if !d.wasQuarantined() || d.terms.Effect == Read {
		return false
	}
	if !d.next.Compensates.IsZero() && !d.c.RequireUnchanged && d.quarantined() {
		return true
	}
	return slices.ContainsFunc(d.c.Unique, func(u UniqueRule) bool { return d.mattersStill(u.Within) })
}
