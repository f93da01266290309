// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestNothingIsLeftRunning: however a call ends, what watched and renewed its grant has ended with it.
func TestNothingIsLeftRunning(t *testing.T) {
	f := grants(time.Minute, time.Minute)
	l := serve(t, f)
	var runs atomic.Int32
	do := func(ctx context.Context, e Effect[request, ticket]) {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = Do(ctx, l, e, intent, request{})
		}()
		<-gone
	}
	do(t.Context(), creating(&runs, fine)) // the connection stays
	before := goleak.IgnoreCurrent()
	leave := func(context.Context, Call) (ticket, error) { runtime.Goexit(); return ticket{}, nil }
	for name, execute := range map[string]func(context.Context, Call) (ticket, error){
		"done":        fine,
		"not sent":    func(context.Context, Call) (ticket, error) { return ticket{}, NotSent(nil) },
		"unknown":     func(context.Context, Call) (ticket, error) { return ticket{}, errors.New("reset") },
		"panicked":    func(context.Context, Call) (ticket, error) { panic("a canary") },
		"left":        leave,
		"an argument": func(_ context.Context, c Call) (ticket, error) { c.SetAttribute("a", "b"); return ticket{}, nil },
	} {
		e := creating(&runs, execute)
		do(t.Context(), e)
		e.Prepare = func(ctx context.Context, c Call, r request) (request, error) {
			_, err := execute(ctx, c)
			return r, err
		}
		do(t.Context(), e)
		if err := goleak.Find(before); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := creating(&runs, fine)
	e.Resource = func(ticket) *opsledgerv1.ResourceRef { runtime.Goexit(); return nil }
	do(t.Context(), e)
	f.claim = func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		return nil, status.Error(codes.DeadlineExceeded, "")
	}
	l.tools.put("tickets.create", readTool{sendWithin: time.Minute, lease: time.Minute, until: l.now() + time.Hour})
	do(t.Context(), creating(&runs, fine))
	do(t.Context(), creating(&runs, leave))
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
