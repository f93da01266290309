// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDriveCountsTheWindowOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all atomic.Int32
		var begun, ended time.Time
		start := time.Now()
		p := plan{Callers: 4, Warm: time.Second, Window: 2 * time.Second}
		got := drive(t.Context(), p, func() { begun = time.Now() }, func() { ended = time.Now() }, func(context.Context, int) error {
			all.Add(1)
			time.Sleep(33 * time.Millisecond) // the 31st to the 90th of a caller end within the window; the 91st lies across its end
			return nil
		})
		if want := (outcome{Units: 4 * 60, Seconds: 2, P50: 33 * time.Millisecond, P99: 33 * time.Millisecond}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if n := all.Load(); n != 4*91 {
			t.Errorf("%d units in all, want %d", n, 4*91)
		}
		if begun.Sub(start) != time.Second || ended.Sub(start) != 3*time.Second {
			t.Errorf("the window was from %v to %v", begun.Sub(start), ended.Sub(start))
		}
	})
}

func TestDriveDoesSoManyUnits(t *testing.T) {
	var all atomic.Int32
	calls := 0
	got := drive(t.Context(), plan{Callers: 7, Units: 100}, func() { calls++ }, func() { calls++ }, func(context.Context, int) error {
		all.Add(1)
		return nil
	})
	if got.Units != 100 || all.Load() != 100 || calls != 2 {
		t.Errorf("%d units, %d counted, %d calls; want 100, 100, 2", all.Load(), got.Units, calls)
	}
}

func TestDriveTellsOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nothing := func() {}
		var failing atomic.Int32
		got := drive(t.Context(), plan{Callers: 3, Window: time.Second}, nothing, nothing, func(_ context.Context, caller int) error {
			time.Sleep(100 * time.Millisecond)
			if caller > 0 {
				failing.Add(1)
				return errors.New("refused")
			}
			return nil
		})
		if got.Failed != 2 || got.Failure != "refused" || failing.Load() != 2 {
			t.Errorf("%+v after %d failures: want two callers that went home", got, failing.Load())
		}
	})
}

func TestDriveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		nothing := func() {}
		start := time.Now()
		drive(ctx, plan{Callers: 2, Warm: time.Hour, Window: time.Hour}, nothing, nothing, func(ctx context.Context, _ int) error {
			wait(ctx, 10*time.Millisecond)
			return nil
		})
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it went on for %v", took)
		}
	})
}
