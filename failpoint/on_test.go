// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test binary hit one point and leave, so that
// actions that end a process are seen from outside.
const childVariable = "FAILPOINT_TEST_HITS"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		for range len(os.Getenv(childVariable)) {
			if err := Hit(context.Background(), RPCClaimAfterCommit); err != nil {
				os.Exit(9)
			}
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestEnvironmentOfAProcess(t *testing.T) {
	const p = string(RPCClaimAfterCommit)
	tests := []struct {
		name, value, hits string
		exit              int
		signal            bool
		stderr            string
	}{
		{name: "not set", value: "", hits: "xx", exit: 0},
		{name: "error", value: p + "=error", hits: "x", exit: 9},
		{name: "another point", value: "rpc.claim.before-commit=error", hits: "x", exit: 0},
		{name: "exit", value: p + "=exit(7)", hits: "x", exit: 7},
		{name: "panic", value: p + "=panic", hits: "x", exit: 2, stderr: "failpoint: " + p},
		{name: "kill", value: p + "=kill", hits: "x", exit: -1, signal: true},
		{name: "third hit kills", value: p + "=2*off->1*kill", hits: "xxx", exit: -1, signal: true},
		{name: "only two hits", value: p + "=2*off->1*kill", hits: "xx", exit: 0},
		{name: "sleep goes on", value: p + "=sleep(1ms)", hits: "x", exit: 0},
		{name: "unknown name ends the start", value: "rpc.claim.nowhere=error", hits: "x", exit: 2, stderr: "entry 1: the name is not registered"},
		{name: "unknown action ends the start", value: p + "=explode", hits: "x", exit: 2, stderr: "the action must be"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), Variable+"="+tt.value, childVariable+"="+tt.hits)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.exit {
				t.Errorf("exit code %d, want %d; stderr: %s", got, tt.exit, stderr.String())
			}
			if killed := cmd.ProcessState.String() == "signal: killed"; killed != tt.signal {
				t.Errorf("killed = %v (%s)", killed, cmd.ProcessState)
			}
			if !bytes.Contains(stderr.Bytes(), []byte(tt.stderr)) {
				t.Errorf("stderr %q lacks %q", stderr.String(), tt.stderr)
			}
		})
	}
}

// TestHold: it goes on when the file that it made has been removed, and no longer than its context allows.
func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	defer Enable(RPCClaimAfterCommit, Hold(path))()
	ended := make(chan error, 1)
	go func() { ended <- Hit(t.Context(), RPCClaimAfterCommit) }()
	for os.Remove(path) != nil {
		select {
		case err := <-ended:
			t.Fatalf("it did not hold: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("when the file was removed: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Hit(over, RPCClaimAfterCommit); !errors.Is(err, context.Canceled) {
		t.Errorf("when the context had ended: %v", err)
	}
}

func TestParse(t *testing.T) {
	const p = string(RPCClaimAfterCommit)
	tests := []struct {
		name, value string
		points      int
		want        error
	}{
		{name: "empty", value: ""},
		{name: "several with spaces and a last semicolon", value: " " + p + " = error ; store.create.after-commit=1*error->sleep(2s);", points: 2},
		{name: "no action", value: p + "=", want: errAction},
		{name: "no count", value: p + "=*error", want: errCount},
		{name: "count of nothing", value: p + "=0*error", want: errCount},
		{name: "bare number as duration", value: p + "=sleep(100)", want: errDuration},
		{name: "negative duration", value: p + "=sleep(-1s)", want: errDuration},
		{name: "sleep without argument", value: p + "=sleep", want: errAction},
		{name: "hold without a file", value: p + "=hold()", want: errPath},
		{name: "hold without argument", value: p + "=hold", want: errAction},
		{name: "error with argument", value: p + "=error(x)", want: errAction},
		{name: "open bracket", value: p + "=sleep(1s", want: errAction},
		{name: "code out of range", value: p + "=exit(300)", want: errCode},
		{name: "empty step", value: p + "=error->", want: errAction},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plans, err := parse(tt.value)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if len(plans) != tt.points {
				t.Errorf("%d points, want %d", len(plans), tt.points)
			}
		})
	}
	for _, bad := range []string{"nonsense", p + "=error;" + p + "=error"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestEveryPointCanFail(t *testing.T) {
	for _, name := range Names() {
		before := Hits(name)
		restore := Enable(name, Error().Times(1))
		if err := Hit(t.Context(), name); !errors.Is(err, ErrInjected) {
			t.Errorf("%s: first hit: %v", name, err)
		}
		if err := Hit(t.Context(), name); err != nil {
			t.Errorf("%s: second hit: %v", name, err)
		}
		restore()
		if got := Hits(name) - before; got != 2 {
			t.Errorf("%s: %d hits counted", name, got)
		}
	}
}

func TestRestorePutsTheEarlierOrderBack(t *testing.T) {
	outer := Enable(StoreCreateAfterCommit, Error())
	inner := Enable(StoreCreateAfterCommit, Off())
	if err := Hit(t.Context(), StoreCreateAfterCommit); err != nil {
		t.Errorf("inner: %v", err)
	}
	inner()
	inner()
	if err := Hit(t.Context(), StoreCreateAfterCommit); !errors.Is(err, ErrInjected) {
		t.Errorf("outer again: %v", err)
	}
	outer()
	if err := Hit(t.Context(), StoreCreateAfterCommit); err != nil {
		t.Errorf("restored: %v", err)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer Enable(StoreUpdateBetweenReadAndWrite, Sleep(time.Minute))()
		start := time.Now()
		if err := Hit(t.Context(), StoreUpdateBetweenReadAndWrite); err != nil {
			t.Errorf("sleep: %v", err)
		}
		if got := time.Since(start); got != time.Minute {
			t.Errorf("slept %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := Hit(ctx, StoreUpdateBetweenReadAndWrite); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sleep past the deadline: %v", err)
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("slept %v past the deadline", got)
		}
	})
}

func TestConcurrentHitsShareOneCount(t *testing.T) {
	defer Enable(RPCClaimBeforeCommit, Error().Times(5))()
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if Hit(t.Context(), RPCClaimBeforeCommit) != nil {
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	if got := failed.Load(); got != 5 {
		t.Errorf("%d hits failed, want 5", got)
	}
}

func TestMisuseInCodePanics(t *testing.T) {
	for name, misuse := range map[string]func(){
		"hit":            func() { _ = Hit(t.Context(), "nowhere") },
		"enable":         func() { Enable("nowhere", Off()) },
		"without a step": func() { Enable(RPCClaimAfterCommit) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			misuse()
		})
	}
}
