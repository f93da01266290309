// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Claim registers an operation, or says what the ledger knows of it. With wait, it is decided again, under the same claim_id, whenever
// the operation may have moved.
func (s *Server) Claim(ctx context.Context, req *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	cmd, request, wait, err := s.claimOf(c, req)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	id := cmd.Key.Hash().OperationID()
	annotate(ctx, cmd.Key.Tool, id)
	if err := failpoint.Hit(ctx, failpoint.RPCClaimBeforeCommit); err != nil {
		return nil, s.fail(ctx, err, false)
	}
	var answer ledger.Answer
	var waited time.Duration
	arrived, looks := time.Now(), 0
	err = s.ledger.Await(ctx, id, patience(ctx, wait), func(ctx context.Context) (bool, error) {
		if looks++; looks > 1 {
			waited = time.Since(arrived) // before the decision, so that no time is given that is not there
		}
		cmd.ToolAllowed = s.toolAllowed(c, cmd.Key.Tool) // by the policy of this moment
		leave, err := s.enter(ctx, c, id, cmd.Key.Subject)
		if err != nil {
			return true, err
		}
		answer, err = s.ledger.Claim(ctx, cmd, request)
		err = misfit(err)
		leave(answer)
		return !mayYetMove(answer.Outcome), err
	})
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.RPCClaimAfterCommit)
	}
	tool := s.toolLabel(cmd.Key.Tool)
	if err != nil {
		err = s.whyNotAllowed(s.unreadableRelation(ctx, err, c, cmd), c, cmd.Key.Tool)
		s.metrics.claimed(ctx, tool, claimRefused(err))
		if errors.Is(err, ledger.ErrDuplicateIntent) && s.lookAlike(cmd, id, request, answer) {
			s.metrics.lookedAlike(ctx, tool)
		}
		var conflict *ledger.Refusal
		show := errors.Is(err, ledger.ErrFingerprintConflict) && errors.As(err, &conflict) && conflict.Operation != nil &&
			s.mayShow(ctx, c, cmd.Key.Subject, conflict.Operation)
		return nil, s.fail(ctx, err, show)
	}
	s.metrics.claimed(ctx, tool, claimOutcomes[answer.Outcome])
	if s.lookAlike(cmd, id, request, answer) {
		s.metrics.lookedAlike(ctx, tool)
	}
	if g := answer.Grant; g != nil { // the caller counts from when it sent the call, which has waited here
		g.Lease += waited
		if g.SendWithin > 0 {
			g.SendWithin += waited
		}
	}
	return s.claimResponse(ctx, c, req, answer), nil
}

// misfit refuses a request that does not fit the types that its record's contract declares, or, for a new key, the contract in force.
func misfit(err error) error {
	f := &form{}
	if err = f.canonical("request_json", err); err == nil {
		return f.err()
	}
	return err
}

// unreadableRelation refuses relations to what the caller can't see, too new or not, as the core does where it can read them.
func (s *Server) unreadableRelation(ctx context.Context, err error, c caller, cmd ledger.Claim) error {
	if !errors.Is(err, ledger.ErrRecordTooNew) {
		return err
	}
	named := map[ledger.OperationID]string{cmd.Compensates: "compensates", cmd.Corrects: "corrects"}
	for _, id := range cmd.DependsOn {
		named[id] = "depends_on"
	}
	delete(named, ledger.OperationID{})
	for id, field := range named {
		if _, _, refused := s.look(ctx, id, s.sameSubject(c, cmd.Key.Subject)); errors.Is(refused, ledger.ErrOperationNotFound) {
			return ledger.InvalidField(field, "must name operations that the caller can see")
		}
	}
	return err
}

// mayYetMove: what a Claim that waits goes on waiting for. That includes people: an approval is worth waiting for, too.
func mayYetMove(o ledger.Outcome) bool {
	switch o {
	case ledger.OutcomeInProgress, ledger.OutcomeUnknown, ledger.OutcomeAwaitingApproval, ledger.OutcomeBlocked, ledger.OutcomeWaiting:
		return true
	default:
		return false
	}
}

func (s *Server) claimResponse(ctx context.Context, c caller, req *pb.ClaimRequest, a ledger.Answer) *pb.ClaimResponse {
	m := &pb.ClaimResponse{NextAction: pb.NextAction(a.NextAction())}
	op := a.Operation
	show := op != nil && s.mayShow(ctx, c, req.GetKey().GetSubject(), op)
	if op != nil {
		contract, _ := s.ledger.Contract(op.Tool)
		st := ledger.Stand(op, contract, a.Now)
		if a.Outcome != ledger.OutcomeGranted { // the guards' word, too
			st.Outcome, st.Wait = a.Outcome, a.Wait
		}
		m.Operation = encodeOperation(op, st, show)
		m.RememberedUntil = rememberedUntil(op, contract)
		annotateFingerprint(ctx, op.Fingerprint)
	}
	wait := encodeWait(a.Wait)
	switch a.Outcome {
	case ledger.OutcomeGranted:
		m.Outcome = &pb.ClaimResponse_Granted{Granted: encodeGrant(op, a.Grant)}
	case ledger.OutcomeCompleted:
		m.Replayed = true
		m.Outcome = &pb.ClaimResponse_Completed{Completed: encodeReplay(op, show, req.GetAcceptSchemas())}
	case ledger.OutcomeFailed:
		m.Replayed = true
		m.Outcome = &pb.ClaimResponse_Failed{Failed: encodeFailure(op, show)}
	case ledger.OutcomeInProgress:
		m.Outcome = &pb.ClaimResponse_InProgress{InProgress: wait}
	case ledger.OutcomeAwaitingApproval:
		m.Outcome = &pb.ClaimResponse_AwaitingApproval{AwaitingApproval: wait}
	case ledger.OutcomeBlocked:
		m.Outcome = &pb.ClaimResponse_Blocked{Blocked: wait}
	case ledger.OutcomeWaiting:
		m.Outcome = &pb.ClaimResponse_Waiting{Waiting: wait}
	default:
		m.Outcome = &pb.ClaimResponse_Unknown{Unknown: wait}
	}
	return m
}
