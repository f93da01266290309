// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const ownedContracts = `tools:
  card.charge:
    effect: keyed
    lease: {default: 2s, max: 4s, total: 4s}
    request: {fields: {amount: {type: decimal, category: amount}}}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 4s
      probe: {grpc: {target: "OWNER"}}
      verify: [amount]
      checks: {first: 1s, max_interval: 2s, give_up_after: 1h, timeout: 2s}
`

// owner is the EvidenceService of who owns a tool, over mTLS. It is down when it is first asked.
type owner struct {
	pb.UnimplementedEvidenceServiceServer
	asked  atomic.Int64
	amount string
}

func (o *owner) Probe(_ context.Context, r *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	if o.asked.Add(1) == 1 {
		return nil, status.Error(codes.Unavailable, "")
	}
	return &pb.ProbeResponse{Evidence: &pb.Evidence{Source: "the ledger of charges", Finding: &pb.Evidence_Found{Found: &pb.Found{
		Result: result("charge", "ch_"+r.GetDownstreamKey()), ObservedJson: []byte(`{"amount":"` + o.amount + `"}`),
	}}}}, nil
}

func (o *owner) listen(t *testing.T) string {
	t.Helper()
	leaf := mint(t, rootA(t), authz.LeafSpec{
		CommonName: "owner", IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(rootA(t).PEM())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{leaf.TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})))
	pb.RegisterEvidenceServiceServer(server, o)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// The owner of a tool answers by a service of its own, to a process that serves and to one that only recovers: what it shows is compared as any other evidence is.
func TestRecoveryByAnOwnersService(t *testing.T) {
	for _, store := range stores {
		for name, c := range map[string]struct {
			amount string
			state  pb.State
			queued pb.Custody
			reason pb.QueueReason
		}{
			"the same amount": {"10.00", pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0},
			"another amount":  {"11.00", pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH},
		} {
			t.Run(store+", "+name, func(t *testing.T) {
				t.Parallel()
				service := &owner{amount: c.amount}
				alone := name == "another amount" && store != "sqlite"
				o := nodeOptions{}
				if alone {
					o.args = []string{"--recovery", "off"}
				}
				r := newRecoveringBy(t, store, strings.ReplaceAll(ownedContracts, "OWNER", service.listen(t)), o)
				if alone {
					r.start(t, nodeOptions{recovers: true, args: append(r.args, r.identity(t)...)})
				}
				w := r.node.dial(t, billing)
				claim := request("card.charge", unique(t), "K", `{"amount":"10.0"}`)
				g := w.grant(t, claim)
				w.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
				r.settles(t, g.GetOperationId(), c.state, c.queued, c.reason)
				if n := service.asked.Load(); n != 2 {
					t.Errorf("it was asked %d times, of which one had no answer; want 2", n)
				}
			})
		}
	}
}

// identity is what a process that recovers shows to services.
func (r recovering) identity(t *testing.T) (args []string) {
	t.Helper()
	files, err := serverFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"tls-cert", "tls-key", "tls-ca"} {
		args = append(args, "--"+flag, files[flag])
	}
	return args
}
