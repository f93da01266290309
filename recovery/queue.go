// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// queue has the due operations that wait, by tool, each tool's in the order in which they are due. It goes round the tools, so that none waits
// for another one's backlog.
type queue struct {
	most    int // that wait for one tool
	tools   map[ledger.Tool]*line
	order   []ledger.Tool // who comes next is first
	running int
}

// line is one tool's.
type line struct {
	waiting []ledger.OperationID
	running int
	access  access
}

// rule is what bounds a tool.
type rule struct {
	// atOnce is how many of its operations one process deals with at a time.
	atOnce int
	// gated: its target is asked, by turns of its gate.
	gated bool
}

func newQueue(most int) *queue { return &queue{most: most, tools: map[ledger.Tool]*line{}} }

// add lets an operation wait; false: too many of its tool do, and it is found again later.
func (q *queue) add(tool ledger.Tool, id ledger.OperationID) bool {
	t := q.tools[tool]
	if t == nil {
		t = &line{}
		q.tools[tool] = t
		q.order = append(q.order, tool)
	}
	if len(t.waiting) >= q.most {
		return false
	}
	t.waiting = append(t.waiting, id)
	return true
}

// full are the tools of which no more may wait.
func (q *queue) full() (tools []ledger.Tool) {
	for tool, t := range q.tools {
		if len(t.waiting) >= q.most {
			tools = append(tools, tool)
		}
	}
	return tools
}

// next takes an operation that may be dealt with now: of a tool that is gated, one that has a turn.
func (q *queue) next(workers int, of func(ledger.Tool) rule) (id ledger.OperationID, tool ledger.Tool, with *pass, ok bool) {
	free := workers - q.busy()
	for i, tool := range q.order {
		t := q.tools[tool]
		r := of(tool)
		switch {
		case len(t.waiting) == 0, t.running >= r.atOnce:
			continue
		case r.gated && len(t.access.free) == 0, !r.gated && free <= 0: // each turn has a worker
			continue
		case r.gated:
			with, t.access.free = t.access.free[0], t.access.free[1:]
		}
		id, t.waiting = t.waiting[0], t.waiting[1:]
		t.running++
		q.running++
		q.last(i)
		return id, tool, with, true
	}
	return id, "", nil, false
}

// last puts a tool at the end.
func (q *queue) last(i int) {
	tool := q.order[i]
	q.order = append(slices.Delete(q.order, i, i+1), tool)
}

// busy are the workers that deal with something, or wait for a turn to do so.
func (q *queue) busy() int {
	n := q.running
	for _, t := range q.tools {
		n += len(t.access.free) + t.access.wanted
	}
	return n
}

// done ends one that next has given. A tool of which nothing is left to remember is forgotten.
func (q *queue) done(tool ledger.Tool, now time.Time) {
	q.tools[tool].running--
	q.running--
	q.forget(tool, now)
}

func (q *queue) forget(tool ledger.Tool, now time.Time) {
	t := q.tools[tool]
	if t.running == 0 && len(t.waiting) == 0 && t.access.idle(now) {
		delete(q.tools, tool)
		q.order = slices.DeleteFunc(q.order, func(other ledger.Tool) bool { return other == tool })
	}
}

// drop forgets those of a tool that wait, and returns them.
func (q *queue) drop(tool ledger.Tool) []ledger.OperationID {
	t := q.tools[tool]
	waiting := t.waiting
	t.waiting = nil
	return waiting
}
