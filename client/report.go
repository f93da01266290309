// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// attempt is one grant in the hands of the call of Do that it was given to.
type attempt struct {
	ledger    *Ledger
	operation string
	claim     *opsledgerv1.ClaimRequest // which may draw another claim id once the attempt has ended
	claimID   string
	last      *opsledgerv1.Operation // as the claim showed it

	lost bool // the ledger did not know the grant when it was reported
}

// reported is what the ledger said to a report.
type reported struct {
	operation   *opsledgerv1.Operation
	disposition opsledgerv1.Disposition
	next        opsledgerv1.NextAction
	result      *opsledgerv1.Result // of a success, as it was reported
	err         error               // it could not be recorded, as far as this process knows
}

func (r reported) applied() bool {
	return r.err == nil && r.disposition == opsledgerv1.Disposition_DISPOSITION_APPLIED
}

// unknown is the variant of an attempt that ended so.
func (a *attempt) unknown(cause error, r reported) *Unknown {
	u := &Unknown{
		OperationID: a.operation, Reason: ReasonUnknown, Recorded: r.err == nil, Disposition: r.disposition,
		NextAction: r.next, Operation: r.operation, Cause: toldCause(cause),
	}
	if u.Operation == nil {
		u.Operation = a.last
	}
	if r.err != nil {
		u.Cause = errors.Join(u.Cause, fmt.Errorf("not recorded: %w", r.err))
	}
	return u
}

// complete reports a definite outcome. If the report is refused it is made once more in its barest form: what this process knows
// must not be lost for the form in which it says so.
//
// That the request left exactly once is said only where it is known, by the declaration of Execute or by its transport: a rejection
// that follows two sends may be the answer to the second, while the first had its effect. Nor is it said to a ledger that has lost the grant, and with
// it the doubt that there was about an earlier one.
func (a *attempt) complete(ctx context.Context, once bool, req *opsledgerv1.CompleteRequest) reported {
	req.OperationId, req.ClaimId = a.operation, a.claimID
	neverSent := req.GetNotExecuted().GetKind() == opsledgerv1.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT
	bare := false
	return a.send(ctx, !neverSent, func(ctx context.Context) (reported, error) {
		req.SentExactlyOnce = once && !(a.lost && a.last.GetMayHaveApplied())
		r, err := a.ledger.service.Complete(ctx, req)
		if err != nil && !passes(err) && !lost(err) && !bare {
			req, bare = barest(req), true
			r, err = a.ledger.service.Complete(ctx, req)
		}
		return reported{
			operation: r.GetOperation(), disposition: r.GetDisposition(), next: r.GetNextAction(), result: req.GetSucceeded(),
		}, err
	})
}

// notSent frees the key. If that can't be recorded, the operation becomes unknown when its lease ends, which is the ledger's safe
// side; it changes nothing for the caller, who learns that nothing was sent.
func (a *attempt) notSent(ctx context.Context) {
	a.complete(ctx, false, &opsledgerv1.CompleteRequest{Outcome: &opsledgerv1.CompleteRequest_NotExecuted{
		NotExecuted: &opsledgerv1.NotExecuted{Kind: opsledgerv1.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT},
	}})
}

// markUnknown reports that the outcome could not be seen.
func (a *attempt) markUnknown(ctx context.Context, cause opsledgerv1.UnknownCause, attributes map[string]string) reported {
	req := &opsledgerv1.MarkUnknownRequest{OperationId: a.operation, ClaimId: a.claimID, Cause: cause, TargetAttributes: attributes}
	return a.send(ctx, true, func(ctx context.Context) (reported, error) {
		r, err := a.ledger.service.MarkUnknown(ctx, req)
		if err != nil && !passes(err) && !lost(err) && req.TargetAttributes != nil {
			req.TargetAttributes = nil // nothing else in it can be refused for its form
			r, err = a.ledger.service.MarkUnknown(ctx, req)
		}
		return reported{operation: r.GetOperation(), disposition: r.GetDisposition(), next: r.GetNextAction()}, err
	})
}

// passes says whether the same bytes, sent again, may be taken.
func passes(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// send makes a report, again while the ledger is not there, until the report timeout is over. The caller's cancellation does not
// stop it: what this process knows of the effect would be lost. Sent: something may have been, so a ledger that has lost the grant
// must learn of it.
func (a *attempt) send(ctx context.Context, sent bool, call func(context.Context) (reported, error)) reported {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.ledger.reportTimeout)
	defer cancel()
	report := func(ctx context.Context) (reported, error) {
		ctx, cancel := context.WithTimeout(ctx, a.ledger.callTimeout)
		defer cancel()
		return call(ctx)
	}
	for n := 0; ; n++ {
		r, err := report(ctx)
		later := passes(err)
		if sent && lost(err) {
			r, later, err = a.reportAgain(ctx, err, report)
		}
		if err == nil {
			return r
		}
		if !later || !pause(ctx, grown(n, maxPause)) {
			return reported{err: err}
		}
	}
}
