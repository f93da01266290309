// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

var declined = Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")

// ended runs an execution under a grant, and returns what the caller is told and what the ledger was.
func ended(t *testing.T, f *fakeLedger, execute func(context.Context, Call) (ticket, error)) (told, reported string) {
	t.Helper()
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, execute), intent, request{})
	if told = variant(out); err != nil {
		told = "error: " + err.Error()
	}
	return told, lastReport(t, f)
}

// whyUnknown is the cause in an outcome that is unknown.
func whyUnknown(out Outcome[ticket]) error {
	return Match(out, func(Done[ticket]) error { return nil }, func(Rejection) error { return nil }, func(u Unknown) error { return u.Cause })
}

// TestDoWithinExecute: what a Do says of its own send is not what the Execute around it says of its.
func TestDoWithinExecute(t *testing.T) {
	refused := func(ctx context.Context, _ Call) (ticket, error) { // marked twice
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1", strings.NewReader("{}"))
		if err != nil {
			return ticket{}, err
		}
		_, err = (&http.Client{Transport: OneSend(nil)}).Do(req)
		return ticket{}, NotSent(err)
	}
	for name, inner := range map[string]func(context.Context, Call) (ticket, error){
		"that did not send": refused,
		"that sent, and says that it did not": func(_ context.Context, c Call) (ticket, error) {
			return ticket{}, NotSent(errors.Join(c.Sending(), c.Sending()))
		},
		"that was rejected in two ways": func(context.Context, Call) (ticket, error) {
			return ticket{}, errors.Join(declined, RefusedBeforeAcceptance(nil, 0))
		},
		"that was rejected, which was refused": func(context.Context, Call) (ticket, error) { return ticket{}, Rejected(99, "", "") },
	} {
		t.Run(name, func(t *testing.T) {
			told, reported := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, c Call) (ticket, error) {
				if err := c.Sending(); err != nil {
					return ticket{}, NotSent(err)
				}
				var runs atomic.Int32
				out, err := Do(ctx, serve(t, grants(time.Minute, time.Minute)), creating(&runs, inner), intent, request{})
				if err = errors.Join(err, whyUnknown(out)); err == nil {
					t.Error("the inner one went well")
				}
				return ticket{}, fmt.Errorf("the other effect: %w", err)
			})
			if told != "unknown recorded=true" || reported != "unknown UNCLASSIFIED" {
				t.Errorf("told %q, reported %q", told, reported)
			}
		})
	}
}

// TestOneThingAndAnother: an error that says two things says nothing.
func TestOneThingAndAnother(t *testing.T) {
	never, before := NotSent(errors.New("no route")), RefusedBeforeAcceptance(errors.New("429"), 0)
	for name, err := range map[string]error{
		"not sent and rejected":           errors.Join(never, declined),
		"not sent, because of a refusal":  NotSent(before),
		"refused and rejected":            errors.Join(before, declined),
		"a rejection under two wrappings": fmt.Errorf("pay: %w: %w", declined, never),
	} {
		t.Run(name, func(t *testing.T) {
			told, reported := ended(t, grants(time.Minute, time.Minute), func(context.Context, Call) (ticket, error) { return ticket{}, err })
			if told != "unknown recorded=true" || reported != "unknown UNCLASSIFIED" {
				t.Errorf("told %q, reported %q", told, reported)
			}
		})
	}
}

// TestSecondSendingIgnored: who asked to send again may have done so, and a rejection may be the answer to that.
func TestSecondSendingIgnored(t *testing.T) {
	_, reported := ended(t, grants(time.Minute, time.Minute), func(_ context.Context, c Call) (ticket, error) {
		if first, second := c.Sending(), c.Sending(); first != nil || !errors.Is(second, ErrSentAlready) {
			t.Errorf("the sends: %v, %v", first, second)
		}
		return ticket{}, declined
	})
	if reported != "rejected card_declined once=false" {
		t.Errorf("reported %q", reported)
	}
}

// TestPrepareFails: the error is told as it is, and only that of the start makes the call go on.
func TestPrepareFails(t *testing.T) {
	for name, tt := range map[string]struct {
		fails func() error
		want  string
	}{
		"with an error that panics when it is read": {func() error { var typedNil *url.Error; return typedNil }, "nothing was sent: <nil>"},
		"with what another Do returned": {func() error {
			return fmt.Errorf("look up: %w", refused(callClaim, refusal(t, codes.Aborted, &errdetails.ErrorInfo{Domain: "opsledger", Reason: "LEASE_OVER"})))
		}, "nothing was sent: look up: nothing was sent: LEASE_OVER: a message"},
	} {
		t.Run(name, func(t *testing.T) {
			f := grants(time.Minute, time.Minute)
			var runs, prepared atomic.Int32
			e := creating(&runs, fine)
			e.Prepare = func(context.Context, Call, request) (request, error) {
				prepared.Add(1)
				return request{}, tt.fails()
			}
			_, err := Do(t.Context(), serve(t, f), e, intent, request{})
			if err == nil || err.Error() != tt.want || prepared.Load() != 1 || runs.Load() != 0 {
				t.Errorf("error %v after %d preparations, %d executions", err, prepared.Load(), runs.Load())
			}
			if got := lastReport(t, f); got != "not executed NEVER_SENT once=false" {
				t.Errorf("reported %q", got)
			}
		})
	}
}

// TestPrepareSendsNothing: also where the ledger grants at once what was to be reserved, and where it is not there.
func TestPrepareSendsNothing(t *testing.T) {
	var runs atomic.Int32
	e := creating(&runs, func(_ context.Context, c Call) (ticket, error) { return ticket{ID: "T-1"}, c.Sending() })
	e.Prepare = func(_ context.Context, c Call, r request) (request, error) {
		if err := c.Sending(); !errors.Is(err, ErrNotStarted) {
			t.Errorf("it may send: %v", err)
		}
		return r, nil
	}
	out, err := Do(t.Context(), serve(t, grants(time.Minute, time.Minute)), e, intent, request{})
	if got := variant(out); err != nil || got != "done T-1 value=true replayed=false redacted=false" {
		t.Errorf("%q, %v", got, err)
	}
	l := serve(t, &fakeLedger{claim: func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
		return nil, refusal(t, codes.DeadlineExceeded)
	}})
	l.tools.put("tickets.create", readTool{sendWithin: time.Minute, lease: time.Minute, until: l.now() + time.Minute})
	out, err = Do(t.Context(), l, e, intent, request{})
	if got := variant(out); err != nil || got != "done T-1 value=true replayed=false redacted=false" {
		t.Errorf("without the ledger: %q, %v", got, err)
	}
}

// TestWhyItEnded: the caller learns why an execution was ended, though its transport only says that it was cancelled.
func TestWhyItEnded(t *testing.T) {
	f := grants(400*time.Millisecond, 400*time.Millisecond)
	f.renew = func(*opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
		return &opsledgerv1.RenewResponse{
			Lease: durationpb.New(time.Minute), Stop: true, StopReason: opsledgerv1.WaitReason_WAIT_REASON_HELD_BY_OPERATOR,
		}, nil
	}
	var runs atomic.Int32
	out, err := Do(t.Context(), serve(t, f), creating(&runs, func(ctx context.Context, c Call) (ticket, error) {
		if err := c.Sending(); err != nil {
			return ticket{}, NotSent(err)
		}
		<-ctx.Done()
		return ticket{}, ctx.Err()
	}), intent, request{})
	cause := whyUnknown(out)
	if stopped := (*StoppedError)(nil); err != nil || !errors.As(cause, &stopped) || !errors.Is(cause, context.Canceled) {
		t.Errorf("%v, %v", cause, err)
	}
}

// TestCallerGoneBeforeTheSend: whoever does not look at the context is kept from sending for a caller that has gone.
func TestCallerGoneBeforeTheSend(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := grants(time.Minute, time.Minute)
	var runs atomic.Int32
	_, err := Do(ctx, serve(t, f), creating(&runs, func(_ context.Context, c Call) (ticket, error) {
		cancel()
		return ticket{}, NotSent(c.Sending())
	}), intent, request{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := lastReport(t, f); got != "not executed NEVER_SENT once=false" {
		t.Errorf("reported %q", got)
	}
}
