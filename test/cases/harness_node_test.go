// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opsledger/opsledger/failpoint"
)

// nodeOptions of one ledgerd. The zero value is an ordinary one.
type nodeOptions struct {
	// failpoints, if set, starts the build with failpoints under this order: "rpc.claim.after-commit=1*error".
	failpoints string
	// later starts a build of the future, which knows one more version of the canonical form than a release.
	later bool
	// clock, if set, starts a build whose clock is wrong by what the file says.
	clock clockFile
	// recovers starts ledgerd recover: it looks for what is due and serves nothing.
	recovers bool
	// store, if set, is used in place of the environment's own URL: that of a proxy before it.
	store string
	// args and env are added; a flag that is given twice counts as it is given last.
	args, env []string
}

// node is one ledgerd process. Its addresses stay the same when it is started again.
type node struct {
	grpcAddr, adminAddr string
	// logPath is the file with all that the process writes, over all its starts.
	logPath string

	binary string
	args   []string
	env    []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// start runs a further ledgerd on the environment's store; it is killed at the end of the test.
func (e *env) start(t *testing.T, o nodeOptions) *node {
	t.Helper()
	n := launch(t, e, o)
	t.Cleanup(n.stop)
	n.watch(t)
	return n
}

// nodes are the ledgerd processes of a case with two of them: two on one PostgreSQL, one on SQLite.
func (e *env) nodes(t *testing.T) []*node {
	t.Helper()
	if e.store == "sqlite" {
		return []*node{e.node}
	}
	return []*node{e.node, e.start(t, nodeOptions{})}
}

// launch starts a ledgerd that ends with the suite, and waits until it is ready.
func launch(t *testing.T, e *env, o nodeOptions) *node {
	t.Helper()
	binary, err := plainBinary()
	if o.failpoints != "" {
		binary, err = failpointBinary()
	}
	if o.later {
		binary, err = laterBinary()
	}
	if o.clock != "" {
		binary, err = shiftedBinary()
	}
	if err != nil {
		t.Fatal(err)
	}
	files, err := serverFiles()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := suite.dir()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		grpcAddr: freeAddr(t), adminAddr: freeAddr(t), binary: binary,
		logPath: filepath.Join(dir, fmt.Sprintf("ledgerd%d.log", suite.count.Add(1))),
	}
	dsn := e.dsn
	if o.store != "" {
		dsn = o.store
	}
	n.args = []string{
		"serve", "--store", dsn, "--migrations", "apply", "--grpc-addr", n.grpcAddr, "--admin-addr", n.adminAddr,
		"--drain-delay", "0s", "--log-level", "debug", "--store-durability", "as-it-is",
		"--recovery", "off", // a case sees what it does itself; those of recovery turn it on
	}
	if o.recovers {
		n.args = []string{"recover", "--store", dsn, "--admin-addr", n.adminAddr, "--log-level", "debug", "--store-durability", "as-it-is"}
		files = map[string]string{"contracts": files["contracts"], "secrets": files["secrets"]}
	}
	for flag, path := range files {
		n.args = append(n.args, "--"+flag, path)
	}
	n.args = append(n.args, o.args...)
	for _, pair := range os.Environ() { // settings of whoever runs the tests
		if !strings.HasPrefix(pair, "LEDGERD_") && !strings.HasPrefix(pair, "OTEL_") {
			n.env = append(n.env, pair)
		}
	}
	n.env = append(n.env, o.env...)
	if o.clock != "" {
		n.env = append(n.env, clockVariable+"="+string(o.clock))
	}
	if o.failpoints != "" {
		n.env = append(n.env, failpoint.Variable+"="+o.failpoints)
	}
	suite.mu.Lock()
	suite.nodes = append(suite.nodes, n)
	suite.mu.Unlock()
	n.run(t)
	return n
}

// freeAddr is an address that nobody uses now, below the ports that the system gives to outgoing connections: a process that is started again
// finds it free.
func freeAddr(t testing.TB) string {
	t.Helper()
	const lowest, most = 15_000, 15_000
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+(firstPort+suite.ports.Add(1))%most))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// firstPort lets test binaries that run at the same time begin elsewhere.
var firstPort = rand.Int64N(1 << 20)

// run starts the process and waits until it is ready.
func (n *node) run(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(n.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(n.binary, n.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		// The signal at the parent's death follows the thread that forked: it has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended stays in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.cmd, n.done = cmd, done
	n.mu.Unlock()
	eventually(t, "ledgerd is ready", func() bool {
		if !n.alive() {
			t.Fatalf("ledgerd has ended: %v\n%s", cmd.ProcessState, n.log())
		}
		response, err := http.Get("http://" + n.adminAddr + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// alive says whether the process runs.
func (n *node) alive() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.done:
		return false
	default:
		return n.cmd != nil
	}
}

// kill ends the process by SIGKILL and waits for its end. One that has ended already is no error.
func (n *node) kill(t testing.TB) {
	t.Helper()
	if err := n.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// restart kills the process by SIGKILL and starts it again at the same addresses on the same store.
func (n *node) restart(t testing.TB) {
	t.Helper()
	n.kill(t)
	n.run(t)
}

// waitEnd waits until the process has ended by itself, by a failpoint for example.
func (n *node) waitEnd(t testing.TB) *os.ProcessState {
	t.Helper()
	select {
	case <-n.done:
		return n.cmd.ProcessState
	case <-within(t).Done():
		t.Fatal("ledgerd has not ended")
		return nil
	}
}

// stop is kill for when no test is left to fail.
func (n *node) stop() { _ = n.signal(syscall.SIGKILL) }

func (n *node) signal(sig os.Signal) error {
	n.mu.Lock()
	cmd, done := n.cmd, n.done
	n.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-done
	return nil
}

// log is all that the process has written.
func (n *node) log() string {
	text, err := os.ReadFile(n.logPath)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// races reports what the race detector found in the process.
func (n *node) races() error {
	if raceBuild && strings.Contains(n.log(), "WARNING: DATA RACE") {
		return fmt.Errorf("ledgerd has a data race:\n%s", n.log())
	}
	return nil
}

// watch shows what the process has written during the test, if that fails.
func (n *node) watch(t testing.TB) {
	from := int64(len(n.log()))
	if _, err := os.Stat(n.logPath); err != nil {
		from = 0
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		const most = 32 << 10
		text := n.log()
		text = text[min(int(from), len(text)):]
		if len(text) > most {
			text = "...\n" + text[len(text)-most:]
		}
		t.Logf("ledgerd at %s wrote:\n%s", n.grpcAddr, text)
	})
}

// metric adds up the series of one metric whose labels contain all the given texts (`outcome="conflict"`).
func (n *node) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	response, err := http.Get("http://" + n.adminAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var sum float64
	in := bufio.NewScanner(io.LimitReader(response.Body, 16<<20))
	in.Buffer(nil, 1<<20)
next:
	for in.Scan() {
		series, value, labelled := strings.Cut(in.Text(), "} ")
		if !labelled {
			series, value, _ = strings.Cut(in.Text(), " ")
		}
		metric, given, _ := strings.Cut(series, "{")
		if metric != name {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(given, label) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return sum
}
