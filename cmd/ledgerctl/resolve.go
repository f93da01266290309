// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// finding is what a person says became of an operation.
type finding struct {
	happened, notHappened, stop, reported bool
	resource                              pb.ResourceRef
	code                                  string
	search                                string
	found                                 bool // also what something was found of
}

// maxBatch is how many operations one decision may be on.
const maxBatch = 500

func (p program) resolveCommand(a *access) *cobra.Command {
	var d decision
	var f finding
	cmd := &cobra.Command{
		Use:   "resolve OP... --happened | --not-happened",
		Short: "Decide what became of operations that you have",
		Long: `Decide what became of operations that you have taken over. A decision is on what you looked at: it needs the version that op get printed
(OP@VERSION for several), and --not-happened the --search-time that it printed before you searched at the target.

--happened      it is there: callers get it as the result
--not-happened  it is not there: the same key may be claimed again; with --stop it may not. If something was found under its key, this needs
                --including-found: you have looked at it, and it is something else. Of several, those without are left out

Where the contract wants two persons, this proposes, and another one approves (op approve). One decision can be on up to 500
operations, each of which is answered by itself.`,
		Example: `  ledgerctl op resolve 61aaa169-a267-8cb1-80a8-5787851e9e63 --expect-version 4 --happened --external-id T-1003 --type ticket \
      --note "found by its key in the ticket system"
  ledgerctl op resolve 61aaa169-a267-8cb1-80a8-5787851e9e63 --expect-version 4 --not-happened \
      --search-time 2026-11-30T12:00:00Z --note "searched the outbox by key and by recipient"
  ledgerctl queue --mine --tool messages.send --all -o jsonl | ledgerctl op resolve --from-file - --not-happened --stop \
      --search-time 2026-11-30T12:00:00Z --note "the provider lost all of 11:00 to 11:20, ticket 4711"`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			resolution, search, err := f.resolution()
			if err := errors.Join(err, d.check(p.newID)); err != nil {
				return err
			}
			targets, err := d.targets(args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if len(targets) > maxBatch {
				return usageError{fmt.Errorf("one decision can be on %d operations at most", maxBatch)}
			}
			s, err := p.connect(cmd, a)
			if err != nil {
				return err
			}
			defer s.close()
			for _, t := range targets {
				if t.version == 0 {
					return s.unseen(cmd.Context(), t.id)
				}
			}
			var left []looked
			if f.notHappened {
				if targets, left, err = s.denied(cmd.Context(), targets, f.found); err != nil {
					return err
				}
			}
			if len(targets) == 0 {
				return ended{code: exitConflict, says: "nothing was done: something was found"}
			}
			if len(targets) == 1 && len(left) == 0 {
				return s.sent(s.resolve(cmd.Context(), targets[0], &d, resolution, search), d.commandID)
			}
			return s.sent(s.resolveBatch(cmd.Context(), targets, left, &d, resolution, search), d.commandID)
		},
	}
	d.note(cmd)
	d.expects(cmd, "the version that you looked at (required; OP@VERSION for several)")
	d.many(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.happened, "happened", false, "it is there")
	flags.StringVar(&f.resource.Id, "external-id", "", "with --happened: the id of what is there")
	flags.StringVar(&f.resource.Type, "type", "", "with --happened: what it is, such as ticket")
	flags.StringVar(&f.resource.Uri, "uri", "", "with --happened: where it is")
	flags.StringVar(&f.resource.Version, "resource-version", "", "with --happened: its revision")
	flags.StringVar(&f.code, "code", "", "with --happened: its business status, such as created")
	flags.BoolVar(&f.reported, "as-reported", false, "with --happened: it is what a worker reported while you had it")
	flags.BoolVar(&f.notHappened, "not-happened", false, "it is not there")
	flags.BoolVar(&f.stop, "stop", false, "with --not-happened: it shall not be done any more")
	flags.BoolVar(&f.found, "including-found", false, "with --not-happened: you have looked at what was found under its key, and it is something else")
	flags.StringVar(&f.search, "search-time", "", "with --not-happened: the time that op get printed before you searched")
	return cmd
}

// resolution checks what was found, and words it.
func (f *finding) resolution() (*pb.Resolution, *timestamppb.Timestamp, error) {
	there := f.resource.Id != "" || f.resource.Type != "" || f.resource.Uri != "" || f.resource.Version != "" || f.code != ""
	switch {
	case f.happened == f.notHappened:
		return nil, nil, usageError{errors.New("say one of --happened and --not-happened")}
	case f.happened && (f.stop || f.search != "" || f.found):
		return nil, nil, usageError{errors.New("--stop, --search-time, --including-found: go with --not-happened")}
	case f.notHappened && (there || f.reported):
		return nil, nil, usageError{errors.New("--external-id, --type, --uri, --resource-version, --code, --as-reported: go with --happened")}
	case f.happened && f.reported == there:
		return nil, nil, usageError{errors.New("--happened: needs --external-id, or --as-reported")}
	case f.happened && !f.reported && f.resource.Id == "":
		return nil, nil, usageError{errors.New("--external-id: is required with --happened")}
	case f.reported:
		return &pb.Resolution{Resolution: &pb.Resolution_Happened{Happened: &pb.Result{}}}, nil, nil
	case f.happened:
		return &pb.Resolution{Resolution: &pb.Resolution_Happened{Happened: &pb.Result{Resource: &f.resource, Code: f.code}}}, nil, nil
	}
	var search *timestamppb.Timestamp
	if f.search != "" {
		at, err := time.Parse(time.RFC3339Nano, f.search)
		if err != nil {
			return nil, nil, usageError{errors.New("--search-time: must be a time such as 2026-11-30T12:00:00Z")}
		}
		search = timestamppb.New(at)
	}
	denied := &pb.Resolution{DespiteFound: f.found}
	if f.stop {
		denied.Resolution = &pb.Resolution_NeverHappenedStop{NeverHappenedStop: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_ABANDONED}}
	} else {
		denied.Resolution = &pb.Resolution_NeverHappenedRetry{
			NeverHappenedRetry: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_ABSENT_AT_TARGET},
		}
	}
	return denied, search, nil
}

// unseen refuses a decision on what was not looked at, and shows it instead.
func (s *session) unseen(ctx context.Context, id string) error {
	v, err := s.view(ctx, id)
	if err != nil {
		return s.refused(ctx, err, id, 0)
	}
	if err := (printer{w: s.talk, output: outputText}).view(v, s.me); err != nil {
		return err
	}
	return usageError{errors.New("--expect-version: is required: a decision is on what you looked at, and this is how it stands now")}
}

func (s *session) resolve(ctx context.Context, t looked, d *decision, resolution *pb.Resolution, search *timestamppb.Timestamp) error {
	r, err := call(ctx, s, s.operators.Resolve, &pb.ResolveRequest{
		OperationId: t.id, CommandId: d.commandID, ExpectedVersion: t.version, Resolution: resolution, Note: d.why, SearchTime: search,
	})
	if missing := s.notSearched(reasonOf(err), resolution, search); missing != "" {
		return ended{code: exitOfStatus(err), err: err, says: missing + "\nnext: ledgerctl op get " + t.id}
	}
	if err != nil {
		return s.refused(ctx, err, t.id, t.version)
	}
	op := r.GetOperation()
	text, proposed := resolved(op)
	if proposed {
		text += "\nanother person, if they agree: " + command(op, "approve", `--expect-version %d --note "WHAT YOU CHECKED"`, op.GetVersion())
	}
	return s.done(r, "%s\nnext: ledgerctl op timeline %s", text, t.id)
}

// notSearched says what is wrong with the search time of what the ledger finds too early, if it is not that the search began before its time.
func (s *session) notSearched(reason pb.ErrorReason, resolution *pb.Resolution, search *timestamppb.Timestamp) string {
	switch {
	case reason != pb.ErrorReason_ERROR_REASON_TOO_EARLY || resolution.GetHappened() != nil:
		return ""
	case search == nil:
		return "--search-time: is required: op get prints it, and the search has to begin after that"
	case search.AsTime().After(s.now()):
		return "--search-time: lies ahead: it is the time that op get printed before you searched"
	default:
		return ""
	}
}

// resolved says what a decision has done; proposed: another person has to approve it.
func resolved(op *pb.Operation) (text string, proposed bool) {
	switch {
	case op.GetCustody() == pb.Custody_CUSTODY_OPERATOR:
		text, proposed = "proposed: another person has to approve it before it counts", true
	case op.GetState() == pb.State_STATE_COMPLETED:
		text = "recorded: it happened; callers get it as the result"
	case op.GetState() == pb.State_STATE_FAILED:
		text = "recorded: it never happened, and shall not"
	case op.GetState() == pb.State_STATE_RECEIVED:
		text = "recorded: it never happened; the same key may be claimed again"
	default:
		text = "recorded: " + word(op.GetState())
	}
	return fmt.Sprintf("%s (version %d)", text, op.GetVersion()), proposed
}

func (s *session) resolveBatch(ctx context.Context, targets, left []looked, d *decision, resolution *pb.Resolution, search *timestamppb.Timestamp) error {
	request := &pb.BatchResolveRequest{CommandId: d.commandID, Resolution: resolution, Note: d.why, SearchTime: search}
	for _, t := range targets {
		request.Items = append(request.Items, &pb.BatchItem{OperationId: t.id, ExpectedVersion: t.version})
	}
	r, err := call(ctx, s, s.operators.BatchResolve, request)
	if err != nil {
		return s.refused(ctx, err, "", 0)
	}
	var errs []error
	var b strings.Builder
	for _, one := range r.GetResults() {
		if s.output == outputJSONL {
			if err := s.message(one); err != nil {
				return err
			}
		}
		text, _ := resolved(one.GetOperation())
		var err error
		if reason := one.GetError(); reason != 0 {
			text = "refused: " + word(reason) + ": " + inShort(reason)
			if missing := s.notSearched(reason, resolution, search); missing != "" {
				text = "refused: " + word(reason) + ": " + missing
			}
			err = ended{code: exitOfReason(reason), says: text}
		}
		errs = append(errs, err)
		fmt.Fprintf(&b, "%s  %s\n", plain(one.GetOperationId()), text)
	}
	for _, t := range left {
		text := "left out: something was found under its key"
		errs = append(errs, ended{code: exitConflict, says: text})
		fmt.Fprintf(&b, "%s  %s\n", t.id, text)
	}
	failed := worst(errs)
	switch s.output {
	case outputJSON:
		return errors.Join(s.message(r), failed)
	case outputJSONL:
		return failed
	}
	head := fmt.Sprintf("decided %d of %d\n\n", succeeded(errs), len(errs))
	return errors.Join(s.print("%s%s\nnext: ledgerctl queue --mine\n", head, &b), failed)
}

func succeeded(errs []error) int {
	n := 0
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

// inShort are the refusals of one in a batch.
func inShort(reason pb.ErrorReason) string {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_STALE_VERSION:
		return "it is not any more what you looked at"
	case pb.ErrorReason_ERROR_REASON_TOO_EARLY:
		return "the search has to begin after its settle time"
	case pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY:
		return "you don't have it"
	case pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND:
		return "there is no such operation, or it is none of yours"
	case pb.ErrorReason_ERROR_REASON_EFFECT_FOUND:
		return "something was found under its key, or a worker reported it: look at it by itself"
	default:
		return "see ledgerctl op get"
	}
}

func (p program) approveCommand(a *access, decide pb.Decision) *cobra.Command {
	var d decision
	cmd := &cobra.Command{
		Use:   "approve OP",
		Short: "Agree, as a second person, to what an operation waits for",
		Long: `Agree, as a second person, to a correction, a look-alike, a changed resource, or another person's finding. It needs the version that op get
printed, and counts for what it printed only.`,
		Example: `  ledgerctl op approve 61aaa169-a267-8cb1-80a8-5787851e9e63 --expect-version 5 --note "searched myself, nothing there"`,
	}
	said := "approved"
	if decide == pb.Decision_DECISION_REJECT {
		said = "rejected"
		cmd.Use, cmd.Short = "reject OP", "Say no, as a second person, to what an operation waits for"
		cmd.Long = `Say no, as a second person: another person's finding goes and nothing else changes; an operation that waited for a permission will not run
under its key.`
		cmd.Example = `  ledgerctl op reject 61aaa169-a267-8cb1-80a8-5787851e9e63 --expect-version 5 --note "found it: T-1003"`
	}
	d.note(cmd)
	d.expects(cmd, "the version that you looked at (required)")
	return p.change(cmd, a, &d, func(ctx context.Context, s *session, t looked) error {
		if t.version == 0 {
			return s.unseen(ctx, t.id)
		}
		r, err := call(ctx, s, s.operators.Approve, &pb.ApproveRequest{
			OperationId: t.id, CommandId: d.commandID, ExpectedVersion: t.version, Decision: decide, Note: d.why,
		})
		if err != nil {
			return s.refused(ctx, err, t.id, t.version)
		}
		op := r.GetOperation()
		return s.done(r, "%s (version %d): %s, %s\nnext: ledgerctl op get %s", said, op.GetVersion(), word(op.GetState()), custody(op, s.me), t.id)
	})
}
