// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const interceptorPolicy = `
trust_domain: ledger.test
scopes:
  - {name: workers, principals: [spiffe://ledger.test/agent/*], tools: ["*"]}
roles:
  - {role: operator, principals: [spiffe://ledger.test/person/operator], tools: [a.*]}
  - {role: auditor, principals: [spiffe://ledger.test/person/auditor], tools: ["*"]}
  - {role: reconciler, principals: [spiffe://ledger.test/loop/reconciler], tools: ["*"]}
`

// ledgerDouble answers with the principal that its context holds.
type ledgerDouble struct {
	opsledgerv1.UnimplementedLedgerServiceServer
}

func (ledgerDouble) GetTool(ctx context.Context, _ *opsledgerv1.GetToolRequest) (*opsledgerv1.GetToolResponse, error) {
	principal, ok := PrincipalFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no principal")
	}
	return nil, status.Error(codes.DataLoss, string(principal)) // a code that nothing else gives
}

// serveTest serves every service over mTLS on the loopback; now is the time at
// which calls are judged.
func serveTest(t *testing.T, ca *CA, now func() time.Time) string {
	t.Helper()
	policy := mustPolicy(t, interceptorPolicy)
	return servePolicy(t, ca, func() *Policy { return policy }, now)
}

func servePolicy(t *testing.T, ca *CA, policy func() *Policy, now func() time.Time) string {
	t.Helper()
	interceptor := NewInterceptor(policy, now)
	material := mustMaterial(t, leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM()))
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(atTestNow(ServerTLS(material)))),
		grpc.UnaryInterceptor(interceptor.Unary),
		grpc.StreamInterceptor(interceptor.Stream),
	)
	opsledgerv1.RegisterLedgerServiceServer(server, ledgerDouble{})
	opsledgerv1.RegisterOperatorServiceServer(server, opsledgerv1.UnimplementedOperatorServiceServer{})
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	if err := CheckComplete(server.GetServiceInfo()); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func dialTest(t *testing.T, address string, ca *CA, spec LeafSpec) *grpc.ClientConn {
	t.Helper()
	config := ClientTLS(mustMaterial(t, leafPEM(t, mustIssue(t, ca, spec), ca.PEM())), "")
	config.Time = testClock
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestWhoMayCallWhat(t *testing.T) {
	ca := newTestCA(t, "root A")
	address := serveTest(t, ca, testClock)
	calls := map[string]func(context.Context, *grpc.ClientConn) error{
		"worker": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := opsledgerv1.NewLedgerServiceClient(c).Claim(ctx, &opsledgerv1.ClaimRequest{})
			return err
		},
		"reconcile": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := opsledgerv1.NewLedgerServiceClient(c).BeginCheck(ctx, &opsledgerv1.BeginCheckRequest{})
			return err
		},
		"read": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := opsledgerv1.NewOperatorServiceClient(c).GetOperation(ctx, &opsledgerv1.GetOperationRequest{})
			return err
		},
		"export": func(ctx context.Context, c *grpc.ClientConn) error {
			stream, err := opsledgerv1.NewOperatorServiceClient(c).ExportEvents(ctx, &opsledgerv1.ExportEventsRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"settle": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := opsledgerv1.NewOperatorServiceClient(c).Resolve(ctx, &opsledgerv1.ResolveRequest{})
			return err
		},
		"reflect": func(ctx context.Context, c *grpc.ClientConn) error {
			stream, err := grpc_reflection_v1.NewServerReflectionClient(c).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			list := &grpc_reflection_v1.ServerReflectionRequest_ListServices{}
			// A stream that the server has ended already says io.EOF to the sender; the status is for the receiver.
			if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: list}); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			_, err = stream.Recv()
			return err
		},
		"health": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			return err
		},
	}
	// Unimplemented is the double's answer: the caller has come through.
	const ok, in, role, identity = codes.OK, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated
	uri := func(path string) LeafSpec { return clientSpec("spiffe://ledger.test" + path) }
	for _, c := range []struct {
		name string
		spec LeafSpec
		want map[string]codes.Code
	}{
		{"worker", uri("/agent/a"), map[string]codes.Code{"worker": in, "reconcile": role, "read": role, "export": role, "settle": role, "reflect": role, "health": ok}},
		{"operator", uri("/person/operator"), map[string]codes.Code{"worker": identity, "reconcile": role, "read": in, "export": in, "settle": in, "reflect": ok, "health": ok}},
		{"auditor", uri("/person/auditor"), map[string]codes.Code{"worker": identity, "reconcile": role, "read": in, "export": in, "settle": role, "reflect": role, "health": ok}},
		{"reconciler", uri("/loop/reconciler"), map[string]codes.Code{"worker": identity, "reconcile": in, "read": role, "export": role, "settle": role, "reflect": role, "health": ok}},
		{"foreign domain", clientSpec("spiffe://other.test/agent/a"), map[string]codes.Code{"worker": identity, "reconcile": identity, "read": identity, "export": identity, "settle": identity, "reflect": identity, "health": ok}},
		{"no identity", clientSpec(), map[string]codes.Code{"worker": identity, "reconcile": identity, "read": identity, "export": identity, "settle": identity, "reflect": identity, "health": ok}},
	} {
		conn := dialTest(t, address, ca, c.spec)
		for name, call := range calls {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				want, listed := c.want[name]
				if !listed {
					t.Fatal("no cell in the table")
				}
				err := call(ctx, conn)
				if got := status.Code(err); got != want {
					t.Fatalf("%v, want %v", err, want)
				}
				switch want {
				case role:
					assertReason(t, err, "ROLE_REQUIRED")
				case identity:
					assertReason(t, err, "IDENTITY_INVALID")
				}
			})
		}
	}
}

func assertReason(t *testing.T, err error, reason string) {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "opsledger" || info.GetReason() != reason {
				t.Errorf("reason %s of %s, want %s", info.GetReason(), info.GetDomain(), reason)
			}
			return
		}
	}
	t.Errorf("no ErrorInfo in %v", err)
}

func TestTheHandlerGetsThePrincipalAndNoHeaderChangesIt(t *testing.T) {
	ca := newTestCA(t, "root A")
	spec := clientSpec("spiffe://ledger.test/agent/a")
	spec.CommonName = "spiffe://ledger.test/agent/admin"
	conn := dialTest(t, serveTest(t, ca, testClock), ca, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx,
		"principal", "spiffe://ledger.test/agent/admin",
		"x-forwarded-client-cert", "URI=spiffe://ledger.test/agent/admin",
		"x-spiffe-id", "spiffe://ledger.test/agent/admin")
	_, err := opsledgerv1.NewLedgerServiceClient(conn).GetTool(ctx, &opsledgerv1.GetToolRequest{})
	if got := status.Convert(err); got.Code() != codes.DataLoss || got.Message() != "spiffe://ledger.test/agent/a" {
		t.Errorf("the handler saw %v", got)
	}
}

func TestTheNextCallAfterTheEndOfACertificateIsRefused(t *testing.T) {
	ca := newTestCA(t, "root A")
	spec := clientSpec("spiffe://ledger.test/agent/a")
	times := make(chan time.Time, 3)
	conn := dialTest(t, serveTest(t, ca, func() time.Time { return <-times }), ca, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client := opsledgerv1.NewLedgerServiceClient(conn)
	times <- spec.NotAfter
	if _, err := client.GetTool(ctx, &opsledgerv1.GetToolRequest{}); status.Code(err) != codes.DataLoss {
		t.Fatalf("before the end: %v", err)
	}
	times <- spec.NotAfter.Add(time.Second)
	_, err := client.GetTool(ctx, &opsledgerv1.GetToolRequest{})
	if status.Code(err) != codes.Unauthenticated {
		t.Fatalf("after the end: %v", err)
	}
	assertReason(t, err, "IDENTITY_INVALID")
	times <- spec.NotAfter.Add(time.Second)
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("health after the end: %v", err)
	}
}

func TestCheckComplete(t *testing.T) {
	server := grpc.NewServer()
	opsledgerv1.RegisterLedgerServiceServer(server, ledgerDouble{})
	if err := CheckComplete(server.GetServiceInfo()); err != nil {
		t.Fatal(err)
	}
	// The platform's side of the contract: never served by the ledger itself.
	opsledgerv1.RegisterEvidenceServiceServer(server, opsledgerv1.UnimplementedEvidenceServiceServer{})
	err := CheckComplete(server.GetServiceInfo())
	if err == nil {
		t.Fatal("a server with unlisted methods passes")
	}
	for _, method := range []string{opsledgerv1.EvidenceService_Probe_FullMethodName, opsledgerv1.EvidenceService_Inspect_FullMethodName} {
		if !strings.Contains(err.Error(), method) {
			t.Errorf("%v does not name %s", err, method)
		}
	}
}

func TestAnUnlistedMethodIsRefused(t *testing.T) {
	policy := mustPolicy(t, interceptorPolicy)
	interceptor := NewInterceptor(func() *Policy { return policy }, testClock)
	for _, method := range []string{
		"",
		"/opsledger.v1.EvidenceService/Probe",
		"opsledger.v1.LedgerService/Claim", // without the slash
		"/opsledger.v1.LedgerService/claim",
		"/opsledger.v1.LedgerService/Claim/",
	} {
		if access := MethodAccess(method); access != AccessNobody {
			t.Errorf("%q: access %v", method, access)
		}
		_, err := interceptor.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			t.Errorf("%q: the handler ran", method)
			return nil, nil
		})
		if err == nil {
			t.Errorf("%q: no error", method)
		}
	}
	if AccessNobody.allows(policy, "spiffe://ledger.test/agent/a") || AccessVerified.allows(policy, "spiffe://ledger.test/agent/a") {
		t.Error("an access that asks nothing of the policy is allowed by it")
	}
}
