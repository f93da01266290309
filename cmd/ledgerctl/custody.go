// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// change makes a command that changes operations one by one. Each is answered by itself; the others don't wait for one that is refused.
func (p program) change(
	cmd *cobra.Command, a *access, d *decision, one func(context.Context, *session, looked) error,
) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := d.check(p.newID); err != nil {
			return err
		}
		targets, err := d.targets(args, cmd.InOrStdin())
		if err != nil {
			return err
		}
		s, err := p.connect(cmd, a)
		if err != nil {
			return err
		}
		defer s.close()
		var errs []error
		for _, t := range targets {
			err := one(cmd.Context(), s, t)
			if err != nil && len(targets) > 1 {
				s.say("%s: %s", t.id, plainLines(err.Error()))
			}
			errs = append(errs, err)
		}
		return s.sent(worst(errs), d.commandID)
	}
	return cmd
}

// done writes what became of an operation: in text what was done and the next command, else the answer of the ledger.
func (s *session) done(m proto.Message, text string, args ...any) error {
	if s.output == outputText {
		return s.print(text+"\n", args...)
	}
	return s.message(m)
}

func (p program) takeOverCommand(a *access) *cobra.Command {
	var d decision
	cmd := &cobra.Command{
		Use:   "take-over OP...",
		Short: "Take operations over from automation: it stops touching the target",
		Long: `Take operations over: automation stops touching the target until you hand back or resolve, and no timer ends that. Without a version the
operation is looked at first; what another person has is then left to them.`,
		Example: `  ledgerctl op take-over 61aaa169-a267-8cb1-80a8-5787851e9e63 --reason "on call, incident 221"
  ledgerctl queue --tool messages.send --all -o jsonl | ledgerctl op take-over --from-file - --reason "incident 221"`,
	}
	d.reason(cmd)
	d.expects(cmd, "the version that you looked at (default: what it is now, unless another person has it)")
	d.many(cmd)
	return p.change(cmd, a, &d, func(ctx context.Context, s *session, t looked) error {
		if t.version == 0 {
			v, err := s.view(ctx, t.id)
			if err != nil {
				return s.refused(ctx, err, t.id, 0)
			}
			op := v.GetOperation()
			if op.GetCustody() == pb.Custody_CUSTODY_OPERATOR && op.GetCustodian() != s.me {
				return ended{code: exitPerson, says: fmt.Sprintf("%s has it. To take it from them: %s", plain(op.GetCustodian()),
					command(op, "take-over", `--expect-version %d --reason "WHY"`, op.GetVersion()))}
			}
			t.version = op.GetVersion()
		}
		r, err := call(ctx, s, s.operators.TakeOver, &pb.TakeOverRequest{
			OperationId: t.id, CommandId: d.commandID, ExpectedVersion: t.version, Reason: d.why,
		})
		if err != nil {
			return s.refused(ctx, err, t.id, t.version)
		}
		var quiet string
		if until, now := r.GetQuietTime(), s.now(); until.AsTime().After(now) {
			quiet = "\nuntil " + when(until, now) + " a worker may still send, and a query may still be under way"
		}
		return s.done(r, "you have it now (version %d): automation stops touching the target until you hand it back%s\nnext: ledgerctl op get %s",
			r.GetOperation().GetVersion(), quiet, t.id)
	})
}

func (p program) handBackCommand(a *access) *cobra.Command {
	var d decision
	cmd := &cobra.Command{
		Use:   "hand-back OP...",
		Short: "Hand operations back to automation",
		Long: `Hand operations back: automation goes on as if it had just begun, and what a worker reported meanwhile is applied. What has no way to be
found out waits for a person again.`,
		Example: `  ledgerctl op hand-back 61aaa169-a267-8cb1-80a8-5787851e9e63 --reason "could not tell; the provider is up again"`,
	}
	d.reason(cmd)
	d.expects(cmd, "the version that you looked at (default: what it is now)")
	d.many(cmd)
	return p.change(cmd, a, &d, func(ctx context.Context, s *session, t looked) error {
		if t.version == 0 {
			v, err := s.view(ctx, t.id)
			if err != nil {
				return s.refused(ctx, err, t.id, 0)
			}
			t.version = v.GetOperation().GetVersion()
		}
		r, err := call(ctx, s, s.operators.HandBack, &pb.HandBackRequest{
			OperationId: t.id, CommandId: d.commandID, ExpectedVersion: t.version, Reason: d.why,
		})
		if err != nil {
			return s.refused(ctx, err, t.id, t.version)
		}
		op := r.GetOperation()
		return s.done(r, "handed back (version %d): %s, %s\nnext: ledgerctl op get %s", op.GetVersion(), word(op.GetState()), custody(op, s.me), t.id)
	})
}

func (p program) checkCommand(a *access) *cobra.Command {
	var d decision
	var tool string
	cmd := &cobra.Command{
		Use:   "check OP... | --tool TOOL",
		Short: "Have automation look again now",
		Long: `Have automation look again now, within the limits of the tool; what waits for a person is back with automation by that. With --tool: all of
a tool that are UNKNOWN and that no person has.`,
		Example: `  ledgerctl op check 61aaa169-a267-8cb1-80a8-5787851e9e63 --reason "the provider is up again"
  ledgerctl op check --tool payments.charge --reason "the provider is up again"`,
	}
	d.reason(cmd)
	d.many(cmd)
	cmd.Flags().StringVar(&tool, "tool", "", "all of this tool")
	p.change(cmd, a, &d, func(ctx context.Context, s *session, t looked) error {
		r, err := call(ctx, s, s.operators.CheckNow, &pb.CheckNowRequest{
			CommandId: d.commandID, Selector: &pb.CheckNowRequest_OperationId{OperationId: t.id}, Reason: d.why,
		})
		if err != nil {
			return s.refused(ctx, err, t.id, 0)
		}
		return s.done(r, "due now, with automation\nnext: ledgerctl op get %s --wait 1m", t.id)
	})
	operations := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tool == "" {
			return operations(cmd, args)
		}
		if err := d.check(p.newID); err != nil {
			return err
		}
		if len(args) > 0 || d.file != "" {
			return usageError{errors.New("--tool: can't be used with operations")}
		}
		s, err := p.connect(cmd, a)
		if err != nil {
			return err
		}
		defer s.close()
		r, err := call(cmd.Context(), s, s.operators.CheckNow, &pb.CheckNowRequest{
			CommandId: d.commandID, Selector: &pb.CheckNowRequest_Tool{Tool: tool}, Reason: d.why,
		})
		if err != nil {
			return s.sent(s.refused(cmd.Context(), err, "", 0), d.commandID)
		}
		return s.done(r, "%d due now, with automation\nnext: ledgerctl queue --tool %s", r.GetDue(), plain(tool))
	}
	return cmd
}

func (p program) noteCommand(a *access) *cobra.Command {
	var d decision
	var through uint64
	cmd := &cobra.Command{
		Use:   "note OP...",
		Short: "Leave a remark in the history, or say that a contradiction was seen",
		Long:  "Leave a remark, for the next shift or the audit. With --acknowledge the contradictions up to that event of the history count as seen.",
		Example: `  ledgerctl op note 61aaa169-a267-8cb1-80a8-5787851e9e63 --note "provider ticket 4711 is open"
  ledgerctl op note 61aaa169-a267-8cb1-80a8-5787851e9e63 --acknowledge 7 --note "refunded the second charge"`,
	}
	d.note(cmd)
	d.many(cmd)
	cmd.Flags().Uint64Var(&through, "acknowledge", 0, "number of the last event that you have read, as op get prints it")
	return p.change(cmd, a, &d, func(ctx context.Context, s *session, t looked) error {
		r, err := call(ctx, s, s.operators.AddNote, &pb.AddNoteRequest{
			OperationId: t.id, CommandId: d.commandID, Note: d.why, AcknowledgeThroughSequence: through,
		})
		if err != nil {
			return s.refused(ctx, err, t.id, 0)
		}
		text := "noted"
		if through > 0 {
			text += ", and acknowledged"
			if r.GetOperation().GetNeedsAttention() {
				text = "noted; what came after event " + fmt.Sprint(through) + " still contradicts: look again"
			}
		}
		return s.done(r, "%s\nnext: ledgerctl op timeline %s", strings.TrimSpace(text), t.id)
	})
}
