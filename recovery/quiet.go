// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"maps"
	"time"
)

const (
	// shortestQuiet is worth to be remembered; longestQuiet is how long it is believed that nothing is to do somewhere: contracts change.
	shortestQuiet = time.Hour
	longestQuiet  = 24 * time.Hour
	// longestStretch is of how many pages one stretch is made: when it ends, all of them are read.
	longestStretch = 64
)

// quiet remembers stretches of the walk over what is old in which nothing can be to do for some time: most of it is, for months. It has a few
// hundred bytes for some thousands of operations.
type quiet struct {
	stretches map[string]stretch // by where they begin
	// last is where the stretch begins that the next page may belong to.
	last string
}

type stretch struct {
	end   string
	until time.Time // by this process's clock, which is monotonic
	pages int
}

func newQuiet() *quiet { return &quiet{stretches: map[string]stretch{}} }

// purge forgets what is over: a walk whose places have moved does not come to where that began.
func (q *quiet) purge(now time.Time) {
	maps.DeleteFunc(q.stretches, func(_ string, s stretch) bool { return !now.Before(s.until) })
}

// pass is where to go on from a place, behind stretches that are quiet.
func (q *quiet) pass(at string, now time.Time) string {
	for {
		s, ok := q.stretches[at]
		switch {
		case !ok:
			return at
		case !now.Before(s.until):
			delete(q.stretches, at)
			return at
		}
		at = s.end
	}
}

// add notes that nothing can be to do between two places for some time.
func (q *quiet) add(from, end string, now time.Time, lasts time.Duration) {
	if lasts < shortestQuiet {
		return
	}
	until := now.Add(lasts)
	if s, ok := q.stretches[q.last]; ok && s.end == from && s.pages < longestStretch {
		s.end, s.pages = end, s.pages+1
		if until.Before(s.until) {
			s.until = until
		}
		q.stretches[q.last] = s
		return
	}
	q.stretches[from] = stretch{end, until, 1}
	q.last = from
}
