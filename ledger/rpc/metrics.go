// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/opsledger/opsledger/ledger"
)

// The names of spans', logs' and metrics' attributes. The first is OpenTelemetry's word for a tool that a model calls.
const (
	attrTool        = "gen_ai.tool.name"
	attrOperation   = "ledger.operation.id"
	attrFingerprint = "ledger.fingerprint.prefix"

	labelTool      = "ledger.tool.name"
	labelOutcome   = "ledger.claim.outcome"
	labelState     = "ledger.operation.state"
	labelRejection = "ledger.rejection.reason"
	labelReplay    = "ledger.replay.result"
)

// otherTool stands for all tools without a contract: callers choose names, and labels must be few.
const otherTool = "other"

// metrics of what callers ask for. Labels are closed enumerations and declared tools, nothing else.
type metrics struct {
	claims   metric.Int64Counter
	alike    metric.Int64Counter
	refused  metric.Int64Counter
	replays  metric.Int64Counter
	taken    metric.Int64Counter
	duration metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = otel.Meter("github.com/opsledger/opsledger/ledger/rpc")
	}
	m := &metrics{}
	var errs [6]error
	m.claims, errs[0] = meter.Int64Counter("ledger.claims", metric.WithUnit("{claim}"),
		metric.WithDescription("Claims, by what they were told."))
	m.refused, errs[1] = meter.Int64Counter("ledger.transitions.rejected", metric.WithUnit("{command}"),
		metric.WithDescription("Commands that came too late, or from who does not hold the operation, and reports that its history has no room for."))
	m.replays, errs[2] = meter.Int64Counter("ledger.replay.authorizations", metric.WithUnit("{replay}"),
		metric.WithDescription("Decisions whether a result may be shown."))
	m.duration, errs[3] = meter.Float64Histogram("ledger.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("From the first claim of an operation to its end, where a call of this service ended it."),
		metric.WithExplicitBucketBoundaries(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 3600, 21600, 86400))
	m.alike, errs[4] = meter.Int64Counter("ledger.claims.look_alike", metric.WithUnit("{claim}"),
		metric.WithDescription("Operations whose request is that of another key of the same scope, subject, task and tool, among the last that this instance saw."))
	m.taken, errs[5] = meter.Int64Counter("ledger.takeovers", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that people have taken over."))
	return m, errors.Join(errs[:]...)
}

// claimOutcomes are the labels of answers.
var claimOutcomes = map[ledger.Outcome]string{
	ledger.OutcomeGranted: "granted", ledger.OutcomeCompleted: "replayed", ledger.OutcomeFailed: "replayed",
	ledger.OutcomeInProgress: "in_progress", ledger.OutcomeUnknown: "unknown", ledger.OutcomeAwaitingApproval: "awaiting_approval",
	ledger.OutcomeBlocked: "blocked", ledger.OutcomeWaiting: "waiting",
}

// claimRefused is the label of a refused Claim.
func claimRefused(err error) string {
	if errors.Is(err, ledger.ErrFingerprintConflict) {
		return "conflict"
	}
	return "rejected"
}

func (m *metrics) claimed(ctx context.Context, tool, outcome string) {
	m.claims.Add(ctx, 1, metric.WithAttributes(attribute.String(labelTool, tool), attribute.String(labelOutcome, outcome)))
}

func (m *metrics) lookedAlike(ctx context.Context, tool string) {
	m.alike.Add(ctx, 1, metric.WithAttributes(attribute.String(labelTool, tool)))
}

func (m *metrics) rejected(ctx context.Context, reason string) {
	if reason != "" {
		m.refused.Add(ctx, 1, metric.WithAttributes(attribute.String(labelRejection, reason)))
	}
}

func (m *metrics) tookOver(ctx context.Context, tool string) {
	m.taken.Add(ctx, 1, metric.WithAttributes(attribute.String(labelTool, tool)))
}

func (m *metrics) replayAuthorized(ctx context.Context, allowed bool) {
	result := "redacted"
	if allowed {
		result = "allowed"
	}
	m.replays.Add(ctx, 1, metric.WithAttributes(attribute.String(labelReplay, result)))
}

func (m *metrics) settled(ctx context.Context, tool string, op *ledger.Operation) {
	m.duration.Record(ctx, op.FinalTime.Sub(op.CreateTime).Seconds(),
		metric.WithAttributes(attribute.String(labelTool, tool), attribute.String(labelState, op.State.String())))
}

// toolLabel is the tool's name if it has a contract.
func (s *Server) toolLabel(tool ledger.Tool) string {
	if _, declared := s.ledger.Contract(tool); declared {
		return string(tool)
	}
	return otherTool
}

// annotate names the operation in the call's span and log line.
func annotate(ctx context.Context, tool ledger.Tool, id ledger.OperationID) {
	name := id.String()
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String(attrTool, string(tool)), attribute.String(attrOperation, name))
	}
	logging.AddFields(ctx, logging.Fields{attrTool, string(tool), attrOperation, name})
}

func annotateFingerprint(ctx context.Context, f ledger.Fingerprint) {
	prefix := f.Prefix()
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String(attrFingerprint, prefix))
	}
	logging.AddFields(ctx, logging.Fields{attrFingerprint, prefix})
}
