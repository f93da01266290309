// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// What has passed, and what is still open. Both are judged to the safe side of the jumps of the store's clock that are known: by the time that
// has really passed since the deadline was noted, or a moment before.

// over reports whether a deadline has come. since is when it was noted or a time before that; zero: not known.
func (d *decision) over(deadline, since time.Time) bool {
	return !d.now.Add(-d.rel.Jumps.gained(since)).Before(deadline)
}

// passedBy reports whether a deadline had come at a time that has passed meanwhile; unset, it never comes.
func (d *decision) passedBy(at, deadline, since time.Time) bool {
	return !deadline.IsZero() && !at.Add(-d.rel.Jumps.gainedUntil(since, at)).Before(deadline)
}

// wait is how long it takes until a deadline is over.
func (d *decision) wait(deadline, since time.Time) time.Duration {
	return left(deadline, d.now.Add(-d.rel.Jumps.gained(since)))
}

// open reports whether something that began at a time may still be done, up to the end of its window.
func (d *decision) open(end, began time.Time) bool {
	return d.now.Add(d.rel.Jumps.lost(began)).Before(end)
}

// leaseAlive reports whether somebody may be executing.
func (d *decision) leaseAlive() bool {
	return !d.over(d.next.Grant.LeaseUntil, d.next.Grant.Time)
}

func (d *decision) leaseLeft() time.Duration {
	return d.wait(d.next.Grant.LeaseUntil, d.next.Grant.Time)
}

// sendLeft is for how long the holder may still send.
func (d *decision) sendLeft() time.Duration {
	g := &d.next.Grant
	return left(g.SendUntil, d.now.Add(d.rel.Jumps.lost(g.Time)))
}

// reserved reports whether a reservation is alive: nothing was sent under it.
func (d *decision) reserved() bool {
	n := &d.next
	return n.State == Received && !n.Grant.Started && d.leaseAlive()
}

// settlesAt is when the store's clock will show that the operation has settled.
func (d *decision) settlesAt() time.Time {
	t := d.settleTime()
	if t.IsZero() {
		return t
	}
	return t.Add(d.rel.Jumps.gained(d.next.sentSince()))
}

// sentSince is when the last send window was noted, or a time before; zero: that is not known, as of a reservation after it.
func (o *Operation) sentSince() time.Time {
	if o.Grant.Started {
		return o.Grant.Time
	}
	return time.Time{}
}
