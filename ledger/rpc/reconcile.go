// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// reconciler is who may say what a target says. Its right is by tool, over all scopes: it needs no scope of its own.
func (s *Server) reconciler(ctx context.Context) (ledger.Actor, ledger.May, error) {
	p, may, err := s.having(ctx, ledger.RoleReconciler)
	return ledger.Actor{Kind: ledger.ActorReconciler, Name: p}, may, err
}

// BeginCheck takes an operation for a check of its target.
func (s *Server) BeginCheck(ctx context.Context, req *pb.BeginCheckRequest) (*pb.BeginCheckResponse, error) {
	actor, may, err := s.reconciler(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	id := f.operationID("operation_id", req.GetOperationId())
	f.uuid("command_id", req.GetCommandId())
	if err := f.err(); err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCBeginCheckBeforeCommit, failpoint.RPCBeginCheckAfterCommit}, s.under(req.GetCommandId()), id, may,
		func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.BeginCheck{CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor}, may(op)
		})
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op := answer.Operation
	contract, _ := s.ledger.Contract(op.Tool)
	m := &pb.BeginCheckResponse{Operation: encodeOperation(op, ledger.Stand(op, contract, answer.Now), true), CheckNumber: answer.CheckNumber}
	if answer.CheckNumber != 0 {
		m.Lease = durationpb.New(answer.CheckLease)
		m.DownstreamKey = op.KeyHash.DownstreamKey()
		m.TargetAttributes = op.TargetAttributes
		m.FirstGrantTime = encodeTime(op.FirstStart)
		m.Epoch = op.Grant.Epoch
	}
	return m, nil
}

// Reconcile submits evidence from the target.
func (s *Server) Reconcile(ctx context.Context, req *pb.ReconcileRequest) (*pb.ReconcileResponse, error) {
	actor, may, err := s.reconciler(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	var id ledger.OperationID
	byKey := false
	switch req.GetSelector().(type) {
	case *pb.ReconcileRequest_OperationId:
		id = f.operationID("operation_id", req.GetOperationId())
	case *pb.ReconcileRequest_DownstreamKey:
		byKey = true
		f.want(isDownstreamKey(req.GetDownstreamKey()), "downstream_key", ruleDownstreamKey)
	default:
		f.want(false, "selector", ruleRequired)
	}
	f.uuid("command_id", req.GetCommandId())
	evidenceOf(f, req.GetEvidence(), ledger.Contract{}) // the form, before anything is looked up
	if err = f.err(); err == nil && byKey {
		id, err = s.ledger.ByDownstreamKey(ctx, req.GetDownstreamKey())
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	answer, err := s.do(ctx, points{failpoint.RPCReconcileBeforeCommit, failpoint.RPCReconcileAfterCommit}, s.under(req.GetCommandId()), id, may,
		func(op *ledger.Operation, contract ledger.Contract) (ledger.Command, error) {
			if err := may(op); err != nil {
				return nil, err
			}
			evidence, err := s.judged(op, req.GetEvidence(), contract)
			return ledger.Reconcile{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, CheckNumber: req.GetCheckNumber(), Evidence: evidence,
			}, err
		})
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	op := answer.Operation
	contract, _ := s.ledger.Contract(op.Tool)
	return &pb.ReconcileResponse{
		Operation: encodeOperation(op, ledger.Stand(op, contract, answer.Now), true), Disposition: pb.Disposition(answer.Disposition),
	}, nil
}

func isDownstreamKey(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && s == strings.ToLower(s)
}

// judged decodes evidence under the tool's contract, and compares what was observed with what was asked for.
func (s *Server) judged(op *ledger.Operation, e *pb.Evidence, contract ledger.Contract) (ledger.Evidence, error) {
	f := &form{}
	ev := evidenceOf(f, e, contract)
	if found := e.GetFound(); found != nil {
		var err error
		ev.Different, ev.Missing, err = s.observed(f, op.Fingerprint, found.GetObservedJson(), contract)
		if err != nil {
			return ledger.Evidence{}, err
		}
	}
	return ev, f.err()
}

// observed compares by category. Without an observation everything that the contract wants verified is missing.
func (s *Server) observed(f *form, stored ledger.Fingerprint, text []byte, contract ledger.Contract) (different, missing []string, err error) {
	if len(text) == 0 {
		return nil, slices.Sorted(slices.Values(contract.Verify)), nil
	}
	v, err := s.requests.VerifyObserved(s.ring, stored, contract, text)
	if err = f.canonical("evidence.found.observed_json", err); err != nil {
		return nil, nil, err
	}
	return v.Different, v.Missing, nil
}
