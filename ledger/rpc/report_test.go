// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func TestResultIsKeptAsFarAsTheContractDeclares(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	long := strings.Repeat("ä", 2000)
	for title, test := range map[string]struct {
		tool    string
		result  *pb.Result
		accept  []string
		want    *pb.Result
		omitted pb.PayloadOmission
		dropped []string
	}{
		"all declared": {
			"charge", &pb.Result{Attributes: map[string]string{"etag": "7"}, Schema: "charge.result/1", Payload: []byte("{}")},
			[]string{"charge.result/1"},
			&pb.Result{Attributes: map[string]string{"etag": "7"}, Schema: "charge.result/1", Payload: []byte("{}")}, 0, nil,
		},
		"undeclared attributes": {
			"charge", &pb.Result{Attributes: map[string]string{"etag": "7", "z": "1", "a": "2"}}, nil,
			&pb.Result{Attributes: map[string]string{"etag": "7"}}, 0,
			[]string{"a", "z"},
		},
		"attribute over-long": {
			"charge", &pb.Result{Attributes: map[string]string{"etag": long}}, nil, &pb.Result{}, 0, []string{"etag"},
		},
		"payload over the limit": {
			"charge", &pb.Result{Schema: "charge.result/1", Payload: []byte(strings.Repeat("x", 17))}, nil,
			&pb.Result{Schema: "charge.result/1"}, pb.PayloadOmission_PAYLOAD_OMISSION_TOO_LARGE, nil,
		},
		"schema not declared": {
			"charge", &pb.Result{Schema: "charge.result/2", Payload: []byte("{}")}, nil, &pb.Result{}, pb.PayloadOmission_PAYLOAD_OMISSION_UNDECLARED, nil,
		},
		"schema not accepted by this caller": {
			"charge", &pb.Result{Schema: "charge.result/1", Payload: []byte("{}")},
			[]string{"charge.result/9"},
			&pb.Result{Schema: "charge.result/1"}, pb.PayloadOmission_PAYLOAD_OMISSION_SCHEMA_NOT_ACCEPTED, nil,
		},
		"default contract keeps no payload": {
			"tickets.create", &pb.Result{Schema: "charge.result/1", Payload: []byte("{}"), Attributes: map[string]string{"etag": "7"}}, nil,
			&pb.Result{}, pb.PayloadOmission_PAYLOAD_OMISSION_UNDECLARED,
			[]string{"etag"},
		},
		"code and resource over-long": {
			"charge", &pb.Result{Code: long, Resource: &pb.ResourceRef{Id: long}}, nil,
			&pb.Result{Code: long[:128], Resource: &pb.ResourceRef{Id: long[:2048]}}, 0, nil,
		},
	} {
		t.Run(title, func(t *testing.T) {
			req := w.claim("key-" + strings.ReplaceAll(title, " ", "-"))
			req.Key.Tool = test.tool
			grant := w.granted(t, "agent-a", req)
			if test.result.Resource == nil {
				test.result.Resource = &pb.ResourceRef{Id: "R-1"}
				test.want.Resource = &pb.ResourceRef{Id: "R-1"}
			}
			done, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
				OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId(), Outcome: &pb.CompleteRequest_Succeeded{Succeeded: test.result},
			})
			if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
				t.Fatalf("%v, %v", done, err)
			}
			look, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{
				Selector: &pb.LookupRequest_OperationId{OperationId: grant.GetOperationId()}, AcceptSchemas: test.accept,
			})
			if err != nil {
				t.Fatal(err)
			}
			want := &pb.Replay{Result: test.want, PayloadOmitted: test.omitted, DroppedAttributes: test.dropped}
			if diff := cmp.Diff(want, look.GetCompleted(), transform); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReportsAreTakenWhateverHasChangedSince(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	claimed := func(key string) (*pb.Grant, string) {
		req := w.claim(key)
		req.Key.Tool = "charge"
		return w.granted(t, "agent-a", req), req.GetClaimId()
	}
	first, firstClaim := claimed("key-1")
	second, secondClaim := claimed("key-2")
	third, thirdClaim := claimed("key-3")
	w.policy.revoke("charge")
	w.draining.Store(true)

	renewed, err := w.client.Renew(as(t, "agent-a"), &pb.RenewRequest{
		OperationId: first.GetOperationId(), ClaimId: firstClaim, Lease: durationpb.New(time.Hour), // cut to the contract's
		TargetAttributes: map[string]string{"order_id": strings.Repeat("x", 5000), "undeclared": "x"},
	})
	if err != nil || renewed.GetStop() || renewed.GetLease().AsDuration() <= 30*time.Second || renewed.GetLease().AsDuration() > time.Minute {
		t.Errorf("renew: %v, %v", renewed, err)
	}
	done, err := w.client.Complete(as(t, "agent-a"), succeeded(first, firstClaim))
	if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED || done.GetOperation().GetTargetSummary() != "" {
		t.Errorf("complete: %v, %v", done, err)
	}
	unknown, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: second.GetOperationId(), ClaimId: secondClaim, Cause: 99})
	if err != nil || unknown.GetOperation().GetState() != pb.State_STATE_UNKNOWN || unknown.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT {
		t.Errorf("mark unknown: %v, %v", unknown, err)
	}
	late, err := w.client.Complete(as(t, "agent-a"), succeeded(second, secondClaim))
	if err != nil || late.GetOperation().GetState() != pb.State_STATE_COMPLETED {
		t.Errorf("late complete: %v, %v", late, err)
	}
	failed, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: third.GetOperationId(), ClaimId: thirdClaim, SentExactlyOnce: true, Outcome: &pb.CompleteRequest_Rejected{
			Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_INVALID, Message: strings.Repeat("long ", 1000)},
		},
	})
	if err != nil || failed.GetOperation().GetState() != pb.State_STATE_FAILED || failed.GetNextAction() != pb.NextAction_NEXT_ACTION_STOP {
		t.Errorf("rejected: %v, %v", failed, err)
	}
	stop, err := w.client.Renew(as(t, "agent-a"), &pb.RenewRequest{OperationId: first.GetOperationId(), ClaimId: firstClaim})
	if err != nil || !stop.GetStop() || stop.GetStopReason() != pb.WaitReason_WAIT_REASON_SETTLED {
		t.Errorf("renew after the end: %v, %v", stop, err)
	}
}

func TestReportOfAStrangerIsObserved(t *testing.T) {
	w := newWorld(t, setup{})
	grant := w.granted(t, "agent-a", w.claim("key-1"))
	seen, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, uuid.NewString()))
	if err != nil || seen.GetDisposition() != pb.Disposition_DISPOSITION_OBSERVED || !seen.GetOperation().GetNeedsAttention() ||
		seen.GetOperation().GetState() != pb.State_STATE_PROCESSING || seen.GetNextAction() != pb.NextAction_NEXT_ACTION_WAIT {
		t.Errorf("%v, %v", seen, err)
	}
}

func TestCancelGivesUpWhatWasNotSent(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	req.Reserve = true
	grant := w.granted(t, "agent-a", req)
	_, err := w.client.Cancel(as(t, "agent-a"), &pb.CancelRequest{OperationId: grant.GetOperationId()})
	refused(t, err, codes.FailedPrecondition, "ILLEGAL_TRANSITION")
	cancel := &pb.CancelRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}
	for range 2 {
		done, err := w.client.Cancel(as(t, "agent-a"), cancel)
		if err != nil || done.GetOperation().GetState() != pb.State_STATE_FAILED {
			t.Errorf("%v, %v", done, err)
		}
	}
	look, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: req.GetKey()}})
	if err != nil || look.GetFailed().GetKind() != pb.FailureKind_FAILURE_KIND_ABANDONED {
		t.Errorf("%v, %v", look, err)
	}
}

func TestReconcilerChecksAndFinds(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	req := w.claim("key-1")
	req.Key.Tool, req.TargetAttributes = "charge", map[string]string{"order_id": "o-1", "undeclared": "x"}
	grant := w.granted(t, "agent-a", req)
	if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{
		OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId(), Cause: pb.UnknownCause_UNKNOWN_CAUSE_TIMEOUT,
	}); err != nil {
		t.Fatal(err)
	}
	w.pass(6 * time.Second)
	begin := &pb.BeginCheckRequest{OperationId: grant.GetOperationId(), CommandId: uuid.NewString()}
	check, err := w.client.BeginCheck(as(t, "checker"), begin)
	if err != nil {
		t.Fatal(err)
	}
	if check.GetCheckNumber() != 1<<16+1 || check.GetDownstreamKey() != grant.GetDownstreamKey() || check.GetEpoch() != grant.GetEpoch() ||
		!cmp.Equal(check.GetTargetAttributes(), map[string]string{"order_id": "o-1"}) || check.GetFirstGrantTime() == nil || check.GetLease().AsDuration() != 30*time.Second {
		t.Errorf("check: %v", check)
	}
	none, err := w.client.BeginCheck(as(t, "checker"), &pb.BeginCheckRequest{OperationId: grant.GetOperationId(), CommandId: uuid.NewString()})
	if err != nil || none.GetCheckNumber() != 0 || none.GetDownstreamKey() != "" {
		t.Errorf("while another is live: %v, %v", none, err)
	}
	finding := func(observed string) *pb.ReconcileRequest {
		return &pb.ReconcileRequest{
			Selector: &pb.ReconcileRequest_DownstreamKey{DownstreamKey: grant.GetDownstreamKey()}, CommandId: uuid.NewString(), CheckNumber: check.GetCheckNumber(),
			Evidence: &pb.Evidence{Source: "console", Finding: &pb.Evidence_Found{Found: &pb.Found{
				Result: &pb.Result{Resource: &pb.ResourceRef{Id: "ch_1"}}, ObservedJson: []byte(observed),
			}}},
		}
	}
	_, err = w.client.Reconcile(as(t, "checker"), finding(`{"amount":`))
	if fields := violations(refused(t, err, codes.InvalidArgument, "VALIDATION")); fields["evidence.found.observed_json"] == "" {
		t.Errorf("fields: %v", fields)
	}
	done, err := w.client.Reconcile(as(t, "checker"), finding(`{"amount":100.0}`))
	if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED || done.GetOperation().GetState() != pb.State_STATE_COMPLETED {
		t.Errorf("found: %v, %v", done, err)
	}
}

func TestFoundWithOtherFieldsIsForAPerson(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	for observed, want := range map[string]pb.QueueReason{
		`{"amount":101}`: pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH,
		`{"to":"x"}`:     pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE,
		``:               pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE,
	} {
		t.Run(observed, func(t *testing.T) {
			req := w.claim(uuid.NewString())
			req.Key.Tool, req.Key.Task = "charge", uuid.NewString()
			grant := w.granted(t, "agent-a", req)
			if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}); err != nil {
				t.Fatal(err)
			}
			done, err := w.client.Reconcile(as(t, "checker"), &pb.ReconcileRequest{
				Selector: &pb.ReconcileRequest_OperationId{OperationId: grant.GetOperationId()}, CommandId: uuid.NewString(),
				Evidence: &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{
					Result: &pb.Result{Resource: &pb.ResourceRef{Id: "ch_1"}}, ObservedJson: []byte(observed),
				}}},
			})
			if err != nil || done.GetOperation().GetQueueReason() != want {
				t.Errorf("%v, %v", done, err)
			}
		})
	}
}

func TestEveryFindingReachesTheCore(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	for title, test := range map[string]struct {
		evidence *pb.Evidence
		finding  pb.Finding
		state    pb.State
		queued   pb.QueueReason
	}{
		"rejected too early to be definite": {
			&pb.Evidence{Finding: &pb.Evidence_Rejected{Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "no"}}},
			pb.Finding_FINDING_REJECTED, pb.State_STATE_UNKNOWN, 0,
		},
		"pending": {
			&pb.Evidence{Finding: &pb.Evidence_Pending{Pending: &pb.Pending{RetryAfter: durationpb.New(time.Minute)}}},
			pb.Finding_FINDING_PENDING, pb.State_STATE_UNKNOWN, 0,
		},
		"not accepted, for good": {
			&pb.Evidence{Finding: &pb.Evidence_NotAccepted{NotAccepted: &pb.NotAccepted{Final: true}}},
			pb.Finding_FINDING_NOT_ACCEPTED, pb.State_STATE_RECEIVED, 0,
		},
		"not found before its settle time": {
			&pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}},
			pb.Finding_FINDING_NOT_FOUND, pb.State_STATE_UNKNOWN, 0,
		},
		"ambiguous": {
			&pb.Evidence{Finding: &pb.Evidence_Ambiguous{Ambiguous: &pb.Ambiguous{Candidates: []*pb.ResourceRef{{Id: "a"}, {Id: "b"}}}}},
			pb.Finding_FINDING_AMBIGUOUS, pb.State_STATE_UNKNOWN, pb.QueueReason_QUEUE_REASON_AMBIGUOUS,
		},
		"indeterminate": {
			&pb.Evidence{Finding: &pb.Evidence_Indeterminate{Indeterminate: &pb.Indeterminate{Cause: pb.IndeterminateCause_INDETERMINATE_CAUSE_TIMEOUT}}},
			pb.Finding_FINDING_INDETERMINATE, pb.State_STATE_UNKNOWN, 0,
		},
	} {
		t.Run(title, func(t *testing.T) {
			req := w.claim(uuid.NewString())
			req.Key.Tool, req.Key.Task = "charge", uuid.NewString()
			grant := w.granted(t, "agent-a", req)
			if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}); err != nil {
				t.Fatal(err)
			}
			w.pass(6 * time.Second)
			check, err := w.client.BeginCheck(as(t, "checker"), &pb.BeginCheckRequest{OperationId: grant.GetOperationId(), CommandId: uuid.NewString()})
			if err != nil || check.GetCheckNumber() == 0 {
				t.Fatal(check, err)
			}
			send := &pb.ReconcileRequest{
				Selector: &pb.ReconcileRequest_OperationId{OperationId: grant.GetOperationId()}, CommandId: uuid.NewString(),
				CheckNumber: check.GetCheckNumber(), Evidence: test.evidence,
			}
			for range 2 { // the second is answered as the first
				done, err := w.client.Reconcile(as(t, "checker"), send)
				if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
					t.Fatal(done, err)
				}
				op := done.GetOperation()
				if op.GetLastFinding() != test.finding || op.GetState() != test.state || op.GetQueueReason() != test.queued || op.GetSettleTime() == nil {
					t.Errorf("%v", op)
				}
			}
			send.Evidence = &pb.Evidence{Source: "another", Finding: test.evidence.GetFinding()}
			_, err = w.client.Reconcile(as(t, "checker"), send)
			refused(t, err, codes.InvalidArgument, "COMMAND_REUSED")
		})
	}
}
