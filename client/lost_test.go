// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// reportOf is what an outcome that is unknown says of this call's report.
func reportOf[Res any](out client.Outcome[Res]) string {
	return client.Match(out, func(client.Done[Res]) string { return "" }, func(client.Rejection) string { return "" },
		func(u client.Unknown) string {
			if !u.Recorded {
				return "not recorded"
			}
			return strings.TrimPrefix(u.Disposition.String(), "DISPOSITION_")
		})
}

// returned is the value that Execute returned, if it did.
func returned(out client.Outcome[charge]) string {
	value, ok := out.Returned()
	if ok != (value.ID != "") {
		return "a value that is none"
	}
	return value.ID
}

// losses are what a ledger may do with what it has stored.
var losses = map[string]func(*clienttest.Ledger){
	"noticed": (*clienttest.Ledger).Forget, "unnoticed": (*clienttest.Ledger).ForgetUnnoticed,
}

// TestLostGrant: the ledger has lost the grant of what was sent. The report makes the record exist again without anything being executed, and
// is evidence, or where the ledger grants it again the report of its holder.
func TestLostGrant(t *testing.T) {
	declined := client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
	for _, tt := range []struct {
		name, loss           string
		ends                 error
		told, said, returned string
		events               []string
	}{
		{"a success", "noticed", nil, "unknown", "OBSERVED", "C-1", []string{"QUARANTINED", "OBSERVED"}},
		{"a success", "unnoticed", nil, "done {C-1}", "", "C-1", []string{"GRANTED", "COMPLETED"}},
		{"a rejection", "noticed", declined, "unknown", "OBSERVED", "", []string{"QUARANTINED", "OBSERVED"}},
		{"a rejection", "unnoticed", declined, "rejected card_declined", "", "", []string{"GRANTED", "FAILED"}},
		{"an outcome that can't be seen", "noticed", errors.New("reset"), "unknown", "OBSERVED", "", []string{"QUARANTINED", "OBSERVED"}},
		{"an outcome that can't be seen", "unnoticed", errors.New("reset"), "unknown", "APPLIED", "", []string{"GRANTED", "MARKED_UNKNOWN"}},
		{"a refusal before acceptance", "noticed", client.RefusedBeforeAcceptance(nil, 0), "unknown", "OBSERVED", "", []string{"QUARANTINED", "OBSERVED"}},
		{"a refusal before acceptance", "unnoticed", client.RefusedBeforeAcceptance(nil, 0), "waiting", "APPLIED", "", []string{"GRANTED", "NOT_EXECUTED"}},
	} {
		for _, subject := range []string{"", "somebody"} {
			t.Run(tt.name+"/"+tt.loss+"/"+word(subject != "", "subject"), func(t *testing.T) {
				l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
				intent := intended(t)
				intent.Subject = subject
				var runs atomic.Int32
				var call client.Call
				e := charging(func(_ context.Context, c client.Call) (charge, error) {
					runs.Add(1)
					call = c
					err := c.Sending()
					losses[tt.loss](l)
					if tt.ends != nil {
						return charge{}, errors.Join(err, tt.ends)
					}
					return charge{"C-1"}, err
				})
				// What is claimed again is no reservation: its end would prove that nothing was sent.
				e.Prepare = func(_ context.Context, _ client.Call, r request) (request, error) { return r, nil }
				out, err := client.Do(bounded(t), l.Client(), e, intent, ten)
				if got := told(out, err); got != tt.told || reportOf(out) != tt.said || returned(out) != tt.returned {
					t.Errorf("told %q, %q with %q; want %q, %q with %q", got, reportOf(out), returned(out), tt.told, tt.said, tt.returned)
				}
				if runs.Load() != 1 || l.Calls(clienttest.Claim) != 2 {
					t.Errorf("%d executions of %d claims, want one of two", runs.Load(), l.Calls(clienttest.Claim))
				}
				if diff := cmp.Diff(tt.events, kinds(t, l, call.OperationID)); diff != "" {
					t.Errorf("the ledger knows (-want +got):\n%s", diff)
				}
				if tt.loss == "noticed" {
					e.Execute = func(ctx context.Context, c client.Call, _ request) (charge, error) { return never(t)(ctx, c) }
					if got := told(client.Do(bounded(t), l.Client(), e, intent, ten)); got != "unknown CHECK_SCHEDULED" {
						t.Errorf("the next one is told %q", got)
					}
				}
			})
		}
	}
}

// TestLostDoubt: with the grant of a repeat the ledger has lost that an earlier send may have been applied. A rejection is not definite for that.
func TestLostDoubt(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	runs := 0
	e := charging(func(_ context.Context, c client.Call) (charge, error) {
		if err := c.Sending(); err != nil {
			return charge{}, err
		}
		if runs++; runs == 1 {
			return charge{}, errors.New("reset")
		}
		l.ForgetUnnoticed()
		return charge{}, client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "gone", "")
	})
	e.Tool = "card.get" // which is repeated at once
	if got := told(client.Do(bounded(t), l.Client(), e, intended(t), ten)); got != "unknown" || runs != 2 {
		t.Errorf("told %q after %d executions", got, runs)
	}
}

// TestLostRead: not even what only reads is executed again once the ledger has lost its grant.
func TestLostRead(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	runs := 0
	e := charging(func(context.Context, client.Call) (charge, error) {
		runs++
		l.Forget()
		return charge{}, errors.New("reset")
	})
	e.Tool = "card.get"
	if got := told(client.Do(bounded(t), l.Client(), e, intended(t), ten)); got != "unknown" || runs != 1 || l.Calls(clienttest.Claim) != 2 {
		t.Errorf("told %q after %d executions of %d claims", got, runs, l.Calls(clienttest.Claim))
	}
}

// TestClaimedMeanwhile: somebody else claims the key before the report comes, with the same request or another one. The report is evidence.
func TestClaimedMeanwhile(t *testing.T) {
	for name, other := range map[string]request{"the same request": ten, "another request": {"11.00"}} {
		for _, subject := range []string{"", "somebody"} {
			t.Run(name+"/"+word(subject != "", "subject"), func(t *testing.T) {
				l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
				intent := intended(t)
				intent.Subject = subject
				out, err := client.Do(bounded(t), l.Client(), charging(func(ctx context.Context, c client.Call) (charge, error) {
					err := c.Sending()
					l.Forget()
					if got := told(client.Do(ctx, l.Client(), charging(never(t)), intent, other)); got != "unknown CHECK_SCHEDULED" {
						t.Errorf("the other one is told %q", got)
					}
					return charge{"C-1"}, err
				}), intent, ten)
				if got := told(out, err); got != "unknown" || reportOf(out) != "OBSERVED" || returned(out) != "C-1" {
					t.Errorf("told %q, %q with %q", got, reportOf(out), returned(out))
				}
				if diff := cmp.Diff([]string{"QUARANTINED", "OBSERVED"}, kinds(t, l, operationOf(out))); diff != "" {
					t.Errorf("the ledger knows (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestLostBeforeStart: a reservation that the ledger has lost is not started. Nothing is sent and nothing claimed again: there is nothing to report.
func TestLostBeforeStart(t *testing.T) {
	for loss, lose := range losses {
		for _, subject := range []string{"", "somebody"} {
			t.Run(loss+"/"+word(subject != "", "subject"), func(t *testing.T) {
				l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
				intent := intended(t)
				intent.Subject = subject
				e := charging(never(t))
				e.Prepare = func(_ context.Context, _ client.Call, r request) (request, error) {
					lose(l)
					return r, nil
				}
				_, err := client.Do(bounded(t), l.Client(), e, intent, ten)
				var refused *client.Error
				if !errors.As(err, &refused) || refused.Reason != opsledgerv1.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND ||
					!strings.HasPrefix(err.Error(), "nothing was sent: OPERATION_NOT_FOUND") {
					t.Errorf("told %v", err)
				}
				if n := l.Calls(clienttest.Claim); n != 1 {
					t.Errorf("%d claims", n)
				}
			})
		}
	}
}

// TestNotSentAndLost: of what was not sent, a ledger that has lost the grant need not know.
func TestNotSentAndLost(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	got := told(client.Do(bounded(t), l.Client(), charging(func(context.Context, client.Call) (charge, error) {
		l.Forget()
		return charge{}, client.NotSent(errors.New("no route"))
	}), intended(t), ten))
	if got != "error: nothing was sent: no route" || l.Calls(clienttest.Claim) != 1 || l.Calls(clienttest.Complete) != 1 {
		t.Errorf("told %q after %d claims and %d reports", got, l.Calls(clienttest.Claim), l.Calls(clienttest.Complete))
	}
}

// TestLostWhileExecuting: a renewal tells that the ledger has lost the grant. What has left goes on, what has not stays here.
func TestLostWhileExecuting(t *testing.T) {
	for name, tt := range map[string]struct {
		prepares, sends bool
		told, returned  string
		claims          int
	}{
		"in Prepare":      {prepares: true, told: "error: nothing was sent: the ledger has lost the grant", claims: 1},
		"before the send": {told: "error: nothing was sent: the ledger has lost the grant", claims: 1},
		"after the send":  {sends: true, told: "unknown", returned: "C-1", claims: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
			lose := func(ctx context.Context, c client.Call) {
				l.Forget()
				c.SetAttribute("job_id", "j-1") // which goes out with a renewal
				for l.Calls(clienttest.Renew) == 0 {
					if !tick(ctx) {
						return
					}
				}
			}
			e := charging(func(ctx context.Context, c client.Call) (charge, error) {
				if tt.sends {
					err := c.Sending()
					lose(ctx, c)
					return charge{"C-1"}, errors.Join(err, ctx.Err())
				}
				lose(ctx, c)
				for c.MaySend() && tick(ctx) { // until the answer is here
				}
				if ctx.Err() != nil { // it may have sent without saying so
					t.Error("the execution was ended")
				}
				if err := c.Sending(); err != nil {
					return charge{}, client.NotSent(err)
				}
				return charge{"C-1"}, nil
			})
			if tt.prepares {
				e.Execute = func(ctx context.Context, c client.Call, _ request) (charge, error) { return never(t)(ctx, c) }
				e.Prepare = func(ctx context.Context, c client.Call, r request) (request, error) {
					lose(ctx, c)
					for tick(ctx) {
					}
					return r, nil
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			out, err := client.Do(ctx, l.Client(), e, intended(t), ten)
			if got := told(out, err); got != tt.told || returned(out) != tt.returned || err != nil && !errors.Is(err, client.ErrGrantLost) {
				t.Errorf("told %q with %q, want %q with %q", got, returned(out), tt.told, tt.returned)
			}
			if n := l.Calls(clienttest.Claim); n != tt.claims {
				t.Errorf("%d claims, want %d", n, tt.claims)
			}
		})
	}
}

// tick waits a moment for somebody else; false: the context has ended.
func tick(ctx context.Context) bool {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// TestQuarantined: a key that is new to a store which may have lost it is unknown, not failed, and says why.
func TestQuarantined(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	l.Forget()
	for tool, want := range map[string]string{
		"card.charge": "unknown (CHECK_SCHEDULED): it may have happened: the store may have lost what came before it",
		"mail.send":   "unknown (QUEUED): it may have happened: the store may have lost what came before it", // nobody can look but a person
	} {
		e := charging(never(t))
		e.Tool = tool
		out, err := client.Do(bounded(t), l.Client(), e, intended(t), ten)
		if err != nil {
			t.Fatal(err)
		}
		got := client.Match(out, func(client.Done[charge]) client.Unknown { return client.Unknown{} },
			func(client.Rejection) client.Unknown { return client.Unknown{} }, func(u client.Unknown) client.Unknown { return u })
		if got.String() != want || !got.Quarantined() || got.Reason != client.ReasonUnknown || !got.Recorded || got.OperationID == "" {
			t.Errorf("%s: %s", tool, got)
		}
		if _, ok := out.Returned(); ok {
			t.Error("a value without an execution")
		}
	}
}

// TestClaimedAgainAndGone: the ledger grants the key again for the report, and the report does not arrive. When that grant ends nothing proves
// that nothing was sent, although the first one was a reservation.
func TestClaimedAgainAndGone(t *testing.T) {
	var l *clienttest.Ledger
	var reports atomic.Int32
	l = clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick, Arrived: func(m clienttest.Method) {
		if m == clienttest.Complete && reports.Add(1) == 2 {
			l.Stop()
		}
	}})
	e := charging(func(_ context.Context, c client.Call) (charge, error) {
		err := c.Sending()
		l.ForgetUnnoticed()
		return charge{"C-1"}, err
	})
	e.Prepare = func(_ context.Context, _ client.Call, r request) (request, error) { return r, nil }
	intent := intended(t)
	out, err := client.Do(bounded(t), l.Client(), e, intent, ten)
	if got := told(out, err); got != "unknown not recorded" || returned(out) != "C-1" || l.Calls(clienttest.Claim) != 2 {
		t.Errorf("told %q with %q after %d claims", got, returned(out), l.Calls(clienttest.Claim))
	}
	l.Restart()
	l.Advance(time.Minute)
	if got := told(client.Do(bounded(t), l.Client(), charging(never(t)), intent, ten)); got != "unknown CHECK_SCHEDULED" {
		t.Errorf("the next one is told %q", got)
	}
}
