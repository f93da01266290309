// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// plan of one run: so many callers in a closed loop, each begins its next unit when it has ended one.
type plan struct {
	Callers int
	// Warm is not counted; Window is.
	Warm, Window time.Duration
	// Units, if set, are how many to do in place of a window.
	Units int
}

// outcome of one run: what ended within the window.
type outcome struct {
	Units    int
	Seconds  float64
	P50, P99 time.Duration // of one unit
	Failed   int
	// Failure is the first one. A caller whose unit has failed goes home: what fails at once would look fast.
	Failure string
}

// unitBound ends a unit that hangs.
const unitBound = 30 * time.Second

// The phases of a run.
const (
	warming int32 = iota
	counting
	over
)

// drive runs units. begun and ended are called when the window begins and ends, for somebody who looks at clocks.
func drive(ctx context.Context, p plan, begun, ended func(), unit func(ctx context.Context, caller int) error) outcome {
	var phase, left atomic.Int32
	left.Store(int32(p.Units))
	took := make([][]time.Duration, p.Callers)
	failures := make([]error, p.Callers)
	var callers sync.WaitGroup
	if p.Units > 0 {
		phase.Store(counting)
		begun()
	}
	begin := time.Now()
	for i := range p.Callers {
		callers.Go(func() {
			for phase.Load() != over && ctx.Err() == nil && (p.Units == 0 || left.Add(-1) >= 0) {
				bounded, cancel := context.WithTimeout(ctx, unitBound)
				sent := time.Now()
				err := unit(bounded, i)
				spent := time.Since(sent)
				cancel()
				if err != nil {
					failures[i] = err
					return
				}
				if phase.Load() == counting {
					took[i] = append(took[i], spent)
				}
			}
		})
	}
	if p.Units == 0 {
		wait(ctx, p.Warm)
		begun()
		begin = time.Now()
		phase.Store(counting)
		wait(ctx, p.Window)
		phase.Store(over)
	} else {
		callers.Wait()
	}
	seconds := time.Since(begin).Seconds()
	ended()
	callers.Wait()
	return summary(seconds, slices.Concat(took...), failures)
}

func summary(seconds float64, took []time.Duration, failures []error) outcome {
	slices.Sort(took)
	o := outcome{Units: len(took), Seconds: seconds, P50: percentile(took, 50), P99: percentile(took, 99)}
	for _, err := range failures {
		if err == nil {
			continue
		}
		if o.Failed++; o.Failed == 1 {
			o.Failure = err.Error()
		}
	}
	return o
}

// wait returns early where the run is given up.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
