// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/client"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
)

// UNAVAILABLE says nothing about what happened. The connection ends after ledgerd has committed and before it answers: whoever sends
// the same call again gets the same outcome, and there is one event and one step of the version.
func TestC39(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		t.Run("the proxy cuts the connection", func(t *testing.T) {
			for _, c := range resendable {
				t.Run(c.name, func(t *testing.T) {
					call := c.prepare(t, e)
					lossy, proxy := proxied(t, e.node, call.principal)
					was, sent := call.stands(t, e), lossy.sends.Load()
					var answer string
					err := loseAnswer(t, proxy, func() bool { return call.stands(t, e).sequence > was.sequence }, func() (err error) {
						answer, err = call.send(within(t), lossy)
						return err
					})
					if err != nil {
						t.Fatalf("sent again by the shipped policy, the call was answered %v", err)
					}
					if got := lossy.sends.Load() - sent; got != 2 {
						t.Errorf("the call was sent %d times, want 2", got)
					}
					call.wantOnce(t, e, was, answer)
				})
			}
		})
		t.Run("ledgerd fails the call", func(t *testing.T) {
			var order []string
			for _, c := range resendable {
				order = append(order, c.point+"=1*error")
			}
			f := fresh(t, e.store, nodeOptions{failpoints: strings.Join(order, ";")})
			for _, c := range resendable { // each uses up the fault of its own kind of call, so later ones can be prepared
				t.Run(c.name, func(t *testing.T) {
					call := c.prepare(t, f)
					w := f.node.dialRetrying(t, call.principal)
					was := call.stands(t, f)
					answer, err := call.send(within(t), w)
					if err != nil {
						t.Fatalf("sent again by the shipped policy, the call was answered %v", err)
					}
					if got := w.sends.Load(); got != 2 {
						t.Errorf("the call was sent %d times, want 2", got)
					}
					call.wantOnce(t, f, was, answer)
				})
			}
		})
		t.Run("ledgerd is killed", func(t *testing.T) {
			f := fresh(t, e.store, nodeOptions{failpoints: resendable[0].point + "=off"})
			for _, c := range resendable {
				t.Run(c.name, func(t *testing.T) {
					call := c.prepare(t, f)
					f.node.failAt(t, c.point+"=1*kill")
					w, was := f.node.dial(t, call.principal), call.stands(t, f)
					if _, err := call.send(within(t), w); status.Code(err) != codes.Unavailable {
						t.Fatalf("the call of a killed ledgerd ended with %v, want Unavailable", err)
					}
					if state := f.node.waitEnd(t); !strings.Contains(state.String(), "killed") {
						t.Fatalf("ledgerd ended with %v", state)
					}
					f.node.failAt(t, c.point+"=off")
					answer, err := call.send(within(t), f.node.dial(t, call.principal))
					if err != nil {
						t.Fatalf("sent again, the call was answered %v", err)
					}
					call.wantOnce(t, f, was, answer)
				})
			}
		})
		t.Run("the shipped policy sends only UNAVAILABLE again", shippedPolicy)
		t.Run("a gRPC target that says UNAVAILABLE after accepting", func(t *testing.T) { targetUnavailable(t, e) })
	})
}

// proxied is a worker with the shipped policy, whose connection goes through a proxy and is up.
func proxied(t *testing.T, n *node, principal string) (*worker, *faultproxy.Proxy) {
	t.Helper()
	proxy, err := faultproxy.Start("tcp", n.grpcAddr, faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	w := connect(t, proxy.Addr().String(), leafOf(t, principal), grpc.WithDefaultServiceConfig(retryPolicy))
	w.conn.Connect()
	eventually(t, "the connection is up", func() bool { return w.conn.GetState() == connectivity.Ready })
	return w, proxy
}

// failAt starts the node again under another order for its failpoints.
func (n *node) failAt(t *testing.T, order string) {
	t.Helper()
	const variable = "LEDGER_FAILPOINTS="
	n.kill(t)
	n.env = append(slices.DeleteFunc(n.env, func(pair string) bool { return strings.HasPrefix(pair, variable) }), variable+order)
	n.run(t)
}

// command is one call that is ready to be sent, once or more often.
type command struct {
	principal string
	// operation is the one that it is about.
	operation string
	// send sends it and returns what of the answer must be the same each time.
	send func(context.Context, *worker) (string, error)
	// want is that.
	want string
}

// resendable are the calls that change an operation in this release and matter here: how each is brought about, and its failpoint.
var resendable = []struct {
	name, point string
	prepare     func(t *testing.T, e *env) command
}{
	{"Claim", "rpc.claim.after-commit", func(t *testing.T, _ *env) command {
		claim := request("card.charge", unique(t), "K", `{"amount":"10.00"}`)
		claim.WorkerId = "worker/" + unique(t)
		return command{
			principal: billing, operation: operationID(billing, claim.GetKey().GetTool(), claim.GetKey().GetTask(), claim.GetKey().GetKey()),
			want: "EXECUTE, first epoch",
			send: func(ctx context.Context, w *worker) (string, error) {
				answer, err := w.Claim(ctx, proto.Clone(claim).(*pb.ClaimRequest))
				if err == nil && answer.GetGranted().GetEpoch()&(1<<32-1) == 1 {
					return outcome(answer) + ", first epoch", nil
				}
				return outcome(answer), err
			},
		}
	}},
	{"Complete", "rpc.complete.after-commit", func(t *testing.T, e *env) command {
		operation, claimID := claimed(t, e)
		return command{
			principal: billing, operation: operation, want: "DISPOSITION_APPLIED STATE_COMPLETED 2",
			send: func(ctx context.Context, w *worker) (string, error) {
				answer, err := w.Complete(ctx, completion(operation, claimID, "charge", "C-1"))
				return moved(answer.GetDisposition(), answer.GetOperation()), err
			},
		}
	}},
	{"MarkUnknown", "rpc.mark-unknown.after-commit", func(t *testing.T, e *env) command {
		operation, claimID := claimed(t, e)
		return command{
			principal: billing, operation: operation, want: "DISPOSITION_APPLIED STATE_UNKNOWN 2",
			send: func(ctx context.Context, w *worker) (string, error) {
				answer, err := w.MarkUnknown(ctx, &pb.MarkUnknownRequest{OperationId: operation, ClaimId: claimID, Cause: pb.UnknownCause_UNKNOWN_CAUSE_TIMEOUT})
				return moved(answer.GetDisposition(), answer.GetOperation()), err
			},
		}
	}},
	{"Reconcile", "rpc.reconcile.after-commit", func(t *testing.T, e *env) command {
		operation, claimID := claimed(t, e)
		e.node.dial(t, billing).markUnknown(t, operation, claimID)
		e.age(t, operation, time.Minute)
		check := e.node.dial(t, reconciler).beginCheck(t, operation)
		evidence := finding(operation, check.GetCheckNumber(), found("charge", "C-1", `{"amount":"10.00"}`, time.Now()))
		return command{
			principal: reconciler, operation: operation, want: "DISPOSITION_APPLIED STATE_COMPLETED " + number(check.GetOperation().GetVersion()+1),
			send: func(ctx context.Context, w *worker) (string, error) {
				answer, err := w.Reconcile(ctx, evidence)
				return moved(answer.GetDisposition(), answer.GetOperation()), err
			},
		}
	}},
}

func claimed(t *testing.T, e *env) (operation, claimID string) {
	t.Helper()
	claim := request("card.charge", unique(t), "K", `{"amount":"10.00"}`)
	return e.node.dial(t, billing).grant(t, claim).GetOperationId(), claim.GetClaimId()
}

func moved(d pb.Disposition, op *pb.Operation) string {
	return fmt.Sprintf("%v %v %d", d, op.GetState(), op.GetVersion())
}

// standing is how far an operation has come.
type standing struct{ sequence, version, events int }

func (c command) stands(t testing.TB, e *env) standing {
	t.Helper()
	row := e.row(t, c.operation)
	if row == nil {
		return standing{}
	}
	s := standing{events: len(e.history(t, c.operation))}
	if _, err := fmt.Sscan(row["sequence"]+" "+row["version"], &s.sequence, &s.version); err != nil {
		t.Fatal(err)
	}
	return s
}

// wantOnce fails unless the call was answered as it should be, and has happened once.
func (c command) wantOnce(t *testing.T, e *env, was standing, answer string) {
	t.Helper()
	if answer != c.want {
		t.Errorf("the call was answered %q, want %q", answer, c.want)
	}
	want := standing{was.sequence + 1, was.version + 1, was.events + 1}
	if got := c.stands(t, e); got != want {
		t.Errorf("the operation has come to %+v, want %+v", got, want)
	}
}

// sdk connects the Go SDK as its users do: by files.
func sdk(t *testing.T, addr, principal string) *client.Ledger {
	t.Helper()
	l, err := client.Dial(t.Context(), sdkConfig(t, addr, principal))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func sdkConfig(t *testing.T, addr, principal string) client.Config {
	t.Helper()
	dir := t.TempDir()
	certificate, key, err := leafOf(t, principal).PEM()
	if err != nil {
		t.Fatal(err)
	}
	c := client.Config{
		Endpoint: addr, CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}
	for path, content := range map[string][]byte{c.CAFile: rootA(t).PEM(), c.CertFile: certificate, c.KeyFile: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// charge is an effect of the SDK's whose execution is given.
func charge(execute func(ctx context.Context, call client.Call) (string, error)) client.Effect[map[string]string, string] {
	return client.Effect[map[string]string, string]{
		Tool: "card.charge",
		Execute: func(ctx context.Context, call client.Call, _ map[string]string) (string, error) {
			return execute(ctx, call)
		},
		Resource: func(id string) *pb.ResourceRef { return &pb.ResourceRef{Type: "charge", Id: id} },
	}
}

// answeringAll serves every method of every service with one status, and counts.
func answeringAll(t *testing.T, options ...grpc.ServerOption) (addr string, code *atomic.Int64, calls *atomic.Int64) {
	t.Helper()
	code, calls = &atomic.Int64{}, &atomic.Int64{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(append(options, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		calls.Add(1)
		return status.Error(codes.Code(code.Load()), "as ordered")
	}))...)
	t.Cleanup(s.Stop)
	go func() { _ = s.Serve(l) }() // ends with Stop
	return l.Addr().String(), code, calls
}

// shippedPolicy counts how often the SDK sends a Claim that is answered with each code.
func shippedPolicy(t *testing.T) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(rootA(t).PEM())
	server := mint(t, rootA(t), authz.LeafSpec{
		CommonName: "ledger", IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	addr, code, calls := answeringAll(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server.TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	})))
	ledger := sdk(t, addr, billing)
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		code.Store(int64(c))
		before := calls.Load()
		_, err := client.Do(within(t), ledger, charge(func(context.Context, client.Call) (string, error) {
			t.Error("executed without a grant")
			return "", nil
		}), client.Intent{Task: "task", Step: "step"}, map[string]string{"amount": "10.00"})
		if status.Code(err) != c {
			t.Errorf("%v arrived as %v", c, err)
		}
		switch sent := calls.Load() - before; {
		case c == codes.Unavailable && sent != 4:
			t.Errorf("UNAVAILABLE was sent %d times, want the 4 of the policy", sent)
		case c == codes.DeadlineExceeded && sent > 3:
			// The SDK itself sends a Claim whose time was over again, under the same claim_id; the policy does not.
			t.Errorf("DEADLINE_EXCEEDED was sent %d times", sent)
		case c != codes.Unavailable && c != codes.DeadlineExceeded && sent != 1:
			t.Errorf("%v was sent %d times, want once", c, sent)
		}
	}
}

// targetUnavailable is a worker whose target is gRPC itself, accepts, and then says UNAVAILABLE.
func targetUnavailable(t *testing.T, e *env) {
	addr, code, effects := answeringAll(t)
	code.Store(int64(codes.Unavailable))
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ledger := sdk(t, e.node.grpcAddr, billing)
	intent := client.Intent{Task: unique(t), Step: "charge", Time: time.Now()}
	for _, what := range []string{"the execution", "a second worker"} {
		out, err := client.Do(within(t), ledger, charge(func(ctx context.Context, _ client.Call) (string, error) {
			return "", conn.Invoke(ctx, "/payments.v1.Charges/Create", &emptypb.Empty{}, &emptypb.Empty{})
		}), intent, map[string]string{"amount": "10.00"})
		if err != nil {
			t.Fatalf("%s ended with %v", what, err)
		}
		told := client.Match(out, func(client.Done[string]) string { return "done" }, func(client.Rejection) string { return "rejected" },
			func(u client.Unknown) string { return u.Reason.String() + " " + u.Operation.GetState().String() })
		if told != "unknown STATE_UNKNOWN" {
			t.Errorf("%s was told %q, want unknown", what, told)
		}
	}
	if n := effects.Load(); n != 1 {
		t.Errorf("the target was called %d times, want once", n)
	}
}
