// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// gate is a tool's record in the store: what all loops together ask its target, and when. It is changed by pass alone, by the store's clock.
type gate struct {
	Version int `json:"version"`
	// Seen is when it was last changed. A clock that shows less has been set back.
	Seen time.Time `json:"seen,omitzero"`
	// Turns of those who ask now, or may. One whose holder has died ends by itself.
	Turns []slot `json:"turns,omitempty"`
	// Next is from when on the next turn may begin, as the pace wants it.
	Next time.Time `json:"next,omitzero"`
	// Failures in a row, of the kind that opens the breaker.
	Failures int `json:"failures,omitempty"`
	// Opened counts how often the breaker has opened since something went well; until OpenUntil nothing is asked, then one at a time.
	Opened    int       `json:"opened,omitempty"`
	OpenUntil time.Time `json:"open_until,omitzero"`
	// Throttled counts how often the target has wanted to be left alone since something went well; likewise.
	Throttled int       `json:"throttled,omitempty"`
	LeftUntil time.Time `json:"left_until,omitzero"`
}

// slot is one turn.
type slot struct {
	ID    string    `json:"id"`
	Until time.Time `json:"until"`
	// Trial: it was let through alone after the breaker was open, to see whether the target works again.
	Trial bool `json:"trial,omitempty"`
}

// gateVersion is the newest form of a gate that this release reads, and what it writes.
const gateVersion = 1

// errGate says that a gate is no document of this release: then nothing is asked, lest it be too much.
var errGate = errors.New("the gate was written by a newer release, or is damaged")

func readGate(document []byte) (gate, error) {
	if document == nil {
		return gate{Version: gateVersion}, nil
	}
	var g gate
	if err := json.Unmarshal(document, &g); err != nil || g.Version != gateVersion {
		return gate{}, errGate
	}
	return g, nil
}

func (g gate) document() ([]byte, error) {
	document, err := json.Marshal(g)
	return bytes.Clone(document), err
}

// outcome is how a turn ended, as far as the gate goes.
type outcome uint8

const (
	// unused: the target was not asked, or it is not known what came of it.
	unused outcome = iota
	// answered: whatever it said.
	answered
	// failed: it can't be reached, or answers nobody.
	failed
	// throttled: it wants to be asked later.
	throttled
)

// ended is a turn that is given back.
type ended struct {
	id  string
	how outcome
	// after is how long the target wants to be left alone; 0: it said nothing of that.
	after time.Duration
	// over is when the turn has ended by itself, by this process' clock: then there is nothing to give back. Zero: that is not known.
	over time.Time
}

// wish is what a loop wants of a gate.
type wish struct {
	ended []ended
	// ids are the names of the turns that are wanted. They are new, so that who reads them knows its own.
	ids []string
	// atOnce and apart are the tool's limits, lasts is how long a turn may take.
	atOnce int
	apart  time.Duration
	lasts  time.Duration
	// longest bounds how long the breaker is open.
	longest time.Duration
	// chance is drawn for each wish, from [0, 1).
	chance float64
}

// given is a gate's answer.
type given struct {
	turns []turn
	// again is after what time it is worth to ask for the rest of what was wanted; 0: there is none.
	again time.Duration
	// full: others have all turns, and may give them back before.
	full bool
}

// turn lets a target be asked once.
type turn struct {
	id    string
	wait  time.Duration // before it begins
	trial bool
}

const (
	// failuresInARow open the breaker.
	failuresInARow = 5
	// firstOpen and longestOpen bound how long it is open.
	firstOpen   = 5 * time.Second
	longestOpen = 5 * time.Minute
	// firstLeft and longestLeft bound how long a target is left alone that says no time.
	firstLeft   = time.Second
	longestLeft = 5 * time.Minute
	// mostJitter is the most that is added to a time that the target says.
	mostJitter = time.Second
	// ahead is how soon a turn must begin to be given now: more than one fits into a change of the gate.
	ahead = 20 * time.Millisecond
)

// pass decides what a gate lets through, and reports whether it has changed. Given the same wish again it gives the same turns.
func (g *gate) pass(now time.Time, w wish) (given, bool) {
	var out given
	changed := g.windBack(now)
	for _, e := range w.ended {
		i := slices.IndexFunc(g.Turns, func(s slot) bool { return s.ID == e.id })
		if i < 0 { // it has been given back, or has ended by itself
			continue
		}
		trial := g.Turns[i].Trial
		g.Turns = slices.Delete(g.Turns, i, i+1)
		g.learn(now, e, trial, w)
		changed = true
	}
	g.Turns = slices.DeleteFunc(g.Turns, func(s slot) bool { return !s.Until.After(now) })
	for _, id := range w.ids {
		if mine := slices.IndexFunc(g.Turns, func(s slot) bool { return s.ID == id }); mine >= 0 {
			out.turns = append(out.turns, turn{id: id, trial: g.Turns[mine].Trial})
			continue
		}
		at := latest(now, g.Next)
		switch alone := g.Opened > 0 || g.Throttled > 0; {
		case g.closed().After(now):
			out.again = g.closed().Sub(now) + jitter(mostJitter/10, w.chance)
		case alone && len(g.Turns) > 0, len(g.Turns) >= w.atOnce:
			out.full, out.again = true, g.soonest().Sub(now)
		case at.Sub(now) > ahead:
			out.again = at.Sub(now) - jitter(ahead, w.chance)
		default:
			g.Turns = append(g.Turns, slot{ID: id, Until: at.Add(w.lasts), Trial: g.Opened > 0})
			g.Next = at.Add(w.apart)
			out.turns = append(out.turns, turn{id: id, wait: at.Sub(now), trial: g.Opened > 0})
			changed = true
			continue
		}
		break
	}
	if changed {
		g.Seen = now
	}
	return out, changed
}

// windBack keeps what is left of all times where the store's clock was set back: else nobody would be asked before it shows them again.
func (g *gate) windBack(now time.Time) bool {
	by := g.Seen.Sub(now)
	if by <= 0 {
		return false
	}
	g.wind(-by)
	return true
}

// windOn keeps what is left of all times where the store's clock was set forward since the gate was last changed: else turns that are still used would
// be others', and a target that wants to be left alone would be asked early.
func (g *gate) windOn(now time.Time, by time.Duration) bool {
	if g.Seen.IsZero() || by <= 0 {
		return false
	}
	g.wind(by)
	g.Seen = now
	return true
}

// wind moves all times.
func (g *gate) wind(by time.Duration) {
	for i := range g.Turns {
		g.Turns[i].Until = g.Turns[i].Until.Add(by)
	}
	for _, t := range []*time.Time{&g.Next, &g.OpenUntil, &g.LeftUntil} {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// closed is until when nothing is asked; zero: the target has answered since.
func (g *gate) closed() time.Time { return latest(g.OpenUntil, g.LeftUntil) }

// soonest is when the first turn ends by itself.
func (g *gate) soonest() time.Time {
	return slices.MinFunc(g.Turns, func(a, b slot) int { return a.Until.Compare(b.Until) }).Until
}

// learn is what the end of a turn says of the target.
func (g *gate) learn(now time.Time, e ended, trial bool, w wish) {
	switch e.how {
	case unused:
	case answered:
		g.Failures, g.Opened, g.OpenUntil = 0, 0, time.Time{}
		if !g.LeftUntil.After(now) {
			g.Throttled, g.LeftUntil = 0, time.Time{}
		}
	case throttled:
		if !g.LeftUntil.After(now) { // one of several that were under way
			g.Throttled++
		}
		g.leave(now, max(e.after, grown(firstLeft, g.Throttled, longestLeft)), w.chance)
	case failed:
		g.Failures++
		if trial && g.Opened > 0 || g.Opened == 0 && g.Failures >= failuresInARow {
			g.Opened++
			open := grown(firstOpen, g.Opened, w.longest)
			g.OpenUntil = now.Add(open - jitter(open/4, w.chance))
		}
		if e.after > 0 {
			g.leave(now, e.after, w.chance)
		}
	}
}

// leave the target alone for a time, which the loops' clocks and jitter only make longer.
func (g *gate) leave(now time.Time, wait time.Duration, chance float64) {
	g.LeftUntil = latest(g.LeftUntil, now.Add(wait+jitter(min(wait/4, mostJitter), chance)))
}

// grown doubles from the second time on.
func grown(first time.Duration, times int, longest time.Duration) time.Duration {
	for n := 1; n < times && first < longest; n++ {
		first *= 2
	}
	return min(first, longest)
}

func jitter(most time.Duration, chance float64) time.Duration {
	return time.Duration(float64(most) * chance)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
