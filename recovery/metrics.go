// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/ledger"
)

// The names of logs' and metrics' attributes, as in the calls of the service.
const (
	attrTool      = "gen_ai.tool.name"
	attrOperation = "ledger.operation.id"

	labelTool   = "ledger.tool.name"
	labelResult = "ledger.evidence.result"

	// resultCutOff: the operation was taken over, or settled, while the target was asked.
	resultCutOff = "cut_off"
)

// otherTool stands for all tools without a contract: callers choose names, and labels must be few.
const otherTool = "other"

func (l *Loop) label(tool ledger.Tool) string { return toolLabel(l.ledger, tool) }

func toolLabel(l *ledger.Ledger, tool ledger.Tool) string {
	if _, declared := l.Contract(tool); declared {
		return string(tool)
	}
	return otherTool
}

// result names a finding in metrics and logs; one that says nothing by its cause.
func result(d Done, mismatch bool) string {
	switch {
	case mismatch:
		return "mismatch"
	case d.Finding == ledger.Indeterminate:
		return strings.ToLower(d.Cause.String())
	default:
		return strings.ToLower(d.Finding.String())
	}
}

type metrics struct {
	queries  metric.Int64Counter
	duration metric.Float64Histogram
	lag      metric.Float64Histogram
	leases   metric.Int64UpDownCounter
	backlog  atomic.Int64
	success  atomic.Int64
	closed   closures
}

func newMetrics(meter metric.Meter, label func(ledger.Tool) string) (*metrics, error) {
	if meter == nil {
		meter = otel.Meter("github.com/opsledger/opsledger/recovery")
	}
	m := &metrics{}
	var errs [7]error
	m.queries, errs[0] = meter.Int64Counter("ledger.evidence.queries", metric.WithUnit("{query}"),
		metric.WithDescription("Checks of targets, by what they found, or why they found nothing."))
	m.duration, errs[1] = meter.Float64Histogram("ledger.evidence.duration", metric.WithUnit("s"),
		metric.WithDescription("How long a target took to be asked."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30))
	m.lag, errs[2] = meter.Float64Histogram("ledger.recovery.lag", metric.WithUnit("s"),
		metric.WithDescription("From the time at which an operation was due until recovery took it, by the store's clock."),
		metric.WithExplicitBucketBoundaries(0.1, 0.5, 1, 2, 5, 15, 60, 300, 1800, 3600, 21600))
	m.leases, errs[3] = meter.Int64UpDownCounter("ledger.recovery.leases", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that recovery deals with now."))
	_, errs[4] = meter.Int64ObservableGauge("ledger.recovery.backlog", metric.WithUnit("{operation}"),
		metric.WithDescription("Due operations that the last look has seen, also those whose targets somebody else asks. A look reads some pages, not all."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(m.backlog.Load())
			return nil
		}))
	_, errs[5] = meter.Int64ObservableGauge("ledger.recovery.last_success", metric.WithUnit("s"),
		metric.WithDescription("When recovery last could read what is due, as Unix time by this host's clock; 0: never."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(m.success.Load())
			return nil
		}))
	_, errs[6] = meter.Int64ObservableGauge("ledger.recovery.breaker.open", metric.WithUnit("{tool}"),
		metric.WithDescription("1 while a tool's target is left alone: it wants to be, or answers nobody. As this instance last saw it; 0: it may be asked."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			labels := map[string]int64{}
			m.closed.each(time.Now(), func(tool ledger.Tool, open bool) {
				labels[label(tool)] += 0
				if open {
					labels[label(tool)] = 1
				}
			})
			for name, open := range labels {
				o.Observe(open, metric.WithAttributes(attribute.String(labelTool, name)))
			}
			return nil
		}))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) looked(found int) {
	m.backlog.Store(int64(found))
	m.success.Store(time.Now().Unix())
}

func (m *metrics) running(more int64) { m.leases.Add(context.Background(), more) }

func (m *metrics) taken(tool string, late time.Duration) {
	m.lag.Record(context.Background(), max(late, 0).Seconds(), metric.WithAttributes(attribute.String(labelTool, tool)))
}

func (m *metrics) asked(tool, result string, took time.Duration) {
	about := metric.WithAttributes(attribute.String(labelTool, tool), attribute.String(labelResult, result))
	m.queries.Add(context.Background(), 1, about)
	m.duration.Record(context.Background(), took.Seconds(), about)
}
