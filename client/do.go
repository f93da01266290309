// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// NoWait as the Wait of an [Effect]: what would have to be waited for is answered at once.
const NoWait time.Duration = -1

// Effect is a side effect on a target, as the code that performs it knows it. What repeating it does, and how long its windows
// are, is in the tool's contract at the ledger.
type Effect[Req, Res any] struct {
	// Tool is the contract's name. Required.
	Tool string
	// Execute sends the request to the target, exactly once, with call.Key as the idempotency key, and returns what the target
	// answered. It must not retry, nor let its transport do so: [Call.Sending] and [OneSend] see to that. Its context ends with the
	// send window while nothing is known to have been sent, then with the lease; since that moves, the context shows no deadline but
	// the caller's. Within one Do it is called again only under another grant: after [RefusedBeforeAcceptance], and for tools that
	// only read. Required.
	Execute func(ctx context.Context, call Call, req Req) (Res, error)
	// Prepare, if set, runs before the send window begins: the operation is reserved, Prepare does what takes long and stays in
	// this process, and returns the request to execute. If it fails, or the process dies in it, provably nothing was sent. What the
	// ledger takes a digest of is the request as it was given to Do.
	Prepare func(ctx context.Context, call Call, req Req) (Req, error)
	// Resource names the thing that was made, for evidence and for people; what undoes it goes out by itself only if the version is named, too, and
	// is still the target's. Unset: none is recorded.
	Resource func(Res) *opsledgerv1.ResourceRef
	// Schema, if set, names the JSON form of Res with its version ("tickets.create.result/1"): the ledger keeps that form, as far as the
	// contract allows, and replays have a value. Unset: replays have none. A form of more than 64 KiB, the most that any contract
	// allows, is not sent and neither is its name: this call's outcome has the value, replays have none.
	Schema string
	// Summary says for operators what is acted on, without personal data, in up to 255 bytes. Stored in clear. Unset: nothing.
	Summary func(Req) string
	// Attributes are facts for status queries and operators, such as the id of the tool call: never a part of the identity. Only names
	// that the contract declares are kept, in clear.
	Attributes func(Req) map[string]string
	// Lease is how long the grant should last; the contract bounds it, and the total of its renewals. 0: the contract's default. It is
	// renewed while Execute runs.
	Lease time.Duration
	// Wait bounds how long Do waits for somebody else: another worker, an approval, a person, a pause, another operation of the
	// task that is unknown. 0: until the context ends, which may be days. [NoWait]: not at all.
	Wait time.Duration
	// Hint is the caller's own idea of the effect class; it can only tighten the contract.
	Hint opsledgerv1.Effect

	// whole and value, if set, make the result to keep of a value, and the value of a kept result.
	whole func(Res) *opsledgerv1.Result
	value func(*opsledgerv1.Result) (Res, bool)
}

// Do claims the effect for the intent and executes it if, and only if, the claim is granted. The request is what the effect depends
// on: its JSON form (an object of at most 256 KiB) goes to the ledger, which keeps digests of it.
//
// While another worker has it, while it waits for an approval, a person or its time, or is blocked, Do waits as long as the effect's
// Wait and the context allow; then the outcome is unknown, with the reason. What was sent and is not known yet is unknown at once.
//
// An error says that this call sent nothing: the ledger refused (an [*Error] with its reason: another request under this intent,
// not allowed, ...) or could not be reached, the context ended before the execution, Prepare failed, or Execute returned [NotSent] and
// nothing speaks against it. The same intent may be tried again; if it was the ledger's answer that got lost, the next one may be
// unknown. Otherwise see [Outcome].
//
// If the ledger can't be reached and has told this process not long ago that the tool only reads, Do executes without it, and marks the
// outcome so.
func Do[Req, Res any](ctx context.Context, l *Ledger, e Effect[Req, Res], intent Intent, req Req) (Outcome[Res], error) {
	var none Outcome[Res]
	if err := intent.validate(); err != nil {
		return none, unsent(err)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return none, unsent(fmt.Errorf("request: has no JSON form: %w", err))
	}
	claim := &opsledgerv1.ClaimRequest{
		Key:          &opsledgerv1.OperationKey{Tool: e.Tool, Task: intent.Task, Key: intent.Key(), Subject: intent.Subject},
		RequestJson:  body,
		DependsOn:    intent.DependsOn,
		DistinctFrom: intent.DistinctFrom,
	}
	if err := intent.relate(claim); err != nil {
		return none, unsent(err)
	}
	return do(ctx, l, e, claim, intent.Time, req)
}

// do fills in what a claim takes from the effect, and runs it.
func do[Req, Res any](
	ctx context.Context, l *Ledger, e Effect[Req, Res], claim *opsledgerv1.ClaimRequest, decided time.Time, req Req,
) (Outcome[Res], error) {
	switch {
	case l == nil || l.service == nil:
		return Outcome[Res]{}, unsent(errors.New("ledger: is required: see Dial"))
	case e.Tool == "" || e.Execute == nil:
		return Outcome[Res]{}, unsent(errors.New("effect: tool and execute are required"))
	}
	if decided.IsZero() {
		decided = time.Now()
	}
	claim.IntentTime = timestamppb.New(decided)
	claim.WorkerId = workerID
	claim.EffectHint = e.Hint
	claim.Reserve = e.Prepare != nil
	if e.Lease > 0 {
		claim.Lease = durationpb.New(e.Lease)
	}
	if e.Schema != "" {
		claim.AcceptSchemas = []string{e.Schema}
	}
	if e.Summary != nil {
		claim.TargetSummary = e.Summary(req)
	}
	if e.Attributes != nil {
		claim.TargetAttributes = validAttributes(e.Attributes(req))
	}
	return newRun(l, e, claim, req).run(ctx)
}

// readTries is how often one Do executes what only reads, while its outcomes are unknown.
const readTries = 3

// run is one call of Do.
type run[Req, Res any] struct {
	ledger *Ledger
	effect Effect[Req, Res]
	req    Req
	claims *claims

	// earlier is what an execution of this very call ended with, where the call goes on: it was sent, so no error may follow.
	earlier *Unknown
}

func newRun[Req, Res any](l *Ledger, e Effect[Req, Res], claim *opsledgerv1.ClaimRequest, req Req) *run[Req, Res] {
	return &run[Req, Res]{ledger: l, effect: e, req: req, claims: newClaims(l, claim, e.Wait)}
}

func (r *run[Req, Res]) run(ctx context.Context) (Outcome[Res], error) {
	known := r.ledger.learning()
	defer known.wait()
	for tries := 1; ; tries++ {
		answer, sent, err := r.claims.ask(ctx)
		if err != nil {
			if out, done, err := r.withoutLedger(ctx, err); done {
				return out, err
			}
			return r.failed(refused(callClaim, err))
		}
		known.ask(ctx, answer.GetOperation())
		grant, reserved := executable(answer)
		if grant == nil {
			return r.told(answer), nil
		}
		done := r.perform(ctx, answer.GetOperation(), grant, sent, reserved)
		r.claims.drawAnew()
		if done.again == nil || done.again.read && tries >= readTries {
			if done.err != nil {
				return r.failed(done.err)
			}
			return done.outcome, nil
		}
		if done.again.unknown != nil {
			r.earlier = done.again.unknown
		}
		if done.again.read && !pause(ctx, firstPause<<tries) {
			return done.outcome, nil
		}
	}
}

// failed is the end of a call that sent nothing, unless it did so under an earlier grant.
func (r *run[Req, Res]) failed(err error) (Outcome[Res], error) {
	if r.earlier == nil {
		return Outcome[Res]{}, err
	}
	u := *r.earlier
	u.Cause = errors.Join(u.Cause, err)
	return Outcome[Res]{unknown: &u}, nil
}

// executable is the grant of an answer that tells this call to execute, and whether it has to be started first.
func executable(answer *opsledgerv1.ClaimResponse) (grant *opsledgerv1.Grant, reserved bool) {
	switch answer.GetNextAction() {
	case opsledgerv1.NextAction_NEXT_ACTION_EXECUTE:
		return answer.GetGranted(), false
	case opsledgerv1.NextAction_NEXT_ACTION_START_THEN_EXECUTE:
		return answer.GetGranted(), true
	default:
		return nil, false
	}
}

// told is the outcome of a claim that was not granted.
func (r *run[Req, Res]) told(answer *opsledgerv1.ClaimResponse) Outcome[Res] {
	switch o := answer.GetOutcome().(type) {
	case *opsledgerv1.ClaimResponse_Completed:
		return r.effect.replay(answer.GetOperation(), o.Completed)
	case *opsledgerv1.ClaimResponse_Failed:
		return Outcome[Res]{rejected: &Rejection{Failure: o.Failed, Replayed: true, Operation: answer.GetOperation()}}
	}
	u := &Unknown{
		OperationID: answer.GetOperation().GetId(),
		Operation:   answer.GetOperation(),
		NextAction:  answer.GetNextAction(),
		Recorded:    true,
	}
	u.Reason, u.Wait = reasonOf(answer)
	if r.earlier != nil {
		u.Cause = r.earlier.Cause
	}
	return Outcome[Res]{unknown: u}
}

// reasonOf is why a claim was not granted, and what it waits for.
func reasonOf(answer *opsledgerv1.ClaimResponse) (Reason, *opsledgerv1.Wait) {
	switch o := answer.GetOutcome().(type) {
	case *opsledgerv1.ClaimResponse_Unknown:
		return ReasonUnknown, o.Unknown
	case *opsledgerv1.ClaimResponse_InProgress:
		return ReasonInProgress, o.InProgress
	case *opsledgerv1.ClaimResponse_AwaitingApproval:
		return ReasonAwaitingApproval, o.AwaitingApproval
	case *opsledgerv1.ClaimResponse_Blocked:
		return ReasonBlocked, o.Blocked
	case *opsledgerv1.ClaimResponse_Waiting:
		return ReasonWaiting, o.Waiting
	default: // one of a later release, or a grant with an advice that is
		return ReasonNotUnderstood, nil
	}
}

// replay is the outcome of an operation that an earlier call completed.
func (e Effect[Req, Res]) replay(op *opsledgerv1.Operation, r *opsledgerv1.Replay) Outcome[Res] {
	d := &Done[Res]{Replayed: true, Redacted: r.GetRedacted(), Result: r.GetResult(), Operation: op}
	if e.value != nil {
		d.Value, d.HasValue = e.value(r.GetResult())
		return Outcome[Res]{done: d}
	}
	if e.Schema != "" && r.GetResult().GetSchema() == e.Schema && len(r.GetResult().GetPayload()) > 0 {
		var v Res
		// A payload that does not fit its schema's name is no value; that the effect exists stays true.
		if err := guarded(func() {}, func() error { return json.Unmarshal(r.GetResult().GetPayload(), &v) }); err == nil {
			d.Value, d.HasValue = v, true
		}
	}
	return Outcome[Res]{done: d}
}
