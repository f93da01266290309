// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func TestTurnsGoRoundTheTools(t *testing.T) {
	q := newQueue(3)
	for i := range byte(5) { // two more than wait
		if got := q.add("a", ledger.OperationID{1, i}); got != (i < 3) {
			t.Errorf("the %d. of a: %v", i, got)
		}
	}
	q.add("b", ledger.OperationID{2})
	q.add("c", ledger.OperationID{3})
	now := time.Unix(1000, 0)
	limits := map[ledger.Tool]struct {
		atOnce int
		apart  time.Duration
	}{"a": {2, 0}, "b": {1, 0}, "c": {5, 100 * time.Millisecond}}
	of := func(tool ledger.Tool) (int, time.Duration) { return limits[tool].atOnce, limits[tool].apart }
	next := func(workers int) string {
		id, tool, wait, ok := q.next(now, workers, of)
		if !ok {
			return "wait " + wait.String()
		}
		return string(tool) + string(rune('0'+id[1]))
	}
	var got []string
	for range 5 {
		got = append(got, next(10))
	}
	// a comes again only after b and c, and has no third place.
	if diff := cmp.Diff([]string{"a0", "b0", "c0", "a1", "wait 1h0m0s"}, got); diff != "" {
		t.Error(diff)
	}
	q.add("c", ledger.OperationID{3, 1})
	if got := next(10); got != "wait 100ms" {
		t.Errorf("before the pace of c allows it: %s", got)
	}
	now = now.Add(100 * time.Millisecond)
	if got := next(4); got != "wait 1h0m0s" {
		t.Errorf("with four workers at work, of four: %s", got)
	}
	if got := next(5); got != "c1" {
		t.Errorf("then: %s", got)
	}
	q.done("a")
	if got := next(5); got != "a2" {
		t.Errorf("after one of a has ended: %s", got)
	}
	for _, tool := range []ledger.Tool{"a", "a", "b", "c", "c"} {
		q.done(tool)
	}
	if q.running != 0 || len(q.tools) != 0 || len(q.order) != 0 {
		t.Errorf("at the end it keeps %d running, %d tools, %d turns", q.running, len(q.tools), len(q.order))
	}
}

func TestWhatFailsIsPutOffLongerEachTime(t *testing.T) {
	p := newPutOff()
	p.most = 2
	a, b, c := ledger.OperationID{1}, ledger.OperationID{2}, ledger.OperationID{3}
	now := time.Unix(1000, 0)
	var got []time.Duration
	for range 12 {
		p.failed(a, now)
		until := p.ids[a].until
		if !p.waits(a, until.Add(-1)) || p.waits(a, until) || p.waits(b, now) {
			t.Fatal("it does not wait until then, or others do")
		}
		got = append(got, until.Sub(now))
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{5 * s, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 320 * s, 640 * s, 1280 * s, 1800 * s, 1800 * s, 1800 * s}, got); diff != "" {
		t.Error(diff)
	}
	p.forget(a)
	p.failed(a, now)
	if got := p.ids[a].until.Sub(now); got != 5*s {
		t.Errorf("after it went well once: %v", got)
	}
	p.failed(b, now)
	p.failed(c, now)
	if len(p.ids) != 2 || !p.waits(c, now) {
		t.Errorf("of more than are kept, %d are, the last: %v", len(p.ids), p.waits(c, now))
	}
}
