// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// listing is what the flags of queue ask for.
type listing struct {
	tool, scope, task, custodian string
	custody, states, reasons     []string
	mine, attention, approvals   bool
	older                        time.Duration
	order, page                  string
	limit                        int
	all                          bool
	flags                        *pflag.FlagSet
}

// pages defines the flags that say how much of a list is wanted.
func (l *listing) pages(f *pflag.FlagSet) {
	l.flags = f
	f.IntVar(&l.limit, "limit", 50, "how many at most")
	f.BoolVar(&l.all, "all", false, "all there are, however many")
	f.StringVar(&l.page, "page-token", "", "where an earlier list ended")
}

func (p program) queueCommand() *cobra.Command {
	var l listing
	var a *access
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "List what waits for a person",
		Long: `List the operations that wait for a person, those that have stood longest first. Other lists: --mine is what you have taken over,
--attention what contradicts itself, --approvals what waits for a second person, --custody all everything. A list has 50 at most, and says
when there are more: --all has them all.

` + accessHelp,
		Example: `  ledgerctl queue
  ledgerctl queue --tool messages.send --older 10m
  ledgerctl queue --mine
  ledgerctl queue --custody all --state unknown --all -o jsonl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := l.request(p.now())
			if err != nil {
				return err
			}
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			if l.mine {
				if s.me == "" {
					return usageError{errors.New("--mine: your certificate has no SPIFFE ID, so only the policy knows your name: write --custodian NAME")}
				}
				r.Custodian = s.me
			}
			list, err := s.search(cmd.Context(), r, l.limit)
			if err != nil {
				return err
			}
			return s.list(list, l.title(list))
		},
	}
	a = p.access(cmd)
	f := cmd.Flags()
	f.StringVar(&l.tool, "tool", "", "only of this tool")
	f.StringVar(&l.scope, "scope", "", "only of this scope")
	f.StringVar(&l.task, "task", "", "only of this task")
	f.StringSliceVar(&l.custody, "custody", nil, "queued, operator, automation, or all (default queued, without --mine, --attention, --approvals)")
	f.StringSliceVar(&l.states, "state", nil, "only in these states: received, processing, unknown, completed, failed")
	f.StringSliceVar(&l.reasons, "queue-reason", nil, "only queued for these reasons, such as no_method, gave_up, ambiguous")
	f.StringVar(&l.custodian, "custodian", "", "only what this person has")
	f.BoolVar(&l.mine, "mine", false, "only what you have")
	f.BoolVar(&l.attention, "attention", false, "only what contradicts itself and nobody has acknowledged")
	f.BoolVar(&l.approvals, "approvals", false, "only what waits for a second person")
	f.DurationVar(&l.older, "older", 0, "only what has not changed for so long")
	f.StringVar(&l.order, "order", "update_time", "update_time, create_time or settle_time; oldest first")
	l.pages(f)
	return cmd
}

// request is what to ask; everything but the caller's own name.
func (l *listing) request(now time.Time) (*pb.SearchOperationsRequest, error) {
	r := &pb.SearchOperationsRequest{
		Tool: l.tool, Scope: l.scope, Task: l.task, Custodian: l.custodian, OrderBy: l.order, PageToken: l.page,
	}
	switch {
	case l.all && l.flags.Changed("limit"):
		return nil, usageError{errors.New("--all: can't be used with --limit")}
	case l.all:
		l.limit = math.MaxInt
	case l.limit < 1:
		return nil, usageError{errors.New("--limit: must be at least 1")}
	}
	if l.mine && l.custodian != "" {
		return nil, usageError{errors.New("--mine: can't be used with --custodian")}
	}
	custodies := l.custody
	if len(custodies) == 0 {
		switch {
		case l.mine || l.custodian != "":
			custodies = []string{"operator"}
		case !l.attention && !l.approvals:
			custodies = []string{"queued"}
		}
	}
	var err error
	if len(custodies) != 1 || custodies[0] != "all" {
		if r.Custodies, err = values[pb.Custody]("custody", custodies); err != nil {
			return nil, err
		}
	}
	if r.States, err = values[pb.State]("state", l.states); err != nil {
		return nil, err
	}
	if r.QueueReasons, err = values[pb.QueueReason]("queue-reason", l.reasons); err != nil {
		return nil, err
	}
	if l.attention {
		r.NeedsAttention = &l.attention
	}
	if l.approvals {
		r.ApprovalPending = &l.approvals
	}
	if l.older > 0 {
		r.UpdateTimeBefore = timestamppb.New(now.Add(-l.older))
	}
	return r, nil
}

// values reads words of an enumeration as flags have them.
func values[E interface {
	~int32
	protoreflect.Enum
}](flag string, words []string) ([]E, error) {
	var zero E
	prefix := strings.TrimSuffix(string(zero.Descriptor().Values().Get(0).Name()), "UNSPECIFIED")
	var found []E
	for _, w := range words {
		name := prefix + strings.ToUpper(strings.ReplaceAll(w, "-", "_"))
		v := zero.Descriptor().Values().ByName(protoreflect.Name(name))
		if v == nil || v.Number() == 0 {
			var known []string
			for i := 1; i < zero.Descriptor().Values().Len(); i++ {
				known = append(known, strings.ToLower(strings.TrimPrefix(string(zero.Descriptor().Values().Get(i).Name()), prefix)))
			}
			return nil, usageError{fmt.Errorf("--%s: must be of %s", flag, strings.Join(known, ", "))}
		}
		found = append(found, E(v.Number()))
	}
	return found, nil
}

// title says in words what a list is of.
func (l *listing) title(list *pb.SearchOperationsResponse) string {
	n := len(list.GetOperations())
	operations := count(n, "operation")
	if list.GetNextPageToken() != "" {
		operations = fmt.Sprintf("%d of more than %d operations", n, n)
	}
	switch {
	case l.mine:
		return operations + " that you have"
	case l.attention:
		return operations + " with a contradiction that nobody has acknowledged"
	case l.approvals:
		return operations + " waiting for a second person"
	case len(l.custody) == 0 && l.custodian == "":
		return operations + " waiting for a person"
	default:
		return operations
	}
}

const pageSize = 500 // the largest

// search asks for pages until there are enough, or no more. What changes meanwhile may come again on a later page, and is listed once.
func (s *session) search(ctx context.Context, r *pb.SearchOperationsRequest, limit int) (*pb.SearchOperationsResponse, error) {
	all, places := &pb.SearchOperationsResponse{}, map[string]int{}
	for {
		r.PageSize = int32(min(pageSize, limit-len(all.Operations)))
		page, err := call(ctx, s, s.operators.SearchOperations, r)
		if err != nil {
			return nil, s.refused(ctx, err, "", 0)
		}
		for _, op := range page.GetOperations() {
			if place, again := places[op.GetId()]; again {
				all.Operations[place] = op
				continue
			}
			places[op.GetId()] = len(all.Operations)
			all.Operations = append(all.Operations, op)
		}
		all.NextPageToken = page.GetNextPageToken()
		if all.NextPageToken == "" || len(all.Operations) >= limit {
			return all, nil
		}
		r.PageToken = all.NextPageToken
	}
}

// list writes operations: what they are first, the next command last.
func (s *session) list(list *pb.SearchOperationsResponse, title string) error {
	ops := list.GetOperations()
	more := ""
	if token := list.GetNextPageToken(); token != "" {
		more = fmt.Sprintf("there are more than %d: --all, --limit, or --page-token %s", len(ops), plain(token))
	}
	if more != "" && s.output != outputText { // who reads the answer with a program takes it for all
		s.say("%s", more)
	}
	switch s.output {
	case outputJSON:
		return s.message(list)
	case outputJSONL:
		for _, op := range ops {
			if err := s.message(op); err != nil {
				return err
			}
		}
		return nil
	}
	now := s.now()
	var b strings.Builder
	b.WriteString(title)
	if len(ops) == 0 {
		b.WriteString(".\nnext: ledgerctl tool list\n")
		return s.print("%s", b.String())
	}
	b.WriteString(":\n\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "OPERATION\tAGE\tTOOL\tSTATE\tTARGET\tWITH\tWHY\tNEXT CHECK")
	for _, op := range ops {
		check := "-"
		if c := op.GetNextCheckTime(); c != nil && !final(op) {
			check = "now"
			if c.AsTime().After(now) {
				check = "in " + span(c.AsTime().Sub(now))
			}
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", plain(op.GetId()), span(now.Sub(op.GetCreateTime().AsTime())), plain(op.GetTool()),
			word(op.GetState()), orDash(cut(op.GetTargetSummary(), 40)), with(op, s.me), orDash(why(op)), check)
	}
	_ = t.Flush() // into memory
	b.WriteString("\n")
	if more != "" {
		b.WriteString(more + "\n")
	}
	fmt.Fprintf(&b, "next: ledgerctl op get %s\n", plain(ops[0].GetId()))
	return s.print("%s", b.String())
}

// with is who has it.
func with(op *pb.Operation, me string) string {
	switch op.GetCustody() {
	case pb.Custody_CUSTODY_OPERATOR:
		if op.GetCustodian() == me {
			return "you"
		}
		return plain(op.GetCustodian())
	case pb.Custody_CUSTODY_QUEUED:
		return "nobody"
	default:
		return "automation"
	}
}

// why is what a person is wanted for, in words of the contract.
func why(op *pb.Operation) string {
	var reasons []string
	if op.GetNeedsAttention() {
		reasons = append(reasons, "CONTRADICTED")
	}
	if r := op.GetQueueReason(); r != 0 {
		reasons = append(reasons, word(r))
	}
	if r := op.GetWaitingFor(); r != 0 && r != pb.WaitReason_WAIT_REASON_QUEUED { // that it is queued is what the other one says
		reasons = append(reasons, word(r))
	}
	return strings.Join(reasons, ", ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
