// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

func devArgs(dir string) []string {
	return []string{"dev", "--state-dir", dir, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"}
}

func TestDevMakesEverythingAndKeepsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r := start(t, nil, devArgs(dir)...)
	r.out.waitFor(t, "NOT FOR PRODUCTION")
	r.out.waitFor(t, "go run ./cmd/ledgerctl demo --state-dir "+dir+"\n")
	r.out.waitFor(t, r.at.GRPC)

	m, note := devMaterial(t, dir, "agent-a")
	if note.GRPCAddr != r.at.GRPC || note.AdminAddr != r.at.Admin || note.PID != os.Getpid() {
		t.Errorf("the note says %+v, it runs at %+v", note, r.at)
	}
	client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, m))
	granted, err := client.Claim(call(t), claim("k"))
	if err != nil || granted.GetGranted() == nil {
		t.Fatalf("%v, %v", granted, err)
	}
	tool, err := client.GetTool(call(t), &pb.GetToolRequest{Tool: "payments.charge"})
	if err != nil || tool.GetEffect() != pb.Effect_EFFECT_KEYED {
		t.Errorf("the built-in contracts: %v, %v", tool, err)
	}
	other, _ := devMaterial(t, dir, "agent-b")
	stranger := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, other))
	lookup := &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: granted.GetGranted().GetOperationId()}}
	if _, err := stranger.Lookup(call(t), lookup); status.Code(err) != codes.NotFound {
		t.Errorf("another agent sees it: %v", err)
	}
	for _, name := range devClients() {
		m, _ := devMaterial(t, dir, name)
		if names, err := services(t, dial(t, r.at.GRPC, m)); err != nil || len(names) == 0 {
			t.Errorf("reflection for %s: %v, %v", name, names, err)
		}
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by others: %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	var usage usageError
	if err := run(t.Context(), devArgs(dir), nil, io.Discard, io.Discard); !errors.As(err, &usage) {
		t.Errorf("a second one on the same directory: %v", err)
	}

	r.signals <- syscall.SIGTERM
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, devFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the note is still there: %v", err)
	}
	// The next one has the same authority, secrets and operations.
	again := start(t, []string{"LEDGERD_STATE_DIR=" + dir}, "dev", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
	found, err := pb.NewLedgerServiceClient(dial(t, again.at.GRPC, m)).Lookup(call(t), lookup)
	if err != nil {
		t.Errorf("after a restart: %v, %v", found, err)
	}
	conflict := claim("k")
	conflict.RequestJson = []byte(`{"title":"another"}`)
	if _, err := pb.NewLedgerServiceClient(dial(t, again.at.GRPC, m)).Claim(call(t), conflict); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another request under the key: %v", err)
	}
}

func TestTheStateDirectoryIsWhereXDGPutsIt(t *testing.T) {
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"XDG":          {[]string{"HOME=/home/u", "XDG_STATE_HOME=/state"}, "/state/ledgerd"},
		"relative XDG": {[]string{"HOME=/home/u", "XDG_STATE_HOME=state"}, "/home/u/.local/state/ledgerd"},
		"home":         {[]string{"HOME=/home/u"}, "/home/u/.local/state/ledgerd"},
		"nothing":      {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := program{env: c.env}.stateDir()
			if dir != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v; want %q", dir, err, c.want)
			}
		})
	}
}

func TestAnotherProcessesNoteIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), devFile)
	mine, other := devNote{PID: 1, GRPCAddr: "127.0.0.1:1"}, devNote{PID: 2, GRPCAddr: "127.0.0.1:2"}
	if err := mine.remove(path); err != nil {
		t.Errorf("no note: %v", err)
	}
	if err := other.write(path); err != nil {
		t.Fatal(err)
	}
	if err := mine.remove(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// process starts this binary as ledgerd and reads its output up to the next command to type.
func process(t *testing.T, args ...string) (*exec.Cmd, *journal) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(call(t), self, args...)
	cmd.Env = append(os.Environ(), asLedgerd+"=1")
	out, log := &journal{}, &journal{}
	cmd.Stdout, cmd.Stderr = out, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	out.waitFor(t, "ledgerctl demo")
	return cmd, log
}

func TestARealProcessEndsBySignals(t *testing.T) {
	for name, c := range map[string]struct {
		delay   string
		signals []syscall.Signal
		code    int
	}{
		"SIGTERM":      {"0s", []syscall.Signal{syscall.SIGTERM}, 0},
		"SIGINT":       {"0s", []syscall.Signal{syscall.SIGINT}, 0},
		"SIGHUP first": {"0s", []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}, 0},
		"SIGINT twice": {"5m", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd, log := process(t, append(devArgs(dir), "--log-level", "info", "--drain-delay", c.delay)...)
			for i, signal := range c.signals {
				if i > 0 && c.signals[i-1] != syscall.SIGHUP {
					log.waitFor(t, "draining")
				}
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait() // what matters is the code
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				text, _ := log.read()
				t.Errorf("exit code %d, want %d\n%s", code, c.code, text)
			}
			if _, err := os.Stat(filepath.Join(dir, devFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the note is still there: %v", err)
			}
		})
	}
}
