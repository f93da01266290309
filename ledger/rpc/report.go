// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// points are the failpoints around one command.
type points struct{ before, after failpoint.Name }

// do decides a command between its failpoints, measures an operation that it settles, and lets the limiter hear how it stands. decide is the core's Do or Start; may says who
// may be told of a record that can't be read.
func (s *Server) do(
	ctx context.Context, p points, decide decide, id ledger.OperationID, may ledger.May, prepare ledger.Prepare,
) (ledger.Answer, error) {
	if err := failpoint.Hit(ctx, p.before); err != nil {
		return ledger.Answer{}, err
	}
	var before ledger.State
	answer, err := decide(ctx, id, func(op *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
		before = op.State
		return prepare(op, c)
	})
	if err != nil {
		return ledger.Answer{}, s.unreadable(ctx, err, id, may)
	}
	if answer.Dropped {
		s.metrics.rejected(ctx, "dropped")
	}
	if op := answer.Operation; op != nil {
		s.hear(op, answer.Now)
		annotate(ctx, op.Tool, op.ID)
		annotateFingerprint(ctx, op.Fingerprint)
		if op.State.Final() && !before.Final() {
			s.metrics.settled(ctx, s.toolLabel(op.Tool), op)
		}
	}
	return answer, failpoint.Hit(ctx, p.after)
}

// decide is how the core decides one command.
type decide func(context.Context, ledger.OperationID, ledger.Prepare) (ledger.Answer, error)

// under a claim_id or command_id.
func (s *Server) under(commandID string) decide {
	return func(ctx context.Context, id ledger.OperationID, prepare ledger.Prepare) (ledger.Answer, error) {
		return s.ledger.Do(ctx, id, commandID, prepare)
	}
}

// grantee checks the form of what all reports show: who, and which grant. who is caller or reporter.
func (s *Server) grantee(
	ctx context.Context, f *form, who func(context.Context) (caller, error), operationID, claimID string,
) (caller, ledger.OperationID, error) {
	c, err := who(ctx)
	if err != nil {
		return caller{}, ledger.OperationID{}, err
	}
	id := f.operationID("operation_id", operationID)
	f.uuid("claim_id", claimID)
	return c, id, nil
}

// Start turns a reservation into execution.
func (s *Server) Start(ctx context.Context, req *pb.StartRequest) (*pb.StartResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, s.caller, req.GetOperationId(), req.GetClaimId())
	if err == nil {
		err = f.err()
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	claimID := ledger.ClaimID(req.GetClaimId())
	start := func(ctx context.Context, id ledger.OperationID, prepare ledger.Prepare) (ledger.Answer, error) {
		return s.ledger.Start(ctx, id, claimID, prepare)
	}
	var tool ledger.Tool
	answer, err := s.do(ctx, points{failpoint.RPCStartBeforeCommit, failpoint.RPCStartAfterCommit}, start, id, c.holder(req.GetClaimId()),
		func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			tool = op.Tool
			return ledger.Start{ClaimID: claimID, Actor: c.actor(), ToolAllowed: s.toolAllowed(c, tool)}, c.sameScope(op)
		})
	if err != nil {
		return nil, s.fail(ctx, s.whyNotAllowed(err, c, tool), false)
	}
	return &pb.StartResponse{Grant: encodeGrant(answer.Operation, answer.Grant)}, nil
}

// Renew extends a lease. A longer one than the contract allows is cut to what it allows.
func (s *Server) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, s.reporter, req.GetOperationId(), req.GetClaimId())
	lease := req.GetLease().AsDuration()
	f.want(req.GetLease() == nil || req.GetLease().IsValid() && lease >= minLease, "lease", "must be at least 1s")
	if err == nil {
		err = f.err()
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCRenewBeforeCommit, failpoint.RPCRenewAfterCommit}, s.under(req.GetClaimId()), id, c.holder(req.GetClaimId()),
		func(op *ledger.Operation, contract ledger.Contract) (ledger.Command, error) {
			return ledger.Renew{
				ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), Lease: lease,
				TargetAttributes: keptAttributes(req.GetTargetAttributes(), contract),
			}, c.mayReport(op, req.GetClaimId())
		})
	if err != nil {
		return nil, s.fail(ctx, c.unknownTo(err), false)
	}
	m := &pb.RenewResponse{Stop: answer.Stop != 0, StopReason: pb.WaitReason(answer.Stop)}
	if answer.Lease > 0 {
		m.Lease = durationpb.New(answer.Lease)
	}
	if answer.SendWithin > 0 {
		m.SendWithin = durationpb.New(answer.SendWithin)
	}
	return m, nil
}

// Complete records a definite outcome.
func (s *Server) Complete(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, s.reporter, req.GetOperationId(), req.GetClaimId())
	outcomeOf(f, req, ledger.Contract{}) // the form, before anything is looked up
	if err == nil {
		err = f.err()
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCCompleteBeforeCommit, failpoint.RPCCompleteAfterCommit}, s.under(req.GetClaimId()), id, c.holder(req.GetClaimId()),
		func(op *ledger.Operation, contract ledger.Contract) (ledger.Command, error) {
			cmd := outcomeOf(f, req, contract) // what is kept of a result depends on the tool
			cmd.Actor = c.actor()
			return cmd, c.mayReport(op, req.GetClaimId())
		})
	if err != nil {
		return nil, s.fail(ctx, c.unknownTo(err), false)
	}
	op, st := s.show(ctx, c, "", answer.Operation, answer.Now)
	return &pb.CompleteResponse{
		Operation: op, Disposition: pb.Disposition(answer.Disposition), NextAction: pb.NextAction(st.NextAction()),
	}, nil
}

// MarkUnknown records that the outcome could not be seen. A cause that is unset, or that this release does not know, says nothing
// about the outcome: it counts as UNCLASSIFIED.
func (s *Server) MarkUnknown(ctx context.Context, req *pb.MarkUnknownRequest) (*pb.MarkUnknownResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, s.reporter, req.GetOperationId(), req.GetClaimId())
	if err == nil {
		err = f.err()
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	cause := ledger.CauseUnclassified
	if n := req.GetCause(); n > 0 && n <= pb.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED {
		cause = ledger.UnknownCause(n)
	}
	answer, err := s.do(ctx, points{failpoint.RPCMarkUnknownBeforeCommit, failpoint.RPCMarkUnknownAfterCommit}, s.under(req.GetClaimId()), id, c.holder(req.GetClaimId()),
		func(op *ledger.Operation, contract ledger.Contract) (ledger.Command, error) {
			return ledger.MarkUnknown{
				ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), Cause: cause,
				TargetAttributes: keptAttributes(req.GetTargetAttributes(), contract),
			}, c.mayReport(op, req.GetClaimId())
		})
	if err != nil {
		return nil, s.fail(ctx, c.unknownTo(err), false)
	}
	op, st := s.show(ctx, c, "", answer.Operation, answer.Now)
	return &pb.MarkUnknownResponse{
		Operation: op, Disposition: pb.Disposition(answer.Disposition), NextAction: pb.NextAction(st.NextAction()),
	}, nil
}

// Cancel gives up what provably was not sent.
func (s *Server) Cancel(ctx context.Context, req *pb.CancelRequest) (*pb.CancelResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	id := f.operationID("operation_id", req.GetOperationId())
	if req.GetClaimId() != "" {
		f.uuid("claim_id", req.GetClaimId())
	}
	f.text("subject", req.GetSubject())
	if err = f.err(); err == nil {
		err = c.maySay("subject", req.GetSubject())
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	visible := s.sameSubject(c, req.GetSubject())
	answer, err := s.do(ctx, points{failpoint.RPCCancelBeforeCommit, failpoint.RPCCancelAfterCommit}, s.under(req.GetClaimId()), id, visible,
		func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.Cancel{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor()}, visible(op)
		})
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op, _ := s.show(ctx, c, req.GetSubject(), answer.Operation, answer.Now)
	return &pb.CancelResponse{Operation: op}, nil
}
