// SPDX-License-Identifier: Apache-2.0

//go:build unix

package client_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/test/target"
)

// TestC63 kills a worker process by SIGKILL at six points, and lets a new one have the same intent: right away, after the lease, and once
// evidence has come. The target never has more than one effect.
func TestC63(t *testing.T) {
	type point struct {
		name              string
		claims, completes int    // that have arrived at the ledger when it is killed
		effects           int    // at the target after the kill
		after             string // the lease, a new worker is told
	}
	for _, tool := range []string{"card.charge", "mail.send"} {
		unknown := map[string]string{"card.charge": "unknown CHECK_SCHEDULED", "mail.send": "unknown QUEUED"}[tool]
		for _, p := range []point{
			{"before Claim", 0, 0, 0, "done"},
			{"after Claim", 1, 0, 0, unknown},
			{"before the send", 1, 0, 0, unknown}, // there is a connection, and nothing was written
			{"after the target's acceptance", 1, 0, 1, unknown},
			{"after its answer", 1, 0, 1, unknown},
			{"after Complete", 1, 1, 1, "replayed"},
		} {
			t.Run(tool+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				ft := startTarget(t)
				completed, hold := make(chan struct{}), make(chan struct{})
				var once sync.Once
				l := clienttest.New(t, clienttest.Options{
					Contracts: contracts(), Listen: "127.0.0.1:0",
					Decided: func(m clienttest.Method) {
						if m == clienttest.Complete && p.name == "after Complete" {
							once.Do(func() { close(completed); <-hold })
						}
					},
				})
				e := errand{Ledger: l.Addr(), Target: ft.URL(), Tool: tool, Task: "task", Decided: time.Now(), Stops: true}
				w := e.start(t)
				switch p.name {
				case "before Claim":
					w.goTo(t, "before")
				case "after Claim":
					w.goTo(t, "claimed")
				case "before the send":
					w.goTo(t, "sending")
				case "after the target's acceptance":
					service := map[string]target.Service{"card.charge": target.Payments, "mail.send": target.Messages}[tool]
					if err := ft.SetKnobs(service, target.AcceptHang(time.Minute).Times(1)); err != nil {
						t.Fatal(err)
					}
					w.goTo(t, "sending")
					w.goOn(t)
					untilEffect(t, ft)
				case "after its answer":
					w.goTo(t, "answered")
				case "after Complete":
					w.goTo(t, "answered")
					w.goOn(t)
					<-completed
				}
				w.kill(t)
				sends, effects := counted(t, ft)
				if c, d := l.Calls(clienttest.Claim), l.Calls(clienttest.Complete); c != p.claims || d != p.completes || sends != p.effects || len(effects) != p.effects {
					t.Errorf("killed after %d claims, %d reports, %d requests and %d effects", c, d, sends, len(effects))
				}
				close(hold)

				e.Stops = false
				l.Advance(time.Hour) // the lease
				if got := e.start(t).done(t); got != p.after {
					t.Errorf("a new worker was told %q, want %q", got, p.after)
				}
				sends, effects = counted(t, ft)
				want := p.effects
				if p.after == "done" {
					want = 1
				}
				if sends != want || len(effects) != want {
					t.Errorf("%d requests and %d effects, want %d of each", sends, len(effects), want)
				}
				if p.after == "unknown CHECK_SCHEDULED" {
					convergesByEvidence(t, l, ft, e, p.effects)
				}
			})
		}
	}
}

// convergesByEvidence: what the target says settles it, and the next worker brings it to its end.
func convergesByEvidence(t *testing.T, l *clienttest.Ledger, ft *target.Server, e errand, effects int) {
	t.Helper()
	key := opsledgerv1.OperationKey{Tool: e.Tool, Task: e.Task, Key: e.intent().Key()}
	found, err := l.Service().Lookup(t.Context(), &opsledgerv1.LookupRequest{Selector: &opsledgerv1.LookupRequest_Key{Key: &key}})
	if err != nil {
		t.Fatal(err)
	}
	evidence, want := &opsledgerv1.Evidence{Finding: &opsledgerv1.Evidence_NotFound{NotFound: &opsledgerv1.NotFound{}}}, "done"
	if effects > 0 {
		_, made := counted(t, ft)
		evidence, want = &opsledgerv1.Evidence{Finding: &opsledgerv1.Evidence_Found{Found: &opsledgerv1.Found{
			Result: &opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Type: "effect", Id: made[0]}},
		}}}, "replayed"
	}
	if _, err := l.Evidence(t.Context(), found.GetOperation().GetId(), evidence); err != nil {
		t.Fatal(err)
	}
	if got := e.start(t).done(t); got != want {
		t.Errorf("after the evidence a worker was told %q, want %q", got, want)
	}
	if sends, made := counted(t, ft); sends != 1 || len(made) != 1 {
		t.Errorf("%d requests and %d effects at the end, want one", sends, len(made))
	}
}

// untilEffect looks at the target's log, which nobody can be told of, until there is an effect in it.
func untilEffect(t *testing.T, ft *target.Server) {
	t.Helper()
	ctx, look := bounded(t), time.NewTicker(2*time.Millisecond)
	defer look.Stop()
	for {
		if _, effects := counted(t, ft); len(effects) > 0 {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal("no effect came")
		}
	}
}

// TestStoppedProcess stops a worker process by SIGSTOP before its send, or while it connects for it, until its send window and lease are
// over, while another worker does the work. When it wakes it does not send; forced past the guard, its request is another one under the
// same key, and the target has one effect.
func TestStoppedProcess(t *testing.T) {
	for name, tt := range map[string]struct {
		place     string
		unguarded bool
		sends     int
		told      string
	}{
		"it does not send":      {"claimed", false, 1, "error: nothing was sent: the send window of the grant is over"},
		"while it connects":     {"connecting", false, 1, "error: nothing was sent: "}, // as the transport puts it
		"forced past the guard": {"claimed", true, 2, "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ft := startTarget(t)
			keyed := contracts()[0]
			keyed.SendWithin, keyed.LeaseDefault, keyed.LeaseMax, keyed.LeaseTotal = 900*time.Millisecond, time.Second, time.Second, time.Second
			keyed.EffectWithin = time.Second
			l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{keyed}, Listen: "127.0.0.1:0"})
			e := errand{Ledger: l.Addr(), Target: ft.URL(), Tool: "card.charge", Task: "task", Decided: time.Now(), Stops: true, Unguarded: tt.unguarded}
			w := e.start(t)
			w.goTo(t, tt.place)
			began := time.Now()
			w.stop(t)
			for range 4 { // what it reads when it wakes, here and at the places that may still come
				w.goOn(t)
			}

			l.Advance(time.Minute) // the ledger's clock; the process's own is the machine's
			second := e
			second.Stops, second.Unguarded = false, false
			if got := second.start(t).done(t); got != "unknown CHECK_SCHEDULED" {
				t.Fatalf("the second worker was told %q", got)
			}
			absent(t, l, second)
			keyed.SendWithin, keyed.LeaseDefault, keyed.LeaseMax, keyed.LeaseTotal = time.Minute, time.Minute, time.Minute, time.Minute
			l.Declare(keyed) // the second worker is in no hurry
			if got := second.start(t).done(t); got != "done" {
				t.Fatalf("then it was told %q", got)
			}
			<-time.After(time.Until(began.Add(1100 * time.Millisecond))) // the stopped process's lease, in real time
			w.signal(t, syscall.SIGCONT)
			got := w.done(t)
			if len(got) < len(tt.told) || got[:len(tt.told)] != tt.told {
				t.Errorf("the process that woke was told %q, want %q", got, tt.told)
			}
			if sends, effects := counted(t, ft); sends != tt.sends || len(effects) != 1 {
				t.Errorf("%d requests and %d effects, want %d and one", sends, len(effects), tt.sends)
			}
		})
	}
}

// absent brings the target's word that there is nothing.
func absent(t *testing.T, l *clienttest.Ledger, e errand) {
	t.Helper()
	key := opsledgerv1.OperationKey{Tool: e.Tool, Task: e.Task, Key: e.intent().Key()}
	found, err := l.Service().Lookup(t.Context(), &opsledgerv1.LookupRequest{Selector: &opsledgerv1.LookupRequest_Key{Key: &key}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Evidence(t.Context(), found.GetOperation().GetId(), &opsledgerv1.Evidence{
		Finding: &opsledgerv1.Evidence_NotFound{NotFound: &opsledgerv1.NotFound{}},
	}); err != nil {
		t.Fatal(err)
	}
}
