// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/opsledger/opsledger/test/pgtest"
)

// processVariable makes this test binary the program itself.
const processVariable = "OPSLEDGER_SAMEDATABASE_PROCESS"

// patience bounds what a process may take on a loaded machine.
const patience = time.Minute

// process runs the program as a process of its own until it has printed a line, then kills it (SIGKILL) and returns the line.
func (b bench) process(t *testing.T, more ...string) string {
	t.Helper()
	args := append([]string{"-dsn", b.dsn, "-secrets", b.secrets, "-key", chair.Key, "-item", chair.Item, "-cents", "4900"}, more...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), processVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // it stays open: what waits for a line waits
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill() // it may have ended by itself
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("the process printed nothing: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// TestKilledProcess runs on a server that keeps what it commits.
func TestKilledProcess(t *testing.T) {
	b := newBench(t, pgtest.Own(t, pgtest.Options{Durable: true}))
	for range 3 {
		if line := b.process(t, "-wait"); line != "in front of COMMIT" {
			t.Fatalf("the process says %q", line)
		}
		b.want(t, 0)
	}
	placed := b.process(t) // killed, unless it was faster, when it has said so
	number, ok := strings.CutPrefix(placed, "placed: order ")
	if !ok {
		t.Fatalf("the process says %q", placed)
	}
	b.want(t, 1)
	if line := b.process(t); line != "was placed before: order "+number {
		t.Errorf("the process says %q, after %q", line, placed)
	}
	b.want(t, 1)
}
