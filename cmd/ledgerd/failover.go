// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
)

// What --failover may be.
const (
	failoverLossy    = "lossy"
	failoverLossless = "lossless"
)

var failovers = map[string]postgres.Failover{failoverLossy: postgres.FailoverLossy, failoverLossless: postgres.FailoverLossless}

// watch tells of what the store's servers have come to.
type watch struct {
	log            *slog.Logger
	begun, refused metric.Int64Counter

	mu   sync.Mutex
	last string
	told time.Time
}

func (t *telemetry) watch(log *slog.Logger) (*watch, error) {
	w := &watch{log: log}
	var errs [2]error
	w.begun, errs[0] = t.meter().Int64Counter("ledger.store.timelines", metric.WithUnit("{timeline}"),
		metric.WithDescription("Times at which this process found that another server has the store, or that commits are lost"))
	w.refused, errs[1] = t.meter().Int64Counter("ledger.store.connections.refused", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections to a server that must not be used: a standby, a primary of before, unsafe settings"))
	return w, errors.Join(errs[:]...)
}

// timeline is told what has become of the store.
func (w *watch) timeline(t ledger.Timeline) {
	w.begun.Add(context.Background(), 1, metric.WithAttributes(attribute.String("ledger.timeline.cause", string(t.Cause))))
	if t.LostSince.IsZero() {
		w.log.Warn("another server has the store; it is declared that nothing was lost", "timeline", t.Number)
		return
	}
	w.log.Error("the store may have lost commits: what was decided before now is investigated, not executed",
		"timeline", t.Number, "cause", string(t.Cause), "lost_since", t.LostSince)
}

// repeated is how often the same refusal of a server is logged at most.
const repeated = time.Minute

// connection is told which server is not used, and why: callers only hear that the store is unavailable.
func (w *watch) connection(err error) {
	w.refused.Add(context.Background(), 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == err.Error() && time.Since(w.told) < repeated {
		return
	}
	w.last, w.told = err.Error(), time.Now()
	w.log.Error("a connection to the store is refused", "error", err)
}

// remembered is for how long a process that starts says that commits were lost.
const remembered = 7 * 24 * time.Hour

// tellQuarantine says it to who starts a process, and has not seen the log of the one that found it.
func tellQuarantine(ctx context.Context, store database, log *slog.Logger, now time.Time) error {
	all, err := store.Timelines(ctx)
	if err != nil {
		return ruleError("store", err.Error())
	}
	for i := len(all) - 1; i >= 0; i-- {
		if t := all[i]; !t.LostSince.IsZero() && now.Sub(t.BeginTime) < remembered {
			log.Warn("the store may have lost commits: what was decided before that is investigated, not executed; see ledgerd timelines",
				"timeline", t.Number, "cause", string(t.Cause), "began", t.BeginTime, "lost_since", t.LostSince)
			break
		}
	}
	return nil
}

// checkRecognized warns of a server that does not tell which one it is.
func checkRecognized(ctx context.Context, store database, log *slog.Logger) error {
	server, ok := store.(interface {
		Recognized(ctx context.Context) (bool, error)
	})
	if !ok {
		return nil
	}
	told, err := server.Recognized(ctx)
	if err != nil {
		return ruleError("store", err.Error())
	}
	if !told {
		log.Warn("the database does not tell which server it is (pg_control_system): after each failover or restore that may have lost commits run ledgerd restored")
	}
	return nil
}
