// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// policy has limits that a benchmark does not reach; the limiter is asked at each call all the same.
const policy = `
trust_domain: bench.test
scopes:
  - name: bench
    principals: [spiffe://bench.test/agent/load]
    tools: ["*"]
    limits:
      requests_per_second: 1000000
      burst: 1000000
      live_operations: 1000000
      subject: {requests_per_second: 1000000, burst: 1000000, live_operations: 1000000}
`

// site is a directory with everything that servers and clients need. It lies where the throwaway PostgreSQL puts its files, so that both
// stores are on one disk.
type site struct{ dir string }

func newSite() (_ *site, err error) {
	dir, err := os.MkdirTemp("/tmp", "opsledger-bench-")
	if err != nil {
		return nil, err
	}
	s := &site{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	ca, err := authz.NewCA("bench", time.Now(), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		return nil, err
	}
	ring, err := fingerprint.NewRing("k1", secret)
	if err != nil {
		return nil, err
	}
	return s, errors.Join(
		s.write("ca.pem", ca.PEM()), s.write("secrets.yaml", ring.RevealYAML()),
		s.write("policy.yaml", []byte(policy)), s.write("contracts.yaml", []byte(contracts)),
		s.issue(ca, "server", authz.LeafSpec{IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		s.issue(ca, "load", authz.LeafSpec{URIs: []string{"spiffe://bench.test/agent/load"}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}),
	)
}

func (s *site) remove() error { return os.RemoveAll(s.dir) }

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name string, data []byte) error { return os.WriteFile(s.path(name), data, 0o600) }

func (s *site) issue(ca *authz.CA, name string, spec authz.LeafSpec) error {
	spec.NotBefore, spec.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(24*time.Hour)
	leaf, err := ca.Issue(spec)
	if err != nil {
		return err
	}
	cert, key, err := leaf.PEM()
	if err != nil {
		return err
	}
	return errors.Join(s.write(name+".pem", cert), s.write(name+"-key.pem", key))
}

func (s *site) files(name string) authz.Files {
	return authz.Files{Cert: s.path(name + ".pem"), Key: s.path(name + "-key.pem"), CA: s.path("ca.pem")}
}

// build makes the binary that is measured: the released one but for the endpoint of profiles, which is behind a build tag and listens
// only where it is told to.
func (s *site) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags=profile", "-o", s.path("ledgerd"), "github.com/opsledger/opsledger/cmd/ledgerd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build ledgerd: %w\n%s", err, out)
	}
	return nil
}

// server is a ledgerd process.
type server struct {
	grpc, admin, profiles string
	cmd                   *exec.Cmd
	ended                 chan error
	log                   string
}

// startLedgerd starts a ledgerd as it is shipped, on a store, and waits until it is ready.
func (s *site) startLedgerd(ctx context.Context, name, store string) (*server, error) {
	addresses := make([]string, 3)
	for i := range addresses {
		var err error
		if addresses[i], err = freeAddr(ctx); err != nil {
			return nil, err
		}
	}
	p := &server{grpc: addresses[0], admin: addresses[1], profiles: addresses[2], ended: make(chan error, 1), log: s.path(name + ".log")}
	files := s.files("server")
	p.cmd = exec.Command(s.path("ledgerd"), "serve", "--store", store, "--migrations", "apply",
		"--tls-cert", files.Cert, "--tls-key", files.Key, "--tls-ca", files.CA,
		"--policy", s.path("policy.yaml"), "--contracts", s.path("contracts.yaml"), "--secrets", s.path("secrets.yaml"),
		"--grpc-addr", p.grpc, "--admin-addr", p.admin, "--drain-delay", "0s", "--log-level", "warn")
	for _, pair := range os.Environ() { // settings of whoever runs it
		if !strings.HasPrefix(pair, "LEDGERD_") && !strings.HasPrefix(pair, "OTEL_") {
			p.cmd.Env = append(p.cmd.Env, pair)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "OPSLEDGER_PROFILE_ADDR="+p.profiles)
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // so that it does not outlive a run that is killed
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about the thread that forked
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.ended <- p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	for range 500 {
		if _, err := get(ctx, "http://"+p.admin+"/readyz"); err == nil {
			return p, nil
		}
		wait(ctx, 20*time.Millisecond)
	}
	text, _ := os.ReadFile(p.log)
	return nil, errors.Join(fmt.Errorf("ledgerd on %s was not ready in time: %s", name, text), p.stop())
}

// stop lets it drain.
func (p *server) stop() error {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended by itself
	kill := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := <-p.ended; err != nil {
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("ledgerd: %w: %s", err, text)
	}
	return nil
}

// unitSizes does one unit and returns how long its messages are.
func (s *site) unitSizes(ctx context.Context, p *server) (sizes []messageSizes, err error) {
	material, err := authz.NewMaterialReloader(s.files("load"), time.Now, nil)
	if err != nil {
		return nil, err
	}
	note := func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, method, request, answer, conn, opts...)
		in, _ := request.(proto.Message)
		out, _ := answer.(proto.Message)
		sizes = append(sizes, messageSizes{proto.Size(in), proto.Size(out)})
		return err
	}
	conn, err := grpc.NewClient(p.grpc, grpc.WithUnaryInterceptor(note),
		grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(material, ""))))
	if err != nil {
		return nil, err
	}
	err = remoteUnits([]*grpc.ClientConn{conn})(ctx, 0)
	return sizes, errors.Join(err, conn.Close())
}

// metric is one without labels.
func (p *server) metric(ctx context.Context, name string) (float64, error) {
	text, err := get(ctx, "http://"+p.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("ledgerd has no metric %s", name)
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Request.URL.Path, response.Status)
	}
	return string(text), err
}

func freeAddr(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
