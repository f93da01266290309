// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

const (
	// maxBatch bounds the operations of a BatchResolve, mostDue those that one CheckNow makes due.
	maxBatch = 500
	mostDue  = 1000
	// atOnce is how many operations of one call are decided at a time.
	atOnce = 16
)

// BatchResolve records one finding of many operations, one by one: each has an answer of its own. If one of them can't be decided now, the call fails so that
// it is sent again: what was decided is then answered as before.
func (o *Operators) BatchResolve(ctx context.Context, req *pb.BatchResolveRequest) (*pb.BatchResolveResponse, error) {
	actor, may, err := o.person(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	f := &form{}
	f.uuid("command_id", req.GetCommandId())
	f.resolution(req, ledger.Contract{})
	items := req.GetItems()
	f.want(len(items) >= 1 && len(items) <= maxBatch, "items", "must name 1 to 500 operations")
	ids := make([]ledger.OperationID, min(len(items), maxBatch))
	seen := map[ledger.OperationID]bool{}
	for i := range ids {
		field := fmt.Sprintf("items[%d].", i)
		ids[i] = f.operationID(field+"operation_id", items[i].GetOperationId())
		f.want(!seen[ids[i]], field+"operation_id", "must not be named twice")
		f.want(items[i].GetExpectedVersion() > 0, field+"expected_version", ruleLookedAt)
		seen[ids[i]] = true
	}
	if err := f.err(); err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	results := make([]*pb.BatchResult, len(ids))
	errs := make([]error, len(ids))
	each(len(ids), func(i int) {
		answer, err := o.s.do(ctx, points{failpoint.RPCResolveBeforeCommit, failpoint.RPCResolveAfterCommit}, o.s.under(req.GetCommandId()), ids[i], may,
			func(op *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
				if err := may(op); err != nil {
					return nil, err
				}
				return ledger.Resolve{
					CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, ExpectedVersion: items[i].GetExpectedVersion(),
					Resolution: (&form{}).resolution(req, c),
				}, nil
			})
		results[i], errs[i] = o.batchResult(ctx, ids[i], answer, err)
	})
	if err := errors.Join(errs...); err != nil { // what passes, and what is none of the contract's, has no place in a result
		return nil, o.s.fail(ctx, err, false)
	}
	return &pb.BatchResolveResponse{Results: results}, nil
}

// batchResult is one operation's answer, or an error that can't be one.
func (o *Operators) batchResult(ctx context.Context, id ledger.OperationID, answer ledger.Answer, err error) (*pb.BatchResult, error) {
	m := &pb.BatchResult{OperationId: id.String()}
	op, now := answer.Operation, answer.Now
	if err != nil {
		row, ok := find(err)
		if !ok || row.passes() {
			return nil, err
		}
		m.Error = row.reason
		o.s.metrics.rejected(ctx, rejectionOf(err))
		return m, nil
	}
	contract, _ := o.s.ledger.Contract(op.Tool)
	m.Operation = encodeOperation(op, ledger.Stand(op, contract, now), true)
	return m, nil
}

// each calls f for all numbers below n, some at a time.
func each(n int, f func(i int)) {
	var group sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i := range n {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			f(i)
		})
	}
	group.Wait()
}

// CheckNow makes an operation due, or what automation may check of a tool.
func (o *Operators) CheckNow(ctx context.Context, req *pb.CheckNowRequest) (*pb.CheckNowResponse, error) {
	f := &form{}
	f.remark("reason", req.GetReason())
	var due int64
	var err error
	switch req.GetSelector().(type) {
	case *pb.CheckNowRequest_OperationId:
		due = 1
		_, err = o.decide(ctx, points{failpoint.RPCCheckNowBeforeCommit, failpoint.RPCCheckNowAfterCommit}, f, req,
			func(actor ledger.Actor, _ *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
				return ledger.CheckNow{CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, Reason: req.GetReason()}, nil
			})
	case *pb.CheckNowRequest_Tool:
		f.tool("tool", req.GetTool())
		due, err = o.checkTool(ctx, f, req)
	default:
		f.want(false, "selector", ruleRequired)
		if _, _, err = o.person(ctx); err == nil {
			err = f.err()
		}
	}
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	return &pb.CheckNowResponse{Due: due}, nil
}

// checkTool makes UNKNOWN operations of a tool due, except those that a person has, and those that are due. Of more than mostDue the next command
// takes the next ones. It is kept, with their number, when it is through: sent again it then does nothing.
func (o *Operators) checkTool(ctx context.Context, f *form, req *pb.CheckNowRequest) (int64, error) {
	command, err := o.toolCommand(ctx, f, ledger.KindCheckNow, req.GetTool(), req)
	if err != nil {
		return 0, err
	}
	kept, err := o.store.ToolCommand(ctx, command.CommandID)
	switch {
	case err != nil:
		return 0, err
	case kept != nil && !kept.Same(command):
		return 0, &ledger.Refusal{Err: ledger.ErrCommandReused}
	case kept != nil:
		return kept.Due, nil
	}
	contract, _ := o.s.ledger.Contract(command.Tool)
	var ids []ledger.OperationID
	if contract.Method != ledger.MethodOperator { // else nobody can be asked
		if ids, err = o.store.Checkable(ctx, command.Tool, mostDue); err != nil {
			return 0, err
		}
	}
	errs := make([]error, len(ids))
	actor, may, err := o.person(ctx)
	if err != nil {
		return 0, err
	}
	each(len(ids), func(i int) {
		_, errs[i] = o.s.do(ctx, points{failpoint.RPCCheckNowBeforeCommit, failpoint.RPCCheckNowAfterCommit}, o.s.under(string(command.CommandID)), ids[i], may,
			func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
				return ledger.CheckNow{CommandID: command.CommandID, Actor: actor, Reason: command.Reason}, may(op)
			})
	})
	for _, err := range errs {
		switch {
		case err == nil:
			command.Due++
		case errors.Is(err, ledger.ErrHeldByOperator), errors.Is(err, ledger.ErrIllegalTransition), errors.Is(err, ledger.ErrOperationNotFound),
			errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, ledger.ErrDamaged): // it has moved on, or can't be read here
		default:
			return 0, err
		}
	}
	command, err = o.store.CommandTool(ctx, command)
	return command.Due, err
}
