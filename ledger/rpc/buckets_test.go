// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strconv"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

var bucketsNow = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func scopeCharge(name string, perSecond float64, burst int) charge {
	return charge{account{kind: ofScope, name: name}, Limits{PerSecond: perSecond, Burst: burst}}
}

func subjectCharge(scope, subject string, perSecond float64, burst int) charge {
	return charge{subjectAccount(ledger.Scope(scope), subject), Limits{PerSecond: perSecond, Burst: burst}}
}

// takeMany returns how many of so many requests at once are let through.
func takeMany(b *buckets, now time.Time, n int, charges ...charge) int {
	through := 0
	for range n {
		if wait, _ := b.take(now, charges...); wait == 0 {
			through++
		}
	}
	return through
}

func TestBurstThenRate(t *testing.T) {
	b := &buckets{byWhom: map[account]bucket{}}
	c := scopeCharge("a", 10, 25)
	for _, step := range []struct {
		name  string
		after time.Duration
		want  int
	}{
		{"a burst", 0, 25},
		{"nothing at once after it", 0, 0},
		{"a second's worth", time.Second, 10},
		{"half a second's worth", 1500 * time.Millisecond, 5},
		{"never more than a burst", time.Hour, 25},
		{"a clock that goes back gives nothing", time.Minute, 0},
	} {
		if got := takeMany(b, bucketsNow.Add(step.after), 100, c); got != step.want {
			t.Errorf("%s: %d requests, want %d", step.name, got, step.want)
		}
	}
}

func TestWhoWaitsLongEnoughIsLetThrough(t *testing.T) {
	b := &buckets{byWhom: map[account]bucket{}}
	c := scopeCharge("a", 3, 1)
	takeMany(b, bucketsNow, 1, c)
	wait, who := b.take(bucketsNow, c)
	if wait <= 0 || wait > time.Second || who != ofScope {
		t.Fatalf("wait %v for %v", wait, who)
	}
	if got := takeMany(b, bucketsNow.Add(wait), 1, c); got != 1 {
		t.Errorf("refused after waiting %v", wait)
	}
}

// One subject that asks for too much takes nothing from the scope, and so from the others; a scope's end is every subject's.
func TestSubjectsShareAScope(t *testing.T) {
	b := &buckets{byWhom: map[account]bucket{}}
	scope := scopeCharge("a", 1, 10)
	if got := takeMany(b, bucketsNow, 100, scope, subjectCharge("a", "greedy", 1, 3)); got != 3 {
		t.Errorf("the greedy one: %d requests, want 3", got)
	}
	if got := takeMany(b, bucketsNow, 3, scope, subjectCharge("a", "modest", 1, 3)); got != 3 {
		t.Errorf("another one: %d requests, want 3", got)
	}
	if got := takeMany(b, bucketsNow, 100, scope); got != 4 {
		t.Errorf("without a subject: %d requests, want the 4 that are left", got)
	}
	if wait, who := b.take(bucketsNow, scope, subjectCharge("a", "third", 1, 3)); wait == 0 || who != ofScope {
		t.Errorf("a third one: wait %v for %v", wait, who)
	}
	if got := takeMany(b, bucketsNow, 1, scopeCharge("b", 1, 10), subjectCharge("b", "greedy", 1, 3)); got != 1 {
		t.Error("the same subject in another scope is another one")
	}
}

func TestLimitsThatChangeCountAtOnce(t *testing.T) {
	b := &buckets{byWhom: map[account]bucket{}}
	takeMany(b, bucketsNow, 1, scopeCharge("a", 10, 100))
	if got := takeMany(b, bucketsNow, 100, scopeCharge("a", 10, 5)); got != 5 {
		t.Errorf("%d requests after the burst became 5", got)
	}
}

func TestIdleBucketsAreForgotten(t *testing.T) {
	b := &buckets{byWhom: map[account]bucket{}}
	for i := range 2 * mostBuckets {
		b.take(bucketsNow, scopeCharge("a", 1_000_000, 1_000_000), subjectCharge("a", strconv.Itoa(i), 1, 2))
	}
	if got := len(b.byWhom); got > mostBuckets {
		t.Errorf("%d buckets are kept, at most %d may be", got, mostBuckets)
	}
	b.take(bucketsNow.Add(3*time.Second), scopeCharge("b", 1, 1))
	if got := len(b.byWhom); got != 1 {
		t.Errorf("%d buckets are kept after a pause, want 1", got)
	}
}

func liveCharges(scope string, most int, subject string, mostOfIt int) []charge {
	return []charge{
		{account{kind: ofScope, name: scope}, Limits{Live: most}},
		{subjectAccount(ledger.Scope(scope), subject), Limits{Live: mostOfIt}},
	}
}

func TestLiveOperationsAreCountedUntilTheirEnd(t *testing.T) {
	l := newLive()
	a, b := liveCharges("s", 3, "a", 2), liveCharges("s", 3, "b", 2)
	until := bucketsNow.Add(time.Minute)
	id := func(n byte) ledger.OperationID { return ledger.OperationID{n} }
	enter := func(now time.Time, n byte, charges []charge) string {
		entered, known, full, _ := l.enter(now, until, id(n), charges)
		switch {
		case entered:
			return "entered"
		case known:
			return "known"
		default:
			return accountNames[full]
		}
	}
	for i, step := range []struct {
		n       byte
		charges []charge
		want    string
	}{
		{1, a, "entered"},
		{1, a, "known"},
		{2, a, "entered"},
		{3, a, "subject"},
		{4, b, "entered"},
		{5, b, "scope"},
	} {
		if got := enter(bucketsNow, step.n, step.charges); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	l.hear("other", id(1), time.Time{}) // another scope's word counts for nothing
	l.hear("s", id(9), time.Time{})     // never granted here
	if got := enter(bucketsNow, 3, a); got != "scope" {
		t.Errorf("after what others said: %s", got)
	}
	l.hear("s", id(1), time.Time{})
	if got := enter(bucketsNow, 3, a); got != "entered" {
		t.Errorf("after an end: %s", got)
	}
	l.hear("s", id(2), until.Add(time.Hour)) // renewed
	later := until.Add(time.Second)
	if got := enter(later, 6, a); got != "entered" {
		t.Errorf("after the leases: %s", got)
	}
	if got := enter(later, 7, a); got != "subject" {
		t.Errorf("one was renewed: %s", got)
	}
	l.enter(until.Add(2*time.Hour), until.Add(3*time.Hour), id(8), liveCharges("t", 1, "", 1))
	if len(l.byWhom) != 2 || len(l.sweepAt) != 0 {
		t.Errorf("%d accounts and %d times are kept, want 2 and 0", len(l.byWhom), len(l.sweepAt))
	}
}
