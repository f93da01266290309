// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/rpc"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one ledger behind one server, with a clock that tests move.
type world struct {
	client    pb.LedgerServiceClient
	people    pb.OperatorServiceClient
	ledger    *ledger.Ledger
	policy    *policy
	contracts contracts
	offset    atomic.Int64
	draining  atomic.Bool
	ring      *fingerprint.Ring
	store     ledger.Store
}

type setup struct {
	contracts contracts
	log       *slog.Logger
	meter     metric.Meter
	strict    bool
	// updated, if set, is sent to after each Update of the store.
	updated chan struct{}
	ring    *fingerprint.Ring
	store   ledger.Store                                        // nil: SQLite in a fresh file
	service func(pb.LedgerServiceServer) pb.LedgerServiceServer // wraps the server
	// limits, if set, are those of every scope, and of every subject.
	limits *[2]rpc.Limits
	// rules and platform judge replays, see rpc.Options.
	rules, platform ledger.Replays
	identify        func(ctx context.Context) (ledger.Principal, error) // nil: the test's own metadata
	requests        fingerprint.Options
}

// newWorld starts it. The principals agent-a and agent-b have scopes of their own, fleet-1 and fleet-2 share one.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{policy: newPolicy(), contracts: s.contracts, ring: s.ring}
	if w.ring == nil {
		w.ring = newRing(t, "k1")
	}
	if s.store == nil {
		store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{
			Now: func(host time.Time) time.Time { return host.Add(time.Duration(w.offset.Load())) },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.store = store
	}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if s.identify == nil {
		s.identify = principalFrom
	}
	if s.updated != nil {
		s.store = tellingStore{s.store, s.updated}
	}
	w.store = s.store
	w.ledger = ledger.New(s.store, w.contracts)
	var limiter *rpc.Limiter
	if s.limits != nil {
		var err error
		limiter, err = rpc.NewLimiter(w.policy, s.identify, func(ledger.Principal) (scope, subject rpc.Limits) { return s.limits[0], s.limits[1] }, s.meter)
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := rpc.New(w.ledger, w.policy, w.ring, s.identify, rpc.Options{
		Log: s.log, Meter: s.meter, Strict: func() bool { return s.strict }, Limiter: limiter, Requests: s.requests,
		ReplayRules: s.rules, ReplayService: s.platform,
	})
	if err != nil {
		t.Fatal(err)
	}
	var service pb.LedgerServiceServer = server
	if s.service != nil {
		service = s.service(server)
	}
	var people *rpc.Operators
	if store, ok := w.store.(ledger.OperatorStore); ok {
		if people, err = rpc.NewOperators(server, store, rpc.OperatorOptions{Tools: w.contracts.tools}); err != nil {
			t.Fatal(err)
		}
	}
	w.client, w.people = serve(t, service, people, rpc.Interceptors(gate{}, rpc.InterceptorOptions{Log: s.log, Draining: w.draining.Load, Limiter: limiter}))
	return w
}

// tellingStore tells of each update that is over.
type tellingStore struct {
	ledger.Store
	updated chan struct{}
}

func (s tellingStore) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	err := s.Store.Update(ctx, reads, decide)
	s.updated <- struct{}{}
	return err
}

func serve(t *testing.T, service pb.LedgerServiceServer, people *rpc.Operators, options []grpc.ServerOption) (pb.LedgerServiceClient, pb.OperatorServiceClient) {
	t.Helper()
	g := grpc.NewServer(options...)
	pb.RegisterLedgerServiceServer(g, service)
	if people != nil {
		rpc.RegisterOperators(g, people)
	}
	listener := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:///ledger",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-done
	})
	return pb.NewLedgerServiceClient(conn), pb.NewOperatorServiceClient(conn)
}

func newRing(t *testing.T, ids ...string) *fingerprint.Ring {
	t.Helper()
	var secrets []fingerprint.Secret
	for _, id := range ids {
		key := make([]byte, fingerprint.MinSecretSize)
		copy(key, "a key for tests "+id)
		secret, err := fingerprint.NewSecret(id, key)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	ring, err := fingerprint.NewRing(ids[0], secrets...)
	if err == nil {
		err = ring.SetUnique([]byte("a key for tests of what never rotates"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func (w *world) pass(d time.Duration) { w.offset.Add(int64(d)) }

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

// gate stands for the one that reads certificates: it believes the test's metadata.
type gate struct{}

type principalKey struct{}

func (gate) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if md, ok := metadata.FromIncomingContext(ctx); ok && len(md.Get("test-principal")) == 1 {
		ctx = context.WithValue(ctx, principalKey{}, ledger.Principal(md.Get("test-principal")[0]))
	}
	return handler(ctx, req)
}

func (gate) Stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, stream)
}

func principalFrom(ctx context.Context) (ledger.Principal, error) {
	p, ok := ctx.Value(principalKey{}).(ledger.Principal)
	if !ok {
		return "", errors.New("no principal")
	}
	return p, nil
}

// as calls in the name of a principal.
func as(t *testing.T, p string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "test-principal", p)
}

type policy struct {
	scopes   map[ledger.Principal]ledger.Scope
	subjects map[ledger.Principal]ledger.SubjectRule
	revoked  atomic.Pointer[ledger.Tool]
	roles    map[ledger.Principal][]ledger.Tool
	// people are the rights of operators and auditors.
	people map[ledger.Principal]map[ledger.Role]ledger.ToolPatterns
}

func newPolicy() *policy {
	return &policy{
		scopes: map[ledger.Principal]ledger.Scope{
			"agent-a": "a", "agent-b": "b", "fleet-1": "fleet", "fleet-2": "fleet", "serves-users": "users", "always-for-users": "users",
		},
		subjects: map[ledger.Principal]ledger.SubjectRule{
			"serves-users": ledger.SubjectAllowed, "always-for-users": ledger.SubjectRequired,
		},
		roles: map[ledger.Principal][]ledger.Tool{"checker": {"tickets.create", "charge"}, "other-checker": {"something.else"}},
		people: map[ledger.Principal]map[ledger.Role]ledger.ToolPatterns{
			"ops-a":      {ledger.RoleOperator: {Every: true}},
			"ops-b":      {ledger.RoleOperator: {Every: true}},
			"ops-charge": {ledger.RoleOperator: {Exact: []ledger.Tool{"charge"}}, ledger.RoleAuditor: {Prefixes: []string{"mail."}}},
			"auditor":    {ledger.RoleAuditor: {Every: true}},
		},
	}
}

func (p *policy) Scope(name ledger.Principal) (ledger.Scope, ledger.SubjectRule, bool) {
	scope, ok := p.scopes[name]
	return scope, p.subjects[name], ok
}

func (p *policy) ToolAllowed(_ ledger.Principal, tool ledger.Tool) bool {
	revoked := p.revoked.Load()
	return revoked == nil || *revoked != tool
}

func (p *policy) revoke(tool ledger.Tool) { p.revoked.Store(&tool) }

func (p *policy) HasRole(name ledger.Principal, role ledger.Role, tool ledger.Tool) bool {
	if role == ledger.RoleReconciler {
		return slices.Contains(p.roles[name], tool)
	}
	tools := p.people[name][role]
	return tools.Every || slices.Contains(tools.Exact, tool) ||
		slices.ContainsFunc(tools.Prefixes, func(prefix string) bool { return strings.HasPrefix(string(tool), prefix) && len(tool) > len(prefix) })
}

func (p *policy) HasAnyRole(name ledger.Principal, role ledger.Role) bool {
	_, ok := p.people[name][role]
	return ok || role == ledger.RoleReconciler && len(p.roles[name]) > 0
}

func (p *policy) RoleTools(name ledger.Principal, role ledger.Role) ledger.ToolPatterns {
	return p.people[name][role]
}

type contracts map[ledger.Tool]ledger.Contract

func (c contracts) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	if contract, ok := c[tool]; ok {
		return contract, true
	}
	return ledger.DefaultContract(tool), false
}

func (c contracts) tools() []ledger.Tool { return slices.Collect(maps.Keys(c)) }

// declared is a contract with something declared of everything.
func declared(tool ledger.Tool) ledger.Contract {
	c := ledger.DefaultContract(tool)
	c.Version = "0123456789abcdef"
	c.Effect = ledger.Keyed
	c.Method = ledger.MethodProbe
	c.EffectWithin, c.KeyRetention = time.Minute, 24*time.Hour
	c.Verify, c.VerifyStated = []string{"amount"}, true
	c.Fields = map[string]ledger.RequestField{"amount": {Category: "amount"}, "to": {Category: "recipient"}}
	c.Attributes = []string{"order_id"}
	c.ResultAttributes = []string{"etag"}
	c.Schemas = []string{"charge.result/1"}
	c.PayloadLimit = 16
	return c
}

// claim is a good request; tests change what they are about.
func (w *world) claim(key string) *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Key:     &pb.OperationKey{Tool: "tickets.create", Task: "task-1", Key: key},
		ClaimId: uuid.NewString(), WorkerId: "worker-1", RequestJson: []byte(`{"amount":100,"to":"canary-recipient"}`),
		IntentTime: timestamppb.New(w.now()), TargetSummary: "ticket about canary-summary",
	}
}

// granted claims and must get it.
func (w *world) granted(t *testing.T, p string, req *pb.ClaimRequest) *pb.Grant {
	t.Helper()
	answer, err := w.client.Claim(as(t, p), req)
	if err != nil {
		t.Fatal(err)
	}
	grant := answer.GetGranted()
	if grant == nil {
		t.Fatalf("not granted: %v", answer)
	}
	return grant
}

func succeeded(grant *pb.Grant, claimID string) *pb.CompleteRequest {
	return &pb.CompleteRequest{OperationId: grant.GetOperationId(), ClaimId: claimID, Outcome: &pb.CompleteRequest_Succeeded{
		Succeeded: &pb.Result{Resource: &pb.ResourceRef{Type: "ticket", Id: "T-1"}, Code: "created"},
	}}
}

var transform = protocmp.Transform()

// refused checks code and reason of a status, and returns its details.
func refused(t *testing.T, err error, code codes.Code, reason string) *status.Status {
	t.Helper()
	s, ok := status.FromError(err)
	if !ok || s.Code() != code {
		t.Fatalf("got %v, want %v %s", err, code, reason)
	}
	info := detail[*errdetails.ErrorInfo](s)
	if info.GetReason() != reason || info.GetDomain() != "opsledger" {
		t.Fatalf("got reason %q of %q, want %q", info.GetReason(), info.GetDomain(), reason)
	}
	return s
}

func detail[T any](s *status.Status) T {
	for _, d := range s.Details() {
		if found, ok := d.(T); ok {
			return found
		}
	}
	var none T
	return none
}

func violations(s *status.Status) map[string]string {
	fields := map[string]string{}
	for _, v := range detail[*errdetails.BadRequest](s).GetFieldViolations() {
		fields[v.GetField()] = v.GetDescription()
	}
	return fields
}
