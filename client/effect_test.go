// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// kinds of the events of an operation.
func kinds(t *testing.T, l *clienttest.Ledger, operation string) []string {
	t.Helper()
	history, err := l.History(t.Context(), operation)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range history {
		all = append(all, e.Kind.String())
	}
	return all
}

// TestReservation: what Prepare does happens before anything may be sent; the send window begins at Start.
func TestReservation(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(context.Context, client.Call, request, *clienttest.Ledger) (request, error)
		fault   clienttest.Fault
		want    string
		next    string // told to a second call
		events  []string
	}{
		"it prepares": {
			func(_ context.Context, c client.Call, r request, _ *clienttest.Ledger) (request, error) {
				if err := c.Sending(); !errors.Is(err, client.ErrNotStarted) || c.Key == "" {
					return r, errors.New("it may send before the start")
				}
				return request{"prepared"}, nil
			}, 0, "done {prepared}", "done {prepared} replayed", []string{"GRANTED", "STARTED", "COMPLETED"},
		},
		"it fails": {
			func(_ context.Context, _ client.Call, r request, _ *clienttest.Ledger) (request, error) {
				return r, errors.New("no file")
			},
			0, "error: nothing was sent: no file", "error: nothing was sent: no file", nil,
		},
		"it panics": {
			func(context.Context, client.Call, request, *clienttest.Ledger) (request, error) { panic("x") },
			0, "error: nothing was sent: the effect's code panicked", "error: nothing was sent: the effect's code panicked", nil,
		},
		"the reservation lapses, and is asked for again": {
			func(_ context.Context, _ client.Call, r request, l *clienttest.Ledger) (request, error) {
				if l.Calls(clienttest.Claim) == 1 {
					l.Advance(time.Hour)
				}
				return r, nil
			}, 0, "done {10.00}", "done {10.00} replayed", nil,
		},
		"the start's answer is lost": {
			func(_ context.Context, _ client.Call, r request, _ *clienttest.Ledger) (request, error) {
				return r, nil
			},
			clienttest.LostResponse, "error: nothing was sent: start: rpc error: code = DeadlineExceeded", "done {10.00}", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick})
			if tt.fault != 0 {
				l.Inject(clienttest.Start, tt.fault)
			}
			e := client.Effect[request, charge]{
				Tool: "card.charge", Schema: "charge/1",
				Prepare: func(ctx context.Context, c client.Call, r request) (request, error) { return tt.prepare(ctx, c, r, l) },
				Execute: func(_ context.Context, c client.Call, r request) (charge, error) {
					return charge{r.Amount}, c.Sending()
				},
			}
			intent := intended(t)
			out, err := client.Do(bounded(t), l.Client(), e, intent, ten)
			if got := told(out, err); got != tt.want && (tt.fault == 0 || !strings.HasPrefix(got, tt.want)) {
				t.Errorf("told %q, want %q", got, tt.want)
			}
			if tt.events != nil {
				if diff := cmp.Diff(tt.events, kinds(t, l, operationOf(out))); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			}
			if got := told(client.Do(bounded(t), l.Client(), e, intent, ten)); got != tt.next {
				t.Errorf("then told %q, want %q", got, tt.next)
			}
		})
	}
}

// TestGoexitInPrepare: nothing was sent, so the key is free.
func TestGoexitInPrepare(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	e, intent := charging(charged), intended(t)
	gone := e
	gone.Prepare = func(context.Context, client.Call, request) (request, error) {
		runtime.Goexit()
		return request{}, nil
	}
	ended, ctx := make(chan struct{}), bounded(t)
	go func() {
		defer close(ended)
		_, _ = client.Do(ctx, l.Client(), gone, intent, ten)
	}()
	<-ended
	if got := told(client.Do(ctx, l.Client(), e, intent, ten)); got != "done {C-1}" {
		t.Errorf("told %q", got)
	}
}

// awkward has a JSON form that panics.
type awkward struct{ ID string }

func (awkward) MarshalJSON() ([]byte, error) { panic("a canary") }

// TestPanicAfterSuccess: the effect has happened, so it is reported, without what could not be made of it.
func TestPanicAfterSuccess(t *testing.T) {
	for name, tt := range map[string]struct {
		resource func(awkward) *opsledgerv1.ResourceRef
		want     *opsledgerv1.Result
	}{
		"in Resource":    {func(awkward) *opsledgerv1.ResourceRef { panic("a canary") }, &opsledgerv1.Result{}},
		"in MarshalJSON": {func(a awkward) *opsledgerv1.ResourceRef { return &opsledgerv1.ResourceRef{Id: a.ID} }, &opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Id: "A-1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
			e := client.Effect[request, awkward]{
				Tool: "card.charge", Schema: "charge/1", Resource: tt.resource,
				Execute: func(context.Context, client.Call, request) (awkward, error) { return awkward{"A-1"}, nil },
			}
			out, err := client.Do(bounded(t), l.Client(), e, intended(t), ten)
			if got := told(out, err); got != "done {A-1}" {
				t.Fatalf("told %q", got)
			}
			client.Match(out, func(d client.Done[awkward]) bool {
				if diff := cmp.Diff(tt.want, d.Result, protocmp.Transform()); diff != "" {
					t.Errorf("reported (-want +got):\n%s", diff)
				}
				return true
			}, func(client.Rejection) bool { return false }, func(client.Unknown) bool { return false })
		})
	}
}

// TestGoexitAfterSuccess: a goroutine that ends while the success is put into words (a test's FailNow) reports it all the same.
func TestGoexitAfterSuccess(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	e, intent := charging(charged), intended(t)
	gone := e
	gone.Resource = func(charge) *opsledgerv1.ResourceRef {
		runtime.Goexit()
		return nil
	}
	ended, ctx := make(chan struct{}), bounded(t)
	go func() {
		defer close(ended)
		_, _ = client.Do(ctx, l.Client(), gone, intent, ten)
	}()
	<-ended
	if got := told(client.Do(ctx, l.Client(), charging(never(t)), intent, ten)); got != "done {} replayed" {
		t.Errorf("told %q", got)
	}
}

// unreadable has a JSON form, and panics where that is read.
type unreadable struct{ ID string }

func (*unreadable) UnmarshalJSON([]byte) error { panic("a canary") }

// TestReplayThatPanics: that the effect exists stays true if its value can't be read.
func TestReplayThatPanics(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	e := client.Effect[request, unreadable]{
		Tool: "card.charge", Schema: "charge/1",
		Execute: func(context.Context, client.Call, request) (unreadable, error) { return unreadable{"A-1"}, nil },
	}
	intent := intended(t)
	for _, want := range []string{"done {A-1}", "done {} replayed"} {
		if got := told(client.Do(bounded(t), l.Client(), e, intent, ten)); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

// TestRenewedAtTheLedger: an execution that takes longer than its lease keeps it, within the total.
func TestRenewedAtTheLedger(t *testing.T) {
	renewed := make(chan struct{}, 100)
	keyed := contracts()[0]
	keyed.LeaseDefault, keyed.LeaseMax, keyed.SendWithin = 1800*time.Millisecond, 2*time.Second, time.Second
	l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{keyed}, Decided: func(m clienttest.Method) {
		if m == clienttest.Renew {
			renewed <- struct{}{}
		}
	}})
	got := told(client.Do(bounded(t), l.Client(), charging(func(ctx context.Context, c client.Call) (charge, error) {
		if err := c.Sending(); err != nil {
			return charge{}, err
		}
		for range 2 { // a third of the lease each
			select {
			case <-renewed:
			case <-ctx.Done():
				return charge{}, context.Cause(ctx)
			}
		}
		return charge{"C-1"}, nil
	}), intended(t), ten))
	if got != "done {C-1}" {
		t.Errorf("told %q", got)
	}
}

// TestCreateOrReturn: the plain form.
func TestCreateOrReturn(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	key := client.Key{Tool: "card.charge", Task: "order-1", Key: "k-1"}
	result := &opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Type: "charge", Id: "C-1"}, Code: "created"}
	creates := 0
	create := func(context.Context, client.Call) (*opsledgerv1.Result, error) {
		creates++
		return result, nil
	}
	for n, want := range []bool{false, true} {
		out, err := client.CreateOrReturn(bounded(t), l.Client(), key, []byte("hash"), create)
		if err != nil {
			t.Fatal(err)
		}
		client.Match(out, func(d client.Done[*opsledgerv1.Result]) bool {
			if diff := cmp.Diff(result, d.Value, protocmp.Transform()); diff != "" || d.Replayed != want || !d.HasValue {
				t.Errorf("call %d: replayed %v, value (-want +got):\n%s", n, d.Replayed, diff)
			}
			return true
		}, func(client.Rejection) bool { t.Error("rejected"); return false }, func(client.Unknown) bool { t.Error("unknown"); return false })
	}
	if creates != 1 {
		t.Errorf("created %d times", creates)
	}
	_, err := client.CreateOrReturn(bounded(t), l.Client(), key, []byte("another hash"), create)
	if client.ReasonOf(err) != opsledgerv1.ErrorReason_ERROR_REASON_FINGERPRINT_CONFLICT {
		t.Errorf("another request under the key: %v", err)
	}
	key.Key = "k-2"
	out, err := client.CreateOrReturn(bounded(t), l.Client(), key, []byte("hash"), func(context.Context, client.Call) (*opsledgerv1.Result, error) { return nil, nil })
	if got := told(out, err); got != "unknown" {
		t.Errorf("neither a result nor an error is %q", got)
	}
	key.Key, key.Wait = "k-3", client.NoWait // k-2 is unknown, and of the same task
	claims := l.Calls(clienttest.Claim)
	out, err = client.CreateOrReturn(bounded(t), l.Client(), key, []byte("hash"), create)
	if got, n := told(out, err), l.Calls(clienttest.Claim)-claims; got != "blocked SIBLING_UNKNOWN unnamed" || n != 1 {
		t.Errorf("beside one that is unknown it is %q after %d claims", got, n)
	}
	for name, missing := range map[string]func(*client.Key){
		"tool": func(k *client.Key) { k.Tool = "" }, "task": func(k *client.Key) { k.Task = "" }, "key": func(k *client.Key) { k.Key = "" },
	} {
		k := key
		missing(&k)
		if _, err := client.CreateOrReturn(bounded(t), l.Client(), k, []byte("hash"), create); err == nil {
			t.Errorf("no error without a %s", name)
		}
	}
	if _, err := client.CreateOrReturn(bounded(t), l.Client(), key, nil, create); err == nil {
		t.Error("no error without a hash")
	}
}
