// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// while runs an execution of the intent, and f when it has begun; what f returns is what the execution ends with.
func while(t *testing.T, l *clienttest.Ledger, intent client.Intent, f func() (charge, error)) string {
	t.Helper()
	return told(client.Do(bounded(t), l.Client(), charging(func(context.Context, client.Call) (charge, error) { return f() }), intent, ten))
}

// TestWaitsForAnotherWorker: it learns of the end by Lookup, and executes nothing.
func TestWaitsForAnotherWorker(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func() (charge, error)
		want string
	}{
		"that succeeds":               {func() (charge, error) { return charge{"C-1"}, nil }, "done {C-1} replayed"},
		"whose outcome is not known":  {func() (charge, error) { return charge{}, errors.New("504") }, "unknown CHECK_SCHEDULED"},
		"that did not send, and goes": {func() (charge, error) { return charge{}, client.NotSent(nil) }, "done {C-2}"},
	} {
		t.Run(name, func(t *testing.T) {
			looked := make(chan struct{}, 100)
			l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Arrived: func(m clienttest.Method) {
				if m == clienttest.Lookup {
					looked <- struct{}{}
				}
			}})
			intent, second := intended(t), make(chan string, 1)
			while(t, l, intent, func() (charge, error) {
				go func() {
					e := charging(func(context.Context, client.Call) (charge, error) { return charge{"C-2"}, nil })
					second <- told(client.Do(bounded(t), l.Client(), e, intent, ten))
				}()
				<-looked
				return tt.end()
			})
			if got := <-second; got != tt.want {
				t.Errorf("the second worker was told %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPatienceEnds: with the caller's context, with the effect's own bound, or at once; the outcome names reason and operation.
func TestPatienceEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		wait    time.Duration
		cancels bool // the caller, at the first lookup
	}{
		"context":    {0, true},
		"own bound":  {100 * time.Millisecond, false},
		"no waiting": {client.NoWait, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Arrived: func(m clienttest.Method) {
				if m == clienttest.Lookup && tt.cancels {
					cancel()
				}
			}})
			intent := intended(t)
			while(t, l, intent, func() (charge, error) {
				e := charging(never(t))
				e.Wait = tt.wait
				out, err := client.Do(ctx, l.Client(), e, intent, ten)
				if got := told(out, err); got != "in progress LEASE_HELD" || operationOf(out) == "" {
					t.Errorf("told %q of %q", got, operationOf(out))
				}
				if n := l.Calls(clienttest.Lookup); (n == 0) != (tt.wait == client.NoWait) {
					t.Errorf("%d lookups", n)
				}
				return charge{"C-1"}, nil
			})
		})
	}
}

// TestLapseWhileWaiting: when the other worker's lease ends, what it did is unknown, and that is told. Its late report counts all the same.
func TestLapseWhileWaiting(t *testing.T) {
	var l *clienttest.Ledger
	l = clienttest.New(t, clienttest.Options{Contracts: contracts(), Arrived: func(m clienttest.Method) {
		if m == clienttest.Lookup {
			l.Advance(time.Hour) // past the lease and its renewals
		}
	}})
	intent := intended(t)
	got := while(t, l, intent, func() (charge, error) {
		if got := told(client.Do(bounded(t), l.Client(), charging(never(t)), intent, ten)); got != "unknown CHECK_SCHEDULED" {
			t.Errorf("told %q", got)
		}
		return charge{"C-1"}, nil
	})
	if got != "done {C-1}" {
		t.Errorf("the first worker was told %q", got)
	}
}

// TestRefusedBeforeAcceptance: the target has not taken it and asks for a pause; the same call waits for that and is granted again.
func TestRefusedBeforeAcceptance(t *testing.T) {
	busy := errors.New("429")
	for name, tt := range map[string]struct {
		refusals int
		declare  bool
		wait     time.Duration
		want     string
		runs     int
	}{
		"once":                           {1, true, 0, "done {C-1}", 2},
		"until the attempts are used up": {100, true, time.Second, "waiting QUEUED", 5},
		"once, and there is no patience": {1, true, client.NoWait, "waiting NOT_BEFORE", 1},
		"nobody knows how often it left": {1, false, 0, "unknown", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var l *clienttest.Ledger
			l = clienttest.New(t, clienttest.Options{Contracts: contracts(), Arrived: func(m clienttest.Method) {
				if m == clienttest.Lookup {
					l.Advance(time.Minute)
				}
			}})
			runs, keys := 0, map[string]bool{}
			e := charging(func(_ context.Context, c client.Call) (charge, error) {
				runs++
				keys[c.Key] = true
				if tt.declare {
					if err := c.Sending(); err != nil {
						t.Errorf("a new grant may not send: %v", err)
					}
				}
				if runs <= tt.refusals {
					return charge{}, client.RefusedBeforeAcceptance(busy, 30*time.Second)
				}
				return charge{"C-1"}, nil
			})
			e.Wait = tt.wait
			out, err := client.Do(bounded(t), l.Client(), e, intended(t), ten)
			got := told(out, err)
			if got != tt.want || runs != tt.runs || len(keys) != 1 {
				t.Errorf("told %q after %d executions under %d keys, want %q after %d", got, runs, len(keys), tt.want, tt.runs)
			}
			cause := client.Match(out, func(client.Done[charge]) error { return busy }, func(client.Rejection) error { return nil },
				func(u client.Unknown) error { return u.Cause })
			if !errors.Is(cause, busy) {
				t.Errorf("the cause is %v", cause)
			}
		})
	}
}

// TestErrorAfterASend: a call that has sent under an earlier grant ends with no error any more.
func TestErrorAfterASend(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick})
	e := charging(func(_ context.Context, c client.Call) (charge, error) {
		l.Inject(clienttest.Claim, clienttest.CrashBeforeCommit)
		return charge{}, errors.Join(c.Sending(), client.RefusedBeforeAcceptance(nil, 0))
	})
	if got := told(client.Do(bounded(t), l.Client(), e, intended(t), ten)); got != "waiting" {
		t.Errorf("told %q", got)
	}
}

// TestReadIsRepeated: what only reads is executed again by the same call, a bounded number of times.
func TestReadIsRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		failures, runs int
		want           string
	}{
		"it works the second time": {1, 2, "done {C-1}"},
		"it never works":           {100, 3, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
			runs := 0
			e := charging(func(context.Context, client.Call) (charge, error) {
				if runs++; runs <= tt.failures {
					return charge{}, errors.New("connection reset")
				}
				return charge{"C-1"}, nil
			})
			e.Tool = "card.get"
			if got := told(client.Do(bounded(t), l.Client(), e, intended(t), ten)); got != tt.want || runs != tt.runs {
				t.Errorf("told %q after %d executions, want %q after %d", got, runs, tt.want, tt.runs)
			}
		})
	}
}

// TestReadWithoutLedger: only what the ledger has called a read, and only as long as it vouches for that.
func TestReadWithoutLedger(t *testing.T) {
	const down = "error: nothing was sent: claim: rpc error: code = Unavailable desc = the ledger for tests is down"
	learn := func(tool string) func(*testing.T, *client.Ledger) {
		return func(t *testing.T, c *client.Ledger) {
			if _, err := c.Tool(t.Context(), tool); err != nil {
				t.Fatal(err)
			}
		}
	}
	done := func(t *testing.T, c *client.Ledger) {
		e := charging(charged)
		e.Tool = "card.get"
		if got := told(client.Do(bounded(t), c, e, client.Intent{Task: "before", Step: "s"}, ten)); got != "done {C-1}" {
			t.Fatal(got)
		}
	}
	for name, tt := range map[string]struct {
		before  func(*testing.T, *client.Ledger)
		tool    string
		passed  time.Duration
		hint    opsledgerv1.Effect
		execute func(context.Context, client.Call) (charge, error)
		want    string
	}{
		"asked for at the start":  {learn("card.get"), "card.get", 0, 0, charged, "done {C-1} without the ledger"},
		"learned by executing it": {done, "card.get", 0, 0, charged, "done {C-1} without the ledger"},
		"nothing is known":        {func(*testing.T, *client.Ledger) {}, "card.get", 0, 0, never(t), down},
		"known too long ago":      {learn("card.get"), "card.get", 5*time.Minute + time.Second, 0, never(t), down},
		"the caller knows better": {learn("card.get"), "card.get", 0, opsledgerv1.Effect_EFFECT_UNSAFE, never(t), down},
		"a tool with effects":     {learn("card.charge"), "card.charge", 0, 0, never(t), down},
		"it fails":                {learn("card.get"), "card.get", 0, 0, func(context.Context, client.Call) (charge, error) { return charge{}, errors.New("503") }, "unknown without the ledger not recorded unnamed"},
		"it panics":               {learn("card.get"), "card.get", 0, 0, func(context.Context, client.Call) (charge, error) { panic("x") }, "unknown without the ledger not recorded unnamed"},
		"it is not sent": {learn("card.get"), "card.get", 0, 0, func(context.Context, client.Call) (charge, error) {
			return charge{}, client.NotSent(errors.New("refused"))
		}, "error: nothing was sent: refused"},
		"it is rejected": {learn("card.get"), "card.get", 0, 0, func(context.Context, client.Call) (charge, error) {
			return charge{}, client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_INVALID, "no_such", "")
		}, "rejected no_such without the ledger"},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick})
			c := l.Client()
			var passed atomic.Int64
			began := time.Now()
			client.SetClock(c, func() time.Duration { return time.Since(began) + time.Duration(passed.Load()) })
			tt.before(t, c)
			l.Stop()
			passed.Store(int64(tt.passed))
			e := charging(tt.execute)
			e.Tool, e.Hint = tt.tool, tt.hint
			if got := told(client.Do(bounded(t), c, e, intended(t), ten)); got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
		})
	}
}

// TestContractTightened: a tool that is no read any more is not executed without the ledger.
func TestContractTightened(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick})
	c := l.Client()
	if _, err := c.Tool(t.Context(), "card.get"); err != nil {
		t.Fatal(err)
	}
	l.Declare(clienttest.Contract("card.get", ledger.Keyed))
	if _, err := c.Tool(t.Context(), "card.get"); err != nil {
		t.Fatal(err)
	}
	l.Stop()
	e := charging(never(t))
	e.Tool = "card.get"
	if _, err := client.Do(bounded(t), c, e, intended(t), ten); err == nil {
		t.Error("no error")
	}
}
