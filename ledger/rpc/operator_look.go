// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// searchOrders are the names of the orders.
var searchOrders = map[string]ledger.SearchOrder{
	"": ledger.ByUpdateTime, "update_time": ledger.ByUpdateTime, "create_time": ledger.ByCreateTime, "settle_time": ledger.BySettleTime,
}

// SearchOperations pages through operations of all scopes, of the tools for which the caller has a role. One that a newer release wrote, or
// that is damaged, has its place, without a state. A page may be short, with more to come.
func (o *Operators) SearchOperations(ctx context.Context, req *pb.SearchOperationsRequest) (*pb.SearchOperationsResponse, error) {
	p, may, err := o.reader(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	f := &form{}
	q := searchOf(f, req)
	if err := f.err(); err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	q.Visible = o.readable(p)
	found, err := o.store.Search(ctx, q)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	m := &pb.SearchOperationsResponse{}
	if found.Next != nil {
		m.NextPageToken = pageToken(found.Next.Time, found.Next.ID, searched(req))
	}
	for i := range found.Operations {
		op := &found.Operations[i]
		switch {
		case may(op) != nil: // the policy has changed meanwhile
		case op.State == 0: // that it exists is all that can be said
			m.Operations = append(m.Operations, encodeOperation(op, ledger.Standing{}, false))
		default:
			contract, _ := o.s.ledger.Contract(op.Tool)
			m.Operations = append(m.Operations, encodeOperation(op, ledger.Stand(op, contract, found.Now), true))
		}
	}
	return m, nil
}

// readable are the tools for which somebody may look.
func (o *Operators) readable(p ledger.Principal) ledger.ToolPatterns {
	settles, checks := o.s.policy.RoleTools(p, ledger.RoleOperator), o.s.policy.RoleTools(p, ledger.RoleAuditor)
	return ledger.ToolPatterns{
		Every: settles.Every || checks.Every, Exact: slices.Concat(settles.Exact, checks.Exact), Prefixes: slices.Concat(settles.Prefixes, checks.Prefixes),
	}
}

// maxPrincipal bounds names of principals and scopes, maxResource ids of resources, in bytes.
const (
	maxPrincipal = 2048
	maxResource  = keptResource
)

func searchOf(f *form, req *pb.SearchOperationsRequest) ledger.Search {
	q := ledger.Search{
		Tool: ledger.Tool(req.GetTool()), Scope: ledger.Scope(req.GetScope()), Task: ledger.Task(req.GetTask()), Custodian: ledger.Principal(req.GetCustodian()),
		DownstreamKey: req.GetDownstreamKey(), ResourceID: req.GetResourceId(),
		NeedsAttention: req.NeedsAttention, ApprovalPending: req.ApprovalPending,
		UpdatedBefore: f.time("update_time_before", req.GetUpdateTimeBefore()),
	}
	for i, s := range few(f, "states", req.GetStates()) {
		f.known(fmt.Sprintf("states[%d]", i), s, false)
		q.States = append(q.States, ledger.State(s))
	}
	for i, c := range few(f, "custodies", req.GetCustodies()) {
		f.known(fmt.Sprintf("custodies[%d]", i), c, false)
		q.Custodies = append(q.Custodies, ledger.Custody(c))
	}
	for i, r := range few(f, "queue_reasons", req.GetQueueReasons()) {
		f.known(fmt.Sprintf("queue_reasons[%d]", i), r, false)
		q.QueueReasons = append(q.QueueReasons, ledger.QueueReason(r))
	}
	if req.GetTool() != "" {
		f.tool("tool", req.GetTool())
	}
	if req.GetTask() != "" {
		f.name("task", req.GetTask())
	}
	f.printable("scope", req.GetScope(), maxPrincipal)
	f.printable("custodian", req.GetCustodian(), maxPrincipal)
	f.printable("resource_id", req.GetResourceId(), maxResource)
	f.want(req.GetDownstreamKey() == "" || isDownstreamKey(req.GetDownstreamKey()), "downstream_key", ruleDownstreamKey)
	var ok bool
	q.Order, ok = searchOrders[req.GetOrderBy()]
	f.want(ok, "order_by", "must be update_time, create_time or settle_time")
	q.Limit = f.pageSize(req.GetPageSize())
	q.After.Time, q.After.ID, ok = parsePageToken(req.GetPageToken(), searched(req))
	f.want(ok, "page_token", "must be the next_page_token of a page of the same search")
	return q
}

// few bounds a list, and returns as much of it as is looked at.
func few[T any](f *form, field string, list []T) []T {
	f.want(len(list) <= maxRelated, field, "must have at most 32 entries")
	return list[:min(len(list), maxRelated)]
}

// printable checks a text that may be empty.
func (f *form) printable(field, s string, most int) {
	f.want(len(s) <= most && isPrintable(s), field, fmt.Sprintf("must be at most %d bytes without control characters", most))
}

// searched is a digest of a search's filter and order. update_time_before is not in it: who asks for what has not changed for so long means another
// time with each page, and a place in the order is one for any of them.
func searched(req *pb.SearchOperationsRequest) []byte {
	filter := proto.CloneOf(req)
	filter.PageSize, filter.PageToken, filter.UpdateTimeBefore = 0, "", nil
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(filter)
	if err != nil { // it was decoded from the very same
		return nil
	}
	sum := sha256.Sum256(append([]byte("search:"), text...))
	return sum[:8]
}

// GetOperation shows all that is known of an operation, with its history.
func (o *Operators) GetOperation(ctx context.Context, req *pb.GetOperationRequest) (*pb.GetOperationResponse, error) {
	_, may, err := o.reader(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	f := &form{}
	id := f.operationID("operation_id", req.GetOperationId())
	if err := f.err(); err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	op, st, err := o.s.look(ctx, id, may)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	annotate(ctx, op.Tool, op.ID)
	annotateFingerprint(ctx, op.Fingerprint)
	history, whole, err := o.store.History(ctx, id)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	// It may have moved since it was read.
	history = slices.DeleteFunc(history, func(e ledger.Event) bool { return e.Sequence > op.Sequence })
	contract, _ := o.s.ledger.Contract(op.Tool)
	m := &pb.GetOperationResponse{
		Operation: encodeOperation(&op, st, true), DownstreamKey: op.KeyHash.DownstreamKey(), TargetAttributes: op.TargetAttributes,
		FirstGrantTime: encodeTime(op.FirstStart), Guide: contract.Guide, Principal: string(op.Principal), ContractVersion: op.Terms.ContractVersion,
		Approval: encodeApproval(op.Question()), ChainVerified: whole && ledger.VerifyChain(history, op.LastHash) == nil, ReadTime: encodeTime(st.Now),
	}
	for _, candidate := range op.Detail.Candidates {
		m.Candidates = append(m.Candidates, encodeResource(candidate))
	}
	if op.Result != nil {
		m.Result = encodeResult(op.Result)
	}
	if op.Failure != nil {
		m.Failure = encodeFailure(&op, true)
	}
	if kept := op.Detail.Kept; kept != nil {
		m.ReportedResult, m.ReportedClaimId = encodeResult(&kept.Result), string(kept.ClaimID)
	}
	for i := range history {
		m.History = append(m.History, encodeEvent(&history[i]))
	}
	return m, nil
}

func encodeApproval(a *ledger.Approval) *pb.Approval {
	if a == nil {
		return nil
	}
	m := &pb.Approval{Kind: pb.ApprovalKind(a.Kind), Requester: string(a.Requester), ExpireTime: encodeTime(a.ExpireTime), Approver: string(a.Approver)}
	if a.Granted {
		m.Decision = pb.Decision_DECISION_APPROVE
	}
	if a.Resource != nil {
		m.Resource = encodeResource(*a.Resource)
	}
	if r := a.Resolution; r != nil {
		m.Resolution = &pb.Resolution{DespiteFound: r.DespiteFound}
		switch {
		case r.Happened != nil:
			m.Resolution.Resolution = &pb.Resolution_Happened{Happened: encodeResult(r.Happened)}
		case r.NeverHappenedTry != nil:
			m.Resolution.Resolution = &pb.Resolution_NeverHappenedRetry{NeverHappenedRetry: &pb.NotExecuted{
				Kind: pb.NotExecutedKind(r.NeverHappenedTry.Kind), Detail: r.NeverHappenedTry.Detail,
			}}
		case r.NeverHappenedEnd != nil:
			m.Resolution.Resolution = &pb.Resolution_NeverHappenedStop{NeverHappenedStop: &pb.Failure{
				Kind: pb.FailureKind(r.NeverHappenedEnd.Kind), Code: r.NeverHappenedEnd.Code, Message: r.NeverHappenedEnd.Message,
			}}
		}
	}
	return m
}

// encodeEvent shows an event with all that its hash was made of.
func encodeEvent(e *ledger.Event) *pb.Event {
	m := &pb.Event{
		OperationId: e.OperationID.String(), Sequence: e.Sequence, Version: e.Version, Epoch: e.Epoch, CommandId: e.CommandID, Time: encodeTime(e.Time),
		ActorKind: pb.ActorKind(e.ActorKind), Actor: string(e.Actor), Kind: pb.EventKind(e.Kind),
		FromState: pb.State(e.FromState), ToState: pb.State(e.ToState), Facts: e.AllFacts(), Note: e.Note, ContractVersion: e.ContractVersion,
		Hash: e.Hash[:],
	}
	if e.PrevHash != ([32]byte{}) {
		m.PrevHash = e.PrevHash[:]
	}
	return m
}
