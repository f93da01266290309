// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// platform is the AuthorizationService of an organisation, over mTLS.
type platform struct {
	pb.UnimplementedAuthorizationServiceServer
	refuse atomic.Bool
	asked  atomic.Int64
}

func (p *platform) AuthorizeReplay(_ context.Context, r *pb.AuthorizeReplayRequest) (*pb.AuthorizeReplayResponse, error) {
	p.asked.Add(1)
	ours := r.GetPrincipal() == billing && r.GetScope() == billing && r.GetTool() == "card.charge" && r.GetResource().GetId() == "C-1"
	return &pb.AuthorizeReplayResponse{Allowed: ours && !p.refuse.Load()}, nil
}

// listen serves it at an address, "" for a free one, until the returned function is called or the test ends.
func (p *platform) listen(t *testing.T, addr string) (at string, stop func()) {
	t.Helper()
	leaf := mint(t, rootA(t), authz.LeafSpec{
		CommonName: "platform", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()},
		Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(rootA(t).PEM())
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{leaf.TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})))
	pb.RegisterAuthorizationServiceServer(g, p)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return l.Addr().String(), g.Stop
}

// Who may see a result is asked again at each replay: of the policy, of the contract's rule, and of the platform. None of them can keep a
// grant's report from being recorded.
func TestReplayIsAuthorizedAgain(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			service := &platform{}
			at, down := service.listen(t, "")
			policy := filepath.Join(t.TempDir(), "policy.yaml")
			allow := func(tools string) {
				t.Helper()
				text := strings.Replace(policyText, `tools: ["*"], subject: allowed`, "tools: ["+tools+"], subject: allowed", 1)
				if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			allow(`"*"`)
			e := fresh(t, store, nodeOptions{args: []string{"--authorization-service", at, "--policy", policy}})
			reload := func() {
				t.Helper()
				if err := e.node.cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
			w := e.node.dial(t, billing)
			first, live := request("card.charge", unique(t), "k", `{"amount":1}`), request("card.charge", unique(t), "k", `{"amount":2}`)
			first.TargetSummary = "a charge of one"
			g := w.grant(t, first)
			open := w.grant(t, live)
			w.applied(t, completion(g.GetOperationId(), first.GetClaimId(), "charge", "C-1"))

			replay := func() (whole bool) {
				t.Helper()
				answer := w.claim(t, again(first))
				done := answer.GetCompleted()
				if done == nil {
					t.Fatalf("not completed: %v", answer)
				}
				resource, summary := done.GetResult().GetResource().GetId() == "C-1", answer.GetOperation().GetTargetSummary() != ""
				if resource == done.GetRedacted() || resource != summary {
					t.Fatalf("neither whole nor redacted: %v", answer)
				}
				return resource
			}
			if !replay() || service.asked.Load() != 1 {
				t.Fatalf("the platform allows it, and was asked %d times", service.asked.Load())
			}
			service.refuse.Store(true)
			if replay() {
				t.Error("the platform refuses, and the result is shown")
			}
			service.refuse.Store(false)
			if !replay() {
				t.Error("the platform allows it again, and the result is redacted")
			}

			allow("ticket.get")
			reload()
			eventually(t, "the policy without the tool", func() bool { return !replay() })
			w.applied(t, completion(open.GetOperationId(), live.GetClaimId(), "charge", "C-2"))
			if _, err := w.tryClaim(t, request("card.charge", unique(t), "k", `{"amount":3}`)); err == nil {
				t.Error("a new claim of the tool that was taken back is granted")
			}
			allow(`"*"`)
			reload()
			eventually(t, "the policy with the tool", replay)

			down()
			began := time.Now()
			if replay() {
				t.Error("the platform is down, and the result is shown")
			}
			if waited := time.Since(began); waited > patience/2 {
				t.Errorf("a platform that is down held a replay for %v", waited)
			}
			service.listen(t, at)
			eventually(t, "the platform is back", replay)
		})
	}
}
