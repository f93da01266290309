// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// told is what people say about whole tools.
type told interface {
	GetCommandId() string
	GetReason() string
}

// toolCommand checks a command about a tool, or AllTools. The right to a tool says nothing of what exists, so who lacks it is told so. What is wrong with the
// form of the tool has been gathered before.
func (o *Operators) toolCommand(ctx context.Context, f *form, kind ledger.CommandKind, tool string, req told) (ledger.ToolCommand, error) {
	actor, _, err := o.person(ctx)
	if err != nil {
		return ledger.ToolCommand{}, err
	}
	f.uuid("command_id", req.GetCommandId())
	if err := f.err(); err != nil {
		return ledger.ToolCommand{}, err
	}
	c := ledger.ToolCommand{CommandID: ledger.CommandID(req.GetCommandId()), Kind: kind, Tool: ledger.Tool(tool), Actor: actor.Name, Reason: req.GetReason()}
	right := o.s.policy.HasRole(actor.Name, ledger.RoleOperator, c.Tool)
	if c.Tool == ledger.AllTools {
		right = o.s.policy.RoleTools(actor.Name, ledger.RoleOperator).Every
	}
	if !right {
		return ledger.ToolCommand{}, ledger.ErrRoleRequired
	}
	return c, nil
}

// PauseTool gives a tool, or all, no new grant until it is resumed. What is granted goes on.
func (o *Operators) PauseTool(ctx context.Context, req *pb.PauseToolRequest) (*pb.PauseToolResponse, error) {
	err := o.keep(ctx, points{failpoint.RPCPauseToolBeforeCommit, failpoint.RPCPauseToolAfterCommit}, ledger.KindPauseTool, req.GetTool(), req)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	return &pb.PauseToolResponse{}, nil
}

// ResumeTool ends what PauseTool began, under the same name.
func (o *Operators) ResumeTool(ctx context.Context, req *pb.ResumeToolRequest) (*pb.ResumeToolResponse, error) {
	err := o.keep(ctx, points{failpoint.RPCResumeToolBeforeCommit, failpoint.RPCResumeToolAfterCommit}, ledger.KindResumeTool, req.GetTool(), req)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	return &pb.ResumeToolResponse{}, nil
}

func (o *Operators) keep(ctx context.Context, p points, kind ledger.CommandKind, tool string, req told) error {
	f := &form{}
	f.want(tool == string(ledger.AllTools) || isTool(tool), "tool", ruleTool+", or \"*\" for all")
	f.remark("reason", req.GetReason())
	command, err := o.toolCommand(ctx, f, kind, tool, req)
	if err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, p.before); err != nil {
		return err
	}
	if _, err := o.store.CommandTool(ctx, command); err != nil {
		return err
	}
	return failpoint.Hit(ctx, p.after)
}

// recoveryMethods are the contract's names for methods.
var recoveryMethods = map[ledger.Method]pb.RecoveryMethod{
	ledger.MethodOperator: pb.RecoveryMethod_RECOVERY_METHOD_OPERATOR, ledger.MethodProbe: pb.RecoveryMethod_RECOVERY_METHOD_PROBE,
	ledger.MethodRegrant: pb.RecoveryMethod_RECOVERY_METHOD_REGRANT,
}

// ListTools shows the tools that have a contract, something unsettled or a pause, as far as the caller has a role for them; and "*" while all are
// paused, to who has a role for all.
func (o *Operators) ListTools(ctx context.Context, _ *pb.ListToolsRequest) (*pb.ListToolsResponse, error) {
	p, may, err := o.reader(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	counts, now, err := o.store.CountTools(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	pauses, err := o.store.Pauses(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	breakers, err := o.breakers(ctx)
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	names := slices.Clone(o.tools())
	counted, paused := map[ledger.Tool]ledger.ToolCount{}, map[ledger.Tool]ledger.ToolCommand{}
	for _, c := range counts {
		counted[c.Tool], names = c, append(names, c.Tool)
	}
	for _, c := range pauses {
		paused[c.Tool], names = c, append(names, c.Tool)
	}
	slices.Sort(names)
	every := o.readable(p).Every
	m := &pb.ListToolsResponse{}
	for _, tool := range slices.Compact(names) {
		if tool == ledger.AllTools && !every || tool != ledger.AllTools && may(&ledger.Operation{Tool: tool}) != nil {
			continue
		}
		count := counted[tool]
		h := &pb.ToolHealth{Tool: string(tool), Processing: count.Processing, Unknown: count.Unknown, Queued: count.Queued, Breaker: pb.BreakerState(breakers[tool])}
		if tool != ledger.AllTools {
			contract, _ := o.s.ledger.Contract(tool)
			h.Effect, h.Recovery, h.ContractVersion = pb.Effect(contract.Effect), recoveryMethods[contract.Method], contract.Version
		}
		if !count.OldestUnknown.IsZero() {
			h.OldestUnknown = durationpb.New(max(now.Sub(count.OldestUnknown), 0))
		}
		pause, alone := paused[tool]
		if all, together := paused[ledger.AllTools]; !alone && together {
			pause, alone = all, true
		}
		if alone {
			h.Paused, h.Pauser, h.PauseTime, h.PauseReason = true, string(pause.Actor), encodeTime(pause.Time), pause.Reason
		}
		m.Tools = append(m.Tools, h)
	}
	return m, nil
}
