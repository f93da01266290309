// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func TestClaimIsGrantedOnceAndSaysSo(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	first, err := w.client.Claim(as(t, "agent-a"), req)
	if err != nil {
		t.Fatal(err)
	}
	op, grant := first.GetOperation(), first.GetGranted()
	if first.GetNextAction() != pb.NextAction_NEXT_ACTION_EXECUTE || first.GetReplayed() || first.GetRememberedUntil() != nil {
		t.Errorf("first claim: %v", first)
	}
	if len(grant.GetDownstreamKey()) != 32 || grant.GetEpoch() != 1<<32+1 || grant.GetOperationId() != op.GetId() || grant.GetResent() {
		t.Errorf("grant: %v", grant)
	}
	if grant.GetLease().AsDuration() != 30*time.Second || grant.GetSendWithin().AsDuration() != 30*time.Second {
		t.Errorf("times: lease %v, send within %v", grant.GetLease().AsDuration(), grant.GetSendWithin().AsDuration())
	}
	want := &pb.Operation{
		Id: op.GetId(), Tool: "tickets.create", Task: "task-1", Scope: "a", State: pb.State_STATE_PROCESSING, Version: 1,
		Effect: pb.Effect_EFFECT_UNSAFE, Custody: pb.Custody_CUSTODY_AUTOMATION, FingerprintPrefix: op.GetFingerprintPrefix(),
		TargetSummary: "ticket about canary-summary", CreateTime: op.GetCreateTime(), UpdateTime: op.GetUpdateTime(), WorkerId: "worker-1",
		Attempts: 1, LeaseExpireTime: op.GetLeaseExpireTime(), NextCheckTime: op.GetNextCheckTime(),
	}
	if diff := cmp.Diff(want, op, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if len(op.GetFingerprintPrefix()) != 8 || op.GetCreateTime() == nil || op.GetLeaseExpireTime() == nil {
		t.Errorf("operation: %v", op)
	}

	again := w.granted(t, "agent-a", req)
	if !again.GetResent() || again.GetEpoch() != grant.GetEpoch() || again.GetDownstreamKey() != grant.GetDownstreamKey() {
		t.Errorf("resent: %v", again)
	}

	other := proto.CloneOf(req)
	other.ClaimId, other.WorkerId = uuid.NewString(), "worker-2"
	busy, err := w.client.Claim(as(t, "agent-a"), other)
	if err != nil {
		t.Fatal(err)
	}
	if busy.GetInProgress().GetReason() != pb.WaitReason_WAIT_REASON_LEASE_HELD || busy.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT ||
		busy.GetInProgress().GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("another worker: %v", busy)
	}

	w.pass(31 * time.Second)
	lapsed, err := w.client.Claim(as(t, "agent-a"), other)
	if err != nil {
		t.Fatal(err)
	}
	if lapsed.GetUnknown().GetReason() != pb.WaitReason_WAIT_REASON_QUEUED || lapsed.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT_FOR_PERSON ||
		lapsed.GetOperation().GetQueueReason() != pb.QueueReason_QUEUE_REASON_NO_METHOD {
		t.Errorf("after the lease: %v", lapsed)
	}

	sibling := w.claim("key-2")
	blocked, err := w.client.Claim(as(t, "agent-a"), sibling)
	if err != nil {
		t.Fatal(err)
	}
	if blocked.GetBlocked().GetReason() != pb.WaitReason_WAIT_REASON_SIBLING_UNKNOWN || blocked.GetOperation() != nil ||
		!cmp.Equal(blocked.GetBlocked().GetOperationIds(), []string{op.GetId()}) {
		t.Errorf("beside an unknown one: %v", blocked)
	}
	sibling.DistinctFrom = []string{op.GetId()}
	asked, err := w.client.Claim(as(t, "agent-a"), sibling)
	if err != nil {
		t.Fatal(err)
	}
	if asked.GetAwaitingApproval().GetReason() != pb.WaitReason_WAIT_REASON_APPROVAL_PENDING || asked.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT_FOR_PERSON {
		t.Errorf("knowingly another: %v", asked)
	}
}

func TestReservationIsStartedThenExecuted(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	req.Reserve = true
	reserved, err := w.client.Claim(as(t, "agent-a"), req)
	if err != nil {
		t.Fatal(err)
	}
	op := reserved.GetOperation()
	if reserved.GetNextAction() != pb.NextAction_NEXT_ACTION_START_THEN_EXECUTE || reserved.GetGranted().GetSendWithin() != nil ||
		op.GetState() != pb.State_STATE_RECEIVED || op.GetWaitingFor() != pb.WaitReason_WAIT_REASON_LEASE_HELD || op.GetClaimableTime() == nil {
		t.Errorf("reserved: %v", reserved)
	}
	start := &pb.StartRequest{OperationId: op.GetId(), ClaimId: req.GetClaimId()}
	started, err := w.client.Start(as(t, "agent-a"), start)
	if err != nil {
		t.Fatal(err)
	}
	if started.GetGrant().GetSendWithin().AsDuration() != 30*time.Second || started.GetGrant().GetResent() {
		t.Errorf("started: %v", started)
	}
	again, err := w.client.Start(as(t, "agent-a"), start)
	if err != nil || !again.GetGrant().GetResent() {
		t.Errorf("started again: %v, %v", again, err)
	}
	_, err = w.client.Start(as(t, "agent-a"), &pb.StartRequest{OperationId: op.GetId(), ClaimId: uuid.NewString()})
	refused(t, err, codes.Aborted, "STALE_GRANT")
}

func TestSettledOperationIsReplayed(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	done, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId()))
	if err != nil {
		t.Fatal(err)
	}
	if done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED || done.GetNextAction() != pb.NextAction_NEXT_ACTION_USE_RESULT {
		t.Errorf("complete: %v", done)
	}
	again, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(done, again, protocmp.Transform()); diff != "" {
		t.Errorf("resent: %s", diff)
	}
	replay, err := w.client.Claim(as(t, "agent-a"), w.claim("key-1"))
	if err != nil {
		t.Fatal(err)
	}
	if !replay.GetReplayed() || replay.GetCompleted().GetResult().GetResource().GetId() != "T-1" || replay.GetNextAction() != pb.NextAction_NEXT_ACTION_USE_RESULT {
		t.Errorf("replay: %v", replay)
	}
	if kept := replay.GetRememberedUntil().AsTime().Sub(w.now()); kept < 719*time.Hour {
		t.Errorf("remembered for %v", kept)
	}

	other := w.claim("key-1")
	other.RequestJson = []byte(`{"amount":101,"to":"canary-recipient"}`)
	_, err = w.client.Claim(as(t, "agent-a"), other)
	conflict := detail[*pb.FingerprintConflict](refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT"))
	if conflict.GetOperationId() != grant.GetOperationId() || conflict.GetState() != pb.State_STATE_COMPLETED || conflict.GetResource().GetId() != "T-1" ||
		!cmp.Equal(conflict.GetCategories(), []string{"other"}) {
		t.Errorf("conflict: %v", conflict)
	}

	failing := w.claim("key-2")
	grant = w.granted(t, "agent-a", failing)
	if _, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: grant.GetOperationId(), ClaimId: failing.GetClaimId(), SentExactlyOnce: true,
		Outcome: &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "no_quota"}},
	}); err != nil {
		t.Fatal(err)
	}
	failed, err := w.client.Claim(as(t, "agent-a"), w.claim("key-2"))
	if err != nil {
		t.Fatal(err)
	}
	if failed.GetFailed().GetCode() != "no_quota" || failed.GetNextAction() != pb.NextAction_NEXT_ACTION_STOP || !failed.GetReplayed() {
		t.Errorf("failed: %v", failed)
	}
}

func TestNotExecutedIsFreeAfterItsRetryAfter(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	done, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{
			Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT, RetryAfter: durationpb.New(time.Minute),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if done.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT || done.GetOperation().GetWaitingFor() != pb.WaitReason_WAIT_REASON_NOT_BEFORE ||
		done.GetOperation().GetClaimableTime().AsTime().Sub(done.GetOperation().GetUpdateTime().AsTime()) != time.Minute {
		t.Errorf("not executed: %v", done)
	}
	waiting, err := w.client.Claim(as(t, "agent-a"), w.claim("key-1"))
	if err != nil {
		t.Fatal(err)
	}
	if waiting.GetWaiting().GetReason() != pb.WaitReason_WAIT_REASON_NOT_BEFORE || waiting.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT {
		t.Errorf("too early: %v", waiting)
	}
	w.pass(time.Minute)
	free, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: req.GetKey()}})
	if err != nil {
		t.Fatal(err)
	}
	if free.GetNextAction() != pb.NextAction_NEXT_ACTION_CLAIM_AGAIN || free.GetOutcome() != nil {
		t.Errorf("free: %v", free)
	}
	w.granted(t, "agent-a", w.claim("key-1"))
}

func TestDependencyMustBeVisibleAndCompleted(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.claim("key-1")
	grant := w.granted(t, "agent-a", first)
	second := w.claim("key-2")
	second.DependsOn = []string{grant.GetOperationId()}
	waiting, err := w.client.Claim(as(t, "agent-a"), second)
	if err != nil {
		t.Fatal(err)
	}
	if waiting.GetBlocked().GetReason() != pb.WaitReason_WAIT_REASON_DEPENDENCY_UNSETTLED || waiting.GetOperation() != nil {
		t.Errorf("before it completed: %v", waiting)
	}
	_, err = w.client.Claim(as(t, "agent-b"), second)
	foreign := refused(t, err, codes.InvalidArgument, "VALIDATION")
	second.DependsOn = []string{"00000000-0000-8000-8000-000000000000"}
	_, err = w.client.Claim(as(t, "agent-b"), second)
	absent := refused(t, err, codes.InvalidArgument, "VALIDATION")
	if diff := cmp.Diff(absent.Proto(), foreign.Proto(), protocmp.Transform()); diff != "" {
		t.Errorf("foreign and absent differ: %s", diff)
	}
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, first.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	second.DependsOn = []string{grant.GetOperationId()}
	w.granted(t, "agent-a", second)
	second.DependsOn, second.ClaimId = nil, uuid.NewString()
	_, err = w.client.Claim(as(t, "agent-a"), second)
	conflict := detail[*pb.FingerprintConflict](refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT"))
	if !cmp.Equal(conflict.GetCategories(), []string{"relation"}) {
		t.Errorf("categories: %v", conflict.GetCategories())
	}
}

func TestWaitingClaimAndLookupAnswerWhenItMoves(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	waiting := w.claim("key-1")
	waiting.Wait = durationpb.New(30 * time.Second)
	claimed := make(chan *pb.ClaimResponse, 1)
	go func() {
		answer, err := w.client.Claim(as(t, "agent-a"), waiting)
		if err != nil {
			t.Error(err)
		}
		claimed <- answer
	}()
	looked := make(chan *pb.LookupResponse, 1)
	go func() {
		answer, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{
			Selector: &pb.LookupRequest_OperationId{OperationId: grant.GetOperationId()}, Wait: durationpb.New(30 * time.Second),
		})
		if err != nil {
			t.Error(err)
		}
		looked <- answer
	}()
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	if answer := <-claimed; answer.GetCompleted() == nil {
		t.Errorf("claim: %v", answer)
	}
	if answer := <-looked; answer.GetCompleted() == nil || answer.GetRememberedUntil() == nil {
		t.Errorf("lookup: %v", answer)
	}
}

func TestGrantAfterWaitingCountsFromTheCall(t *testing.T) {
	updated := make(chan struct{}, 1000)
	w := newWorld(t, setup{updated: updated})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	<-updated
	waiting := w.claim("key-1")
	waiting.Wait = durationpb.New(30 * time.Second)
	claimed := make(chan *pb.ClaimResponse, 1)
	sent := time.Now()
	go func() {
		answer, err := w.client.Claim(as(t, "agent-a"), waiting)
		if err != nil {
			t.Error(err)
		}
		claimed <- answer
	}()
	<-updated // it has looked once, and waits
	_, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId(),
		Outcome: &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT}},
	})
	if err != nil {
		t.Fatal(err)
	}
	late := (<-claimed).GetGranted()
	waited := time.Since(sent)
	// A grant is whole when it is decided: what is above the first one's is the time waited.
	for what, got := range map[string]time.Duration{
		"lease":       late.GetLease().AsDuration() - grant.GetLease().AsDuration(),
		"send window": late.GetSendWithin().AsDuration() - grant.GetSendWithin().AsDuration(),
	} {
		if got <= 0 || got > waited {
			t.Errorf("%s: %s more than without waiting, after %s", what, got, waited)
		}
	}
}

func TestWaitEndsWithTheCurrentView(t *testing.T) {
	w := newWorld(t, setup{})
	grant := w.granted(t, "agent-a", w.claim("key-1"))
	look := &pb.LookupRequest{
		Selector: &pb.LookupRequest_OperationId{OperationId: grant.GetOperationId()}, Wait: durationpb.New(60 * time.Second),
	}
	t.Run("a little before the call's deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(as(t, "agent-a"), time.Second)
		defer cancel()
		answer, err := w.client.Lookup(ctx, look)
		if err != nil || answer.GetWaiting().GetReason() != pb.WaitReason_WAIT_REASON_LEASE_HELD {
			t.Errorf("%v, %v", answer, err)
		}
	})
	t.Run("when the server stops", func(t *testing.T) {
		w.ledger.Drain()
		answer, err := w.client.Lookup(as(t, "agent-a"), look)
		if err != nil || answer.GetWaiting().GetReason() != pb.WaitReason_WAIT_REASON_LEASE_HELD {
			t.Errorf("%v, %v", answer, err)
		}
	})
}
