// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Gate finds out who calls, refuses who may not call a method, and puts the principal into the context.
type Gate interface {
	Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error)
	Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error
}

// InterceptorOptions of a server. The zero value is usable.
type InterceptorOptions struct {
	// Log; nil: slog.Default().
	Log *slog.Logger
	// Draining reports that the server is about to stop: no new leases then; nil: never.
	Draining func() bool
	// Limiter of requests per second; nil: there is no limit. Give the same one to the Server.
	Limiter *Limiter
}

// Interceptors are the server options that put every call through the same chain: a panic is caught, the call is logged, the gate asks
// who calls and whether the method is theirs, the limiter whether that is not too often, what is no message of the contract is refused, a
// server about to stop gives no new leases, and the call gets a deadline.
func Interceptors(gate Gate, o InterceptorOptions) []grpc.ServerOption {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Draining == nil {
		o.Draining = func() bool { return false }
	}
	caught := recovery.WithRecoveryHandlerContext(func(ctx context.Context, _ any) error {
		return internal(ctx, o.Log, "panic in a call", slog.Any("stack", stack()))
	})
	logged := logging.LoggerFunc(func(ctx context.Context, level logging.Level, _ string, fields ...any) {
		o.Log.LogAttrs(ctx, slog.Level(level), "call finished", allowed(fields)...)
	})
	options := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithErrorFields(func(err error) logging.Fields { return logging.Fields{fieldReason, reasonOf(err)} }),
	}
	notHealth := selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool {
		return call.Service != "grpc.health.v1.Health"
	})
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ChainUnaryInterceptor(
			recovery.UnaryServerInterceptor(caught),
			selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(logged, options...), notHealth),
			gate.Unary,
			o.Limiter.unary(o.Log),
			decoded(o.Log),
			drain(o.Log, o.Draining),
			deadline(o.Log),
		),
		grpc.ChainStreamInterceptor(
			recovery.StreamServerInterceptor(caught),
			selector.StreamServerInterceptor(logging.StreamServerInterceptor(logged, options...), notHealth),
			gate.Stream,
		),
	}
}

const fieldReason = "error_reason"

// loggable are the only fields of a call that reach the log: no address, no text of an error, nothing of a message.
var loggable = []string{
	"grpc.service", "grpc.method", "grpc.code", "grpc.time_ms", fieldReason, attrTool, attrOperation, attrFingerprint,
}

func allowed(fields []any) []slog.Attr {
	var attrs []slog.Attr
	for i := 0; i+1 < len(fields); i += 2 {
		if name, ok := fields[i].(string); ok && slices.Contains(loggable, name) {
			attrs = append(attrs, slog.Any(name, fields[i+1]))
		}
	}
	return attrs
}

// stack names the functions that were running, without their arguments.
func stack() []string {
	pcs := make([]uintptr, 48)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var lines []string
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") {
			lines = append(lines, fmt.Sprintf("%s:%d", frame.Function, frame.Line))
		}
		if !more {
			return lines
		}
	}
}

// leases are the methods that give something out which the caller would have to finish with another instance.
var leases = []string{
	pb.LedgerService_Claim_FullMethodName, pb.LedgerService_Start_FullMethodName, pb.LedgerService_BeginCheck_FullMethodName,
}

// drain refuses new leases while the server is about to stop. Reports go on to the end.
func drain(log *slog.Logger, draining func() bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if slices.Contains(leases, info.FullMethod) && draining() {
			return nil, fail(ctx, log, ledger.ErrDraining, false)
		}
		return handler(ctx, req)
	}
}

// The time that a call gets.
const (
	defaultDeadline = 5 * time.Second
	longestDeadline = 10 * time.Second
	leastLeft       = 50 * time.Millisecond
)

// reports are never refused for lack of time: what they say may not be said again.
var reports = []string{
	pb.LedgerService_Complete_FullMethodName, pb.LedgerService_MarkUnknown_FullMethodName, pb.LedgerService_Renew_FullMethodName,
}

// deadline bounds every call. One that waits gets the time that it asked to wait for on top.
func deadline(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		var wait time.Duration
		if w, ok := req.(interface{ GetWait() *durationpb.Duration }); ok {
			wait = min(max(w.GetWait().AsDuration(), 0), maxWait)
		}
		limit := defaultDeadline
		if until, ok := ctx.Deadline(); ok {
			left := time.Until(until)
			if left < leastLeft && !slices.Contains(reports, info.FullMethod) {
				return nil, fail(ctx, log, ledger.ErrStoreUnavailable, false)
			}
			limit = min(left, longestDeadline)
			if wait > 0 {
				limit = min(left, longestDeadline+wait)
			}
		} else if wait > 0 {
			limit += wait
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return handler(ctx, req)
	}
}
