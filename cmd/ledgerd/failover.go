// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
)

// What --failover may be.
const (
	failoverLossy    = "lossy"
	failoverLossless = "lossless"
)

var failovers = map[string]postgres.Failover{failoverLossy: postgres.FailoverLossy, failoverLossless: postgres.FailoverLossless}

// tellTimeline says in the log what has become of the store.
func tellTimeline(log *slog.Logger) func(ledger.Timeline) {
	return func(t ledger.Timeline) {
		if t.LostSince.IsZero() {
			log.Warn("another server has the store; it is declared that nothing was lost", "timeline", t.Number)
			return
		}
		log.Error("the store may have lost commits: what was decided before now is investigated, not executed",
			"timeline", t.Number, "cause", string(t.Cause), "lost_since", t.LostSince)
	}
}

// repeated is how often the same refusal of a server is logged at most.
const repeated = time.Minute

// tellRefused says in the log which server is not used, and why: callers are only told that the store is unavailable.
func tellRefused(log *slog.Logger) func(error) {
	var mu sync.Mutex
	var last string
	var told time.Time
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if last == err.Error() && time.Since(told) < repeated {
			return
		}
		last, told = err.Error(), time.Now()
		log.Error("a connection to the store is refused", "error", err)
	}
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
