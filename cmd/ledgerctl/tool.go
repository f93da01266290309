// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func (p program) toolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tool",
		Short: "See how tools do, and pause one",
		Long:  "See how tools do, and pause one: no new grants, while what runs goes on.\n\n" + accessHelp,
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	a := p.access(cmd)
	cmd.AddCommand(p.toolListCommand(a), p.pauseCommand(a), p.resumeCommand(a))
	return cmd
}

func (p program) toolListCommand(a *access) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tools, what is open of each, and which are paused",
		Example: "  ledgerctl tool list",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			r, err := call(cmd.Context(), s, s.operators.ListTools, &pb.ListToolsRequest{})
			if err != nil {
				return s.refused(cmd.Context(), err, "", 0)
			}
			return s.tools(r)
		},
	}
}

func (s *session) tools(r *pb.ListToolsResponse) error {
	switch s.output {
	case outputJSON:
		return s.message(r)
	case outputJSONL:
		for _, t := range r.GetTools() {
			if err := s.message(t); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	var unknown, queued, paused int64
	together, worst := false, ""
	var oldest time.Duration
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "TOOL\tEFFECT\tFINDS OUT BY\tPROCESSING\tUNKNOWN\tOLDEST\tWITH PEOPLE\tTARGET\tGRANTS")
	for _, h := range r.GetTools() {
		unknown, queued = unknown+h.GetUnknown(), queued+h.GetQueued()
		age := "-"
		if d := h.GetOldestUnknown().AsDuration(); h.GetUnknown() > 0 {
			age = span(d)
			if worst == "" || d > oldest {
				worst, oldest = h.GetTool(), d
			}
		}
		grants := "yes"
		if h.GetPaused() {
			grants = "paused by " + plain(h.GetPauser())
			if h.GetPauseTime() != nil {
				grants += " " + when(h.GetPauseTime(), s.now())
			}
			grants += ": " + cut(h.GetPauseReason(), 60)
		}
		breaker := "-"
		if h.GetBreaker() != 0 {
			breaker = map[pb.BreakerState]string{
				pb.BreakerState_BREAKER_STATE_CLOSED: "asked", pb.BreakerState_BREAKER_STATE_OPEN: "not asked",
				pb.BreakerState_BREAKER_STATE_HALF_OPEN: "tried",
			}[h.GetBreaker()]
		}
		if h.GetTool() == allTools { // a pause, not a tool
			together = true
			_, _ = fmt.Fprintf(t, "all tools\t-\t-\t-\t-\t-\t-\t-\t%s\n", grants)
			continue
		}
		if h.GetPaused() {
			paused++
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n", plain(h.GetTool()), word(h.GetEffect()), word(h.GetRecovery()),
			h.GetProcessing(), h.GetUnknown(), age, h.GetQueued(), breaker, grants)
	}
	_ = t.Flush() // into memory
	next := "ledgerctl queue"
	if worst != "" && queued == 0 {
		next = "ledgerctl queue --custody all --state unknown --tool " + plain(worst)
	}
	tools, stopped := len(r.GetTools()), fmt.Sprintf("%d paused", paused)
	if together {
		tools, stopped = tools-1, "all paused"
	}
	return s.print("%s: %d unknown, %d waiting for a person, %s\n\n%s\nnext: %s\n", count(tools, "tool"), unknown, queued, stopped, &b, next)
}

// allTools names all tools at once, in a pause.
const allTools = "*"

// health is a tool in a list; nil: it is not there.
func health(r *pb.ListToolsResponse, tool string) *pb.ToolHealth {
	for _, h := range r.GetTools() {
		if h.GetTool() == tool {
			return h
		}
	}
	return nil
}

// noContract is the version of what counts for a tool that nobody has declared.
const noContract = "default"

// strange says whether the ledger knows nothing of a tool but perhaps its pause: most likely its name is misspelt.
func strange(r *pb.ListToolsResponse, tool string) bool {
	h := health(r, tool)
	declared := h.GetContractVersion() != "" && h.GetContractVersion() != noContract
	return tool != allTools && !declared && h.GetProcessing()+h.GetUnknown()+h.GetQueued() == 0
}

const noSuchTool = "the ledger knows no such tool: it has no contract, and no operation that is open. Is its name spelt right? See ledgerctl tool list"

// stillPaused is the pause that holds a tool up after its own has ended; nil: none.
func stillPaused(r *pb.ListToolsResponse, tool string) *pb.ToolHealth {
	for _, name := range []string{tool, allTools} {
		if h := health(r, name); h.GetPaused() {
			return h
		}
	}
	return nil
}

// toolName reads the argument of pause and resume.
func toolName(args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", usageError{errors.New("name one tool, or '*' for all")}
	}
	return args[0], nil
}

// brake makes the commands that pause and resume.
func (p program) brake(cmd *cobra.Command, a *access, f func(ctx context.Context, s *session, tool string, d *decision) error) *cobra.Command {
	var d decision
	d.reason(cmd)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tool, err := toolName(args)
		if err := errors.Join(err, d.check(p.newID)); err != nil {
			return err
		}
		s, err := p.connect(cmd, a)
		if err != nil {
			return err
		}
		defer s.close()
		if err := f(cmd.Context(), s, tool, &d); err != nil {
			return s.sent(s.refused(cmd.Context(), err, "", 0), d.commandID)
		}
		return nil
	}
	return cmd
}

func (p program) pauseCommand(a *access) *cobra.Command {
	return p.brake(&cobra.Command{
		Use:     "pause TOOL",
		Short:   "Give a tool no new grants; what runs goes on, and is found out",
		Example: "  ledgerctl tool pause messages.send --reason \"incident 221: every second message is lost\"\n  ledgerctl tool pause '*' --reason \"incident 221\"",
	}, a, func(ctx context.Context, s *session, tool string, d *decision) error {
		r, err := call(ctx, s, s.operators.PauseTool, &pb.PauseToolRequest{Tool: tool, CommandId: d.commandID, Reason: d.why})
		if err != nil {
			return err
		}
		// The pause comes first: it is a brake. What can't be listed now is not worth an error.
		if list, err := call(ctx, s, s.operators.ListTools, &pb.ListToolsRequest{}); err == nil && strange(list, tool) {
			s.say(noSuchTool)
		}
		return s.done(r, "paused: no new grants; checks and reports go on\nnext: ledgerctl tool resume '%s' --reason \"WHY\"", plain(tool))
	})
}

func (p program) resumeCommand(a *access) *cobra.Command {
	return p.brake(&cobra.Command{
		Use:     "resume TOOL",
		Short:   "Give a tool grants again",
		Example: "  ledgerctl tool resume messages.send --reason \"incident 221 is over\"",
	}, a, func(ctx context.Context, s *session, tool string, d *decision) error {
		r, err := call(ctx, s, s.operators.ResumeTool, &pb.ResumeToolRequest{Tool: tool, CommandId: d.commandID, Reason: d.why})
		if err != nil {
			return err
		}
		list, err := call(ctx, s, s.operators.ListTools, &pb.ListToolsRequest{})
		if err != nil { // it is resumed all the same
			return s.done(r, "resumed\nnext: ledgerctl tool list")
		}
		if strange(list, tool) {
			s.say(noSuchTool)
		}
		h := stillPaused(list, tool)
		if h == nil || tool == allTools {
			return s.done(r, "resumed\nnext: ledgerctl tool list")
		}
		by := "another pause"
		if all := health(list, allTools); all.GetPaused() && all.GetPauser() == h.GetPauser() && all.GetPauseTime().AsTime().Equal(h.GetPauseTime().AsTime()) {
			by = allTools
		}
		s.say("no new grants yet: it is still paused by %s, by %s %s: %s", by, plain(h.GetPauser()), when(h.GetPauseTime(), s.now()), cut(h.GetPauseReason(), 60))
		return s.done(r, "its own pause is over, but it is still paused by %s\nnext: ledgerctl tool list", by)
	})
}
