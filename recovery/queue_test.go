// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func TestTheQueueGoesRoundTheTools(t *testing.T) {
	q := newQueue(3)
	for i := range byte(5) { // two more than wait
		if got := q.add("a", ledger.OperationID{1, i}); got != (i < 3) {
			t.Errorf("the %d. of a: %v", i, got)
		}
	}
	q.add("b", ledger.OperationID{2})
	q.add("c", ledger.OperationID{3})
	rules := map[ledger.Tool]rule{"a": {atOnce: 2}, "b": {atOnce: 1}, "c": {atOnce: 5, gated: true}}
	next := func(workers int) string {
		id, tool, with, ok := q.next(workers, func(tool ledger.Tool) rule { return rules[tool] })
		if !ok {
			return ""
		}
		if (with != nil) != rules[tool].gated {
			t.Errorf("%s has the turn %v", tool, with)
		}
		return string(tool) + string(rune('0'+id[1]))
	}
	var got []string
	for range 4 {
		got = append(got, next(10))
	}
	// a comes again only after b, and has no third place; c has no turn.
	if diff := cmp.Diff([]string{"a0", "b0", "a1", ""}, got); diff != "" {
		t.Error(diff)
	}
	c := &q.tools["c"].access
	c.free = []*pass{{id: "1"}, {id: "2"}}
	c.wanted = 1
	q.add("b", ledger.OperationID{2, 1})
	q.done("b", time.Now())
	// Two are dealt with, c has two turns and may get another one: with six workers one is left for b.
	got = nil
	for _, workers := range []int{5, 5, 6, 6} {
		got = append(got, next(workers))
	}
	if diff := cmp.Diff([]string{"c0", "", "b1", ""}, got); diff != "" {
		t.Error(diff)
	}
	c.free, c.wanted = nil, 0
	q.done("a", time.Now())
	if got := next(6); got != "a2" {
		t.Errorf("after one of a has ended: %s", got)
	}
	for _, tool := range []ledger.Tool{"a", "a", "b", "c"} {
		q.done(tool, time.Now())
	}
	if q.running != 0 || len(q.tools) != 0 || len(q.order) != 0 {
		t.Errorf("at the end it keeps %d running, %d tools, %d in order", q.running, len(q.tools), len(q.order))
	}
}
