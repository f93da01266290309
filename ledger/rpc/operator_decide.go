// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// TakeOver gives an operation to the caller, also from another person.
func (o *Operators) TakeOver(ctx context.Context, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error) {
	f := &form{}
	f.lookedAt(req.GetExpectedVersion())
	f.remark("reason", req.GetReason())
	var took bool
	answer, err := o.decide(ctx, points{failpoint.RPCTakeOverBeforeCommit, failpoint.RPCTakeOverAfterCommit}, f, req,
		func(actor ledger.Actor, op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			took = op.Version == req.GetExpectedVersion()
			return ledger.TakeOver{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, ExpectedVersion: req.GetExpectedVersion(), Reason: req.GetReason(),
			}, nil
		})
	op, err := o.view(ctx, answer, err)
	if err != nil {
		return nil, err
	}
	if took {
		o.s.metrics.tookOver(ctx, o.s.toolLabel(answer.Operation.Tool))
	}
	return &pb.TakeOverResponse{Operation: op, QuietTime: encodeTime(answer.Operation.QuietTime(answer.Now))}, nil
}

// HandBack gives it back to automation.
func (o *Operators) HandBack(ctx context.Context, req *pb.HandBackRequest) (*pb.HandBackResponse, error) {
	f := &form{}
	f.lookedAt(req.GetExpectedVersion())
	f.remark("reason", req.GetReason())
	answer, err := o.decide(ctx, points{failpoint.RPCHandBackBeforeCommit, failpoint.RPCHandBackAfterCommit}, f, req,
		func(actor ledger.Actor, _ *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.HandBack{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, ExpectedVersion: req.GetExpectedVersion(), Reason: req.GetReason(),
			}, nil
		})
	op, err := o.view(ctx, answer, err)
	if err != nil {
		return nil, err
	}
	return &pb.HandBackResponse{Operation: op}, nil
}

// Resolve records what a person found, or proposes it to a second one.
func (o *Operators) Resolve(ctx context.Context, req *pb.ResolveRequest) (*pb.ResolveResponse, error) {
	f := &form{}
	f.lookedAt(req.GetExpectedVersion())
	f.resolution(req, ledger.Contract{})
	answer, err := o.decide(ctx, points{failpoint.RPCResolveBeforeCommit, failpoint.RPCResolveAfterCommit}, f, req,
		func(actor ledger.Actor, _ *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
			return ledger.Resolve{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, ExpectedVersion: req.GetExpectedVersion(),
				Resolution: (&form{}).resolution(req, c),
			}, nil
		})
	op, err := o.view(ctx, answer, err)
	if err != nil {
		return nil, err
	}
	return &pb.ResolveResponse{Operation: op}, nil
}

// Approve is the word of a second person.
func (o *Operators) Approve(ctx context.Context, req *pb.ApproveRequest) (*pb.ApproveResponse, error) {
	f := &form{}
	f.lookedAt(req.GetExpectedVersion())
	f.known("decision", req.GetDecision(), false)
	f.remark("note", req.GetNote())
	answer, err := o.decide(ctx, points{failpoint.RPCApproveBeforeCommit, failpoint.RPCApproveAfterCommit}, f, req,
		func(actor ledger.Actor, _ *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.Approve{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, ExpectedVersion: req.GetExpectedVersion(),
				Approved: req.GetDecision() == pb.Decision_DECISION_APPROVE, Note: req.GetNote(),
			}, nil
		})
	op, err := o.view(ctx, answer, err)
	if err != nil {
		return nil, err
	}
	return &pb.ApproveResponse{Operation: op}, nil
}

// AddNote keeps a remark, and acknowledges what the history says up to a sequence.
func (o *Operators) AddNote(ctx context.Context, req *pb.AddNoteRequest) (*pb.AddNoteResponse, error) {
	f := &form{}
	f.remark("note", req.GetNote())
	answer, err := o.decide(ctx, points{failpoint.RPCAddNoteBeforeCommit, failpoint.RPCAddNoteAfterCommit}, f, req,
		func(actor ledger.Actor, _ *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.Note{
				CommandID: ledger.CommandID(req.GetCommandId()), Actor: actor, Text: req.GetNote(), AcknowledgeThrough: req.GetAcknowledgeThroughSequence(),
			}, nil
		})
	op, err := o.view(ctx, answer, err)
	if err != nil {
		return nil, err
	}
	return &pb.AddNoteResponse{Operation: op}, nil
}

// found is what a Resolve and a BatchResolve say alike.
type found interface {
	GetResolution() *pb.Resolution
	GetNote() string
	GetSearchTime() *timestamppb.Timestamp
}

// resolution decodes and checks a person's finding. What is kept of a result depends on the tool.
func (f *form) resolution(req found, contract ledger.Contract) ledger.Resolution {
	r := ledger.Resolution{Note: req.GetNote(), SearchTime: f.time("search_time", req.GetSearchTime()), DespiteFound: req.GetResolution().GetDespiteFound()}
	f.remark("note", req.GetNote())
	switch o := req.GetResolution().GetResolution().(type) {
	case *pb.Resolution_Happened:
		f.want(!r.DespiteFound, "resolution.despite_found", "goes with never_happened")
		r.Happened, _, _ = resultOf(o.Happened, contract)
	case *pb.Resolution_NeverHappenedRetry:
		kind := o.NeverHappenedRetry.GetKind()
		if kind == pb.NotExecutedKind_NOT_EXECUTED_KIND_UNSPECIFIED { // it is what a person says
			kind = pb.NotExecutedKind_NOT_EXECUTED_KIND_ABSENT_AT_TARGET
		}
		f.known("resolution.never_happened_retry.kind", kind, false)
		r.NeverHappenedTry = &ledger.NotExecuted{Kind: ledger.NotExecutedKind(kind), Detail: cut(o.NeverHappenedRetry.GetDetail(), keptText)}
	case *pb.Resolution_NeverHappenedStop:
		kind := o.NeverHappenedStop.GetKind()
		f.want(kind == pb.FailureKind_FAILURE_KIND_DECLINED || kind == pb.FailureKind_FAILURE_KIND_INVALID || kind == pb.FailureKind_FAILURE_KIND_ABANDONED,
			"resolution.never_happened_stop.kind", "must be DECLINED, INVALID or ABANDONED")
		r.NeverHappenedEnd = failureOf(o.NeverHappenedStop)
	default:
		f.want(false, "resolution", ruleRequired)
	}
	return r
}
