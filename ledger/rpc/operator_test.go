// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// charges is a world with one tool whose target can be asked, and others that people settle.
func charges(t *testing.T, s setup) *world {
	t.Helper()
	if s.contracts == nil {
		charge := declared("charge")
		charge.Guide = "search the dashboard"
		s.contracts = contracts{"charge": charge}
	}
	return newWorld(t, s)
}

// unknown makes an operation that is UNKNOWN, of which nobody knows the outcome.
func (w *world) unknown(t *testing.T, tool, key string) *pb.Grant {
	t.Helper()
	claim := w.claim(key)
	claim.Key.Tool, claim.Key.Task = tool, "task-"+key
	grant := w.granted(t, "agent-a", claim)
	if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: claim.GetClaimId()}); err != nil {
		t.Fatal(err)
	}
	return grant
}

// look is the whole view.
func (w *world) look(t *testing.T, p, id string) *pb.GetOperationResponse {
	t.Helper()
	view, err := w.people.GetOperation(as(t, p), &pb.GetOperationRequest{OperationId: id})
	if err != nil {
		t.Fatal(err)
	}
	return view
}

func (w *world) take(t *testing.T, p, id string) *pb.Operation {
	t.Helper()
	answer, err := w.people.TakeOver(as(t, p), w.takeOver(t, p, id))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetOperation()
}

func (w *world) takeOver(t *testing.T, p, id string) *pb.TakeOverRequest {
	t.Helper()
	return &pb.TakeOverRequest{
		OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: w.look(t, p, id).GetOperation().GetVersion(), Reason: "canary-reason",
	}
}

func kinds(view *pb.GetOperationResponse) []pb.EventKind {
	var all []pb.EventKind
	for _, e := range view.GetHistory() {
		all = append(all, e.GetKind())
	}
	return all
}

func happened(id string) *pb.Resolution {
	return &pb.Resolution{Resolution: &pb.Resolution_Happened{Happened: &pb.Result{Resource: &pb.ResourceRef{Type: "charge", Id: id}, Code: "captured"}}}
}

var (
	stop  = &pb.Resolution{Resolution: &pb.Resolution_NeverHappenedStop{NeverHappenedStop: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_ABANDONED}}}
	retry = &pb.Resolution{Resolution: &pb.Resolution_NeverHappenedRetry{NeverHappenedRetry: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_ABSENT_AT_TARGET}}}
)

// TestTakeOverAndResolve is the whole way of one that nobody can ask about.
func TestTakeOverAndResolve(t *testing.T) {
	w := charges(t, setup{})
	grant := w.unknown(t, "mail.send", "k")
	id := grant.GetOperationId()
	view := w.look(t, "auditor", id)
	op := view.GetOperation()
	if op.GetState() != pb.State_STATE_UNKNOWN || op.GetCustody() != pb.Custody_CUSTODY_QUEUED || op.GetQueueReason() != pb.QueueReason_QUEUE_REASON_NO_METHOD {
		t.Errorf("%v, %v, %v", op.GetState(), op.GetCustody(), op.GetQueueReason())
	}
	if view.GetDownstreamKey() != grant.GetDownstreamKey() || view.GetPrincipal() != "agent-a" || op.GetScope() != "a" || op.GetTargetSummary() == "" ||
		!view.GetChainVerified() || view.GetFirstGrantTime() == nil || view.GetReadTime().AsTime().Sub(w.now()).Abs() > time.Minute {
		t.Errorf("the view: %v", view)
	}
	take := w.takeOver(t, "ops-a", id)
	answer, err := w.people.TakeOver(as(t, "ops-a"), take)
	if err != nil {
		t.Fatal(err)
	}
	held := answer.GetOperation()
	if held.GetCustody() != pb.Custody_CUSTODY_OPERATOR || held.GetCustodian() != "ops-a" || held.GetVersion() != op.GetVersion()+1 {
		t.Errorf("taken over: %v", held)
	}
	// The worker has said that it does not know, and may still be sending until its window ends.
	if quiet := answer.GetQuietTime().AsTime(); !quiet.After(w.now()) || quiet.After(w.now().Add(time.Minute)) {
		t.Errorf("quiet at %v, now %v", quiet, w.now())
	}
	// Sent again, it is one event, and answered as before; with other content it is refused.
	if again, err := w.people.TakeOver(as(t, "ops-a"), take); err != nil || cmp.Diff(held, again.GetOperation(), transform) != "" {
		t.Errorf("sent again: %v, %v", again, err)
	}
	take.Reason = "another"
	_, err = w.people.TakeOver(as(t, "ops-a"), take)
	refused(t, err, codes.InvalidArgument, "COMMAND_REUSED")

	// The second one looked at what was before the first.
	late := &pb.TakeOverRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: op.GetVersion(), Reason: "mine"}
	_, err = w.people.TakeOver(as(t, "ops-b"), late)
	s := refused(t, err, codes.Aborted, "STALE_VERSION")
	want := map[string]string{"version": "3", "state": "UNKNOWN"}
	if diff := cmp.Diff(want, detail[*errdetails.ErrorInfo](s).GetMetadata()); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	resolve := &pb.ResolveRequest{
		OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: held.GetVersion(), Resolution: stop, Note: "searched the outbox", SearchTime: w.look(t, "ops-a", id).GetReadTime(),
	}
	_, err = w.people.Resolve(as(t, "ops-b"), resolve)
	refused(t, err, codes.FailedPrecondition, "NOT_IN_CUSTODY")
	_, err = w.people.Resolve(as(t, "ops-a"), resolve)
	s = refused(t, err, codes.FailedPrecondition, "TOO_EARLY")
	if wait := detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration(); wait < 15*time.Minute || wait > 16*time.Minute {
		t.Errorf("to be tried again after %v", wait)
	}
	w.pass(20 * time.Minute)
	_, err = w.people.Resolve(as(t, "ops-a"), resolve) // the search was before
	refused(t, err, codes.FailedPrecondition, "TOO_EARLY")
	resolve.SearchTime = nil
	_, err = w.people.Resolve(as(t, "ops-a"), resolve)
	refused(t, err, codes.FailedPrecondition, "TOO_EARLY")
	resolve.SearchTime = timestamppb.New(w.now().Add(time.Hour)) // the future was not searched
	_, err = w.people.Resolve(as(t, "ops-a"), resolve)
	refused(t, err, codes.FailedPrecondition, "TOO_EARLY")
	resolve.SearchTime = w.look(t, "ops-a", id).GetReadTime()
	for range 2 { // and sent again
		resolved, err := w.people.Resolve(as(t, "ops-a"), resolve)
		if err != nil || resolved.GetOperation().GetState() != pb.State_STATE_FAILED || resolved.GetOperation().GetCustody() != pb.Custody_CUSTODY_AUTOMATION {
			t.Fatalf("resolved: %v, %v", resolved, err)
		}
	}
	view = w.look(t, "ops-b", id)
	if diff := cmp.Diff([]pb.EventKind{
		pb.EventKind_EVENT_KIND_GRANTED, pb.EventKind_EVENT_KIND_MARKED_UNKNOWN, pb.EventKind_EVENT_KIND_TAKEN_OVER, pb.EventKind_EVENT_KIND_RESOLVED,
	}, kinds(view)); diff != "" || !view.GetChainVerified() {
		t.Errorf("history, verified %v (-want +got):\n%s", view.GetChainVerified(), diff)
	}
	if last := view.GetHistory()[3]; last.GetNote() != "searched the outbox" || last.GetActor() != "ops-a" || last.GetActorKind() != pb.ActorKind_ACTOR_KIND_PERSON ||
		last.GetCommandId() != resolve.GetCommandId() || last.GetFacts()["command"] != "resolve" || len(last.GetHash()) != 32 {
		t.Errorf("the decision: %v", last)
	}
	if view.GetFailure().GetKind() != pb.FailureKind_FAILURE_KIND_ABANDONED {
		t.Errorf("the failure: %v", view.GetFailure())
	}
}

// TestHandBack gives automation what it had, with a success that a worker has reported meanwhile.
func TestHandBack(t *testing.T) {
	w := charges(t, setup{})
	claim := w.claim("k")
	claim.Key.Tool = "charge"
	grant := w.granted(t, "agent-a", claim)
	id := grant.GetOperationId()
	held := w.take(t, "ops-a", id)
	hand := &pb.HandBackRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: held.GetVersion(), Reason: "nothing found"}
	_, err := w.people.HandBack(as(t, "ops-b"), hand)
	refused(t, err, codes.FailedPrecondition, "NOT_IN_CUSTODY")
	report, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, claim.GetClaimId()))
	if err != nil || report.GetDisposition() != pb.Disposition_DISPOSITION_OBSERVED || report.GetOperation().GetState() == pb.State_STATE_COMPLETED {
		t.Fatalf("a success while a person has it: %v, %v", report, err)
	}
	_, err = w.people.HandBack(as(t, "ops-a"), hand) // the success has raised the version: it has to be looked at
	refused(t, err, codes.Aborted, "STALE_VERSION")
	view := w.look(t, "ops-a", id)
	if view.GetReportedResult().GetResource().GetId() != "T-1" || view.GetReportedClaimId() != claim.GetClaimId() || view.GetGuide() != "search the dashboard" {
		t.Errorf("the view: %v", view)
	}
	hand.ExpectedVersion = view.GetOperation().GetVersion()
	for range 2 {
		back, err := w.people.HandBack(as(t, "ops-a"), hand)
		if err != nil || back.GetOperation().GetState() != pb.State_STATE_COMPLETED {
			t.Fatalf("handed back: %v, %v", back, err)
		}
	}
	view = w.look(t, "ops-a", id)
	if view.GetResult().GetResource().GetId() != "T-1" || view.GetReportedResult() != nil || !view.GetChainVerified() {
		t.Errorf("the view: %v", view)
	}
	_, err = w.people.TakeOver(as(t, "ops-a"), w.takeOver(t, "ops-a", id))
	refused(t, err, codes.FailedPrecondition, "ILLEGAL_TRANSITION")
}

// calls are all calls of the service about one operation, or one tool, each well formed.
func (w *world) calls(id string, tool string) map[string]func(context.Context) error {
	command := uuid.NewString()
	return map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			_, err := w.people.GetOperation(ctx, &pb.GetOperationRequest{OperationId: id})
			return err
		},
		"take over": func(ctx context.Context) error {
			_, err := w.people.TakeOver(ctx, &pb.TakeOverRequest{OperationId: id, CommandId: command, ExpectedVersion: 1, Reason: "r"})
			return err
		},
		"hand back": func(ctx context.Context) error {
			_, err := w.people.HandBack(ctx, &pb.HandBackRequest{OperationId: id, CommandId: command, ExpectedVersion: 1, Reason: "r"})
			return err
		},
		"resolve": func(ctx context.Context) error {
			_, err := w.people.Resolve(ctx, &pb.ResolveRequest{OperationId: id, CommandId: command, ExpectedVersion: 1, Resolution: stop, Note: "n"})
			return err
		},
		"approve": func(ctx context.Context) error {
			_, err := w.people.Approve(ctx, &pb.ApproveRequest{OperationId: id, CommandId: command, ExpectedVersion: 1, Decision: pb.Decision_DECISION_APPROVE, Note: "n"})
			return err
		},
		"check now": func(ctx context.Context) error {
			_, err := w.people.CheckNow(ctx, &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_OperationId{OperationId: id}, CommandId: command, Reason: "r"})
			return err
		},
		"note": func(ctx context.Context) error {
			_, err := w.people.AddNote(ctx, &pb.AddNoteRequest{OperationId: id, CommandId: command, Note: "n"})
			return err
		},
		"batch": func(ctx context.Context) error {
			_, err := w.people.BatchResolve(ctx, &pb.BatchResolveRequest{
				CommandId: command, Items: []*pb.BatchItem{{OperationId: id, ExpectedVersion: 1}}, Resolution: stop, Note: "n",
			})
			return err
		},
		"check tool": func(ctx context.Context) error {
			_, err := w.people.CheckNow(ctx, &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_Tool{Tool: tool}, CommandId: command, Reason: "r"})
			return err
		},
		"pause": func(ctx context.Context) error {
			_, err := w.people.PauseTool(ctx, &pb.PauseToolRequest{Tool: tool, CommandId: command, Reason: "r"})
			return err
		},
		"resume": func(ctx context.Context) error {
			_, err := w.people.ResumeTool(ctx, &pb.ResumeToolRequest{Tool: tool, CommandId: command, Reason: "r"})
			return err
		},
		"search": func(ctx context.Context) error {
			_, err := w.people.SearchOperations(ctx, &pb.SearchOperationsRequest{})
			return err
		},
		"tools": func(ctx context.Context) error {
			_, err := w.people.ListTools(ctx, &pb.ListToolsRequest{})
			return err
		},
	}
}

// TestRolesOfPeople: who has no role is refused before anything is looked at; what somebody has no role for is as what does not exist.
func TestRolesOfPeople(t *testing.T) {
	w := charges(t, setup{})
	theirs := w.unknown(t, "tickets.create", "k").GetOperationId() // of no tool of ops-charge
	before := w.look(t, "ops-a", theirs)
	absent := ledger.Key{Scope: "a", Tool: "charge", Task: "none", Key: "none"}.Hash().OperationID().String()
	byTool := []string{"check tool", "pause", "resume"}
	atAll := []string{"search", "tools"}
	for name, call := range w.calls(theirs, "tickets.create") {
		for _, p := range []string{"agent-a", "checker", "nobody"} {
			refused(t, call(as(t, p)), codes.PermissionDenied, "ROLE_REQUIRED")
		}
		switch reads := name == "get" || slices.Contains(atAll, name); {
		case reads:
			if err := call(as(t, "auditor")); err != nil {
				t.Errorf("%s by an auditor: %v", name, err)
			}
		default:
			refused(t, call(as(t, "auditor")), codes.PermissionDenied, "ROLE_REQUIRED")
		}
		if slices.Contains(atAll, name) || name == "batch" {
			continue
		}
		err := call(as(t, "ops-charge"))
		if slices.Contains(byTool, name) {
			refused(t, err, codes.PermissionDenied, "ROLE_REQUIRED")
			continue
		}
		got := refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")
		want := refused(t, w.calls(absent, "charge")[name](as(t, "ops-charge")), codes.NotFound, "OPERATION_NOT_FOUND")
		if diff := cmp.Diff(want.Proto(), got.Proto(), transform); diff != "" {
			t.Errorf("%s: what exists differs from what does not (-absent +there):\n%s", name, diff)
		}
	}
	batch, err := w.people.BatchResolve(as(t, "ops-charge"), &pb.BatchResolveRequest{
		CommandId: uuid.NewString(), Resolution: stop, Note: "n",
		Items: []*pb.BatchItem{{OperationId: theirs, ExpectedVersion: 1}, {OperationId: absent, ExpectedVersion: 1}},
	})
	if err != nil || len(batch.GetResults()) != 2 {
		t.Fatalf("%v, %v", batch, err)
	}
	for _, r := range batch.GetResults() {
		if r.GetError() != pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND || r.GetOperation() != nil {
			t.Errorf("in a batch: %v", r)
		}
	}
	for _, all := range []string{"pause", "resume"} { // a right to some tools is none to all
		refused(t, w.calls(absent, "*")[all](as(t, "ops-charge")), codes.PermissionDenied, "ROLE_REQUIRED")
	}
	after := w.look(t, "ops-a", theirs)
	after.ReadTime = before.GetReadTime()
	if diff := cmp.Diff(before, after, transform); diff != "" {
		t.Errorf("it has changed (-before +after):\n%s", diff)
	}
	if s := status.Convert(w.calls(theirs, "charge")["get"](t.Context())); s.Code() != codes.Unauthenticated {
		t.Errorf("without a principal: %v", s)
	}
}

// wantViolations checks which fields are at fault, and that no value is told.
func wantViolations(t *testing.T, s *status.Status, canary string, fields ...string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(violations(s)))
	if diff := cmp.Diff(fields, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if text := s.Proto().String(); strings.Contains(text, "canary") || strings.Contains(text, canary) {
		t.Errorf("the status shows a value: %s", text)
	}
}
