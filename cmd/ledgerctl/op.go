// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func (p program) opCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "op",
		Short: "Look into one operation, and decide it",
		Long: `Look into one operation, and decide it. An operation is taken over, looked for at the target, and resolved; no timer gives it back.

` + accessHelp,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	a := p.access(cmd)
	cmd.AddCommand(
		p.getCommand(a), p.timelineCommand(a), p.findCommand(a),
		p.takeOverCommand(a), p.handBackCommand(a), p.checkCommand(a), p.noteCommand(a),
		p.resolveCommand(a), p.approveCommand(a, pb.Decision_DECISION_APPROVE), p.approveCommand(a, pb.Decision_DECISION_REJECT),
	)
	return cmd
}

// group is what a command does that only has commands below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("no such command: see %s --help", cmd.CommandPath())}
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), cmd.UsageString())
	return usageError{errors.New("say what to do: name one of the commands")}
}

// oneOperation reads the argument of commands that look.
func oneOperation(args []string) (string, error) {
	if len(args) != 1 {
		return "", usageError{errors.New("name one operation")}
	}
	l, err := parseLooked(args[0])
	if err != nil || l.version != 0 {
		return "", usageError{errors.New("an operation must be a UUID")}
	}
	return l.id, nil
}

func (p program) getCommand(a *access) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "get OP",
		Short: "Show all that is known of an operation, and what can be done",
		Long: `Show all that is known of an operation: the answer on the first line, the next command on the last, with the version and the search time
that a decision needs.

The exit code is 0 whatever the state. With --wait it says how it stands at the end: 0 settled (completed or failed), 5 the outcome is
unknown or not there yet, 6 it waits for a person or a person has it, which ends the waiting.`,
		Example: `  ledgerctl op get 61aaa169-a267-8cb1-80a8-5787851e9e63
  ledgerctl op get 61aaa169-a267-8cb1-80a8-5787851e9e63 --wait 2m -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := oneOperation(args)
			if err != nil {
				return err
			}
			if wait < 0 {
				return usageError{errors.New("--wait: must not be negative")}
			}
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			v, err := s.settled(cmd.Context(), id, wait)
			if err != nil {
				return err
			}
			if err := s.show(v); err != nil || wait == 0 {
				return err
			}
			return outcome(v.GetOperation())
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for it to settle, and exit by how it stands")
	return cmd
}

// show writes a view in the form that was asked for.
func (s *session) show(v *pb.GetOperationResponse) error {
	if s.output == outputText {
		return s.printer.view(v, s.me)
	}
	return s.message(withoutPayloads(v))
}

// lookEvery is how often somebody who waits looks.
const lookEvery = time.Second

// settled reads an operation, and again until it settles, waits for a person, or the time is over.
func (s *session) settled(ctx context.Context, id string, wait time.Duration) (*pb.GetOperationResponse, error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		v, err := s.view(ctx, id)
		if err != nil {
			return nil, s.refused(ctx, err, id, 0)
		}
		if wait == 0 || final(v.GetOperation()) || v.GetOperation().GetCustody() != pb.Custody_CUSTODY_AUTOMATION {
			return v, nil
		}
		look := time.NewTimer(lookEvery)
		select {
		case <-look.C:
		case <-over.C:
			look.Stop()
			return v, nil
		case <-ctx.Done():
			look.Stop()
			return nil, ctx.Err()
		}
	}
}

// outcome is the end of waiting for an operation.
func outcome(op *pb.Operation) error {
	switch {
	case final(op):
		return nil
	case op.GetCustody() == pb.Custody_CUSTODY_OPERATOR || op.GetCustody() == pb.Custody_CUSTODY_QUEUED:
		return ended{code: exitPerson, says: "it is with a person now: waiting for automation is no use"}
	default:
		return ended{code: exitUnknown, says: "the outcome is not known yet: " + word(op.GetState())}
	}
}

func (p program) timelineCommand(a *access) *cobra.Command {
	return &cobra.Command{
		Use:     "timeline OP",
		Short:   "Show an operation's history",
		Example: "  ledgerctl op timeline 61aaa169-a267-8cb1-80a8-5787851e9e63 -o jsonl",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := oneOperation(args)
			if err != nil {
				return err
			}
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			v, err := s.view(cmd.Context(), id)
			if err != nil {
				return s.refused(cmd.Context(), err, id, 0)
			}
			switch s.output {
			case outputJSON:
				return s.message(&pb.GetOperationResponse{History: v.GetHistory(), ChainVerified: v.GetChainVerified(), ReadTime: v.GetReadTime()})
			case outputJSONL:
				for _, e := range v.GetHistory() {
					if err := s.message(e); err != nil {
						return err
					}
				}
				return nil
			}
			var b strings.Builder
			b.WriteString(answer(v, v.GetReadTime().AsTime()) + "\n\n")
			writeEvents(&b, v.GetHistory(), "")
			fmt.Fprintf(&b, "\n%s\nnext: ledgerctl op get %s\n", chain(v), id)
			return s.print("%s", b.String())
		},
	}
}

func (p program) findCommand(a *access) *cobra.Command {
	var l listing
	var downstreamKey, resourceID string
	cmd := &cobra.Command{
		Use:   "find",
		Short: "Find operations by what the target shows",
		Long:  "Find operations by the key that was sent to the target, or by the id of what exists there. Finding none is exit code 3.",
		Example: `  ledgerctl op find --downstream-key 3f7c1e2a9b5d48c06a1e5f7d2b9c4e80
  ledgerctl op find --resource T-1003 --tool tickets.create`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (downstreamKey == "") == (resourceID == "") {
				return usageError{errors.New("name one of --downstream-key and --resource")}
			}
			l.custody = []string{"all"}
			r, err := l.request(p.now())
			if err != nil {
				return err
			}
			r.DownstreamKey, r.ResourceId = downstreamKey, resourceID
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			list, err := s.search(cmd.Context(), r, l.limit)
			if err != nil {
				return err
			}
			n := len(list.GetOperations())
			if err := s.list(list, l.title(list)); err != nil || n > 0 {
				return err
			}
			return ended{code: exitNotFound, says: "found none that you may see"}
		},
	}
	f := cmd.Flags()
	f.StringVar(&downstreamKey, "downstream-key", "", "the key that was sent to the target: 32 hex digits")
	f.StringVar(&resourceID, "resource", "", "the id of the resource at the target")
	f.StringVar(&l.tool, "tool", "", "only of this tool")
	f.StringVar(&l.scope, "scope", "", "only of this scope")
	l.pages(f)
	return cmd
}
