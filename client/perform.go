// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// performed is what became of one grant.
type performed[Res any] struct {
	outcome Outcome[Res]
	// err: nothing was sent under this grant.
	err error
	// again: the same call may claim once more.
	again *again
}

// again says why a call goes on after a grant.
type again struct {
	// unknown is what the call ends with if it can't go on; nil: nothing was sent.
	unknown *Unknown
	// read: the tool only reads.
	read bool
}

// perform executes under a grant and reports what became of it.
func (r *run[Req, Res]) perform(
	ctx context.Context, last *opsledgerv1.Operation, grant *opsledgerv1.Grant, sent time.Duration, reserved bool,
) performed[Res] {
	a := &attempt{
		ledger: r.ledger, operation: grant.GetOperationId(), claim: r.claims.request, claimID: r.claims.request.GetClaimId(), last: last,
	}
	h := newHold(r.ledger.now)
	h.begin(grant, sent, !reserved && r.effect.Prepare == nil)
	why := ctx.Err()
	if left, over := h.end(); why == nil && left <= 0 {
		why = over
	}
	if why != nil {
		a.notSent(ctx)
		return performed[Res]{err: unsent(why)}
	}
	within, release := h.keep(ctx, a, r.effect.Lease)
	giveBack := func() { release(); a.notSent(ctx) }
	var done performed[Res]
	req, err := r.prepare(within, callOf(grant, h), giveBack)
	switch {
	case err != nil:
		done.err = unsent(err)
	case reserved:
		if grant, done.err = a.start(within, h); usedUp(done.err) { // the reservation has lapsed meanwhile
			done.again = &again{}
		}
	default:
		if err = h.open(); err != nil {
			done.err = unsent(err)
		}
	}
	if done.err != nil {
		giveBack()
		return done
	}
	value, err := r.execute(within, callOf(grant, h), req, func() {
		release()
		a.markUnknown(ctx, opsledgerv1.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED, h.allAttributes())
	})
	release()
	if err != nil {
		return r.failedWith(ctx, a, h, saidBy(within, err))
	}
	report := func(result *opsledgerv1.Result) reported {
		return a.complete(ctx, h.once(), &opsledgerv1.CompleteRequest{
			Outcome: &opsledgerv1.CompleteRequest_Succeeded{Succeeded: result},
		})
	}
	result := r.effect.result(value, func(soFar *opsledgerv1.Result) { report(soFar) })
	return performed[Res]{outcome: succeeded(a, value, report(result))}
}

func callOf(grant *opsledgerv1.Grant, h *hold) Call {
	return Call{
		OperationID: grant.GetOperationId(), Key: grant.GetDownstreamKey(), Epoch: grant.GetEpoch(),
		Precondition: grant.GetPrecondition(), hold: h,
	}
}

// prepare does what comes before the send. An error says that nothing was sent.
func (r *run[Req, Res]) prepare(ctx context.Context, call Call, gone func()) (req Req, err error) {
	if req = r.req; r.effect.Prepare != nil {
		err = guarded(gone, func() (err error) {
			req, err = r.effect.Prepare(ctx, call, req)
			return err
		})
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return req, err
}

// start begins the send window of a reservation.
func (a *attempt) start(ctx context.Context, h *hold) (*opsledgerv1.Grant, error) {
	sent := h.now()
	call, cancel := context.WithTimeout(ctx, a.ledger.callTimeout)
	defer cancel()
	answer, err := a.ledger.service.Start(call, &opsledgerv1.StartRequest{OperationId: a.operation, ClaimId: a.claimID})
	if err != nil {
		return nil, refused(callStart, err)
	}
	h.begin(answer.GetGrant(), sent, false)
	if err := h.open(); err != nil {
		return nil, unsent(err)
	}
	return answer.GetGrant(), nil
}

// execute calls Execute.
func (r *run[Req, Res]) execute(ctx context.Context, call Call, req Req, gone func()) (value Res, err error) {
	err = guarded(gone, func() (err error) {
		value, err = r.effect.Execute(ctx, call, req)
		return err
	})
	return value, err
}

// guarded makes an error of a panic. If f ends the goroutine instead (a test's FailNow), gone is called on the way.
func guarded(gone func(), f func() error) (err error) {
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
	err = f()
	returned = true
	return err
}

// result is what the ledger is asked to keep of a value. The effect has happened: what panics here, or has no form that can be kept,
// is left out. If the goroutine ends here, gone is called with what there is so far.
func (e Effect[Req, Res]) result(value Res, gone func(*opsledgerv1.Result)) *opsledgerv1.Result {
	if e.whole != nil {
		return e.whole(value)
	}
	r := &opsledgerv1.Result{}
	left := func() { gone(r) }
	if e.Resource != nil {
		_ = guarded(left, func() error {
			r.Resource = validResource(e.Resource(value))
			return nil
		})
	}
	if e.Schema != "" {
		var payload []byte
		err := guarded(left, func() (err error) {
			payload, err = json.Marshal(value)
			return err
		})
		if err == nil && len(payload) <= maxPayload {
			r.Schema, r.Payload = e.Schema, payload
		}
	}
	return r
}

// saying is what the error of an execution says.
type saying struct {
	err      error
	never    *notSentError
	before   *refusedBeforeError
	rejected *rejectedError
	cause    opsledgerv1.UnknownCause
}

// saidBy reads an error, which is the user's code: where that panics, or says one thing and another, it says nothing.
func saidBy(ctx context.Context, err error) saying {
	s := saying{err: err}
	panicked := guarded(func() {}, func() error {
		s.read(err)
		s.cause = causeOf(ctx, err)
		if over := context.Cause(ctx); !errors.Is(over, ErrNoGrant) && !errors.Is(err, over) {
			s.err = errors.Join(err, over) // transports tend to say that it was canceled, and no more
		}
		return nil
	})
	if panicked != nil {
		return saying{err: panicked, cause: opsledgerv1.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED}
	}
	if s.never != nil && (s.before != nil || s.rejected != nil) || s.before != nil && s.rejected != nil {
		return saying{err: s.err, cause: s.cause}
	}
	return s
}

// read looks for what an error says as errors.As does, but not into what another Do told: that is about another grant.
func (s *saying) read(err error) {
	switch e := err.(type) {
	case *toldError:
		return
	case *notSentError:
		s.never = cmp.Or(s.never, e)
	case *refusedBeforeError:
		s.before = cmp.Or(s.before, e)
	case *rejectedError:
		s.rejected = cmp.Or(s.rejected, e)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		s.read(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			s.read(one)
		}
	}
}

// failedWith reports an execution that ended with an error.
func (r *run[Req, Res]) failedWith(ctx context.Context, a *attempt, h *hold, s saying) performed[Res] {
	err, before, rejected, cause := s.err, s.before, s.rejected, s.cause
	switch {
	case s.never != nil && !h.contradicts(s.never):
		a.notSent(ctx)
		return performed[Res]{err: unsent(s.never.err)}
	case before != nil:
		said := a.complete(ctx, h.once(), &opsledgerv1.CompleteRequest{Outcome: &opsledgerv1.CompleteRequest_NotExecuted{
			NotExecuted: before.report(),
		}})
		u := a.unknown(err, said)
		done := performed[Res]{outcome: Outcome[Res]{unknown: u}}
		if said.applied() && said.operation.GetState() == opsledgerv1.State_STATE_RECEIVED {
			u.Reason = ReasonWaiting
			if !a.lost {
				done.again = &again{unknown: u}
			}
		}
		return done
	case rejected != nil && rejected.definite():
		return performed[Res]{outcome: refusedByTarget[Res](a, rejected, a.complete(ctx, h.once(), &opsledgerv1.CompleteRequest{
			Outcome: &opsledgerv1.CompleteRequest_Rejected{Rejected: rejected.failure},
		}))}
	}
	said := a.markUnknown(ctx, cause, h.allAttributes())
	u := a.unknown(err, said)
	done := performed[Res]{outcome: Outcome[Res]{unknown: u}}
	// Only the ledger says that it may be executed once more, and only of what reads it says so at once.
	if !a.lost && said.applied() && said.operation.GetEffect() == opsledgerv1.Effect_EFFECT_READ && said.next == opsledgerv1.NextAction_NEXT_ACTION_CLAIM_AGAIN {
		done.again = &again{unknown: u, read: true}
	}
	return done
}

// succeeded is the outcome of an execution that had its effect.
func succeeded[Res any](a *attempt, value Res, r reported) Outcome[Res] {
	if r.applied() && r.operation.GetState() == opsledgerv1.State_STATE_COMPLETED {
		return Outcome[Res]{done: &Done[Res]{Value: value, HasValue: true, Result: r.result, Operation: r.operation}}
	}
	// Not recorded, or somebody has the operation or decided otherwise meanwhile. The report is in the history.
	return Outcome[Res]{unknown: a.unknown(nil, r), returned: &value}
}

// refusedByTarget is the outcome of an execution that the target rejected: definite unless an earlier send may have been applied.
func refusedByTarget[Res any](a *attempt, err *rejectedError, r reported) Outcome[Res] {
	if r.applied() && r.operation.GetState() == opsledgerv1.State_STATE_FAILED {
		return Outcome[Res]{rejected: &Rejection{Failure: err.failure, Operation: r.operation}}
	}
	return Outcome[Res]{unknown: a.unknown(err, r)}
}

// causeOf tells people where to look; it decides nothing.
func causeOf(ctx context.Context, err error) opsledgerv1.UnknownCause {
	var u *unclearError
	over := context.Cause(ctx)
	switch {
	case errors.As(err, &u):
		return u.cause
	case errors.Is(err, context.Canceled) && (errors.Is(over, ErrWindowOver) || errors.Is(over, ErrLeaseOver)),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ErrWindowOver), errors.Is(err, ErrLeaseOver):
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_TIMEOUT
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_CONNECTION_LOST
	default:
		return opsledgerv1.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED
	}
}
