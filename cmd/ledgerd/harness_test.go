// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/test/pgtest"
)

// asLedgerd makes this test binary run as ledgerd itself, so that signals meet a real process.
const asLedgerd = "OPSLEDGER_TEST_AS_LEDGERD"

func TestMain(m *testing.M) {
	if os.Getenv(asLedgerd) != "" {
		main()
		return
	}
	os.Exit(pgtest.Main(m))
}

// patience bounds every wait of these tests; nothing waits so long when all is well.
const patience = 30 * time.Second

// journal is a log that can be waited for.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
	return j.text.Write(b)
}

func (j *journal) read() (string, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.more == nil {
		j.more = make(chan struct{})
	}
	return j.text.String(), j.more
}

func (j *journal) waitFor(t *testing.T, text string) {
	t.Helper()
	j.waitForAll(t, text, 1)
}

// waitForAll waits until a text is there so many times.
func (j *journal) waitForAll(t *testing.T, text string, times int) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		all, more := j.read()
		if strings.Count(all, text) >= times {
			return
		}
		select {
		case <-more:
		case <-timer.C:
			t.Fatalf("%q is not in the log:\n%s", text, all)
		}
	}
}

// running is a ledgerd in this process, with signals of its own.
type running struct {
	t       *testing.T
	at      addresses
	signals chan os.Signal
	log     *journal
	out     *journal
	ended   chan error
}

// start runs a command that serves, and waits until it does.
func start(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	r := &running{t: t, signals: make(chan os.Signal, 8), log: &journal{}, out: &journal{}, ended: make(chan error, 1)}
	serving := make(chan addresses, 1)
	p := program{
		env: env, stdout: r.out, stderr: r.log, now: time.Now,
		signals: func() (<-chan os.Signal, func()) { return r.signals, func() {} },
		serving: func(at addresses) { serving <- at },
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { r.ended <- p.run(ctx, args) }()
	t.Cleanup(func() {
		cancel()
		r.signals <- syscall.SIGTERM
		r.signals <- syscall.SIGTERM
		_ = r.wait()
	})
	select {
	case r.at = <-serving:
	case err := <-r.ended:
		r.ended <- err
		log, _ := r.log.read()
		t.Fatalf("did not start: %v\n%s", err, log)
	case <-time.After(patience):
		t.Fatal("did not start in time")
	}
	return r
}

// wait returns how the program ended.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(patience):
		r.t.Error("did not end in time")
		return nil
	}
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get("http://" + r.at.Admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Error(err)
	}
	return response.StatusCode, string(body)
}

// house is what a server for production is given: an authority, identities, policy, secrets, contracts.
type house struct {
	dir  string
	ca   *authz.CA
	args []string
}

const testPolicy = `
trust_domain: ledger.test
scopes: [{name: team, principals: [spiffe://ledger.test/agent/a, spiffe://ledger.test/agent/b], tools: [%s]}]
roles: [{role: operator, principals: [spiffe://ledger.test/person/o], tools: ["*"]}]
`

func newHouse(t *testing.T, store string) *house {
	t.Helper()
	h := &house{dir: t.TempDir()}
	var err error
	if h.ca, err = authz.NewCA("test", time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	leaf, err := h.ca.Issue(authz.LeafSpec{
		IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := leaf.PEM()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := fingerprint.NewRing("k1", secret)
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, "cert.pem", string(cert))
	h.write(t, "key.pem", string(key))
	h.write(t, "ca.pem", string(h.ca.PEM()))
	h.write(t, "secrets.yaml", string(ring.RevealYAML()))
	h.write(t, "policy.yaml", fmt.Sprintf(testPolicy, "'*'"))
	h.write(t, "contracts.yaml", "tools: {tickets.create: {effect: unsafe}}")
	h.write(t, "store", store)
	h.args = []string{
		"serve", "--store-file", h.path("store"), "--tls-cert", h.path("cert.pem"), "--tls-key", h.path("key.pem"), "--tls-ca", h.path("ca.pem"),
		"--policy", h.path("policy.yaml"), "--contracts", h.path("contracts.yaml"), "--secrets", h.path("secrets.yaml"),
		"--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--drain-delay", "0s", "--reload-interval", "1h",
		"--store-durability", "as-it-is", // of the server for tests
	}
	return h
}

func (h *house) path(name string) string { return filepath.Join(h.dir, name) }

func (h *house) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// as makes the TLS material of a client.
func (h *house) as(t *testing.T, id string) *authz.Material {
	t.Helper()
	leaf, err := h.ca.Issue(authz.LeafSpec{
		URIs: []string{id}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := leaf.PEM()
	if err != nil {
		t.Fatal(err)
	}
	m, err := authz.ParseMaterial(authz.PEM{Cert: cert, Key: key, CA: h.ca.PEM()}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func dial(t *testing.T, addr string, m *authz.Material) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(m, ""))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// devMaterial reads an identity as the note of a development ledger names it.
func devMaterial(t *testing.T, dir, name string) (*authz.Material, devNote) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, devFile))
	if err != nil {
		t.Fatal(err)
	}
	var note devNote
	if err := json.Unmarshal(data, &note); err != nil {
		t.Fatal(err)
	}
	files := authz.Files{Cert: note.Identities[name].Cert, Key: note.Identities[name].Key, CA: note.CA}
	r, err := authz.NewMaterialReloader(files, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Current(), note
}

// claim is a request for a ticket under a key.
func claim(key string) *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Key:         &pb.OperationKey{Tool: "tickets.create", Task: "task-1", Key: key},
		ClaimId:     uuid.NewString(),
		WorkerId:    "worker-1",
		RequestJson: []byte(`{"title":"t"}`),
		IntentTime:  timestamppb.Now(),
	}
}

func waiting(c *pb.ClaimRequest, d time.Duration) *pb.ClaimRequest {
	c.Wait = durationpb.New(d)
	return c
}

func call(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
