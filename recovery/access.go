// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// access is what this process has of one tool's gate. Turns are asked for and given back in one change of the record: while there is a backlog, each
// question costs one.
type access struct {
	free   []*pass // turns that nobody uses
	ended  []ended // that are to be given back
	wanted int     // that are being asked for
	asking bool
	// from when on it is worth to ask for more; before only if full, and one is given back.
	from time.Time
	full bool
	// refused counts in a row that others had all turns, and that the record could not be changed.
	refused, failed int
}

// pass is a turn that this process has.
type pass struct {
	id    string
	trial bool
	// begins is when it may be used, over is when others may have the turn, both by this process' clock.
	begins, over time.Time
}

func (a *access) idle(now time.Time) bool {
	return len(a.free) == 0 && len(a.ended) == 0 && !a.asking && !now.Before(a.from)
}

const (
	// idle is how long nothing has to be looked at where nothing waits but for the end of something.
	idle = time.Hour
	// soon is how long a turn that went well is kept for the next operation. Then giving it back and taking the next one is one change.
	soon = time.Second
	// firstRefused and longestRefused bound how long it is waited for others to give turns back.
	firstRefused   = 200 * time.Millisecond
	longestRefused = 5 * time.Second
	// firstFailed bounds how long it is waited after a record could not be changed, together with longestPause.
	firstFailed = time.Second
	// turnMargin is what a turn adds to the time in which a target has to answer: to take the operation, and to give the turn back.
	turnMargin = 15 * time.Second
)

// wants says how many turns are to be asked for now, and whether the gate is to be told anything at all; wait is after what time that may change.
func (t *line) wants(now time.Time, most int) (n int, tell bool, wait time.Duration) {
	a := &t.access
	if a.asking {
		return 0, false, idle
	}
	open := len(t.waiting) - len(a.free)
	n = max(min(open, most), 0)
	until := a.from.Sub(now)
	if a.failed > 0 && until > 0 {
		return 0, false, until
	}
	if until > 0 && !(a.full && len(a.ended) > 0) {
		n, wait = 0, until
	}
	if n > 0 || len(a.ended) == 0 {
		if open <= 0 || wait <= 0 {
			wait = idle
		}
		return n, n > 0, wait
	}
	well := !slices.ContainsFunc(a.ended, func(e ended) bool { return e.how != answered })
	if well && open > 0 && until > 0 && until <= soon {
		return 0, false, wait
	}
	return 0, true, idle
}

// knock is what came of asking a gate.
type knock struct {
	tool   ledger.Tool
	wished wish
	began  time.Time
	given  given
	err    error
}

// request begins what is to be asked of gates, and says after which time there may be more.
func (l *Loop) request(ctx context.Context, now time.Time) time.Duration {
	wait := idle
	for _, tool := range slices.Clone(l.queue.order) {
		t, a := l.queue.tools[tool], &l.queue.tools[tool].access
		rule := l.rule(tool)
		if len(t.waiting) == 0 || !rule.gated {
			for _, p := range a.free { // nobody needs them
				a.ended = append(a.ended, ended{id: p.id, over: p.over})
			}
			a.free = nil
		}
		most := 0
		if rule.gated {
			most = min(rule.atOnce-t.running-len(a.free), l.workers-l.queue.busy())
		}
		n, tell, until := t.wants(now, most)
		if !tell {
			wait = min(wait, until)
			continue
		}
		w := l.wish(tool, n)
		w.ended, a.ended = a.ended, nil
		a.wanted, a.asking = n, true
		l.queue.last(slices.Index(l.queue.order, tool))
		go func() { l.knocks <- l.knock(ctx, tool, w) }()
	}
	return wait
}

func (l *Loop) wish(tool ledger.Tool, turns int) wish {
	c, _ := l.ledger.Contract(tool)
	w := wish{
		atOnce: max(c.CheckConcurrency, 1), apart: time.Second / time.Duration(max(c.ChecksPerSecond, 1)), lasts: c.CheckTimeout + turnMargin,
		longest: min(longestOpen, max(c.MaxInterval, firstOpen)), chance: mathrand.Float64(),
	}
	for range turns {
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		w.ids = append(w.ids, hex.EncodeToString(id[:]))
	}
	return w
}

// knock has a gate decide.
func (l *Loop) knock(ctx context.Context, tool ledger.Tool, w wish) knock {
	k := knock{tool: tool, wished: w, began: time.Now()}
	var how change
	jumped := l.ledger.Jumped()
	k.err = l.gates.Gate(ctx, tool, func(now time.Time, document []byte) ([]byte, error) {
		g, err := readGate(document)
		if err != nil {
			return nil, err
		}
		wound := g.windOn(now, jumped(now, g.Seen))
		var changed bool
		how.was = g.shut(now)
		k.given, changed = g.pass(now, w)
		how.is, how.well = g.shut(now), g.closed().IsZero()
		if !changed && !wound {
			return nil, nil
		}
		return g.document()
	})
	if k.err == nil {
		l.gateTold(tool, how)
	}
	return k
}

// knocked notes what came of asking a gate. Where that is not known, all that was said is said again: it is recognised by its names.
func (l *Loop) knocked(k knock) {
	now := time.Now()
	a := &l.queue.tools[k.tool].access
	a.asking, a.wanted = false, 0
	if k.err != nil {
		a.failed++
		for _, id := range k.wished.ids { // they may have been given
			a.ended = append(a.ended, ended{id: id, over: now.Add(k.wished.lasts)})
		}
		a.ended = append(k.wished.ended, a.ended...)
		a.ended = slices.DeleteFunc(a.ended, func(e ended) bool { return !e.over.IsZero() && now.After(e.over) })
		a.from, a.full = now.Add(spread(grown(firstFailed, a.failed, longestPause))), false
		l.log.Warn("whose turn it is to ask a target can't be found out; it is not asked", attrTool, string(k.tool), "reason", reason(k.err))
		return
	}
	a.failed = 0
	for _, turn := range k.given.turns {
		a.free = append(a.free, &pass{id: turn.id, trial: turn.trial, begins: now.Add(turn.wait), over: k.began.Add(k.wished.lasts)})
	}
	a.from, a.full = now.Add(k.given.again), k.given.full
	switch {
	case !a.full:
		a.refused = 0
	default:
		a.refused++
		a.from = now.Add(min(k.given.again, spread(grown(firstRefused, a.refused, longestRefused))))
	}
	l.queue.forget(k.tool, now)
}

// spread is a wait, give or take a fifth: that of many is not over at once.
func spread(d time.Duration) time.Duration { return d - d/5 + mathrand.N(2*d/5+1) }

// borrow takes a turn to ask a tool's target about something else than its own operations, if one is to be had now. back gives it back; nil: there was
// none in which it has that time to answer, and there is none for another one.
func (l *Loop) borrow(ctx context.Context, tool ledger.Tool, timeout time.Duration) (back func(outcome, time.Duration), again time.Duration) {
	k := l.knock(ctx, tool, l.wish(tool, 1))
	switch {
	case k.err != nil:
		return nil, leftFor
	case len(k.given.turns) == 0 && k.given.full: // others may give theirs back at any time
		return nil, 0
	case len(k.given.turns) == 0:
		return nil, k.given.again
	}
	turn := k.given.turns[0]
	back = func(how outcome, after time.Duration) {
		w := l.wish(tool, 0)
		w.ended = []ended{{id: turn.id, how: how, after: after}}
		l.knock(context.WithoutCancel(ctx), tool, w) // else it ends by itself
	}
	over := k.began.Add(k.wished.lasts)
	if !until(ctx, time.Now().Add(turn.wait)) || time.Now().Add(timeout).After(over) { // others may have the turn before the target has to answer
		back(unused, 0)
		return nil, 0
	}
	return back, 0
}

// asking reports whether a gate is being asked.
func (l *Loop) asking() bool {
	for _, t := range l.queue.tools {
		if t.access.asking {
			return true
		}
	}
	return false
}

// leaveGates gives all turns back.
func (l *Loop) leaveGates(ctx context.Context) {
	for tool, t := range l.queue.tools {
		a := &t.access
		for _, p := range a.free {
			a.ended = append(a.ended, ended{id: p.id, over: p.over})
		}
		if len(a.ended) == 0 {
			continue
		}
		w := l.wish(tool, 0)
		w.ended = a.ended
		if err := l.knock(ctx, tool, w).err; err != nil {
			l.log.Warn("turns to ask a target could not be given back; they end by themselves", attrTool, string(tool), "reason", reason(err))
		}
	}
}
