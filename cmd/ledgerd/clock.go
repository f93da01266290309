// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/ledger"
)

// clockInterval is how often the store's clock is looked at, where calls don't: often enough that what a clock may drift meanwhile is next to
// nothing, and that an alert comes soon.
const clockInterval = 5 * time.Second

// watchClock has jumps of the store's clock noticed, told in a metric and in the log, until stop is called.
func (p *parts) watchClock(ctx context.Context) (stop func(), err error) {
	jumps, err := p.telemetry.meter().Int64Counter("ledger.store.clock.jumps", metric.WithUnit("{jump}"),
		metric.WithDescription("How often the store's clock was seen to be set: what was noted before is judged by the time that has really passed"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	var offset atomic.Int64
	if _, err = p.telemetry.meter().Float64ObservableGauge("ledger.store.clock.offset", metric.WithUnit("s"),
		metric.WithDescription("By how much the store's clock was set since this process has started: forward, or back if negative"),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(time.Duration(offset.Load()).Seconds())
			return nil
		})); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	p.clock = ledger.NewClock(sinceBoot(), func(by time.Duration) {
		offset.Add(int64(by))
		direction := "forward"
		if by < 0 {
			direction = "back"
		}
		jumps.Add(context.Background(), 1, metric.WithAttributes(attribute.String("ledger.store.clock.direction", direction)))
		p.log.Warn("the store's clock was set: what was noted before is judged by the time that has really passed; see to the clock of the database's host",
			"by", by.String())
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	look := func() {
		if err := p.clock.Look(ctx, p.store); err != nil && ctx.Err() == nil {
			p.log.Debug("the store's clock could not be read", "error", err)
		}
	}
	look()
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(clockInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); group.Wait() }, nil
}

// sinceStart is the clock where there is none that counts sleep: after it the store's clock seems to have been set forward, which is safe.
func sinceStart() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
