// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package rpc_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestLostAnswersOfPeople: a decision whose answer was lost, before or after it was kept, is sent again and kept once.
func TestLostAnswersOfPeople(t *testing.T) {
	w := charges(t, setup{})
	id := w.unknown(t, "mail.send", "k").GetOperationId()
	lost := func(before, after failpoint.Name, call func() error) {
		t.Helper()
		for _, name := range []failpoint.Name{before, after} {
			t.Cleanup(failpoint.Enable(name, failpoint.Error().Times(1)))
			refused(t, call(), codes.Unavailable, "STORE_UNAVAILABLE")
		}
		if err := call(); err != nil {
			t.Fatalf("%s: sent again: %v", after, err)
		}
	}
	version := w.look(t, "ops-a", id).GetOperation().GetVersion()
	take := &pb.TakeOverRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: version, Reason: "r"}
	lost(failpoint.RPCTakeOverBeforeCommit, failpoint.RPCTakeOverAfterCommit, func() error {
		_, err := w.people.TakeOver(as(t, "ops-a"), take)
		return err
	})
	note := &pb.AddNoteRequest{OperationId: id, CommandId: uuid.NewString(), Note: "n"}
	lost(failpoint.RPCAddNoteBeforeCommit, failpoint.RPCAddNoteAfterCommit, func() error {
		_, err := w.people.AddNote(as(t, "ops-a"), note)
		return err
	})
	hand := &pb.HandBackRequest{OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: version + 1, Reason: "r"}
	lost(failpoint.RPCHandBackBeforeCommit, failpoint.RPCHandBackAfterCommit, func() error {
		_, err := w.people.HandBack(as(t, "ops-a"), hand)
		return err
	})
	check := &pb.CheckNowRequest{Selector: &pb.CheckNowRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(), Reason: "r"}
	lost(failpoint.RPCCheckNowBeforeCommit, failpoint.RPCCheckNowAfterCommit, func() error {
		_, err := w.people.CheckNow(as(t, "ops-a"), check)
		return err
	})
	w.pass(time.Hour)
	w.take(t, "ops-a", id)
	view := w.look(t, "ops-a", id)
	resolve := &pb.ResolveRequest{
		OperationId: id, CommandId: uuid.NewString(), ExpectedVersion: view.GetOperation().GetVersion(), Resolution: stop, Note: "n", SearchTime: view.GetReadTime(),
	}
	lost(failpoint.RPCResolveBeforeCommit, failpoint.RPCResolveAfterCommit, func() error {
		_, err := w.people.Resolve(as(t, "ops-a"), resolve)
		return err
	})
	view = w.look(t, "ops-a", id)
	if diff := cmp.Diff([]pb.EventKind{
		pb.EventKind_EVENT_KIND_GRANTED, pb.EventKind_EVENT_KIND_MARKED_UNKNOWN, pb.EventKind_EVENT_KIND_TAKEN_OVER, pb.EventKind_EVENT_KIND_NOTE,
		pb.EventKind_EVENT_KIND_HANDED_BACK, pb.EventKind_EVENT_KIND_CHECK_REQUESTED, pb.EventKind_EVENT_KIND_TAKEN_OVER, pb.EventKind_EVENT_KIND_RESOLVED,
	}, kinds(view)); diff != "" || !view.GetChainVerified() {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	pause := &pb.PauseToolRequest{Tool: "charge", CommandId: uuid.NewString(), Reason: "r"}
	lost(failpoint.RPCPauseToolBeforeCommit, failpoint.RPCPauseToolAfterCommit, func() error {
		_, err := w.people.PauseTool(as(t, "ops-a"), pause)
		return err
	})
	resume := &pb.ResumeToolRequest{Tool: "charge", CommandId: uuid.NewString(), Reason: "r"}
	lost(failpoint.RPCResumeToolBeforeCommit, failpoint.RPCResumeToolAfterCommit, func() error {
		_, err := w.people.ResumeTool(as(t, "ops-a"), resume)
		return err
	})
}

// TestBatchThatTheStoreCutsShort: what fails of a batch for a while is not told as that operation's own answer; sent again, the call does the rest.
func TestBatchThatTheStoreCutsShort(t *testing.T) {
	w := charges(t, setup{})
	req := &pb.BatchResolveRequest{CommandId: uuid.NewString(), Resolution: stop, Note: "n"}
	for _, key := range []string{"1", "2", "3", "4"} {
		id := w.unknown(t, "mail.send", key).GetOperationId()
		req.Items = append(req.Items, &pb.BatchItem{OperationId: id, ExpectedVersion: w.take(t, "ops-a", id).GetVersion()})
	}
	w.pass(time.Hour)
	req.SearchTime = timestamppb.New(w.now())
	w.pass(time.Second)
	for _, name := range []failpoint.Name{failpoint.RPCResolveBeforeCommit, failpoint.RPCResolveAfterCommit} {
		t.Cleanup(failpoint.Enable(name, failpoint.Error().Times(1)))
		_, err := w.people.BatchResolve(as(t, "ops-a"), req)
		refused(t, err, codes.Unavailable, "STORE_UNAVAILABLE")
	}
	answer, err := w.people.BatchResolve(as(t, "ops-a"), req)
	if err != nil || len(answer.GetResults()) != 4 {
		t.Fatalf("sent again: %v, %v", answer, err)
	}
	for _, r := range answer.GetResults() {
		if view := w.look(t, "ops-a", r.GetOperationId()); r.GetError() != 0 || r.GetOperation().GetState() != pb.State_STATE_FAILED || len(view.GetHistory()) != 4 {
			t.Errorf("%v: %v", r, kinds(view))
		}
	}
}
