// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// tellAgain is how long at least lies between two warnings of the same about a tool: a target that comes and goes fills no log.
const tellAgain = time.Minute

// runs are what is wrong with targets, by tool and cause, as this process has told it. The zero value has none. Any number of goroutines may use it.
type runs struct {
	mu    sync.Mutex
	tools map[ledger.Tool]map[string]run
}

type run struct {
	told time.Time
	over bool
}

// first reports whether something begins a run, and is to be told: nothing of it came since the target has answered last.
func (r *runs) first(tool ledger.Tool, cause string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tools == nil {
		r.tools = map[ledger.Tool]map[string]run{}
	}
	causes := r.tools[tool]
	if causes == nil {
		causes = map[string]run{}
		r.tools[tool] = causes
	}
	if was, ok := causes[cause]; ok && (!was.over || now.Sub(was.told) < tellAgain) {
		return false
	}
	causes[cause] = run{told: now}
	return true
}

// answered ends the runs of a tool.
func (r *runs) answered(tool ledger.Tool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cause, was := range r.tools[tool] {
		was.over = true
		r.tools[tool][cause] = was
	}
}

// told logs a check: what a target does not say as a warning, where a run of that begins.
func (l *Loop) told(d Done, why string) {
	if d.Err != nil { // is told when it is put off
		return
	}
	about := []any{attrTool, string(d.Tool), attrOperation, d.ID.String(), "finding", result(d, false), "state", d.State.String()}
	l.asked(d.Tool, "a target", d.Finding != ledger.Indeterminate, result(d, false), why, about)
}

// lookTold logs a look at a resource of a tool in the same way. What is told of one is not told of the other: their questions are different ones.
func (l *Loop) lookTold(tool ledger.Tool, d Done, look Look) {
	outcome := inspections[look.Outcome]
	about := []any{attrTool, string(tool), attrOperation, d.ID.String(), "resource", outcome}
	l.asked(tool, "a target of a compensation", look.Outcome != ledger.InspectIndeterminate && look.Why == "", "look at a resource: "+outcome, look.Why, about)
}

func (l *Loop) asked(tool ledger.Tool, who string, says bool, cause, why string, about []any) {
	text := who + " was asked"
	if why != "" {
		text, about = who+" could not be asked", append(about, "why", why)
	}
	switch {
	case says:
		l.runs.answered(tool)
		l.log.Debug(text, about...)
	case !l.runs.first(tool, cause+why, time.Now()):
		l.log.Debug(text, about...)
	case why == "":
		l.log.Warn(text+", and its answer says nothing; this is told once until it says something", about...)
	default:
		l.log.Warn(text, about...)
	}
}

// unasked logs that people are to find out what somebody else was to ask about: as a warning, where a run of that begins.
func (l *Loop) unasked(d Done) {
	if d.Err != nil || d.Left {
		return
	}
	about := []any{attrTool, string(d.Tool), attrOperation, d.ID.String(), "state", d.State.String()}
	if !l.runs.first(d.Tool, "unasked", time.Now()) {
		l.log.Debug("nobody has asked about an operation; it is for people now", about...)
		return
	}
	l.log.Warn("nobody has asked about an operation of a tool whose target others ask; it is for people now, and so are the next ones", about...)
}

// shut is until when a tool's target is left alone by everybody: as the store's clock shows it, and for how long from now on.
type shut struct {
	until time.Time
	left  time.Duration
}

// closures are the tools whose targets are left alone, as this process knows it from their gates. The zero value has none.
type closures struct {
	mu    sync.Mutex
	tools map[ledger.Tool]closure
}

type closure struct {
	until time.Time // by this process's clock
	// told is when it was last told that it is left alone; open: nothing was told of its end since.
	told time.Time
	open bool
}

// change is how a gate stood before it was asked, and after.
type change struct {
	was, is shut
	// well: it is not left alone, and has answered since it was.
	well bool
}

func (g *gate) shut(now time.Time) shut {
	return shut{g.closed(), max(g.closed().Sub(now), 0)}
}

// note keeps how a gate stands, and says what of that is to be told. A long wait always is; short ones come too often.
func (c *closures) note(tool ledger.Tool, how change, now time.Time) (left, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tools == nil {
		c.tools = map[ledger.Tool]closure{}
	}
	known := c.tools[tool]
	known.until = now.Add(how.is.left)
	switch more := how.is.left - how.was.left; {
	case how.well:
		again, known.open = known.open, false
	case more >= tellAgain, how.is.left > 0 && how.was.left == 0 && (known.told.IsZero() || now.Sub(known.told) >= tellAgain):
		left, known.open, known.told = true, true, now
	}
	c.tools[tool] = known
	return left, again
}

// each calls back with all tools, and whether they are left alone now.
func (c *closures) each(now time.Time, do func(tool ledger.Tool, open bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tool, known := range c.tools {
		do(tool, known.until.After(now))
	}
}

// gateTold logs what has become of a gate.
func (l *Loop) gateTold(tool ledger.Tool, how change) {
	switch left, again := l.metrics.closed.note(tool, how, time.Now()); {
	case left:
		l.log.Warn("a tool's target is left alone: it wants to be, or answers nobody", attrTool, string(tool), "until", how.is.until.UTC().Format(time.RFC3339))
	case again:
		l.log.Warn("a tool's target answers, and is asked again", attrTool, string(tool))
	}
}
