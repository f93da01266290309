// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestWindowEndsExecution: the execution's context ends with the send window, and what comes of it is unknown.
func TestWindowEndsExecution(t *testing.T) {
	f := &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		return granted(200 * time.Millisecond), nil
	}}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(ctx context.Context, _ Call) (ticket, error) {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrWindowOver) {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
		return ticket{}, ctx.Err()
	}), intent, request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := variant(out); got != "unknown recorded=true" {
		t.Error(got)
	}
	if got := lastReport(t, f); got != "unknown TIMEOUT" {
		t.Errorf("reported %q", got)
	}
}

// TestGrantThatComesTooLate: times count from the moment before the claim was sent, so an answer that took longer than the send
// window is not executed, but given back.
func TestGrantThatComesTooLate(t *testing.T) {
	runs, report, err := grantThatComesTooLate(t)
	if !errors.Is(err, ErrWindowOver) {
		t.Errorf("error %v, want the window's end", err)
	}
	if report != "not executed NEVER_SENT once=false" || runs != 0 {
		t.Errorf("reported %q after %d executions", report, runs)
	}
}

// grantThatComesTooLate takes 31 seconds for the answer that grants a send window of 30.
func grantThatComesTooLate(t *testing.T) (runs int, report string, err error) {
	f := &fakeLedger{}
	l := serve(t, f)
	var elapsed atomic.Int64
	l.now = func() time.Duration { return time.Duration(elapsed.Load()) }
	f.claim = func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		elapsed.Store(int64(31 * time.Second)) // on the way
		return granted(30 * time.Second), nil
	}
	var executed atomic.Int32
	_, err = Do(t.Context(), l, creating(&executed, fine), intent, request{})
	return int(executed.Load()), lastReport(t, f), err
}

// holding is a hold of a grant under way, with a clock of the test's, and its execution's context.
func holding(t *testing.T, now clock, sendEnd, leaseEnd time.Duration) (Call, context.Context) {
	h := newHold(now)
	h.started, h.sendEnd, h.leaseEnd = true, sendEnd, leaseEnd
	ctx, release := h.keep(t.Context(), &attempt{}, 0)
	t.Cleanup(release)
	return Call{hold: h}, ctx
}

// TestSuspension: a machine that slept through its window notices by the clock that went on, although no timer did.
func TestSuspension(t *testing.T) {
	for name, tt := range map[string]struct {
		sends bool
		slept time.Duration
		want  error // nil: the context goes on
	}{
		"through its window, nothing was sent":    {false, time.Hour, ErrWindowOver},
		"through its window, and had sent":        {true, time.Hour, nil},
		"through its lease, and had sent":         {true, 2 * time.Hour, ErrLeaseOver},
		"not at all":                              {false, 0, nil},
		"through its lease, and nothing was sent": {false, 2 * time.Hour, ErrWindowOver},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var slept atomic.Int64
				began := time.Now()
				call, ctx := holding(t, func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }, time.Hour, 2*time.Hour)
				time.Sleep(time.Second)
				if ctx.Err() != nil || !call.MaySend() {
					t.Fatal("over too early")
				}
				if tt.sends {
					if err := call.Sending(); err != nil {
						t.Fatal(err)
					}
				}
				slept.Store(int64(tt.slept))
				if err := call.Sending(); !tt.sends && !errors.Is(err, tt.want) || tt.sends && err == nil {
					t.Errorf("it may send: %v", err)
				}
				if tt.slept == 0 {
					return
				}
				time.Sleep(watchInterval)
				synctest.Wait()
				if !errors.Is(context.Cause(ctx), tt.want) {
					t.Errorf("the context was ended by %v, want %v", context.Cause(ctx), tt.want)
				}
			})
		})
	}
}

// TestCallersTimeouts: a timeout that Execute puts on the context of its execution holds, although what ends that context moves, and for
// which no deadline is shown: derived contexts would take it for sooner than their own.
func TestCallersTimeouts(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"within the send window": 30 * time.Second, "beyond it": 2 * time.Minute, "beyond the lease": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				call, ctx := holding(t, func() time.Duration { return time.Since(began) }, time.Minute, time.Hour)
				own, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				if err := call.Sending(); err != nil {
					t.Fatal(err)
				}
				<-own.Done()
				if got := time.Since(began); got != min(timeout, time.Hour) {
					t.Errorf("ended after %v", got)
				}
				if d, ok := ctx.Deadline(); ok {
					t.Errorf("the execution shows a deadline, %v", d.Sub(began))
				}
			})
		})
	}
}

// TestNoGrant: a call that nobody was given permits nothing.
func TestNoGrant(t *testing.T) {
	var c Call
	c.SetAttribute("a", "b")
	if err := c.Sending(); !errors.Is(err, ErrNoGrant) || c.MaySend() {
		t.Errorf("it may send: %v", err)
	}
}

// TestCallerGone: a caller that has gone before the execution sent nothing; one that goes during it is reported for all the same.
func TestCallerGone(t *testing.T) {
	t.Run("before the execution", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // after the claim's answer was read
		f := &fakeLedger{}
		l := serve(t, f)
		var runs atomic.Int32
		r := newRun(l, creating(&runs, fine), &opsledgerv1.ClaimRequest{}, request{})
		done := r.perform(ctx, nil, granted(time.Minute).GetGranted(), l.now(), false)
		if !errors.Is(done.err, context.Canceled) || done.again != nil || runs.Load() != 0 {
			t.Errorf("error %v after %d executions", done.err, runs.Load())
		}
		if len(f.completes) != 1 || f.completes[0].GetNotExecuted() == nil {
			t.Error("the grant was not given back")
		}
	})
	t.Run("during the execution", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakeLedger{}
		var runs atomic.Int32
		out, err := Do(ctx, serve(t, f), creating(&runs, func(ctx context.Context, _ Call) (ticket, error) {
			cancel()
			<-ctx.Done()
			return ticket{ID: "T-1"}, nil
		}), intent, request{})
		if err != nil {
			t.Fatal(err)
		}
		if got := variant(out); got != "done T-1 value=true replayed=false redacted=false" {
			t.Error(got)
		}
	})
}

// TestUptime: the clock runs.
func TestUptime(t *testing.T) {
	first := uptime()
	if first <= 0 || uptime() < first {
		t.Error("the clock stands still or goes back")
	}
}
