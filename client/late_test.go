// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// grants answers claims with one grant: a send window, within a longer lease.
func grants(sendWithin, lease time.Duration) *fakeLedger {
	return &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		g := granted(lease)
		g.GetGranted().SendWithin = granted(sendWithin).GetGranted().GetSendWithin()
		return g, nil
	}}
}

// TestSecondSendingIsUnknown: whoever wants to send again after a send that may have left is told so, and can't make it "not sent".
func TestSecondSendingIsUnknown(t *testing.T) {
	f := grants(time.Minute, time.Minute)
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		for {
			if err := c.Sending(); err != nil {
				return ticket{}, NotSent(err)
			}
		}
	}), intent, request{})
	if err != nil || variant(out) != "unknown recorded=true" {
		t.Errorf("%s, %v", variant(out), err)
	}
	if got := lastReport(t, f); got != "unknown UNCLASSIFIED" {
		t.Errorf("reported %q", got)
	}
}

// TestConnectionThatComesTooLate: a request that waits for a connection until the send window is over does not leave, although the lease goes on.
func TestConnectionThatComesTooLate(t *testing.T) {
	var hits atomic.Int32
	busy, free := make(chan struct{}), make(chan struct{})
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			close(busy)
			<-free
			return
		}
		hits.Add(1)
	}))
	defer target.Close()
	base := &http.Transport{MaxConnsPerHost: 1}
	defer base.CloseIdleConnections()
	occupied := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target.URL, nil)
		if err == nil {
			var res *http.Response
			if res, err = base.RoundTrip(req); err == nil {
				err = res.Body.Close()
			}
		}
		occupied <- err
	}()
	<-busy

	f := grants(200*time.Millisecond, 2*time.Second)
	var runs atomic.Int32
	bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := Do(bounded, serve(t, f), creating(&runs, func(ctx context.Context, _ Call) (ticket, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL, strings.NewReader("{}"))
		if err != nil {
			return ticket{}, NotSent(err)
		}
		res, err := (&http.Client{Transport: OneSend(base)}).Do(req)
		if err != nil {
			return ticket{}, err
		}
		return ticket{ID: "T-1"}, res.Body.Close()
	}), intent, request{})
	if !errors.Is(err, ErrWindowOver) {
		t.Errorf("the outcome: %v", err)
	}
	close(free)
	if err := <-occupied; err != nil {
		t.Fatal(err)
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests have left after the window", n)
	}
}

// TestErrorThatPanicsWhenRead: an error whose own code panics says nothing, and the outcome is reported as unknown.
func TestErrorThatPanicsWhenRead(t *testing.T) {
	f := grants(time.Minute, time.Minute)
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		if err := c.Sending(); err != nil {
			return ticket{}, NotSent(err)
		}
		var typedNil *url.Error
		return ticket{}, typedNil
	}), intent, request{})
	if err != nil || variant(out) != "unknown recorded=true" {
		t.Errorf("%s, %v", variant(out), err)
	}
	if got := lastReport(t, f); got != "unknown UNCLASSIFIED" {
		t.Errorf("reported %q", got)
	}
}

// TestGrantEndsWithDo: a Call that outlives its execution, whose key may be somebody else's by then, sends nothing.
func TestGrantEndsWithDo(t *testing.T) {
	f := grants(time.Minute, time.Minute)
	var runs atomic.Int32
	var left Call
	_, err := Do(t.Context(), serve(t, f), creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		left = c
		return ticket{}, NotSent(errors.New("changed its mind"))
	}), intent, request{})
	if err == nil {
		t.Fatal("not sent is no error")
	}
	if left.MaySend() {
		t.Error("it may still send")
	}
	if err := left.Sending(); !errors.Is(err, ErrNoGrant) {
		t.Errorf("sending: %v, want no grant", err)
	}
}
