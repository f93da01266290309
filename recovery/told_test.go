// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/opsledger/opsledger/ledger"
)

// warned is what a loop logs at WARN.
type warned struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *warned) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *warned) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// lines that have all the words.
func (w *warned) lines(words ...string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		has := true
		for _, word := range words {
			has = has && strings.Contains(line, word)
		}
		if has {
			n++
		}
	}
	return n
}

// opened is what the gauge says of a tool; -1: nothing.
func opened(t *testing.T, reader sdkmetric.Reader, tool string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if g, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == "ledger.recovery.breaker.open" {
				for _, p := range g.DataPoints {
					if v, _ := p.Attributes.Value(labelTool); v.AsString() == tool {
						return p.Value
					}
				}
			}
		}
	}
	return -1
}

// One word of a target keeps nobody away for more than an hour, and people see that it does.
func TestWhatATargetPutsOffIsBoundedAndSeen(t *testing.T) {
	for name, v := range map[string]Verdict{"throttled": silent(ledger.QueryThrottled), "unavailable": silent(ledger.QueryUnavailable)} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.limited("charge", 1, 1000)
			id := s.granted(t, "charge")
			s.advance(time.Hour)
			target := &busy{says: func(n int64) Verdict {
				v := v
				if n == 1 {
					v.Evidence.RetryAfter = 100 * 24 * time.Hour
					return v
				}
				return found(`{"amount":5}`)
			}}
			var told warned
			reader := sdkmetric.NewManualReader()
			l := s.loop(t, target.ask, Options{Log: told.log(), Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("")})
			once(t, l)
			all, err := Standings(t.Context(), s.store)
			if got := all["charge"]; err != nil || got.Breaker != BreakerOpen || got.LeftUntil.IsZero() {
				t.Errorf("while it is left alone: %+v, %v", got, err)
			}
			if n := told.lines("is left alone", "charge", "until=20"); n != 1 {
				t.Errorf("it was told %d times that it is left alone:\n%s", n, &told.text)
			}
			if got := opened(t, reader, "charge"); got != 1 {
				t.Errorf("the gauge shows %d", got)
			}
			s.advance(time.Hour + 2*mostJitter)
			once(t, l)
			s.wants(t, id, ledger.Completed, ledger.Automation, 0)
			once(t, l)
			if n := told.lines("is asked again", "charge"); n != 1 {
				t.Errorf("it was told %d times that it is asked again:\n%s", n, &told.text)
			}
			if got := opened(t, reader, "charge"); got != 0 {
				t.Errorf("then the gauge shows %d", got)
			}
		})
	}
}

// The breaker of a target that answers nobody is told once each time it opens, and so is its end.
func TestABreakerIsTold(t *testing.T) {
	s := newSite(t)
	for range failuresInARow + 3 {
		s.granted(t, "charge")
	}
	s.advance(time.Hour)
	var up atomic.Bool
	var told warned
	l := s.loop(t, func(context.Context, *ledger.Operation) Verdict {
		if up.Load() {
			return found(`{"amount":5}`)
		}
		return silent(ledger.QueryUnavailable)
	}, Options{Log: told.log()})
	once(t, l)
	if n := told.lines("is left alone", "charge"); n != 1 {
		t.Errorf("it was told %d times that it is left alone:\n%s", n, &told.text)
	}
	up.Store(true)
	s.advance(30 * time.Minute)
	once(t, l)
	once(t, l)
	if n := told.lines("is asked again", "charge"); n != 1 {
		t.Errorf("it was told %d times that it is asked again:\n%s", n, &told.text)
	}
}

// What a target does not say is told once in a run, for each tool and cause, and never by operation.
func TestFindingsThatSayNothingAreToldOnce(t *testing.T) {
	for cause, word := range map[ledger.IndeterminateCause]string{
		ledger.QueryNotAuthorized: "not_authorized", ledger.QueryNotUnderstood: "not_understood", ledger.QueryUnavailable: "unavailable",
		ledger.QueryTimeout: "timeout", ledger.QueryThrottled: "throttled",
	} {
		for _, why := range []string{"", "for a constant reason"} {
			s := newSite(t)
			for range 4 {
				s.granted(t, "charge")
				s.granted(t, "refund")
			}
			s.advance(time.Hour)
			var told warned
			l := s.loop(t, func(context.Context, *ledger.Operation) Verdict {
				v := silent(cause)
				v.Why = why
				return v
			}, Options{Log: told.log()})
			once(t, l)
			for _, tool := range []string{"charge", "refund"} {
				if n := told.lines("finding="+word, tool, why); n != 1 {
					t.Errorf("%s: told %d times of %s:\n%s", word, n, tool, &told.text)
				}
			}
		}
	}
}

func TestRunsAreTold(t *testing.T) {
	var r runs
	at := time.Unix(1000, 0)
	for i, c := range []struct {
		after    time.Duration
		answered bool
		want     bool
	}{
		{0, false, true}, {time.Hour, false, false}, {time.Second, true, false}, {0, false, true}, // a new one
		{time.Second, true, false}, {time.Second, false, false}, // it comes and goes
		{tellAgain, true, false}, {0, false, true},
	} {
		at = at.Add(c.after)
		if c.answered {
			r.answered("t")
			continue
		}
		if got := r.first("t", "cause", at); got != c.want {
			t.Errorf("%d: %t", i, got)
		}
	}
	if !r.first("t", "another cause", at) || !r.first("u", "cause", at) {
		t.Error("another cause and another tool have runs of their own")
	}
}

// Each loop tells once what it has made of a gate; the end is told by who told the beginning, whoever the target has answered.
func TestWhatIsToldOfAGate(t *testing.T) {
	var c closures
	at := time.Unix(1000, 0)
	for i, step := range []struct {
		after       time.Duration
		how         change
		left, again bool
	}{
		{0, change{well: true}, false, false},
		{0, change{is: shut{left: time.Second}}, true, false},
		{0, change{was: shut{left: time.Second}, is: shut{left: time.Second}}, false, false},
		{0, change{was: shut{left: time.Second}, is: shut{left: time.Hour}}, true, false}, // much longer
		{time.Hour, change{}, false, false},                                               // somebody asks it
		{0, change{well: true}, false, true},
		{0, change{well: true}, false, false},
		{time.Second, change{is: shut{left: time.Second}}, true, false},
		{time.Second, change{well: true}, false, true},
		{time.Second, change{is: shut{left: time.Second}}, false, false}, // it comes and goes
		{time.Second, change{well: true}, false, false},
		{time.Second, change{is: shut{left: tellAgain}}, true, false},
	} {
		at = at.Add(step.after)
		if left, again := c.note("t", step.how, at); left != step.left || again != step.again {
			t.Errorf("%d: left %t, again %t", i, left, again)
		}
	}
}
