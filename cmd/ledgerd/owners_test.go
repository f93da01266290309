// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/recovery"
)

// evidenceService is a tool's owner's.
type evidenceService struct {
	pb.UnimplementedEvidenceServiceServer
	probe   func(context.Context, *pb.ProbeRequest) (*pb.ProbeResponse, error)
	inspect func(context.Context, *pb.InspectRequest) (*pb.InspectResponse, error)
}

func (e *evidenceService) Probe(ctx context.Context, r *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	return e.probe(ctx, r)
}

func (e *evidenceService) Inspect(ctx context.Context, r *pb.InspectRequest) (*pb.InspectResponse, error) {
	return e.inspect(ctx, r)
}

// listen serves it to who has a certificate of the house.
func (e *evidenceService) listen(t *testing.T, h *house) string {
	t.Helper()
	material, err := authz.NewMaterialReloader(authz.Files{Cert: h.path("cert.pem"), Key: h.path("key.pem"), CA: h.path("ca.pem")}, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(authz.ServerTLS(material))))
	pb.RegisterEvidenceServiceServer(server, e)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func (h *house) owners(t *testing.T, allow string) *owners {
	t.Helper()
	allowed, err := recovery.ParseAllowed(allow)
	if err != nil {
		t.Fatal(err)
	}
	o := &owners{material: h.as(t, "spiffe://ledger.test/ledgerd"), allowed: allowed}
	t.Cleanup(o.close)
	return o
}

// askedAbout is an operation that was sent.
func askedAbout() *ledger.Operation {
	key := ledger.Key{Scope: "s", Tool: "payments.charge", Task: "t", Key: "k"}
	return &ledger.Operation{
		ID: key.Hash().OperationID(), KeyHash: key.Hash(), Tool: key.Tool, TargetAttributes: map[string]string{"order_id": "o-1"},
		FirstStart: time.Unix(1000, 0), Grant: ledger.Grant{Epoch: 7, Time: time.Unix(2000, 0)},
		Result: &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_1", Type: "charge", Version: "1"}},
	}
}

// An owner's service says what evidence in a Reconcile may say; whatever else comes of the call is a finding that knows nothing, with its cause.
func TestAnOwnersServiceIsAsked(t *testing.T) {
	h := newHouse(t, "")
	says := func(e *pb.Evidence) func(context.Context) (*pb.Evidence, error) {
		return func(context.Context) (*pb.Evidence, error) { return e, nil }
	}
	fails := func(code codes.Code, wait time.Duration) func(context.Context) (*pb.Evidence, error) {
		return func(context.Context) (*pb.Evidence, error) {
			s, err := status.New(code, "canary").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
			if err != nil {
				return nil, err
			}
			return nil, s.Err()
		}
	}
	there := &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{
		Result: &pb.Result{Resource: &pb.ResourceRef{Id: "ch_1", Version: "1"}}, ObservedJson: []byte(`{"amount":5}`),
	}}}
	for name, c := range map[string]struct {
		says  func(context.Context) (*pb.Evidence, error)
		want  ledger.Finding
		cause ledger.IndeterminateCause
		after time.Duration
	}{
		"found":          {says(there), ledger.FoundResource, 0, 0},
		"nothing there":  {says(&pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}}), ledger.NotFound, 0, 0},
		"several":        {says(&pb.Evidence{Finding: &pb.Evidence_Ambiguous{Ambiguous: &pb.Ambiguous{}}}), ledger.AmbiguousThere, 0, 0},
		"no finding":     {says(nil), ledger.Indeterminate, ledger.QueryNotUnderstood, 0},
		"found nameless": {says(&pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{}}}), ledger.Indeterminate, ledger.QueryNotUnderstood, 0},
		"away":           {fails(codes.Unavailable, 3*time.Second), ledger.Indeterminate, ledger.QueryUnavailable, 3 * time.Second},
		"broken":         {fails(codes.Internal, 0), ledger.Indeterminate, ledger.QueryUnavailable, 0},
		"throttled":      {fails(codes.ResourceExhausted, 5*time.Second), ledger.Indeterminate, ledger.QueryThrottled, 5 * time.Second},
		"not let":        {fails(codes.PermissionDenied, 0), ledger.Indeterminate, ledger.QueryNotAuthorized, 0},
		"not built":      {fails(codes.Unimplemented, 0), ledger.Indeterminate, ledger.QueryNotUnderstood, 0},
		"too long": {
			says(&pb.Evidence{Source: strings.Repeat("x", mostAnswered), Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}}),
			ledger.Indeterminate, ledger.QueryNotUnderstood, 0,
		},
		"silent": {
			func(ctx context.Context) (*pb.Evidence, error) { <-ctx.Done(); return nil, ctx.Err() },
			ledger.Indeterminate, ledger.QueryTimeout, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			op := askedAbout()
			service := &evidenceService{probe: func(ctx context.Context, r *pb.ProbeRequest) (*pb.ProbeResponse, error) {
				if r.GetOperationId() != op.ID.String() || r.GetTool() != "payments.charge" || r.GetDownstreamKey() != op.KeyHash.DownstreamKey() || r.GetEpoch() != 7 ||
					r.GetTargetAttributes()["order_id"] != "o-1" || !r.GetFirstGrantTime().AsTime().Equal(op.FirstStart) || !r.GetLastGrantTime().AsTime().Equal(op.Grant.Time) {
					t.Errorf("it was asked about %v", r)
				}
				e, err := c.says(ctx)
				return &pb.ProbeResponse{Evidence: e}, err
			}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			verdict := ownerProbe{service.listen(t, h), h.owners(t, "127.0.0.1"), ledger.Contract{}}.Ask(ctx, op)
			got := verdict.Evidence
			if got.Finding != c.want || got.Cause != c.cause || got.RetryAfter != c.after || (verdict.Why != "") != (c.want == ledger.Indeterminate) {
				t.Errorf("it says %v, %v, after %v, because %q", got.Finding, got.Cause, got.RetryAfter, verdict.Why)
			}
			if c.want == ledger.FoundResource && (got.Result.Resource.ID != "ch_1" || string(verdict.Observed) != `{"amount":5}`) {
				t.Errorf("what is found: %v, %s", got.Result, verdict.Observed)
			}
			if strings.Contains(verdict.Why, "canary") {
				t.Error("the owner's own words are told")
			}
		})
	}
}

// Who has no certificate asks nobody; what is inside of the operator's network and not listed is not connected to; who is no owner of ours is not believed.
func TestWhichOwnersServiceIsAsked(t *testing.T) {
	h, theirs := newHouse(t, ""), newHouse(t, "")
	service := &evidenceService{probe: func(context.Context, *pb.ProbeRequest) (*pb.ProbeResponse, error) {
		t.Error("it was asked")
		return nil, status.Error(codes.Internal, "")
	}}
	for name, c := range map[string]struct {
		target string
		owners *owners
		cause  ledger.IndeterminateCause
		why    string
	}{
		"no identity":   {service.listen(t, h), &owners{}, ledger.QueryNotAuthorized, errNoIdentity.Why},
		"not listed":    {service.listen(t, h), h.owners(t, "10.0.0.0/8"), ledger.QueryNotAuthorized, errPlace.Why},
		"by name":       {strings.Replace(service.listen(t, h), "127.0.0.1", "localhost", 1), h.owners(t, ""), ledger.QueryNotAuthorized, errPlace.Why},
		"somebody else": {service.listen(t, theirs), h.owners(t, "127.0.0.1"), ledger.QueryUnavailable, "it can't be reached, or has failed"},
		"nobody":        {"127.0.0.1:1", h.owners(t, "127.0.0.1"), ledger.QueryUnavailable, "it can't be reached, or has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := ownerProbe{c.target, c.owners, ledger.Contract{}}.Ask(call(t), askedAbout())
			if verdict.Evidence.Finding != ledger.Indeterminate || verdict.Evidence.Cause != c.cause || verdict.Why != c.why {
				t.Errorf("it says %v, %v, because %q", verdict.Evidence.Finding, verdict.Evidence.Cause, verdict.Why)
			}
		})
	}
}

// A resource is as it was left if its owner says that it has the same version.
func TestAnOwnersServiceLooksAtAResource(t *testing.T) {
	h := newHouse(t, "")
	current := func(version string) *pb.InspectResponse {
		return &pb.InspectResponse{Answer: &pb.InspectResponse_Current{Current: &pb.ResourceRef{Version: version}}}
	}
	for name, c := range map[string]struct {
		says *pb.InspectResponse
		want ledger.Inspection
	}{
		"unchanged":  {current("1"), ledger.InspectUnchanged},
		"changed":    {current("2"), ledger.InspectChanged},
		"no version": {current(""), ledger.InspectNoVersion},
		"gone":       {&pb.InspectResponse{Answer: &pb.InspectResponse_Gone{Gone: &pb.Gone{}}}, ledger.InspectGone},
		"not known":  {&pb.InspectResponse{Answer: &pb.InspectResponse_Indeterminate{Indeterminate: &pb.Indeterminate{}}}, ledger.InspectIndeterminate},
		"no answer":  {&pb.InspectResponse{}, ledger.InspectIndeterminate},
		"failed":     {nil, ledger.InspectIndeterminate},
	} {
		t.Run(name, func(t *testing.T) {
			service := &evidenceService{inspect: func(_ context.Context, r *pb.InspectRequest) (*pb.InspectResponse, error) {
				if r.GetTool() != "payments.charge" || r.GetResource().GetId() != "ch_1" || r.GetTargetAttributes()["order_id"] != "o-1" {
					t.Errorf("it was asked about %v", r)
				}
				if c.says == nil {
					return nil, status.Error(codes.Unavailable, "")
				}
				return c.says, nil
			}}
			got := ownerInspector{service.listen(t, h), h.owners(t, "127.0.0.1")}.Inspect(call(t), askedAbout()).Outcome
			if got != c.want {
				t.Errorf("it says %v, want %v", got, c.want)
			}
		})
	}
}

// An owner's service can be tried out, too.
func TestProbeCheckAsksAnOwnersService(t *testing.T) {
	h := newHouse(t, "")
	service := &evidenceService{probe: func(_ context.Context, r *pb.ProbeRequest) (*pb.ProbeResponse, error) {
		if r.GetDownstreamKey() != "00112233445566778899aabbccddeeff" || r.GetTool() != "t" || r.GetTargetAttributes()["order_id"] != "o-1" {
			t.Errorf("it was asked about %v", r)
		}
		return &pb.ProbeResponse{Evidence: &pb.Evidence{Finding: &pb.Evidence_NotAccepted{NotAccepted: &pb.NotAccepted{Final: true}}}}, nil
	}}
	h.write(t, "contracts.yaml", "tools: {t: {effect: unsafe, recovery: {method: probe, effect_within: 2m, verify: [], probe: {grpc: {target: \""+service.listen(t, h)+"\"}}}}}")
	args := []string{
		"probe", "check", "t", "--downstream-key", "00112233445566778899aabbccddeeff", "--attribute", "order_id=o-1",
		"--contracts", h.path("contracts.yaml"), "--probe-allow", "127.0.0.1",
	}
	out := &journal{}
	if err := run(call(t), args, nil, out, &journal{}); err == nil || !strings.Contains(err.Error(), errNoIdentity.Why) || exitCode(err) != 1 {
		t.Errorf("without a certificate: %v", err)
	}
	args = append(args, "--tls-cert", h.path("client.pem"), "--tls-key", h.path("client-key.pem"), "--tls-ca", h.path("ca.pem"))
	h.issue(t, "client")
	err := run(call(t), args, nil, out, &journal{})
	if text, _ := out.read(); err != nil || text != "verdict  NOT_ACCEPTED (final)\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// issue writes a client's certificate and key.
func (h *house) issue(t *testing.T, name string) {
	t.Helper()
	leaf, err := h.ca.Issue(authz.LeafSpec{
		URIs: []string{"spiffe://ledger.test/" + name}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := leaf.PEM()
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, name+".pem", string(cert))
	h.write(t, name+"-key.pem", string(key))
}
