// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// account is who is counted together: a scope, one subject of it, or a principal without a scope. A subject is kept as a keyed hash, so
// that what is remembered of it has a fixed size and says nothing.
type account struct {
	kind    accountKind
	name    string
	subject uint64
}

type accountKind uint8

const (
	ofScope accountKind = iota
	ofSubject
	ofPrincipal
)

var subjectSeed = maphash.MakeSeed()

func subjectAccount(scope ledger.Scope, subject string) account {
	return account{ofSubject, string(scope), maphash.String(subjectSeed, subject)}
}

// charge is what a request costs one account.
type charge struct {
	account account
	limits  Limits
}

// bucket holds what is left of a burst at a time.
type bucket struct {
	left float64
	at   time.Time
	// full is when nothing would tell it from a new one.
	full time.Time
}

// buckets are the token buckets of all accounts. A full one is forgotten.
type buckets struct {
	mu      sync.Mutex
	byWhom  map[account]bucket
	sweepAt time.Time
}

// mostBuckets bounds what callers can make the server remember. Subjects beyond it are not counted apart; their scopes still are.
const mostBuckets = 1 << 16

// take takes one request from every account, or from none: then it returns how long to wait, and for whom.
func (b *buckets) take(now time.Time, charges ...charge) (time.Duration, accountKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !now.Before(b.sweepAt) {
		b.sweep(now)
	}
	after := make([]bucket, len(charges))
	for i, c := range charges {
		at := bucket{left: float64(c.limits.Burst), at: now}
		if was, ok := b.byWhom[c.account]; ok {
			at.left = min(was.left+max(now.Sub(was.at), 0).Seconds()*c.limits.PerSecond, at.left)
		}
		if at.left < 1 {
			return lasting(1-at.left, c.limits.PerSecond), c.account.kind
		}
		at.left--
		at.full = now.Add(lasting(float64(c.limits.Burst)-at.left, c.limits.PerSecond))
		after[i] = at
	}
	for i, c := range charges {
		if _, known := b.byWhom[c.account]; !known && c.account.kind == ofSubject && len(b.byWhom) >= mostBuckets {
			continue
		}
		b.byWhom[c.account] = after[i]
	}
	return 0, 0
}

// lasting is how long so many requests take at a rate, up to the next millisecond.
func lasting(requests float64, perSecond float64) time.Duration {
	d := time.Duration(requests / perSecond * float64(time.Second))
	return d.Truncate(time.Millisecond) + time.Millisecond
}

func (b *buckets) sweep(now time.Time) {
	for who, at := range b.byWhom {
		if !at.full.After(now) {
			delete(b.byWhom, who)
		}
	}
	b.sweepAt = now.Add(time.Second)
}
