// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/test/pgtest"
)

// asFlood makes this test binary be the flood; it names the file with its orders.
const asFlood = "OPSLEDGER_TEST_AS_FLOOD"

func TestMain(m *testing.M) {
	if path := os.Getenv(asFlood); path != "" {
		if err := beTheFlood(path, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "flood:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

// patience bounds every wait; nothing waits so long when all is well.
const patience = 60 * time.Second

// policy gives the flood a right of its own, with limits, since an insider can do more than an outsider.
const policy = `
trust_domain: ledger.test
scopes:
  - {name: good, principals: [spiffe://ledger.test/agent/good], tools: ["*"]}
  - {name: flood, principals: [spiffe://ledger.test/agent/flood], tools: ["*"], limits: {requests_per_second: 50, live_operations: 20}}
`

// house is a directory with everything that a ledgerd and its clients need.
type house struct {
	dir string
	ca  *authz.CA
}

func newHouse(t *testing.T) *house {
	t.Helper()
	ca, err := authz.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{dir: t.TempDir(), ca: ca}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := fingerprint.NewRing("k1", secret)
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, "ca.pem", ca.PEM())
	h.write(t, "secrets.yaml", ring.RevealYAML())
	h.write(t, "policy.yaml", []byte(policy))
	h.issue(t, "server", authz.LeafSpec{IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	for _, name := range []string{"good", "flood"} {
		h.issue(t, name, authz.LeafSpec{URIs: []string{"spiffe://ledger.test/agent/" + name}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	return h
}

func (h *house) path(name string) string { return filepath.Join(h.dir, name) }

func (h *house) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(h.path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *house) issue(t *testing.T, name string, spec authz.LeafSpec) {
	t.Helper()
	spec.NotBefore, spec.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	leaf, err := h.ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := leaf.PEM()
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, name+".pem", cert)
	h.write(t, name+"-key.pem", key)
}

func (h *house) files(name string) authz.Files {
	return authz.Files{Cert: h.path(name + ".pem"), Key: h.path(name + "-key.pem"), CA: h.path("ca.pem")}
}

func dial(t *testing.T, addr string, files authz.Files) *grpc.ClientConn {
	t.Helper()
	material, err := authz.NewMaterialReloader(files, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(material, ""))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ledgerd is a process of its own.
type ledgerd struct {
	grpc, admin string
	pid         int
	log         *journal
}

// journal is what a process writes.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// tail is the end of it.
func (j *journal) tail() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 4 << 10
	text := j.text.Bytes()
	return string(text[max(0, len(text)-most):])
}

// build makes the binary that is flooded.
func build(t *testing.T, h *house) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", h.path("ledgerd"), "github.com/opsledger/opsledger/cmd/ledgerd")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build ledgerd: %v\n%s", err, out)
	}
}

// startLedgerd starts the binary on a store, with flags besides those that it needs, and waits until it is ready.
func startLedgerd(t *testing.T, h *house, store string, flags ...string) *ledgerd {
	t.Helper()
	s := &ledgerd{grpc: freeAddr(t), admin: freeAddr(t), log: &journal{}}
	files := h.files("server")
	cmd := exec.Command(h.path("ledgerd"), append([]string{
		"serve", "--store", store, "--migrations", "apply", "--tls-cert", files.Cert, "--tls-key", files.Key,
		"--tls-ca", files.CA, "--policy", h.path("policy.yaml"), "--secrets", h.path("secrets.yaml"),
		"--grpc-addr", s.grpc, "--admin-addr", s.admin, "--drain-delay", "0s", "--log-level", "warn",
	}, flags...)...)
	cmd.Stderr = s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the end of ledgerd's log:\n%s", s.log.tail())
		}
	})
	eventually(t, "ledgerd is ready", func() bool {
		code, _ := s.get("/readyz")
		return code == http.StatusOK
	})
	return s
}

// inMemory is a directory that no disk slows down, where there is one: it is not the disk that is flooded.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "opsledger-flood-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually asks again until it is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); pause(t.Context(), 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func (s *ledgerd) get(path string) (int, string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get("http://" + s.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(response.Body); err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, body.String()
}

// gauge is a metric without labels.
func (s *ledgerd) gauge(t *testing.T, name string) float64 {
	t.Helper()
	_, metrics := s.get("/metrics")
	for line := range strings.Lines(metrics) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// processor is the processor time that the process has had.
func (s *ledgerd) processor(t *testing.T) time.Duration {
	t.Helper()
	return time.Duration(s.gauge(t, "process_cpu_seconds_total") * float64(time.Second)).Round(time.Millisecond)
}

// memory is a line of /proc/PID/status in bytes: VmRSS now, VmHWM at the most.
func (s *ledgerd) memory(t *testing.T, line string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		t.Fatal("ledgerd has ended: ", err)
	}
	for text := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(text, line+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("there is no %s", line)
	return 0
}

// flooder is the flood, as a process of its own. It has the lowest priority where that can be asked for: a real one would not run on
// ledgerd's processors.
type flooder struct {
	in  *json.Encoder
	out *bufio.Scanner
}

func startFlood(t *testing.T, h *house, o orders) *flooder {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, "orders.json", data)
	command := []string{os.Args[0]}
	if nice, err := exec.LookPath("nice"); err == nil {
		command = []string{nice, "-n", "19", os.Args[0]}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), asFlood+"="+h.path("orders.json"))
	log := &journal{}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch := time.AfterFunc(10*patience, cancel) // whatever happens, it ends
	t.Cleanup(func() {
		_ = in.Close()
		cancel()
		watch.Stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the flood wrote:\n%s", log.tail())
		}
	})
	return &flooder{json.NewEncoder(in), bufio.NewScanner(out)}
}

// rise starts the flood, and returns when it is up; fall ends it. Both return what it counted.
func (f *flooder) rise(t *testing.T) map[string]int { t.Helper(); return f.say(t, "rise") }

func (f *flooder) fall(t *testing.T) map[string]int { t.Helper(); return f.say(t, "fall") }

func (f *flooder) say(t *testing.T, word string) map[string]int {
	t.Helper()
	if err := f.in.Encode(word); err != nil {
		t.Fatal(err)
	}
	var counted map[string]int
	if !f.out.Scan() {
		t.Fatalf("the flood has ended: %v", f.out.Err())
	}
	if err := json.Unmarshal(f.out.Bytes(), &counted); err != nil {
		t.Fatal(err)
	}
	return counted
}
