// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// perform executes under a grant and reports what became of it.
func perform[Req, Res any](
	ctx context.Context, a attempt, e Effect[Req, Res], grant *opsledgerv1.Grant, w window, req Req,
) (Outcome[Res], error) {
	var none Outcome[Res]
	why := ctx.Err()
	if w.left() <= 0 {
		why = ErrWindowOver
	}
	if why != nil {
		a.notSent(ctx)
		return none, fmt.Errorf("nothing was sent: %w", why)
	}

	call := Call{
		OperationID: grant.GetOperationId(), Key: grant.GetDownstreamKey(), Epoch: grant.GetEpoch(),
		Precondition: grant.GetPrecondition(), window: w,
	}
	within, cancel := w.context(ctx)
	// runtime.Goexit in Execute (a test's FailNow) comes back only as this deferred call.
	value, result, err := run(within, e, call, req, func() { a.markUnknown(ctx, opsledgerv1.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED) })
	cancel()

	var (
		unsent   *notSentError
		rejected *rejectedError
	)
	switch {
	case err == nil:
		return succeeded(a, value, a.complete(ctx, &opsledgerv1.CompleteRequest{
			Outcome: &opsledgerv1.CompleteRequest_Succeeded{Succeeded: result},
		})), nil
	case errors.As(err, &unsent):
		a.notSent(ctx)
		// Without the mark: an Execute around this call, which may have sent something, must not pass it on as its own.
		return none, fmt.Errorf("nothing was sent: %w", unsent.err)
	case errors.As(err, &rejected) && rejected.definite():
		return refusedByTarget[Res](a, rejected, a.complete(ctx, &opsledgerv1.CompleteRequest{
			Outcome: &opsledgerv1.CompleteRequest_Rejected{Rejected: rejected.failure},
		})), nil
	default:
		return Outcome[Res]{unknown: a.unknown(err, a.markUnknown(ctx, causeOf(err)))}, nil
	}
}

// run calls Execute and makes an error of a panic. If the goroutine ends in Execute, gone is called.
func run[Req, Res any](
	ctx context.Context, e Effect[Req, Res], call Call, req Req, gone func(),
) (value Res, result *opsledgerv1.Result, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
			return
		}
		gone()
	}()
	value, err = e.Execute(ctx, call, req)
	if err == nil {
		result = e.result(value)
	}
	returned = true
	return value, result, err
}

// result is what the ledger is asked to keep of a value.
func (e Effect[Req, Res]) result(value Res) *opsledgerv1.Result {
	r := &opsledgerv1.Result{}
	if e.Resource != nil {
		r.Resource = validResource(e.Resource(value))
	}
	if e.Schema != "" {
		// A value without a JSON form, or with a large one, is not kept; the effect has happened all the same.
		if payload, err := json.Marshal(value); err == nil && len(payload) <= maxPayload {
			r.Schema, r.Payload = e.Schema, payload
		}
	}
	return r
}

// succeeded is the outcome of an execution that had its effect.
func succeeded[Res any](a attempt, value Res, r reported) Outcome[Res] {
	if r.applied() && r.operation.GetState() == opsledgerv1.State_STATE_COMPLETED {
		return Outcome[Res]{done: &Done[Res]{Value: value, HasValue: true, Result: r.result, Operation: r.operation}}
	}
	// Not recorded, or somebody has the operation or decided otherwise meanwhile. The report is in the history.
	return Outcome[Res]{unknown: a.unknown(nil, r)}
}

// refusedByTarget is the outcome of an execution that the target rejected: definite unless an earlier attempt may have been applied.
func refusedByTarget[Res any](a attempt, err *rejectedError, r reported) Outcome[Res] {
	if r.applied() && r.operation.GetState() == opsledgerv1.State_STATE_FAILED {
		return Outcome[Res]{rejected: &Rejection{Failure: err.failure, Operation: r.operation}}
	}
	return Outcome[Res]{unknown: a.unknown(err, r)}
}

// causeOf tells people where to look; it decides nothing.
func causeOf(err error) opsledgerv1.UnknownCause {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ErrWindowOver):
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_TIMEOUT
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_CONNECTION_LOST
	default:
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED
	}
}
