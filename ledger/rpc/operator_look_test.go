// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// find is all that somebody finds, page by page.
func (w *world) find(t *testing.T, p string, req *pb.SearchOperationsRequest) (ids []string) {
	t.Helper()
	for range 100 {
		page, err := w.people.SearchOperations(as(t, p), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range page.GetOperations() {
			ids = append(ids, op.GetId())
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return ids
		}
	}
	t.Fatal("the search has no end")
	return nil
}

// TestSearchOperations: over all scopes, and only what somebody has a role for.
func TestSearchOperations(t *testing.T) {
	w := charges(t, setup{})
	byTool := map[string][]string{}
	for i, tool := range []string{"charge", "mail.send", "tickets.create", "charge", "mail.send", "mail", "tickets.create", "charge"} {
		byTool[tool] = append(byTool[tool], w.unknown(t, tool, string(rune('a'+i))).GetOperationId())
		w.pass(time.Second)
	}
	theirs := slices.Concat(byTool["charge"][:1], byTool["mail.send"][:1], byTool["charge"][1:2], byTool["mail.send"][1:], byTool["charge"][2:])
	for _, size := range []int32{1, 2, 0} {
		if got := w.find(t, "ops-charge", &pb.SearchOperationsRequest{PageSize: size}); !slices.Equal(got, theirs) {
			t.Errorf("pages of %d: found %v, want %v", size, got, theirs)
		}
		queue := &pb.SearchOperationsRequest{PageSize: size, Custodies: []pb.Custody{pb.Custody_CUSTODY_QUEUED}}
		if got := w.find(t, "ops-charge", queue); !slices.Equal(got, byTool["mail.send"]) {
			t.Errorf("the queue in pages of %d: found %v, want %v", size, got, byTool["mail.send"])
		}
		if got := w.find(t, "auditor", &pb.SearchOperationsRequest{PageSize: size, Scope: "a"}); len(got) != 8 {
			t.Errorf("an auditor found %d in pages of %d", len(got), size)
		}
	}
	for _, tool := range []string{"tickets.create", "mail"} {
		if got := w.find(t, "ops-charge", &pb.SearchOperationsRequest{Tool: tool}); len(got) > 0 {
			t.Errorf("found %v of a tool without a role", got)
		}
	}
	key := w.look(t, "ops-a", byTool["tickets.create"][0]).GetDownstreamKey()
	if got := w.find(t, "ops-charge", &pb.SearchOperationsRequest{DownstreamKey: key}); len(got) > 0 {
		t.Errorf("found %v by its key without a role", got)
	}
	w.take(t, "ops-a", byTool["charge"][1])
	if got := w.find(t, "ops-b", &pb.SearchOperationsRequest{Custodian: "ops-a"}); !slices.Equal(got, byTool["charge"][1:2]) {
		t.Errorf("what ops-a has: %v", got)
	}
	// What was changed last comes last.
	if got := w.find(t, "ops-a", &pb.SearchOperationsRequest{Tool: "charge"}); !slices.Equal(got, []string{byTool["charge"][0], byTool["charge"][2], byTool["charge"][1]}) {
		t.Errorf("by update time: %v", got)
	}
	if got := w.find(t, "ops-a", &pb.SearchOperationsRequest{Tool: "charge", OrderBy: "create_time"}); !slices.Equal(got, byTool["charge"]) {
		t.Errorf("by create time: %v", got)
	}

	first, err := w.people.SearchOperations(as(t, "ops-a"), &pb.SearchOperationsRequest{PageSize: 1, Tool: "charge"})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatal(first, err)
	}
	token := first.GetNextPageToken()
	for name, req := range map[string]*pb.SearchOperationsRequest{
		"another filter": {Tool: "mail.send"},
		"another order":  {Tool: "charge", OrderBy: "create_time"},
		"no filter":      {},
	} {
		req.PageToken = token
		_, err := w.people.SearchOperations(as(t, "ops-a"), req)
		s := refused(t, err, codes.InvalidArgument, "VALIDATION")
		if violations(s)["page_token"] == "" {
			t.Errorf("%s: %v", name, violations(s))
		}
	}
	// It is no right: others see with it what they may see.
	rest := w.find(t, "ops-charge", &pb.SearchOperationsRequest{Tool: "charge", PageToken: token, PageSize: 7})
	if len(rest) != 2 {
		t.Errorf("the rest in other pages: %v", rest)
	}
	// What has not changed for so long is another time with each page.
	older := func(by time.Duration) *pb.SearchOperationsRequest {
		return &pb.SearchOperationsRequest{Tool: "charge", PageSize: 1, UpdateTimeBefore: timestamppb.New(w.now().Add(by))}
	}
	if first, err = w.people.SearchOperations(as(t, "ops-a"), older(time.Hour)); err != nil || first.GetNextPageToken() == "" {
		t.Fatalf("%v, %v", first, err)
	}
	second := older(2 * time.Hour)
	second.PageToken = first.GetNextPageToken()
	if rest := w.find(t, "ops-a", second); len(rest) != 2 {
		t.Errorf("the rest, a moment later: %v", rest)
	}
}

// TestPausing: no new grant and no Start; all else goes on.
func TestPausing(t *testing.T) {
	w := charges(t, setup{})
	running := w.claim("running")
	running.Key.Tool, running.Key.Task = "charge", "t1"
	grant := w.granted(t, "agent-a", running)
	reserved := w.claim("reserved")
	reserved.Key.Tool, reserved.Key.Task, reserved.Reserve = "charge", "t2", true
	reservation := w.granted(t, "agent-a", reserved)
	done := w.claim("done")
	done.Key.Tool, done.Key.Task = "charge", "t3"
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(w.granted(t, "agent-a", done), done.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	pause := &pb.PauseToolRequest{Tool: "charge", CommandId: uuid.NewString(), Reason: "canary-pause: the provider is down"}
	for range 2 {
		if _, err := w.people.PauseTool(as(t, "ops-a"), pause); err != nil {
			t.Fatal(err)
		}
	}
	blocked := func(tool string) bool {
		t.Helper()
		claim := w.claim(uuid.NewString())
		claim.Key.Tool, claim.Key.Task = tool, uuid.NewString()
		answer, err := w.client.Claim(as(t, "agent-a"), claim)
		if err != nil {
			t.Fatal(err)
		}
		if b := answer.GetBlocked(); b != nil && (b.GetReason() != pb.WaitReason_WAIT_REASON_TOOL_PAUSED || answer.GetOperation() != nil) {
			t.Errorf("%v", answer)
		}
		return answer.GetBlocked() != nil
	}
	if !blocked("charge") || blocked("mail.send") {
		t.Error("of two tools the one that is paused must be blocked")
	}
	start := &pb.StartRequest{OperationId: reservation.GetOperationId(), ClaimId: reserved.GetClaimId()}
	_, err := w.client.Start(as(t, "agent-a"), start)
	refused(t, err, codes.FailedPrecondition, "TOOL_PAUSED")
	if answer, err := w.client.Claim(as(t, "agent-a"), running); err != nil || !answer.GetGranted().GetResent() {
		t.Errorf("the same grant, sent again: %v, %v", answer, err)
	}
	if answer, err := w.client.Claim(as(t, "agent-a"), done); err != nil || answer.GetCompleted() == nil {
		t.Errorf("a replay: %v, %v", answer, err)
	}
	if answer, err := w.client.Renew(as(t, "agent-a"), &pb.RenewRequest{OperationId: grant.GetOperationId(), ClaimId: running.GetClaimId()}); err != nil || answer.GetStop() {
		t.Errorf("a renewal: %v, %v", answer, err)
	}
	if answer, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, running.GetClaimId())); err != nil || answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Errorf("a report: %v, %v", answer, err)
	}

	tools := func(p string) (names []string, charge *pb.ToolHealth) {
		t.Helper()
		list, err := w.people.ListTools(as(t, p), &pb.ListToolsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range list.GetTools() {
			names = append(names, h.GetTool())
			if h.GetTool() == "charge" {
				charge = h
			}
		}
		return names, charge
	}
	w.unknown(t, "mail.send", "u")
	names, charge := tools("auditor")
	if diff := cmp.Diff([]string{"charge", "mail.send"}, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if !charge.GetPaused() || charge.GetPauser() != "ops-a" || !strings.HasPrefix(charge.GetPauseReason(), "canary-pause") || charge.GetPauseTime() == nil ||
		charge.GetEffect() != pb.Effect_EFFECT_KEYED || charge.GetRecovery() != pb.RecoveryMethod_RECOVERY_METHOD_PROBE || charge.GetContractVersion() == "" {
		t.Errorf("%v", charge)
	}
	pause.Reason = "another"
	_, err = w.people.PauseTool(as(t, "ops-a"), pause)
	refused(t, err, codes.InvalidArgument, "COMMAND_REUSED")

	all := &pb.PauseToolRequest{Tool: "*", CommandId: uuid.NewString(), Reason: "everything"}
	if _, err := w.people.PauseTool(as(t, "ops-b"), all); err != nil {
		t.Fatal(err)
	}
	if _, err := w.people.ResumeTool(as(t, "ops-charge"), &pb.ResumeToolRequest{Tool: "charge", CommandId: uuid.NewString(), Reason: "it is back"}); err != nil {
		t.Fatal(err)
	}
	if !blocked("charge") || !blocked("mail.send") {
		t.Error("all are paused")
	}
	if names, charge = tools("ops-a"); names[0] != "*" || charge.GetPauser() != "ops-b" {
		t.Errorf("%v, %v", names, charge)
	}
	if names, charge = tools("ops-charge"); !slices.Equal(names, []string{"charge", "mail.send"}) || !charge.GetPaused() {
		t.Errorf("%v, %v", names, charge)
	}
	if _, err := w.people.ResumeTool(as(t, "ops-a"), &pb.ResumeToolRequest{Tool: "*", CommandId: uuid.NewString(), Reason: "over"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Start(as(t, "agent-a"), start); err != nil || blocked("charge") {
		t.Errorf("resumed: %v", err)
	}
}
