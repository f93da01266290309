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

// do decides a command between its failpoints, and measures an operation that it settles.
func (s *Server) do(ctx context.Context, p points, id ledger.OperationID, cmd ledger.Command, may ledger.May) (ledger.Answer, error) {
	if err := failpoint.Hit(ctx, p.before); err != nil {
		return ledger.Answer{}, err
	}
	var before ledger.State
	answer, err := s.ledger.Do(ctx, id, cmd, func(op *ledger.Operation) error {
		before = op.State
		return may(op)
	})
	if err != nil {
		return ledger.Answer{}, err
	}
	if op := answer.Operation; op != nil {
		annotate(ctx, op.Tool, op.ID)
		annotateFingerprint(ctx, op.Fingerprint)
		if op.State.Final() && !before.Final() {
			s.metrics.settled(ctx, s.toolLabel(op.Tool), op)
		}
	}
	return answer, failpoint.Hit(ctx, p.after)
}

// contractFor an operation of the caller's scope: what is kept of a report depends on its tool.
func (s *Server) contractFor(ctx context.Context, c caller, id ledger.OperationID) (ledger.Contract, error) {
	op, _, err := s.ledger.Look(ctx, id, c.sameScope)
	if err != nil {
		return ledger.Contract{}, err
	}
	contract, _ := s.ledger.Contract(op.Tool)
	return contract, nil
}

// grantee checks who shows which grant, as all reports do.
func (s *Server) grantee(ctx context.Context, f *form, operationID, claimID string) (caller, ledger.OperationID, error) {
	c, err := s.caller(ctx)
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
	c, id, err := s.grantee(ctx, f, req.GetOperationId(), req.GetClaimId())
	if err == nil {
		err = f.err()
	}
	var op ledger.Operation
	if err == nil {
		op, _, err = s.ledger.Look(ctx, id, c.sameScope)
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCStartBeforeCommit, failpoint.RPCStartAfterCommit}, id,
		ledger.Start{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), ToolAllowed: s.toolAllowed(c, op.Tool)}, c.sameScope)
	if err != nil {
		return nil, s.fail(ctx, s.whyNotAllowed(err, c, op.Tool), false)
	}
	return &pb.StartResponse{Grant: encodeGrant(answer.Operation, answer.Grant)}, nil
}

// Renew extends a lease. A longer one than the contract allows is cut to what it allows.
func (s *Server) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, req.GetOperationId(), req.GetClaimId())
	lease := req.GetLease().AsDuration()
	f.want(req.GetLease() == nil || req.GetLease().IsValid() && lease >= minLease, "lease", "must be at least 1s")
	if err == nil {
		err = f.err()
	}
	var attributes map[string]string
	if err == nil {
		attributes, err = s.reported(ctx, c, id, req.GetTargetAttributes())
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCRenewBeforeCommit, failpoint.RPCRenewAfterCommit}, id,
		ledger.Renew{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), Lease: lease, TargetAttributes: attributes}, c.sameScope)
	if err != nil {
		return nil, s.fail(ctx, err, false)
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

// reported are the attributes of a report that are kept.
func (s *Server) reported(ctx context.Context, c caller, id ledger.OperationID, given map[string]string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	contract, err := s.contractFor(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return keptAttributes(given, contract), nil
}

// Complete records a definite outcome.
func (s *Server) Complete(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, req.GetOperationId(), req.GetClaimId())
	cmd := ledger.Complete{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), SentExactlyOnce: req.GetSentExactlyOnce()}
	outcomeOf(f, &cmd, req, ledger.Contract{})
	if err == nil {
		err = f.err()
	}
	if err == nil && needsContract(req.GetSucceeded()) {
		var contract ledger.Contract
		if contract, err = s.contractFor(ctx, c, id); err == nil {
			outcomeOf(f, &cmd, req, contract)
		}
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCCompleteBeforeCommit, failpoint.RPCCompleteAfterCommit}, id, cmd, c.sameScope)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op, st := s.show(c, answer.Operation)
	return &pb.CompleteResponse{
		Operation: op, Disposition: pb.Disposition(answer.Disposition), NextAction: pb.NextAction(st.NextAction()),
	}, nil
}

// MarkUnknown records that the outcome could not be seen. A cause that is unset, or that this release does not know, says nothing
// about the outcome: it counts as UNCLASSIFIED.
func (s *Server) MarkUnknown(ctx context.Context, req *pb.MarkUnknownRequest) (*pb.MarkUnknownResponse, error) {
	f := &form{}
	c, id, err := s.grantee(ctx, f, req.GetOperationId(), req.GetClaimId())
	if err == nil {
		err = f.err()
	}
	var attributes map[string]string
	if err == nil {
		attributes, err = s.reported(ctx, c, id, req.GetTargetAttributes())
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	cause := ledger.CauseUnclassified
	if n := req.GetCause(); n > 0 && n <= pb.UnknownCause_UNKNOWN_CAUSE_UNCLASSIFIED {
		cause = ledger.UnknownCause(n)
	}
	answer, err := s.do(ctx, points{failpoint.RPCMarkUnknownBeforeCommit, failpoint.RPCMarkUnknownAfterCommit}, id,
		ledger.MarkUnknown{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor(), Cause: cause, TargetAttributes: attributes}, c.sameScope)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op, st := s.show(c, answer.Operation)
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
	answer, err := s.do(ctx, points{failpoint.RPCCancelBeforeCommit, failpoint.RPCCancelAfterCommit}, id,
		ledger.Cancel{ClaimID: ledger.ClaimID(req.GetClaimId()), Actor: c.actor()}, s.sameSubject(c, req.GetSubject()))
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op, _ := s.show(c, answer.Operation)
	return &pb.CancelResponse{Operation: op}, nil
}
