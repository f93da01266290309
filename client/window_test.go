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
	f := &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		return granted(30 * time.Second), nil
	}}
	l := serve(t, f)
	var elapsed atomic.Int64
	l.now = func() time.Duration { return time.Duration(elapsed.Load()) }
	f.claim = func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		elapsed.Store(int64(31 * time.Second)) // on the way
		return granted(30 * time.Second), nil
	}
	var runs atomic.Int32
	_, err := Do(t.Context(), l, creating(&runs, fine), intent, request{})
	if !errors.Is(err, ErrWindowOver) {
		t.Errorf("error %v, want the window's end", err)
	}
	if got := lastReport(t, f); got != "not executed NEVER_SENT once=false" || runs.Load() != 0 {
		t.Errorf("reported %q after %d executions", got, runs.Load())
	}
}

// TestSuspension: a machine that slept through its window notices by the clock that went on, although no timer did.
func TestSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		began := time.Now()
		w := window{now: func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }, end: time.Hour}
		call := Call{window: w}
		ctx, cancel := w.context(t.Context())
		defer cancel()
		time.Sleep(time.Second)
		if ctx.Err() != nil || !call.MaySend() {
			t.Fatal("over too early")
		}
		slept.Store(int64(time.Hour))
		if call.MaySend() {
			t.Error("it may still send")
		}
		time.Sleep(watchInterval)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), ErrWindowOver) {
			t.Errorf("the context was ended by %v", context.Cause(ctx))
		}
	})
}

// TestCallerGone: a caller that has gone before the execution sent nothing; one that goes during it is reported for all the same.
func TestCallerGone(t *testing.T) {
	t.Run("before the execution", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // after the claim's answer was read
		f := &fakeLedger{}
		l := serve(t, f)
		var runs atomic.Int32
		a := attempt{ledger: l, operation: operationID, claimID: "c"}
		_, err := perform(ctx, a, creating(&runs, fine), granted(time.Minute).GetGranted(), window{l.now, l.now() + time.Minute}, request{})
		if !errors.Is(err, context.Canceled) || runs.Load() != 0 {
			t.Errorf("error %v after %d executions", err, runs.Load())
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
