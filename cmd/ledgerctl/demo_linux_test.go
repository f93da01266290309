// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ledgerd builds the server once for all tests, without test flags: what a user would run.
var ledgerd = sync.OnceValues(func() (string, error) {
	// The test cache knows what a test looked at, not what a compiler did: without this a result would outlive the sources.
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody's temporary file
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." {
			return fs.SkipDir
		}
		if slices.Contains([]string{".go", ".sql", ".yaml", ".mod"}, filepath.Ext(path)) && !strings.HasSuffix(path, "_test.go") {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look at the sources: %w", err)
	}
	path := filepath.Join(buildDir, "ledgerd")
	if text, err := exec.Command("go", "build", "-o", path, ledgerdPackage).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ledgerd: %w: %s", err, text)
	}
	return path, nil
})

func buildLedgerd(t *testing.T) string {
	t.Helper()
	path, err := ledgerd()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// limit bounds each performance; a usual one takes about forty seconds.
const limit = 2 * time.Minute

// stage is an environment whose processes and temporary files are found again by their TMPDIR.
type stage struct {
	tmp string
	env []string
}

func newStage(t *testing.T) stage {
	t.Helper()
	s := stage{tmp: t.TempDir()}
	s.env = append(os.Environ(), asMain+"=1", "TMPDIR="+s.tmp)
	return s
}

// ledgerctl is this program as a process.
func (s stage) ledgerctl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = s.env
	return cmd
}

// perform runs the demonstration to its end.
func (s stage) perform(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := s.ledgerctl(ctx, append([]string{"demo"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil || cmd.ProcessState == nil {
		t.Fatalf("the demonstration did not end by itself: %v\n%s\n%s", err, &out, &errs)
	}
	t.Logf("standard output:\n%s\nstandard error:\n%s", &out, &errs)
	return out.String(), cmd.ProcessState.ExitCode()
}

// processes are those of the stage that run.
func (s stage) processes(t *testing.T) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // it has ended, or is somebody else's
		}
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+s.tmp) {
			found = append(found, pid)
		}
	}
	return found
}

// leftNothing fails if processes or temporary files of the stage are there.
func (s stage) leftNothing(t *testing.T) {
	t.Helper()
	if left := s.processes(t); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	entries, err := os.ReadDir(s.tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the temporary directory: %s", e.Name())
	}
}

func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			t.Errorf("the output does not have %q", w)
		}
	}
}

// TestStandalone: all counts are right, and nothing is left.
func TestStandalone(t *testing.T) {
	program := buildLedgerd(t)
	t.Parallel()
	s := newStage(t)
	out, code := s.perform(t, "--standalone", "--ledgerd", program)
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	contains(t, out,
		"retry on timeout (naive)    2             T-1001, T-1002", "with the ledger             1             T-1003 ", ": signal 9\n",
		"state         UNKNOWN", "why no retry",
		"found T-1003 under the original key: UNKNOWN -> COMPLETED",
		"the third worker got the replay: T-1003    requests that the service got: 1\n",
		"granted 1    in progress 63    charges made 1", "64 replays of CH-1001",
		"refused: FINGERPRINT_CONFLICT    differs: amount    requests that the service got: 0\n",
		"not found. That proves now that nothing happened: UNKNOWN -> RECEIVED",
		"granted again, the same key: CH-1002    charges made 1    requests that the service got: 2\n",
		"no answer: UNKNOWN    charges made 1    requests that the service got: 1\n", "nobody sends it again; next check in ",
		"blocked: WAIT (ORIGINAL_UNSETTLED)    refunds made 0    requests that the service got: 0\n",
		"found CH-1003 under the original key: UNKNOWN -> COMPLETED\n", ": CH-1003 is as the charge left it\n",
		"granted: RF-1001    refunds made 1    requests that the service got: 1\n",
		"asked: T-1003 is in version 2, which is not how it was left\n",
		"not closed: WAIT_FOR_PERSON (RESOURCE_CHANGED)    requests that the service got: 0\n",
		"$ go run ./cmd/ledgerctl op get ", "nobody may claim it before a person has looked: RESOURCE_CHANGED ",
		"if you agree: ledgerctl op approve ", "$ go run ./cmd/ledgerctl op approve ", "approved (version 3): RECEIVED, automation\n",
		"granted, for version 2: T-1003 is closed    requests that the service got: 1\n",
		"retry on timeout (naive)    2             RF-1002, RF-1003\n", "with the ledger             1             RF-1004\n",
		"The refund is an operation of its own: UNKNOWN. Its charge stays COMPLETED: CH-1001\n", "found RF-1004 under its own key: UNKNOWN -> COMPLETED\n",
		"asked once more: the replay of RF-1004    requests that the service got: 1\n",
		"UNKNOWN, WAIT_FOR_PERSON    messages sent 1    requests that the service got: 1\n", "Your turn:  go run ./cmd/ledgerctl op take-over ",
		"All counts are right")
	if n := strings.Count(out, "not found. That proves nothing: what was sent may take effect until "); n != 2 {
		t.Errorf("an answer before the settle time is told %d times, want in two scenes", n)
	}
	if strings.Contains(out, "WRONG") {
		t.Error("a count is wrong")
	}
	s.leftNothing(t)
}

// TestSabotage: where the end of a lease counts as a permission, the same faults make a duplicate, and the demonstration says so.
func TestSabotage(t *testing.T) {
	program := buildLedgerd(t)
	t.Parallel()
	s := newStage(t)
	out, code := s.perform(t, "--standalone", "--sabotage", "--ledgerd", program)
	if code != exitError {
		t.Errorf("exit code %d, want %d", code, exitError)
	}
	contains(t, out, "with the ledger (sabotaged) 2             T-1003, T-1004", "WRONG  with the ledger: tickets made: 2, must be 1",
		"WRONG  with the ledger: requests that the service got: 2, must be 1", "took the end of a lease for a permission")
	if strings.Contains(out, "All counts are right") {
		t.Error("it says that all is right")
	}
	s.leftNothing(t)
}

// TestAgainstRunningLedger: against a ledger that somebody has started, also for a second time, and when that has stopped.
func TestAgainstRunningLedger(t *testing.T) {
	program := buildLedgerd(t)
	t.Parallel()
	state := t.TempDir()
	server, err := begin(t.Context(), []string{
		program, "dev", "--state-dir", state, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--demo-target", freeAddr(t),
	}, os.Environ(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.kill()
	if _, err := ready(t.Context(), server, state); err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	for n := range 2 {
		out, code := s.perform(t, "--state-dir", state)
		if code != exitOK {
			t.Errorf("performance %d: exit code %d", n+1, code)
		}
		contains(t, out, " --reason trying-it --state-dir "+state+"\n", ` --note "I wrote that, and am done" --state-dir `+state+"\n")
		s.leftNothing(t)
	}
	server.kill() // leaves its note behind
	if _, code := s.perform(t, "--state-dir", state); code != exitUnavailable {
		t.Errorf("without a ledger: exit code %d, want %d", code, exitUnavailable)
	}
	s.leftNothing(t)
}

// freeAddr asks the system for an address that nobody uses now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestNoPlaceForTheServices: a ledger with contracts of its own, and one whose contracts ask where somebody else listens.
func TestNoPlaceForTheServices(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0") // it plays the ledger as well, which is only connected to
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct{ name, target, says string }{
		{"contracts of its own", "", "start it without --contracts"},
		{"somebody else listens there", taken.Addr().String(), "--demo-target sets another one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := t.TempDir()
			note, err := json.Marshal(devLedger{
				GRPCAddr: taken.Addr().String(), CAFile: "ca.pem", Identities: map[string]identity{worker: {}}, DemoTarget: tt.target,
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(state, devFile), note, 0o600); err != nil {
				t.Fatal(err)
			}
			s := newStage(t)
			cmd := s.ledgerctl(t.Context(), "demo", "--state-dir", state)
			text, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != exitError || !strings.Contains(string(text), tt.says) {
				t.Errorf("%v: %s", err, text)
			}
			s.leftNothing(t)
		})
	}
}

// TestInterrupted ends the demonstration in the middle: by SIGINT, which it can clean up after, and by SIGKILL, where the kernel
// ends the processes.
func TestInterrupted(t *testing.T) {
	program := buildLedgerd(t)
	t.Parallel()
	for _, tt := range []struct {
		signal syscall.Signal
		clean  bool
	}{{syscall.SIGINT, true}, {syscall.SIGKILL, false}} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			s := newStage(t)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			cmd := s.ledgerctl(ctx, "demo", "--standalone", "--ledgerd", program)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// The naive row stands when the ledger, the service and workers run or have run.
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.Contains(lines.Text(), "(naive)") {
			}
			if len(s.processes(t)) < 3 {
				t.Error("ledger, service and demonstration do not run: the test would prove nothing")
			}
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() {
			}
			_ = cmd.Wait() // judged by its state
			if cmd.ProcessState.Success() {
				t.Error("it ended as if all were right")
			}
			if tt.clean {
				s.leftNothing(t)
				return
			}
			s.goneSoon(t)
		})
	}
}

// goneSoon waits for the end of processes that somebody else has to end.
func (s stage) goneSoon(t *testing.T) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(10 * time.Second)
	for len(s.processes(t)) > 0 {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("processes left: %v", s.processes(t))
		}
	}
}
