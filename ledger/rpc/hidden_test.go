// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// wire is what a refused call sends back, byte for byte.
func wire(t *testing.T, err error) []byte {
	t.Helper()
	b, marshalErr := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
	if marshalErr != nil {
		t.Fatal(marshalErr)
	}
	return b
}

// absent is the id of an operation that nobody has.
const absent = "00000000-0000-8000-8000-000000000000"

// callsAbout are all calls of workers about an operation that they name by its id.
func (w *world) callsAbout() map[string]func(ctx context.Context, id, claimID string) error {
	return map[string]func(ctx context.Context, id, claimID string) error{
		"start": func(ctx context.Context, id, claimID string) error {
			_, err := w.client.Start(ctx, &pb.StartRequest{OperationId: id, ClaimId: claimID})
			return err
		},
		"renew": func(ctx context.Context, id, claimID string) error {
			_, err := w.client.Renew(ctx, &pb.RenewRequest{OperationId: id, ClaimId: claimID, TargetAttributes: map[string]string{"order_id": "x"}})
			return err
		},
		"complete": func(ctx context.Context, id, claimID string) error {
			_, err := w.client.Complete(ctx, succeeded(&pb.Grant{OperationId: id}, claimID))
			return err
		},
		"complete with a payload": func(ctx context.Context, id, claimID string) error {
			req := succeeded(&pb.Grant{OperationId: id}, claimID)
			req.GetSucceeded().Payload = []byte("x")
			_, err := w.client.Complete(ctx, req)
			return err
		},
		"mark unknown": func(ctx context.Context, id, claimID string) error {
			_, err := w.client.MarkUnknown(ctx, &pb.MarkUnknownRequest{OperationId: id, ClaimId: claimID})
			return err
		},
		"cancel": func(ctx context.Context, id, claimID string) error {
			_, err := w.client.Cancel(ctx, &pb.CancelRequest{OperationId: id, ClaimId: claimID})
			return err
		},
		"lookup": func(ctx context.Context, id, _ string) error {
			_, err := w.client.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: id}})
			return err
		},
	}
}

// TestForeignIsLikeAbsent is I5: nothing of another scope or subject can be read, moved or inferred.
func TestForeignIsLikeAbsent(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	mine := w.claim("key-1")
	theirs := w.granted(t, "agent-a", mine).GetOperationId()
	forUser := w.claim("key-1")
	forUser.Key.Subject = "canary-user"
	subjects := w.granted(t, "serves-users", forUser).GetOperationId()
	const notOurs = "5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b01" // no UUIDv8

	for name, call := range w.callsAbout() {
		t.Run(name, func(t *testing.T) {
			err := call(as(t, "agent-b"), absent, uuid.NewString())
			refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")
			want := wire(t, err)
			for title, got := range map[string]error{
				"no operation's id":                call(as(t, "agent-b"), notOurs, uuid.NewString()),
				"of another scope":                 call(as(t, "agent-b"), theirs, uuid.NewString()),
				"of another scope, with its proof": call(as(t, "agent-b"), theirs, mine.GetClaimId()),
				"of a subject that is not named":   call(as(t, "serves-users"), subjects, uuid.NewString()),
			} {
				if !bytes.Equal(wire(t, got), want) {
					t.Errorf("%s: %v", title, got)
				}
			}
		})
	}

	look := func(p, subject string) error {
		_, err := w.client.Lookup(as(t, p), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: subjects}, Subject: subject})
		return err
	}
	refused(t, look("serves-users", "another-user"), codes.NotFound, "OPERATION_NOT_FOUND")
	if err := look("serves-users", "canary-user"); err != nil {
		t.Errorf("its own subject: %v", err)
	}
	t.Run("by downstream key", func(t *testing.T) {
		ask := func(key string) error {
			_, err := w.client.Reconcile(as(t, "other-checker"), &pb.ReconcileRequest{
				Selector: &pb.ReconcileRequest_DownstreamKey{DownstreamKey: key}, CommandId: uuid.NewString(),
				Evidence: &pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}},
			})
			return err
		}
		there := w.granted(t, "agent-a", mine).GetDownstreamKey()
		if !bytes.Equal(wire(t, ask(there)), wire(t, ask(strings.Repeat("0", 32)))) {
			t.Error("a foreign key's answer differs")
		}
	})
}

func TestReconcilersRightIsByTool(t *testing.T) {
	w := newWorld(t, setup{})
	grant := w.granted(t, "agent-a", w.claim("key-1"))
	begin := func(p, id string) error {
		_, err := w.client.BeginCheck(as(t, p), &pb.BeginCheckRequest{OperationId: id, CommandId: uuid.NewString()})
		return err
	}
	if err := begin("checker", grant.GetOperationId()); err != nil {
		t.Errorf("of this tool: %v", err)
	}
	refused(t, begin("other-checker", grant.GetOperationId()), codes.NotFound, "OPERATION_NOT_FOUND")
	refused(t, begin("agent-a", grant.GetOperationId()), codes.PermissionDenied, "ROLE_REQUIRED")
	if !bytes.Equal(wire(t, begin("agent-a", grant.GetOperationId())), wire(t, begin("agent-a", "no id at all"))) {
		t.Error("without a role the answer depends on the operation")
	}
}

func TestIdentityAndSubjectRules(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	_, err := w.client.Claim(t.Context(), req)
	refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID")
	_, err = w.client.Claim(as(t, "nobody-knows"), req)
	refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID")
	_, err = w.client.BeginCheck(t.Context(), &pb.BeginCheckRequest{})
	refused(t, err, codes.Unauthenticated, "IDENTITY_INVALID")

	_, err = w.client.Claim(as(t, "always-for-users"), req)
	if fields := violations(refused(t, err, codes.PermissionDenied, "SUBJECT_NOT_ALLOWED")); fields["key.subject"] == "" {
		t.Errorf("missing: %v", fields)
	}
	req.Key.Subject = "canary-user"
	_, err = w.client.Claim(as(t, "agent-a"), req)
	s := refused(t, err, codes.PermissionDenied, "SUBJECT_NOT_ALLOWED")
	if violations(s)["key.subject"] == "" || strings.Contains(s.Proto().String(), "canary") {
		t.Errorf("forbidden: %v", s)
	}
	for name, call := range map[string]func() error{
		"lookup": func() error {
			_, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Subject: "u", Selector: &pb.LookupRequest_OperationId{OperationId: uuid.NewString()}})
			return err
		},
		"cancel": func() error {
			_, err := w.client.Cancel(as(t, "agent-a"), &pb.CancelRequest{Subject: "u", OperationId: uuid.NewString()})
			return err
		},
		"list": func() error {
			_, err := w.client.ListOperations(as(t, "always-for-users"), &pb.ListOperationsRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { refused(t, call(), codes.PermissionDenied, "SUBJECT_NOT_ALLOWED") })
	}
}

func TestRevokedToolReplaysRedacted(t *testing.T) {
	w := newWorld(t, setup{})
	req, failing := w.claim("key-1"), w.claim("key-2")
	grant := w.granted(t, "agent-a", req)
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	failed := w.granted(t, "agent-a", failing)
	if _, err := w.client.Complete(as(t, "agent-a"), &pb.CompleteRequest{
		OperationId: failed.GetOperationId(), ClaimId: failing.GetClaimId(), SentExactlyOnce: true, Outcome: &pb.CompleteRequest_Rejected{
			Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "canary-code", Message: "canary-message"},
		},
	}); err != nil {
		t.Fatal(err)
	}
	w.policy.revoke("tickets.create")
	answers := map[string]proto.Message{}
	look := func(id string) proto.Message {
		m, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: id}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	replay, err := w.client.Claim(as(t, "agent-a"), w.claim("key-1"))
	if err != nil {
		t.Fatal(err)
	}
	if !replay.GetCompleted().GetRedacted() || replay.GetCompleted().GetResult() != nil || !replay.GetReplayed() {
		t.Errorf("replay: %v", replay)
	}
	failure, err := w.client.Claim(as(t, "agent-a"), w.claim("key-2"))
	if err != nil {
		t.Fatal(err)
	}
	if failure.GetFailed().GetKind() != pb.FailureKind_FAILURE_KIND_DECLINED {
		t.Errorf("failure: %v", failure)
	}
	list, err := w.client.ListOperations(as(t, "agent-a"), &pb.ListOperationsRequest{})
	if err != nil || len(list.GetOperations()) != 2 {
		t.Fatal(list, err)
	}
	other := w.claim("key-1")
	other.RequestJson = []byte(`{}`)
	_, err = w.client.Claim(as(t, "agent-a"), other)
	conflict := refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	answers["replay"], answers["failure"], answers["list"], answers["conflict"] = replay, failure, list, conflict.Proto()
	answers["lookup of completed"], answers["lookup of failed"] = look(grant.GetOperationId()), look(failed.GetOperationId())
	for name, answer := range answers {
		text, err := proto.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("canary")) || bytes.Contains(text, []byte("T-1")) {
			t.Errorf("%s shows what the caller may not see: %v", name, answer)
		}
	}
	_, err = w.client.Claim(as(t, "agent-a"), w.claim("key-3"))
	refused(t, err, codes.PermissionDenied, "TOOL_NOT_ALLOWED")
	_, err = w.client.GetTool(as(t, "agent-a"), &pb.GetToolRequest{Tool: "tickets.create"})
	refused(t, err, codes.PermissionDenied, "TOOL_NOT_ALLOWED")
}

func TestStrictLedgerRefusesToolsWithoutAContract(t *testing.T) {
	w := newWorld(t, setup{strict: true, contracts: contracts{"charge": declared("charge")}})
	req := w.claim("key-1")
	_, err := w.client.Claim(as(t, "agent-a"), req)
	refused(t, err, codes.FailedPrecondition, "TOOL_UNKNOWN")
	_, err = w.client.GetTool(as(t, "agent-a"), &pb.GetToolRequest{Tool: "tickets.create"})
	refused(t, err, codes.FailedPrecondition, "TOOL_UNKNOWN")
	req.Key.Tool = "charge"
	w.granted(t, "agent-a", req)
	tool, err := w.client.GetTool(as(t, "agent-a"), &pb.GetToolRequest{Tool: "charge"})
	if err != nil || tool.GetEffect() != pb.Effect_EFFECT_KEYED || tool.GetContractVersion() != "0123456789abcdef" || tool.GetValidFor().AsDuration() <= 0 ||
		tool.GetPayloadLimitBytes() != 16 || tool.GetTargetAttributes()[0] != "order_id" || tool.GetResultAttributes()[0] != "etag" {
		t.Errorf("%v, %v", tool, err)
	}
}

func TestSecretsRotateWithoutMakingAConflict(t *testing.T) {
	before := newWorld(t, setup{})
	store := before.store
	req := before.claim("key-1")
	req.Key.Subject = "canary-user"
	before.granted(t, "serves-users", req)
	for title, test := range map[string]struct {
		ids   []string
		check func(t *testing.T, w *world)
	}{
		"the old secret is still there": {[]string{"k2", "k1"}, func(t *testing.T, w *world) {
			if again := w.granted(t, "serves-users", req); !again.GetResent() {
				t.Errorf("%v", again)
			}
			list, err := w.client.ListOperations(as(t, "serves-users"), &pb.ListOperationsRequest{Subject: "canary-user"})
			if err != nil || len(list.GetOperations()) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		}},
		"the old secret is gone": {[]string{"k2"}, func(t *testing.T, w *world) {
			_, err := w.client.Claim(as(t, "serves-users"), req)
			refused(t, err, codes.FailedPrecondition, "RECORD_TOO_NEW")
		}},
	} {
		t.Run(title, func(t *testing.T) { test.check(t, newWorld(t, setup{store: store, ring: newRing(t, test.ids...)})) })
	}
}
