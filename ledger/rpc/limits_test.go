// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/rpc"
)

const (
	plenty = 1_000_000
	slow   = 0.001 // a token takes 1,000 seconds: no test is so slow that it gets another
)

// rates and lives are limits of one kind alone.
func rates(scope, subject int) *[2]rpc.Limits {
	return &[2]rpc.Limits{{PerSecond: slow, Burst: scope, Live: plenty}, {PerSecond: slow, Burst: subject, Live: plenty}}
}

func lives(scope, subject int) *[2]rpc.Limits {
	return &[2]rpc.Limits{{PerSecond: plenty, Burst: plenty, Live: scope}, {PerSecond: plenty, Burst: plenty, Live: subject}}
}

func lookup(key string) *pb.LookupRequest {
	return &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: &pb.OperationKey{Tool: "tickets.create", Task: "task-1", Key: key}}}
}

func TestTooManyRequestsAreToldWhenToComeBack(t *testing.T) {
	reader := metric.NewManualReader()
	w := newWorld(t, setup{limits: rates(2, plenty), meter: metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	w.granted(t, "agent-a", w.claim("key-2"))
	for name, send := range map[string]func(context.Context, grpc.CallOption) error{
		"Claim": func(ctx context.Context, o grpc.CallOption) error {
			_, err := w.client.Claim(ctx, w.claim("key-3"), o)
			return err
		},
		"Lookup": func(ctx context.Context, o grpc.CallOption) error {
			_, err := w.client.Lookup(ctx, lookup("key-1"), o)
			return err
		},
		"Cancel": func(ctx context.Context, o grpc.CallOption) error {
			_, err := w.client.Cancel(ctx, &pb.CancelRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}, o)
			return err
		},
		"a malformed Claim": func(ctx context.Context, o grpc.CallOption) error {
			_, err := w.client.Claim(ctx, &pb.ClaimRequest{}, o)
			return err
		},
	} {
		var trailer metadata.MD
		s := refused(t, send(as(t, "agent-a"), grpc.Trailer(&trailer)), codes.ResourceExhausted, "RATE_LIMITED")
		wait := detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration()
		if pushed := trailer.Get("grpc-retry-pushback-ms"); wait <= 0 || wait > 1001*time.Second ||
			len(pushed) != 1 || pushed[0] != strconv.FormatInt(wait.Milliseconds(), 10) {
			t.Errorf("%s: come back in %v, %q ms", name, wait, pushed)
		}
	}
	if got := series(t, reader)["ledger.requests.limited ledger.limit.kind=scope_requests"]; got != 4 {
		t.Errorf("%d refusals were counted, want 4: %v", got, series(t, reader))
	}
	if _, err := w.client.Claim(as(t, "agent-b"), w.claim("key-1")); err != nil {
		t.Errorf("another scope: %v", err)
	}
}

func TestReportsOfGrantsAreNeverLimited(t *testing.T) {
	w := newWorld(t, setup{limits: &[2]rpc.Limits{{PerSecond: slow, Burst: 2, Live: 2}, {PerSecond: slow, Burst: 2, Live: 2}}})
	one, two := w.claim("key-1"), w.claim("key-2")
	first, second := w.granted(t, "agent-a", one), w.granted(t, "agent-a", two)
	_, err := w.client.Lookup(as(t, "agent-a"), lookup("key-1"))
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
	for range 50 {
		if _, err := w.client.Renew(as(t, "agent-a"), &pb.RenewRequest{OperationId: first.GetOperationId(), ClaimId: one.GetClaimId()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(first, one.GetClaimId())); err != nil {
		t.Error(err)
	}
	_, err = w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: second.GetOperationId(), ClaimId: two.GetClaimId()})
	if err != nil {
		t.Error(err)
	}
}

func TestPrincipalsOfOneScopeShareItsLimit(t *testing.T) {
	w := newWorld(t, setup{limits: rates(2, plenty)})
	w.granted(t, "fleet-1", w.claim("key-1"))
	w.granted(t, "fleet-2", w.claim("key-2"))
	_, err := w.client.Claim(as(t, "fleet-2"), w.claim("key-3"))
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
}

func TestWhoHasNoScopeIsLimitedByName(t *testing.T) {
	w := newWorld(t, setup{limits: rates(1, plenty)})
	begin := &pb.BeginCheckRequest{OperationId: uuid.NewString(), CommandId: uuid.NewString()}
	_, err := w.client.BeginCheck(as(t, "checker"), begin)
	refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")
	_, err = w.client.BeginCheck(as(t, "checker"), begin)
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
	_, err = w.client.BeginCheck(as(t, "other-checker"), begin)
	refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")
}

func (w *world) claimFor(subject, key string) *pb.ClaimRequest {
	req := w.claim(key)
	req.Key.Subject = subject
	return req
}

func TestOneSubjectLeavesTheOthersTheirShare(t *testing.T) {
	w := newWorld(t, setup{limits: rates(100, 2)})
	w.granted(t, "serves-users", w.claimFor("user-1", "key-1"))
	w.granted(t, "serves-users", w.claimFor("user-1", "key-2"))
	_, err := w.client.Claim(as(t, "serves-users"), w.claimFor("user-1", "key-3"))
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
	_, err = w.client.ListOperations(as(t, "serves-users"), &pb.ListOperationsRequest{Subject: "user-1"})
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
	w.granted(t, "serves-users", w.claimFor("user-2", "key-1"))
	w.granted(t, "agent-a", w.claim("key-1"))
}

func TestLiveOperationsAreLimited(t *testing.T) {
	reader := metric.NewManualReader()
	w := newWorld(t, setup{limits: lives(3, 2), meter: metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")})
	one, two, reserved := w.claimFor("user-1", "key-1"), w.claimFor("user-1", "key-2"), w.claim("key-3")
	reserved.Reserve = true
	first, second, third := w.granted(t, "serves-users", one), w.granted(t, "serves-users", two), w.granted(t, "serves-users", reserved)
	ctx := as(t, "serves-users")

	full := func(req *pb.ClaimRequest) {
		t.Helper()
		_, err := w.client.Claim(ctx, req)
		s := refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
		if detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration() != time.Second {
			t.Errorf("when to come back: %v", s.Proto())
		}
	}
	full(w.claim("key-4"))
	if resent := w.granted(t, "serves-users", one); resent.GetEpoch() != first.GetEpoch() {
		t.Errorf("a resent claim got %v, want the grant that it has", resent)
	}
	other := w.claimFor("user-1", "key-1")
	if answer, err := w.client.Claim(ctx, other); err != nil || answer.GetInProgress() == nil {
		t.Errorf("a claim of what somebody else does: %v, %v", answer, err)
	}
	if _, err := w.client.Complete(ctx, succeeded(first, one.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	w.granted(t, "serves-users", w.claimFor("user-2", "key-4"))
	if answer, err := w.client.Claim(ctx, w.claimFor("user-1", "key-1")); err != nil || answer.GetCompleted() == nil {
		t.Errorf("a replay: %v, %v", answer, err)
	}
	full(w.claim("key-5"))
	_, err := w.client.MarkUnknown(ctx, &pb.MarkUnknownRequest{OperationId: second.GetOperationId(), ClaimId: two.GetClaimId()})
	if err != nil {
		t.Fatal(err)
	}
	w.granted(t, "serves-users", w.claim("key-5"))
	full(w.claim("key-6"))
	if _, err := w.client.Cancel(ctx, &pb.CancelRequest{OperationId: third.GetOperationId(), ClaimId: reserved.GetClaimId()}); err != nil {
		t.Fatal(err)
	}
	w.granted(t, "serves-users", w.claimFor("user-2", "key-6"))
	full(w.claimFor("user-2", "key-7"))
	got := series(t, reader)
	if got["ledger.requests.limited ledger.limit.kind=scope_live"] != 4 {
		t.Errorf("counted: %v", got)
	}
}

func TestOneSubjectsLiveOperationsLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t, setup{limits: lives(10, 1)})
	w.granted(t, "serves-users", w.claimFor("user-1", "key-1"))
	_, err := w.client.Claim(as(t, "serves-users"), w.claimFor("user-1", "key-2"))
	refused(t, err, codes.ResourceExhausted, "RATE_LIMITED")
	w.granted(t, "serves-users", w.claimFor("user-2", "key-1"))
}

// What ended at another instance, a claim finds out before it is refused.
func TestOperationsThatEndedElsewhereAreNotCounted(t *testing.T) {
	w := newWorld(t, setup{limits: lives(1, 1)})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	elsewhere := newWorld(t, setup{store: w.store, ring: w.ring})
	if _, err := elsewhere.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	w.granted(t, "agent-a", w.claim("key-2"))
}

// What was not granted takes up no room.
func TestRefusedClaimsAreNotCounted(t *testing.T) {
	w := newWorld(t, setup{limits: lives(1, 1)})
	tool := ledger.Tool("tickets.create")
	w.policy.revoke(tool)
	for i := range 3 {
		_, err := w.client.Claim(as(t, "agent-a"), w.claim("key-"+strconv.Itoa(i)))
		refused(t, err, codes.PermissionDenied, "TOOL_NOT_ALLOWED")
	}
	w.policy.revoke("something.else")
	w.granted(t, "agent-a", w.claim("key-1"))
}
