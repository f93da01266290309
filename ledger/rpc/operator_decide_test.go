// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// twoEyes is a tool whose resolutions need a second person.
func twoEyes() contracts {
	c := ledger.DefaultContract("mail.send")
	c.Version, c.SecondPerson, c.ProposalExpires = "0123456789abcdef", true, time.Hour
	return contracts{"mail.send": c}
}

// TestSecondPerson: what one proposes another one decides, before it expires.
func TestSecondPerson(t *testing.T) {
	w := charges(t, setup{contracts: twoEyes()})
	id := w.unknown(t, "mail.send", "k").GetOperationId()
	w.take(t, "ops-a", id)
	resolve := func(r *pb.Resolution) *pb.Operation {
		t.Helper()
		view := w.look(t, "ops-a", id)
		answer, err := w.people.Resolve(as(t, "ops-a"), &pb.ResolveRequest{
			OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: view.GetOperation().GetVersion(), Resolution: r, Note: "seen", SearchTime: view.GetReadTime(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetOperation()
	}
	approve := func(p string, d pb.Decision, version uint64) (*pb.Operation, error) {
		answer, err := w.people.Approve(as(t, p), &pb.ApproveRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: version, Decision: d, Note: "looked, too"})
		return answer.GetOperation(), err
	}
	pending := func() (found bool) {
		t.Helper()
		yes := true
		page, err := w.people.SearchOperations(as(t, "ops-b"), &pb.SearchOperationsRequest{ApprovalPending: &yes})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.GetOperations()) == 1
	}

	op := resolve(happened("m-1"))
	if op.GetState() != pb.State_STATE_UNKNOWN || op.GetCustodian() != "ops-a" || !pending() {
		t.Fatalf("proposed: %v, pending %v", op, pending())
	}
	asked := w.look(t, "auditor", id).GetApproval()
	if asked.GetKind() != pb.ApprovalKind_APPROVAL_KIND_RESOLUTION || asked.GetRequester() != "ops-a" || asked.GetExpireTime() == nil ||
		asked.GetResolution().GetHappened().GetResource().GetId() != "m-1" {
		t.Errorf("what is asked: %v", asked)
	}
	_, err := approve("ops-a", pb.Decision_DECISION_APPROVE, op.GetVersion())
	refused(t, err, codes.FailedPrecondition, "SECOND_PERSON_REQUIRED")
	_, err = approve("ops-b", pb.Decision_DECISION_APPROVE, op.GetVersion()-1)
	refused(t, err, codes.Aborted, "STALE_VERSION")
	op, err = approve("ops-b", pb.Decision_DECISION_REJECT, op.GetVersion())
	if err != nil || op.GetState() != pb.State_STATE_UNKNOWN || op.GetCustodian() != "ops-a" || pending() {
		t.Errorf("rejected: %v, %v: only the proposal goes", op, err)
	}

	op = resolve(happened("m-2"))
	w.pass(2 * time.Hour)
	if pending() {
		t.Error("what has expired is pending")
	}
	_, err = approve("ops-b", pb.Decision_DECISION_APPROVE, op.GetVersion())
	refused(t, err, codes.FailedPrecondition, "ILLEGAL_TRANSITION")

	op = resolve(retry)
	op, err = approve("ops-b", pb.Decision_DECISION_APPROVE, op.GetVersion())
	if err != nil || op.GetState() != pb.State_STATE_RECEIVED || op.GetCustody() != pb.Custody_CUSTODY_AUTOMATION || op.GetMayHaveApplied() {
		t.Errorf("approved: %v, %v", op, err)
	}
	view := w.look(t, "ops-a", id)
	if last := view.GetHistory()[len(view.GetHistory())-1]; last.GetActor() != "ops-b" || last.GetKind() != pb.EventKind_EVENT_KIND_RESOLVED || !view.GetChainVerified() {
		t.Errorf("the last event: %v, chain verified %v", last, view.GetChainVerified())
	}
}

// TestCheckNow: one operation, or those of a tool that automation may check.
func TestCheckNow(t *testing.T) {
	w := charges(t, setup{})
	var ids []string
	for i := range 5 {
		ids = append(ids, w.unknown(t, "charge", fmt.Sprint(i)).GetOperationId())
	}
	w.unknown(t, "mail.send", "other")
	w.take(t, "ops-b", ids[0])
	check := &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_OperationId{OperationId: ids[0]}, CommandId: uuid.NewString(), Reason: "the target is back"}
	_, err := w.people.CheckNow(as(t, "ops-a"), check)
	refused(t, err, codes.FailedPrecondition, "HELD_BY_OPERATOR")
	check.Selector = &pb.CheckNowRequest_OperationId{OperationId: ids[1]}
	for range 2 {
		if answer, err := w.people.CheckNow(as(t, "ops-a"), check); err != nil || answer.GetDue() != 1 {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	view := w.look(t, "ops-a", ids[1])
	if diff := cmp.Diff([]pb.EventKind{
		pb.EventKind_EVENT_KIND_GRANTED, pb.EventKind_EVENT_KIND_MARKED_UNKNOWN, pb.EventKind_EVENT_KIND_CHECK_REQUESTED,
	}, kinds(view)); diff != "" || view.GetOperation().GetNextCheckTime().AsTime().After(w.now()) {
		t.Errorf("due at %v (-want +got):\n%s", view.GetOperation().GetNextCheckTime(), diff)
	}

	held := w.look(t, "ops-a", ids[0])
	all := &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_Tool{Tool: "charge"}, CommandId: uuid.NewString(), Reason: "the target is back"}
	for range 2 { // sent again, it is answered as before
		if answer, err := w.people.CheckNow(as(t, "ops-a"), all); err != nil || answer.GetDue() != 3 {
			t.Fatalf("%v, %v: one of five is held, one due", answer, err)
		}
	}
	for _, id := range ids[2:] {
		if view := w.look(t, "ops-a", id); len(view.GetHistory()) != 3 || view.GetOperation().GetNextCheckTime().AsTime().After(w.now()) {
			t.Errorf("%v, due at %v", kinds(view), view.GetOperation().GetNextCheckTime())
		}
	}
	after := w.look(t, "ops-a", ids[0])
	after.ReadTime = held.GetReadTime()
	if diff := cmp.Diff(held, after, transform); diff != "" {
		t.Errorf("what a person has was touched (-before +after):\n%s", diff)
	}
	all.Reason = "another"
	_, err = w.people.CheckNow(as(t, "ops-a"), all)
	refused(t, err, codes.InvalidArgument, "COMMAND_REUSED")
	all.CommandId, all.Selector = uuid.NewString(), &pb.CheckNowRequest_Tool{Tool: "mail.send"}
	if answer, err := w.people.CheckNow(as(t, "ops-a"), all); err != nil || answer.GetDue() != 0 {
		t.Errorf("nobody can be asked: %v, %v", answer, err)
	}
}

// TestCheckNowPassesByWhatIsDamaged: one row that can't be read keeps a person from none of the others, and the command is kept.
func TestCheckNowPassesByWhatIsDamaged(t *testing.T) {
	store, alter := opened(t)
	w := charges(t, setup{store: store})
	for i := range 3 {
		id := w.unknown(t, "charge", fmt.Sprint(i)).GetOperationId()
		if i > 0 {
			continue
		}
		_, err := w.people.TakeOver(as(t, "ops-a"), &pb.TakeOverRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: 99, Reason: "so that it is read from now on"})
		refused(t, err, codes.Aborted, "STALE_VERSION")
		alter("detail = x'7b'", id)
	}
	all := &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_Tool{Tool: "charge"}, CommandId: uuid.NewString(), Reason: "the target is back"}
	for range 2 {
		if answer, err := w.people.CheckNow(as(t, "ops-a"), all); err != nil || answer.GetDue() != 2 {
			t.Fatalf("%v, %v: of three one is damaged", answer, err)
		}
	}
}

// TestNotes: a note acknowledges what was looked at, and no more.
func TestNotes(t *testing.T) {
	w := charges(t, setup{})
	claim := w.claim("k")
	grant := w.granted(t, "agent-a", claim)
	id := grant.GetOperationId()
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, claim.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	contradict := func(resource string) {
		t.Helper()
		report := succeeded(grant, claim.GetClaimId())
		report.GetSucceeded().Resource.Id = resource
		if answer, err := w.client.Complete(as(t, "agent-a"), report); err != nil || answer.GetDisposition() != pb.Disposition_DISPOSITION_CONTRADICTION {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	note := func(through uint64) (*pb.AddNoteRequest, *pb.Operation, error) {
		req := &pb.AddNoteRequest{OperationId: id, CommandId: uuid.NewString(), Note: "both tickets are real", AcknowledgeThroughSequence: through}
		answer, err := w.people.AddNote(as(t, "ops-a"), req)
		return req, answer.GetOperation(), err
	}
	contradict("T-2")
	looked := uint64(len(w.look(t, "ops-a", id).GetHistory()))
	contradict("T-3")
	if _, op, err := note(0); err != nil || !op.GetNeedsAttention() {
		t.Errorf("a remark: %v, %v", op, err)
	}
	if _, op, err := note(looked); err != nil || !op.GetNeedsAttention() {
		t.Errorf("what came later was not looked at: %v, %v", op, err)
	}
	_, _, err := note(100)
	refused(t, err, codes.InvalidArgument, "VALIDATION")
	before := w.look(t, "ops-a", id).GetOperation()
	req, op, err := note(uint64(len(w.look(t, "ops-a", id).GetHistory())))
	if err != nil || op.GetNeedsAttention() || op.GetVersion() != before.GetVersion() {
		t.Errorf("acknowledged: %v, %v", op, err)
	}
	if _, err := w.people.AddNote(as(t, "ops-a"), req); err != nil {
		t.Error(err)
	}
	if n := len(w.look(t, "ops-a", id).GetHistory()); n != 7 {
		t.Errorf("%d events, want a grant, a success, two contradictions and three notes", n)
	}
}

// TestBatchResolve: each is answered for itself, and as before when it is sent again.
func TestBatchResolve(t *testing.T) {
	w := charges(t, setup{})
	req := &pb.BatchResolveRequest{CommandId: uuid.NewString(), Resolution: stop, Note: "the provider lost that hour"}
	const many = 40
	for i := range many {
		id := w.unknown(t, "mail.send", fmt.Sprint(i)).GetOperationId()
		version := w.look(t, "ops-a", id).GetOperation().GetVersion()
		if i != 3 {
			version = w.take(t, "ops-a", id).GetVersion()
		}
		if i == 5 {
			version--
		}
		req.Items = append(req.Items, &pb.BatchItem{OperationId: id, ExpectedVersion: version})
	}
	w.pass(time.Hour)
	req.SearchTime = timestamppb.New(w.now())
	w.pass(time.Second)
	for range 2 {
		answer, err := w.people.BatchResolve(as(t, "ops-a"), req)
		if err != nil || len(answer.GetResults()) != many {
			t.Fatalf("%v, %v", answer, err)
		}
		for i, r := range answer.GetResults() {
			want := map[int]pb.ErrorReason{3: pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY, 5: pb.ErrorReason_ERROR_REASON_STALE_VERSION}[i]
			if r.GetOperationId() != req.GetItems()[i].GetOperationId() || r.GetError() != want || (want == 0) != (r.GetOperation().GetState() == pb.State_STATE_FAILED) {
				t.Errorf("%d: %v, want %v", i, r, want)
			}
		}
	}
	if view := w.look(t, "ops-a", req.GetItems()[0].GetOperationId()); len(view.GetHistory()) != 4 || !view.GetChainVerified() {
		t.Errorf("sent twice: %v", kinds(view))
	}
	req.Note = "another"
	answer, err := w.people.BatchResolve(as(t, "ops-a"), req)
	if err != nil || answer.GetResults()[0].GetError() != pb.ErrorReason_ERROR_REASON_COMMAND_REUSED {
		t.Errorf("other content: %v, %v", answer.GetResults()[0], err)
	}
}

// TestDeniedAlthoughFound: of what was found, or reported by a worker, nobody says that it never happened without having looked at it; who sends many at once
// is told of each.
func TestDeniedAlthoughFound(t *testing.T) {
	w := charges(t, setup{})
	evidence := map[string]*pb.Evidence{
		"nothing":   nil,
		"ambiguous": {Finding: &pb.Evidence_Ambiguous{Ambiguous: &pb.Ambiguous{Candidates: []*pb.ResourceRef{{Id: "a"}, {Id: "b"}}}}},
		"found":     {Finding: &pb.Evidence_Found{Found: &pb.Found{Result: &pb.Result{Resource: &pb.ResourceRef{Type: "charge", Id: "c"}}}}},
		"pending":   {Finding: &pb.Evidence_Pending{Pending: &pb.Pending{}}},
	}
	req := &pb.BatchResolveRequest{CommandId: uuid.NewString(), Note: "the provider lost that hour"}
	names := append(slices.Sorted(maps.Keys(evidence)), "reported")
	for _, name := range names {
		claim := w.claim(name)
		claim.Key.Tool = "charge"
		grant := w.granted(t, "agent-a", claim)
		id := grant.GetOperationId()
		w.take(t, "ops-a", id)
		switch {
		case name == "reported":
			if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, claim.GetClaimId())); err != nil {
				t.Fatal(err)
			}
		case evidence[name] != nil:
			if _, err := w.client.Reconcile(as(t, "checker"), &pb.ReconcileRequest{
				Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(), Evidence: evidence[name],
			}); err != nil {
				t.Fatal(err)
			}
		}
		req.Items = append(req.Items, &pb.BatchItem{OperationId: id, ExpectedVersion: w.look(t, "ops-a", id).GetOperation().GetVersion()})
	}
	w.pass(time.Hour)
	req.SearchTime = timestamppb.New(w.now())
	w.pass(time.Second)
	settled := func(r *pb.BatchResult) bool {
		return r.GetError() == 0 && r.GetOperation().GetState() == pb.State_STATE_FAILED
	}
	denied := pb.ErrorReason_ERROR_REASON_EFFECT_FOUND
	req.Resolution = stop
	answer, err := w.people.BatchResolve(as(t, "ops-a"), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range answer.GetResults() {
		if names[i] == "nothing" && !settled(r) || names[i] != "nothing" && r.GetError() != denied {
			t.Errorf("%s: %v", names[i], r)
		}
		_, err := w.people.Resolve(as(t, "ops-a"), &pb.ResolveRequest{
			OperationId: r.GetOperationId(), CommandId: uuid.NewString(), ExpectedVersion: req.GetItems()[i].GetExpectedVersion(), Resolution: retry, Note: "n",
			SearchTime: req.GetSearchTime(),
		})
		if names[i] != "nothing" {
			refused(t, err, codes.FailedPrecondition, "EFFECT_FOUND")
		}
	}
	req.Resolution = &pb.Resolution{Resolution: stop.GetResolution(), DespiteFound: true}
	req.CommandId = uuid.NewString()
	answer, err = w.people.BatchResolve(as(t, "ops-a"), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range answer.GetResults() {
		switch names[i] {
		case "nothing":
			if r.GetError() != pb.ErrorReason_ERROR_REASON_STALE_VERSION {
				t.Errorf("decided before: %v", r)
			}
		case "reported": // a worker saw it
			if r.GetError() != denied {
				t.Errorf("reported: %v", r)
			}
		default:
			if !settled(r) {
				t.Errorf("%s, looked at: %v", names[i], r)
			}
		}
	}
	req.Resolution = &pb.Resolution{Resolution: happened("T-1").GetResolution(), DespiteFound: true}
	_, err = w.people.BatchResolve(as(t, "ops-a"), req)
	wantViolations(t, refused(t, err, codes.InvalidArgument, "VALIDATION"), "canary", "resolution.despite_found")
}

// TestBadInputOfPeople: each rule is told with its field, and never with the value.
func TestBadInputOfPeople(t *testing.T) {
	w := charges(t, setup{})
	id := w.unknown(t, "mail.send", "k").GetOperationId()
	const canary = "canary-\x01value"
	good := uuid.NewString()
	tooMany := &pb.BatchResolveRequest{CommandId: good, Resolution: stop, Note: "n"}
	for range 501 {
		tooMany.Items = append(tooMany.Items, &pb.BatchItem{OperationId: uuid.NewString(), ExpectedVersion: 1})
	}
	minus := int32(-1)
	for name, c := range map[string]struct {
		call func(ctx context.Context) error
		want []string
	}{
		"take over": {func(ctx context.Context) error {
			_, err := w.people.TakeOver(ctx, &pb.TakeOverRequest{OperationId: canary, CommandId: canary, Reason: canary})
			return err
		}, []string{"command_id", "expected_version", "operation_id", "reason"}},
		"hand back": {func(ctx context.Context) error {
			_, err := w.people.HandBack(ctx, &pb.HandBackRequest{OperationId: id, CommandId: "0", Reason: " \n\t"})
			return err
		}, []string{"command_id", "expected_version", "reason"}},
		"resolve": {func(ctx context.Context) error {
			_, err := w.people.Resolve(ctx, &pb.ResolveRequest{OperationId: id, CommandId: good, ExpectedVersion: 1, SearchTime: &timestamppb.Timestamp{Nanos: -1}})
			return err
		}, []string{"note", "resolution", "search_time"}},
		"resolve, failed": {func(ctx context.Context) error {
			_, err := w.people.Resolve(ctx, &pb.ResolveRequest{
				OperationId: id, CommandId: good, ExpectedVersion: 1, Note: "n",
				Resolution: &pb.Resolution{Resolution: &pb.Resolution_NeverHappenedStop{NeverHappenedStop: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_EXPIRED}}},
			})
			return err
		}, []string{"resolution.never_happened_stop.kind"}},
		"approve": {func(ctx context.Context) error {
			_, err := w.people.Approve(ctx, &pb.ApproveRequest{OperationId: id, CommandId: good})
			return err
		}, []string{"decision", "expected_version", "note"}},
		"note": {func(ctx context.Context) error {
			_, err := w.people.AddNote(ctx, &pb.AddNoteRequest{OperationId: id, CommandId: good, Note: fmt.Sprintf("%04097d", 1)})
			return err
		}, []string{"note"}},
		"check now": {func(ctx context.Context) error {
			_, err := w.people.CheckNow(ctx, &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_Tool{Tool: canary}})
			return err
		}, []string{"command_id", "reason", "tool"}},
		"check nothing": {func(ctx context.Context) error {
			_, err := w.people.CheckNow(ctx, &pb.CheckNowRequest{CommandId: good, Reason: "r"})
			return err
		}, []string{"selector"}},
		"no batch": {func(ctx context.Context) error {
			_, err := w.people.BatchResolve(ctx, &pb.BatchResolveRequest{CommandId: good, Resolution: stop, Note: "n"})
			return err
		}, []string{"items"}},
		"too large a batch": {func(ctx context.Context) error {
			_, err := w.people.BatchResolve(ctx, tooMany)
			return err
		}, []string{"items"}},
		"a batch with one twice": {func(ctx context.Context) error {
			_, err := w.people.BatchResolve(ctx, &pb.BatchResolveRequest{
				CommandId: good, Resolution: stop, Note: "n", Items: []*pb.BatchItem{{OperationId: id, ExpectedVersion: 1}, {OperationId: id}},
			})
			return err
		}, []string{"items[1].expected_version", "items[1].operation_id"}},
		"pause": {func(ctx context.Context) error {
			_, err := w.people.PauseTool(ctx, &pb.PauseToolRequest{Tool: "**", CommandId: good})
			return err
		}, []string{"reason", "tool"}},
		"search": {func(ctx context.Context) error {
			_, err := w.people.SearchOperations(ctx, &pb.SearchOperationsRequest{
				States: []pb.State{99}, Custodies: []pb.Custody{0}, QueueReasons: []pb.QueueReason{77}, Tool: canary, Task: canary, Scope: canary, Custodian: canary,
				ResourceId: canary, DownstreamKey: canary, UpdateTimeBefore: &timestamppb.Timestamp{Nanos: -1}, OrderBy: canary, PageSize: minus, PageToken: canary,
			})
			return err
		}, []string{
			"custodian", "custodies[0]", "downstream_key", "order_by", "page_size", "page_token", "queue_reasons[0]", "resource_id", "scope", "states[0]", "task", "tool",
			"update_time_before",
		}},
		"get": {func(ctx context.Context) error {
			_, err := w.people.GetOperation(ctx, &pb.GetOperationRequest{OperationId: canary})
			return err
		}, []string{"operation_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := refused(t, c.call(as(t, "ops-a")), codes.InvalidArgument, "VALIDATION")
			wantViolations(t, s, canary, c.want...)
		})
	}
}
