// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// labelAction is what was done.
const labelAction = "ledger.retention.action"

type sweepMetrics struct {
	done    metric.Int64Counter
	success atomic.Int64
}

func newSweepMetrics(meter metric.Meter) (*sweepMetrics, error) {
	if meter == nil {
		meter = otel.Meter("github.com/opsledger/opsledger/recovery")
	}
	m := &sweepMetrics{}
	var errs [2]error
	m.done, errs[0] = meter.Int64Counter("ledger.retention.operations", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that retention has dealt with, by what it did: expired, retired, history_forgotten, key_forgotten."))
	_, errs[1] = meter.Int64ObservableGauge("ledger.retention.last_success", metric.WithUnit("s"),
		metric.WithDescription("When retention last came to the end of what is old, as Unix time by this host's clock; 0: never."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(m.success.Load())
			return nil
		}))
	return m, errors.Join(errs[:]...)
}

func (m *sweepMetrics) passed() { m.success.Store(time.Now().Unix()) }

func (m *sweepMetrics) did(tool, what string, n int) {
	if n > 0 {
		m.done.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String(labelTool, tool), attribute.String(labelAction, what)))
	}
}
