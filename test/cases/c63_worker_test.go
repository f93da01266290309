// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/client"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// errandVariable makes this test binary a worker process: it performs one effect through the Go SDK and stops at the points that it
// names, so that it can be killed there.
const errandVariable = "OPSLEDGER_CASES_ERRAND"

// errand is what a worker process is told.
type errand struct {
	Ledger  client.Config
	Target  string
	Tool    string
	Task    string
	Decided time.Time
	Lease   time.Duration
}

func (e errand) intent() client.Intent {
	return client.Intent{Task: e.Task, Step: "effect", Time: e.Decided}
}

// effectRequest is what the effect depends on, in every process the same.
var effectRequest = map[string]string{"amount": "10.00", "currency": "EUR", "to": "A"}

func init() {
	text := os.Getenv(errandVariable)
	if text == "" {
		return
	}
	var e errand
	err := json.Unmarshal([]byte(text), &e)
	if err == nil {
		err = e.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run says "claimed ID KEY" and "answered" on its way, each time waits for a line, and says at the end what it knows.
func (e errand) run(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	conn, err := e.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	lines := bufio.NewReader(in)
	stop := func(format string, args ...any) error {
		fmt.Fprintf(out, format+"\n", args...)
		_, err := lines.ReadString('\n') // ends with the parent, too
		return err
	}
	effect := client.Effect[map[string]string, *pb.ResourceRef]{
		Tool: e.Tool, Lease: e.Lease,
		Execute: func(ctx context.Context, call client.Call, r map[string]string) (*pb.ResourceRef, error) {
			if err := stop("claimed %s %s", call.OperationID, call.Key); err != nil {
				return nil, client.NotSent(err)
			}
			resource, err := e.perform(ctx, call.Key, r)
			if target.ClassOf(err) == target.NeverSent {
				return nil, client.NotSent(err)
			}
			if err == nil {
				err = stop("answered")
			}
			return resource, err
		},
		Resource: func(r *pb.ResourceRef) *pb.ResourceRef { return r },
	}
	outcome, err := client.Do(ctx, client.New(conn, client.Options{}), effect, e.intent(), effectRequest)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, client.Match(outcome,
		func(d client.Done[*pb.ResourceRef]) string { return "done " + d.Result.GetResource().GetId() },
		func(r client.Rejection) string { return "rejected " + r.Failure.GetCode() },
		func(u client.Unknown) string { return u.Reason.String() }))
	return nil
}

// perform sends the effect once.
func (e errand) perform(ctx context.Context, key string, r map[string]string) (*pb.ResourceRef, error) {
	at := target.Client{BaseURL: e.Target}
	if e.Tool == "mail.send" {
		m, err := at.SendMessage(ctx, key, target.MessageRequest{To: r["to"]})
		return &pb.ResourceRef{Type: "message", Id: m.ID}, err
	}
	c, err := at.Charge(ctx, key, target.ChargeRequest{Amount: target.Amount(r["amount"]), Currency: r["currency"], To: r["to"]})
	return &pb.ResourceRef{Type: "charge", Id: c.ID}, err
}

// dial is the SDK's own connection, but for one thing: a call waits while ledgerd is being started again.
func (e errand) dial() (*grpc.ClientConn, error) {
	authorities, err := os.ReadFile(e.Ledger.CAFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(e.Ledger.CertFile, e.Ledger.KeyFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		return nil, errors.New("no authority")
	}
	quick := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}
	return grpc.NewClient(e.Ledger.Endpoint,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair},
		})),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}),
		grpc.WithDefaultServiceConfig(strings.Replace(retryPolicy, `"retryPolicy"`, `"waitForReady": true, "retryPolicy"`, 1)),
		grpc.WithDisableServiceConfig())
}

// workerProcess is a running errand.
type workerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (e errand) start(t *testing.T) *workerProcess {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	p := &workerProcess{cmd: exec.CommandContext(within(t), os.Args[0])}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), errandVariable+"="+string(text)), os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_, _ = p.cmd.Process.Kill(), p.cmd.Wait()
		}
	})
	return p
}

// hear returns the next line's words behind the first, which must be the given one.
func (p *workerProcess) hear(t *testing.T, word string) []string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) == 0 || words[0] != word {
		t.Fatalf("the worker said %q, want %q: %v", line, word, err)
	}
	return words[1:]
}

func (p *workerProcess) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.in, "go on\n"); err != nil {
		t.Fatal(err)
	}
}

// kill ends the process by SIGKILL.
func (p *workerProcess) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // says that it was killed
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the worker ended with %v", p.cmd.ProcessState)
	}
}

// finish returns all that the process still says.
func (p *workerProcess) finish(t *testing.T) string {
	t.Helper()
	rest, err := io.ReadAll(p.out)
	if err = errors.Join(err, p.cmd.Wait()); err != nil {
		t.Fatalf("the worker ended with %v after %q", err, rest)
	}
	return strings.TrimSpace(string(rest))
}
