// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
)

// Built says whether this binary contains the failpoints.
const Built = true

// plan is what one point does at its next hits.
type plan struct{ steps []Action }

// next takes one hit from the plan.
func (p *plan) next() Action {
	for len(p.steps) > 0 {
		s := &p.steps[0]
		if s.count == unlimited {
			return *s
		}
		if s.count > 0 {
			s.count--
			return *s
		}
		p.steps = p.steps[1:]
	}
	return Off()
}

var points = struct {
	mu    sync.Mutex
	plans map[Name]*plan
	hits  map[Name]int64
}{plans: map[Name]*plan{}, hits: map[Name]int64{}}

// A tagged binary that cannot read its orders must not run as if it had none.
func init() {
	plans, err := parse(os.Getenv(Variable))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Variable, err)
		os.Exit(2)
	}
	for name, steps := range plans {
		points.plans[name] = &plan{steps: steps}
	}
}

// Hit does what was ordered for the point and returns the error of an error
// action, of a call action, or of the context that ended a sleep; else nil.
// It panics for a name that is not registered. Safe for concurrent use; the
// counts of a plan are taken in the order in which the calls arrive.
func Hit(ctx context.Context, name Name) error {
	if !isRegistered(name) {
		panic("failpoint: a name that is not registered was hit")
	}
	points.mu.Lock()
	points.hits[name]++
	act := Off()
	if p := points.plans[name]; p != nil {
		act = p.next()
	}
	points.mu.Unlock()
	if act.do == nil {
		return nil
	}
	return act.do(ctx, name)
}

// Enable makes the point do the steps, in place of what it did before, until
// the returned function is called, which puts the earlier order back; calling
// that again does nothing. Steps without Times hold for all later hits. It
// panics for a name that is not registered and for no steps.
//
// Points belong to the process: tests that enable the same one must not run in
// parallel.
func Enable(name Name, steps ...Action) (restore func()) {
	if !isRegistered(name) {
		panic("failpoint: a name that is not registered was enabled")
	}
	if len(steps) == 0 {
		panic("failpoint: enabled without an action")
	}
	points.mu.Lock()
	defer points.mu.Unlock()
	before := points.plans[name]
	points.plans[name] = &plan{steps: slices.Clone(steps)}
	return sync.OnceFunc(func() {
		points.mu.Lock()
		defer points.mu.Unlock()
		if before == nil {
			delete(points.plans, name)
			return
		}
		points.plans[name] = before
	})
}

// Hits returns how often the point was passed since the start of the process,
// whatever it did: a test asserts with it that the fault really happened.
func Hits(name Name) int64 {
	points.mu.Lock()
	defer points.mu.Unlock()
	return points.hits[name]
}

func isRegistered(name Name) bool { return slices.Contains(registered, name) }
