// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// mail is a message of which nobody knows whether it was sent, and nobody can ask.
func (w *worker) mail(t testing.TB, task string) string {
	t.Helper()
	claim := request("mail.send", task, "canary-KEY", `{"to":"canary-TO"}`)
	id := w.grant(t, claim).GetOperationId()
	w.markUnknown(t, id, claim.GetClaimId())
	return id
}

func (p person) find(t testing.TB, q *pb.SearchOperationsRequest) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for {
		page, err := p.SearchOperations(within(t), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range page.GetOperations() {
			found[op.GetId()] = true
		}
		if q.PageToken = page.GetNextPageToken(); q.GetPageToken() == "" {
			return found
		}
	}
}

// People see and decide what the policy gives them, and what they write is in no log.
func TestPeople(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w, task := e.node.dial(t, billing), unique(t)
		charge := request("card.charge", task, "canary-KEY", `{"amount":1}`)
		chargeID := w.grant(t, charge).GetOperationId()
		w.markUnknown(t, chargeID, charge.GetClaimId())
		mails := []string{}
		for i := range 5 {
			mails = append(mails, w.mail(t, fmt.Sprint(task, "-", i)))
		}
		all, some, reads := e.node.person(t, operator), e.node.person(t, mailer), e.node.person(t, auditor)

		for name, p := range map[string]person{"an operator": all, "an auditor": reads} {
			if found := p.find(t, &pb.SearchOperationsRequest{Task: task}); len(found) != 1 || !found[chargeID] {
				t.Errorf("%s finds %v", name, found)
			}
		}
		if found := some.find(t, &pb.SearchOperationsRequest{Task: task}); len(found) > 0 {
			t.Errorf("who has no role for the tool finds %v", found)
		}
		queue := some.find(t, &pb.SearchOperationsRequest{Custodies: []pb.Custody{pb.Custody_CUSTODY_QUEUED}, PageSize: 2})
		for _, id := range mails {
			if !queue[id] {
				t.Errorf("%s is not in the queue", id)
			}
		}
		absent := uuid.NewString()
		for _, id := range []string{chargeID, absent} {
			_, err := some.GetOperation(within(t), &pb.GetOperationRequest{OperationId: id})
			wantRefusal(t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
			_, err = some.TakeOver(within(t), &pb.TakeOverRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: 1, Reason: "canary-REASON"})
			wantRefusal(t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
		}
		for name, p := range map[string]person{"an auditor": reads, "a worker": {pb.NewOperatorServiceClient(w.conn)}} {
			_, err := p.TakeOver(within(t), &pb.TakeOverRequest{OperationId: chargeID, CommandId: uuid.NewString(), ExpectedVersion: 1, Reason: "canary-REASON"})
			if err == nil {
				t.Errorf("%s took an operation over", name)
			}
			wantRefusal(t, err, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_ROLE_REQUIRED)
		}
		_, err := pb.NewOperatorServiceClient(w.conn).SearchOperations(within(t), &pb.SearchOperationsRequest{})
		wantRefusal(t, err, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_ROLE_REQUIRED)

		happened := &pb.Resolution{Resolution: &pb.Resolution_Happened{Happened: result("message", "canary-RESOURCE")}}
		batch := &pb.BatchResolveRequest{CommandId: uuid.NewString(), Resolution: happened, Note: "canary-NOTE"}
		for i, id := range mails {
			if i > 0 { // the first one is in nobody's hands
				some.take(t, id)
			}
			batch.Items = append(batch.Items, &pb.BatchItem{OperationId: id, ExpectedVersion: some.look(t, id).GetOperation().GetVersion()})
		}
		for range 2 { // sent again, it is answered as before
			answer, err := some.BatchResolve(within(t), batch)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range answer.GetResults() {
				if i == 0 && r.GetError() != pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY || i > 0 && r.GetOperation().GetState() != pb.State_STATE_COMPLETED {
					t.Errorf("%d: %v", i, r)
				}
			}
		}
		view := some.look(t, mails[1])
		if n := len(view.GetHistory()); n != 4 || !view.GetChainVerified() || view.GetHistory()[3].GetNote() != "canary-NOTE" {
			t.Errorf("%d events, verified %v", n, view.GetChainVerified())
		}
		if log := e.node.log(); strings.Contains(log, "canary-") {
			t.Error("the log shows what people or workers wrote")
		}
	})
}

// A pause holds in every process at once, also in one that has just seen that nothing is paused, and decides without reading.
func TestPauseReachesAllNodes(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			e := fresh(t, store, nodeOptions{})
			nodes := e.nodes(t)
			paused, other := nodes[len(nodes)-1], nodes[0]
			w, task := paused.dial(t, billing), unique(t)
			claim := func(tool string, i int) *pb.ClaimResponse {
				t.Helper()
				return w.claim(t, request(tool, fmt.Sprint(task, "-", tool, "-", i), "K", `{"amount":1}`))
			}
			reserved := request("card.charge", task, "R", `{"amount":1}`)
			reserved.Reserve = true
			reservation := w.grant(t, reserved)
			boss := other.person(t, operator)
			for i := range 10 {
				for j := range 5 { // so that it has seen a moment ago that nothing is paused
					wantOutcome(t, claim("card.charge", 100*i+j), "EXECUTE")
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := boss.PauseTool(ctx, &pb.PauseToolRequest{Tool: "card.charge", CommandId: uuid.NewString(), Reason: "canary-PAUSE"})
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				blocked := claim("card.charge", 100*i+50)
				wantOutcome(t, blocked, "BLOCKED")
				if got := blocked.GetBlocked().GetReason(); got != pb.WaitReason_WAIT_REASON_TOOL_PAUSED {
					t.Errorf("blocked for %v", got)
				}
				_, err = w.Start(within(t), &pb.StartRequest{OperationId: reservation.GetOperationId(), ClaimId: reserved.GetClaimId()})
				wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_TOOL_PAUSED)
				wantOutcome(t, claim("card.refund", i), "EXECUTE")
				if _, err := boss.ResumeTool(within(t), &pb.ResumeToolRequest{Tool: "card.charge", CommandId: uuid.NewString(), Reason: "canary-RESUME"}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := w.Start(within(t), &pb.StartRequest{OperationId: reservation.GetOperationId(), ClaimId: reserved.GetClaimId()}); err != nil {
				t.Error(err)
			}
			for _, n := range nodes {
				if strings.Contains(n.log(), "canary-") {
					t.Error("the log shows why a tool was paused")
				}
			}
		})
	}
}
