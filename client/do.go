// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Effect is a side effect on a target, as the code that performs it knows it. What repeating it does, and how long its windows
// are, is in the tool's contract at the ledger.
type Effect[Req, Res any] struct {
	// Tool is the contract's name. Required.
	Tool string
	// Execute sends the request to the target, exactly once, with call.Key as the idempotency key, and returns what the target
	// answered. It must not retry, nor let its transport do so. Its context ends with the send window. Required.
	Execute func(ctx context.Context, call Call, req Req) (Res, error)
	// Resource names the thing that was made, for evidence and for people. Unset: none is recorded.
	Resource func(Res) *opsledgerv1.ResourceRef
	// Schema, if set, names the JSON form of Res with its version ("tickets.create.result/1"): the ledger keeps that form, as far as the
	// contract allows, and replays have a value. Unset: replays have none. A form of more than 64 KiB, the most that any contract
	// allows, is not sent and neither is its name: this call's outcome has the value, replays have none.
	Schema string
	// Lease is how long the grant should last; the contract bounds it. 0: the contract's default.
	Lease time.Duration
	// Wait is how long a claim may wait until there is something to do, 60 s at most. 0: it is answered at once.
	Wait time.Duration
}

// Call is what Execute is told about the grant.
type Call struct {
	OperationID string
	// Key goes to the target as the idempotency key: 32 lower-case hex digits, the same for the life of the operation.
	Key string
	// Epoch grows with each grant: a fencing token for targets that take one.
	Epoch uint64
	// Precondition is the resource version that a compensation must send along; nil otherwise.
	Precondition *opsledgerv1.ResourceRef

	window window
}

// MaySend says whether the send window is still open. Ask right before the send where the process may have been stopped or the
// machine suspended since: the context notices up to 200 ms later.
func (c Call) MaySend() bool { return c.window.left() > 0 }

// Do claims the effect for the intent and executes it if, and only if, the claim is granted. The request is what the effect depends
// on: its JSON form (an object of at most 256 KiB) goes to the ledger, which keeps digests of it.
//
// An error says that this call sent nothing: the ledger refused (an [*Error] with its reason: another request under this intent,
// not allowed, ...) or could not be reached, the context ended before the execution, or Execute returned [NotSent]. The same
// intent may be tried again; if it was the ledger's answer that got lost, the next one may be unknown. Otherwise see [Outcome].
func Do[Req, Res any](ctx context.Context, l *Ledger, e Effect[Req, Res], intent Intent, req Req) (Outcome[Res], error) {
	var none Outcome[Res]
	if e.Tool == "" || e.Execute == nil {
		return none, errors.New("nothing was sent: effect: tool and execute are required")
	}
	if err := intent.validate(); err != nil {
		return none, fmt.Errorf("nothing was sent: %w", err)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return none, fmt.Errorf("nothing was sent: request: has no JSON form: %w", err)
	}
	if intent.Time.IsZero() {
		intent.Time = time.Now()
	}
	claim := &opsledgerv1.ClaimRequest{
		Key:         &opsledgerv1.OperationKey{Tool: e.Tool, Task: intent.Task, Key: intent.Key(), Subject: intent.Subject},
		ClaimId:     uuid.NewString(),
		RequestJson: body,
		WorkerId:    workerID,
		IntentTime:  timestamppb.New(intent.Time),
	}
	if e.Lease > 0 {
		claim.Lease = durationpb.New(e.Lease)
	}
	if e.Wait > 0 {
		claim.Wait = durationpb.New(e.Wait)
	}
	if e.Schema != "" {
		claim.AcceptSchemas = []string{e.Schema}
	}
	answer, sent, err := l.claim(ctx, claim)
	if err != nil {
		return none, refused(err)
	}
	if grant := answer.GetGranted(); grant != nil && answer.GetNextAction() == opsledgerv1.NextAction_NEXT_ACTION_EXECUTE {
		a := attempt{ledger: l, operation: grant.GetOperationId(), claimID: claim.GetClaimId(), last: answer.GetOperation()}
		return perform(ctx, a, e, grant, window{l.now, sent + grant.GetSendWithin().AsDuration()}, req)
	}
	return e.told(answer), nil
}

// claimSends is how often a claim is sent whose answer does not come; gRPC's own resends of UNAVAILABLE come on top.
const claimSends = 3

// claim sends the claim until an answer comes, and returns the time right before the send that was answered: the times in a grant
// are what is left since then. A claim id never leaves the one call of Do that drew it, and that call executes only after
// this function has returned: so a grant that is marked as resent, too, has not been used.
func (l *Ledger) claim(ctx context.Context, c *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, time.Duration, error) {
	for n := 1; ; n++ {
		sent := l.now()
		call, cancel := context.WithTimeout(ctx, l.callTimeout+c.GetWait().AsDuration())
		answer, err := l.service.Claim(call, c)
		cancel()
		lost := status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil
		if !lost || n == claimSends {
			return answer, sent, err
		}
	}
}

// told is the outcome of a claim that was not granted.
func (e Effect[Req, Res]) told(answer *opsledgerv1.ClaimResponse) Outcome[Res] {
	switch o := answer.GetOutcome().(type) {
	case *opsledgerv1.ClaimResponse_Completed:
		return e.replay(answer.GetOperation(), o.Completed)
	case *opsledgerv1.ClaimResponse_Failed:
		return Outcome[Res]{rejected: &Rejection{Failure: o.Failed, Replayed: true, Operation: answer.GetOperation()}}
	}
	u := &Unknown{
		OperationID: answer.GetOperation().GetId(),
		Operation:   answer.GetOperation(),
		NextAction:  answer.GetNextAction(),
		Recorded:    true,
	}
	switch o := answer.GetOutcome().(type) {
	case *opsledgerv1.ClaimResponse_Unknown:
		u.Reason, u.Wait = ReasonUnknown, o.Unknown
	case *opsledgerv1.ClaimResponse_InProgress:
		u.Reason, u.Wait = ReasonInProgress, o.InProgress
	case *opsledgerv1.ClaimResponse_AwaitingApproval:
		u.Reason, u.Wait = ReasonAwaitingApproval, o.AwaitingApproval
	case *opsledgerv1.ClaimResponse_Blocked:
		u.Reason, u.Wait = ReasonBlocked, o.Blocked
	case *opsledgerv1.ClaimResponse_Waiting:
		u.Reason, u.Wait = ReasonWaiting, o.Waiting
	default: // one of a later release, or a grant with an advice that is
		u.Reason = ReasonNotUnderstood
	}
	return Outcome[Res]{unknown: u}
}

// replay is the outcome of an operation that an earlier call completed.
func (e Effect[Req, Res]) replay(op *opsledgerv1.Operation, r *opsledgerv1.Replay) Outcome[Res] {
	d := &Done[Res]{Replayed: true, Redacted: r.GetRedacted(), Result: r.GetResult(), Operation: op}
	if e.Schema != "" && r.GetResult().GetSchema() == e.Schema && len(r.GetResult().GetPayload()) > 0 {
		var v Res
		// A payload that does not fit its schema's name is no value; that the effect exists stays true.
		if err := json.Unmarshal(r.GetResult().GetPayload(), &v); err == nil {
			d.Value, d.HasValue = v, true
		}
	}
	return Outcome[Res]{done: d}
}
