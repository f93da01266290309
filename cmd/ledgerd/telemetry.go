// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/stats"

	"github.com/opsledger/opsledger/authz"
)

// telemetry is where metrics and traces of this process go: metrics to the admin listener, traces to where the standard OTEL_*
// variables say, and nowhere else.
type telemetry struct {
	registry *prometheus.Registry
	meters   *sdkmetric.MeterProvider
	traces   *sdktrace.TracerProvider // nil: no traces
	reloads  metric.Int64Counter
}

// serviceName is what telemetry calls this process unless OTEL_SERVICE_NAME says otherwise.
const serviceName = "ledgerd"

func newTelemetry(ctx context.Context, p program) (*telemetry, error) {
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", serviceName), attribute.String("service.version", thisRelease().Version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("telemetry: the OTEL_ variables describe no resource: %w", err)
	}
	t := &telemetry{registry: prometheus.NewRegistry()}
	t.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(t.registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(described))
	if p.tracing() {
		spans, err := otlptracegrpc.New(ctx) // it reads the variables itself
		if err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(described))
	}
	if t.reloads, err = t.meter().Int64Counter("ledger.reloads", metric.WithUnit("{reload}"),
		metric.WithDescription("Changed files that came into force, or did not")); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return t, t.build()
}

// tracing says whether the standard variables ask for traces.
func (p program) tracing() bool {
	if strings.EqualFold(p.variable("OTEL_SDK_DISABLED"), "true") || p.variable("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return p.variable("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || p.variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" ||
		p.variable("OTEL_TRACES_EXPORTER") == "otlp"
}

func (t *telemetry) meter() metric.Meter {
	return t.meters.Meter("github.com/opsledger/opsledger")
}

// build tells in a metric what this binary is.
func (t *telemetry) build() error {
	r := thisRelease()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ledger_build_info", Help: "What this binary is; always 1",
		ConstLabels: prometheus.Labels{"version": r.Version, "commit": r.Commit, "go": r.Go, "schema": fmt.Sprint(r.SchemaOwn)},
	})
	gauge.Set(1)
	return t.registry.Register(gauge)
}

// watchCertificates tells the ends of the server's certificate and of the clients' authorities, for an alert before them.
func (t *telemetry) watchCertificates(source authz.MaterialSource) error {
	const kind = "ledger.tls.certificate.kind"
	_, err := t.meter().Int64ObservableGauge("ledger.tls.certificate.expiry", metric.WithUnit("s"),
		metric.WithDescription("End of life of the server's certificate, and of that authority of the clients which ends first, as Unix time"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			m := source.Current()
			o.Observe(m.NotAfter().Unix(), metric.WithAttributes(attribute.String(kind, "server")))
			o.Observe(m.AuthoritiesNotAfter().Unix(), metric.WithAttributes(attribute.String(kind, "authority")))
			return nil
		}))
	return err
}

// reloaded tells what became of a changed file. It is the Report of every reloader.
func (t *telemetry) reloaded(log *slog.Logger, kind string, err error) {
	result := "applied"
	if err != nil {
		result = "refused"
	}
	// Counted first: who has read the log finds it in the metrics.
	t.reloads.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("ledger.reload.kind", kind), attribute.String("ledger.reload.result", result)))
	if err != nil {
		log.Error("a changed file was refused; the last good one stays in force", "kind", kind, "error", err)
		return
	}
	log.Info("a changed file came into force", "kind", kind)
}

// shutdown sends what is still held back.
func (t *telemetry) shutdown(ctx context.Context) error {
	var err error
	if t.traces != nil {
		err = t.traces.Shutdown(ctx)
	}
	return errors.Join(err, t.meters.Shutdown(ctx))
}

// newLogger writes to standard error. Messages are constant; what varies is in attributes.
func (p program) newLogger(c Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // has been validated
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(p.stderr, options))
	}
	host, _ := os.Hostname() // without one the pod's log collector knows
	return slog.New(slog.NewJSONHandler(p.stderr, options)).With("host", host)
}

// statsHandler measures and traces calls, but not the health checks.
func (t *telemetry) statsHandler() stats.Handler {
	options := []otelgrpc.Option{
		otelgrpc.WithMeterProvider(t.meters),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
	}
	if t.traces != nil {
		options = append(options, otelgrpc.WithTracerProvider(t.traces))
	}
	return otelgrpc.NewServerHandler(options...)
}
