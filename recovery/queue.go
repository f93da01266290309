// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// queue has the due operations that wait, by tool, each tool's in the order in which they are due. Turns go round the tools, so that none waits
// for another one's backlog.
type queue struct {
	most    int // that wait for one tool
	tools   map[ledger.Tool]*turn
	order   []ledger.Tool // whose turn is next comes first
	running int
}

// turn is one tool's.
type turn struct {
	waiting []ledger.OperationID
	running int
	// from when on the next one may begin
	from time.Time
}

func newQueue(most int) *queue { return &queue{most: most, tools: map[ledger.Tool]*turn{}} }

// add lets an operation wait; false: too many of its tool do, and it is found again later.
func (q *queue) add(tool ledger.Tool, id ledger.OperationID) bool {
	t := q.tools[tool]
	if t == nil {
		t = &turn{}
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

// idle is how long nothing has to be looked at where nothing waits but for the end of something.
const idle = time.Hour

// next takes the operation whose turn it is. Where none may begin, wait says from when on one may, if time alone makes it so.
func (q *queue) next(now time.Time, workers int, limits func(ledger.Tool) (int, time.Duration)) (id ledger.OperationID, tool ledger.Tool, wait time.Duration, ok bool) {
	wait = idle
	if q.running >= workers {
		return id, "", wait, false
	}
	for i, tool := range q.order {
		t := q.tools[tool]
		if len(t.waiting) == 0 {
			continue
		}
		atOnce, apart := limits(tool)
		switch {
		case t.running >= atOnce:
			continue
		case now.Before(t.from):
			wait = min(wait, t.from.Sub(now))
			continue
		}
		id, t.waiting = t.waiting[0], t.waiting[1:]
		t.running++
		q.running++
		t.from = now.Add(apart)
		q.order = append(slices.Delete(q.order, i, i+1), tool)
		return id, tool, 0, true
	}
	return id, "", wait, false
}

// done ends one that next has given. A tool without any is forgotten once its pace does not matter any more.
func (q *queue) done(tool ledger.Tool) {
	t := q.tools[tool]
	t.running--
	q.running--
	if t.running == 0 && len(t.waiting) == 0 && !time.Now().Before(t.from) {
		delete(q.tools, tool)
		q.order = slices.DeleteFunc(q.order, func(other ledger.Tool) bool { return other == tool })
	}
}

// putOff are operations that are due and are not looked at for a while, in this process alone: those that could not be dealt with, longer each time, and
// those with which nothing was to be done.
type putOff struct {
	most int
	ids  map[ledger.OperationID]delay
}

type delay struct {
	until  time.Time
	failed int
}

const (
	mostPutOff   = 1 << 16
	firstPutOff  = 5 * time.Second
	longestDelay = 30 * time.Minute
	leftFor      = 15 * time.Second
)

func newPutOff() *putOff { return &putOff{most: mostPutOff, ids: map[ledger.OperationID]delay{}} }

func (p *putOff) waits(id ledger.OperationID, now time.Time) bool {
	d, ok := p.ids[id]
	return ok && now.Before(d.until)
}

func (p *putOff) failed(id ledger.OperationID, now time.Time) {
	d := p.ids[id]
	wait := firstPutOff
	for range min(d.failed, 20) {
		wait = min(2*wait, longestDelay)
	}
	p.note(id, delay{now.Add(wait), d.failed + 1})
}

func (p *putOff) left(id ledger.OperationID, now time.Time) {
	p.note(id, delay{until: now.Add(leftFor)})
}

func (p *putOff) note(id ledger.OperationID, d delay) {
	for other := range p.ids { // any of them: it is noted again
		if len(p.ids) < p.most {
			break
		}
		delete(p.ids, other)
	}
	p.ids[id] = d
}

func (p *putOff) forget(id ledger.OperationID) { delete(p.ids, id) }
