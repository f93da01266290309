// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// live are the grants and reservations that this instance gave and has not heard the end of. Their number is bounded by the limits, and
// none is kept beyond its lease.
type live struct {
	mu       sync.Mutex
	byWhom   map[account]map[ledger.OperationID]*place
	sweepAt  map[account]time.Time
	everyone time.Time // when all accounts are swept next
}

// place is what one operation takes up, in each account that it counts for.
type place struct {
	until time.Time
	in    []account
}

func newLive() *live {
	return &live{byWhom: map[account]map[ledger.OperationID]*place{}, sweepAt: map[account]time.Time{}}
}

// enter takes a place for an operation; known: it has one already. Else some account is full, and is returned with some of its
// operations, which may have ended without this instance hearing of it.
func (l *live) enter(now, until time.Time, id ledger.OperationID, charges []charge) (entered, known bool, full accountKind, some []ledger.OperationID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Before(l.everyone) {
		for who := range l.byWhom {
			l.sweep(now, who)
		}
		l.everyone = now.Add(sweepEvery)
	}
	if l.find(id, charges) != nil {
		return false, true, 0, nil
	}
	for _, c := range charges {
		if len(l.byWhom[c.account]) >= c.limits.Live && !now.Before(l.sweepAt[c.account]) {
			l.sweep(now, c.account)
		}
		if ops := l.byWhom[c.account]; len(ops) >= c.limits.Live {
			for id := range ops { // in no order: any of them may have ended
				if some = append(some, id); len(some) == lookAtOnce {
					break
				}
			}
			return false, false, c.account.kind, some
		}
	}
	l.put(id, until, charges)
	return true, false, 0, nil
}

const (
	sweepEvery = 10 * time.Second
	// A full account is swept no more often than this, however many claims it sends.
	sweepAtMost = 100 * time.Millisecond
	// lookAtOnce is how many operations of a full account one claim looks at.
	lookAtOnce = 4
)

func (l *live) find(id ledger.OperationID, charges []charge) *place {
	if len(charges) == 0 {
		return nil
	}
	return l.byWhom[charges[0].account][id]
}

func (l *live) put(id ledger.OperationID, until time.Time, charges []charge) {
	p := &place{until: until}
	for _, c := range charges {
		ops := l.byWhom[c.account]
		if ops == nil {
			ops = map[ledger.OperationID]*place{}
			l.byWhom[c.account] = ops
		}
		ops[id] = p
		p.in = append(p.in, c.account)
	}
}

// lasts says until when an operation is live. It gets a place if it has none: a grant counts even where it is one too many.
func (l *live) lasts(until time.Time, id ledger.OperationID, charges []charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.find(id, charges); p != nil {
		p.until = until
		return
	}
	l.put(id, until, charges)
}

// hear is told how an operation stands: until when it is live, or that it is not (the zero time). One that has no place gets none.
func (l *live) hear(scope ledger.Scope, id ledger.OperationID, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.byWhom[account{kind: ofScope, name: string(scope)}][id]
	switch {
	case p == nil:
	case until.IsZero():
		l.remove(id, p)
	default:
		p.until = until
	}
}

func (l *live) remove(id ledger.OperationID, p *place) {
	for _, who := range p.in {
		delete(l.byWhom[who], id)
		if len(l.byWhom[who]) == 0 {
			delete(l.byWhom, who)
			delete(l.sweepAt, who)
		}
	}
}

func (l *live) sweep(now time.Time, who account) {
	for id, p := range l.byWhom[who] {
		if !p.until.After(now) {
			l.remove(id, p)
		}
	}
	if len(l.byWhom[who]) > 0 {
		l.sweepAt[who] = now.Add(sweepAtMost)
	}
}
