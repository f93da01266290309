// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/client"
)

// asMain, set in the environment, makes the test's binary be ledgerctl, for itself and for the processes that it starts.
const asMain = "LEDGERCTL_TEST_AS_MAIN"

// buildDir is where the tests' ledgerd is built.
var buildDir string

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	dir, err := os.MkdirTemp("", "ledgerctl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestRun(t *testing.T) {
	empty := t.TempDir()
	tests := []struct {
		name string
		args []string
		env  []string
		code int
		says string // on standard output, or in the error
	}{
		{"nothing", nil, nil, exitUsage, "Available Commands"},
		{"help", []string{"demo", "--help"}, nil, exitOK, "--sabotage"},
		{"no such command", []string{"demonstrate"}, nil, exitUsage, "no such command"},
		{"a command that only has commands", []string{"op"}, nil, exitUsage, "take-over"},
		{"no ledger to look into", []string{"queue", "--state-dir", empty}, nil, exitUnavailable, "go run ./cmd/ledgerd dev"},
		{"two ledgers", []string{"queue", "--state-dir", empty, "--endpoint", "x:1"}, nil, exitUsage, "--state-dir"},
		{"half a ledger", []string{"queue", "--endpoint", "x:1"}, nil, exitUsage, "--cert"},
		{"half a ledger in the environment", []string{"tool", "list"}, []string{"LEDGERCTL_CERT=c", "LEDGERCTL_KEY=k", "LEDGERCTL_CA=a"}, exitUsage, "--endpoint"},
		{"a flag before the environment", []string{"queue", "--state-dir", empty}, []string{"LEDGERCTL_ENDPOINT=x:1"}, exitUnavailable, empty},
		{"a bad flag in the environment", []string{"queue"}, []string{"LEDGERCTL_OUTPUT=xml"}, exitUsage, "LEDGERCTL_OUTPUT: must be"},
		{"no certificate", []string{"queue", "--endpoint", "x:1", "--cert", "gone", "--key", "gone", "--ca", "gone"}, nil, exitError, "ca file"},
		{"no such flag", []string{"demo", "--fast"}, nil, exitUsage, "demo --help"},
		{"an argument too many", []string{"demo", "now"}, nil, exitUsage, "takes no arguments"},
		{"flags that don't go together", []string{"demo", "--standalone", "--state-dir", "x"}, nil, exitUsage, "--standalone"},
		{"a program for nothing", []string{"demo", "--ledgerd", "x"}, nil, exitUsage, "--standalone"},
		{"no home", []string{"demo"}, nil, exitUsage, "--state-dir"},
		{"no ledger", []string{"demo", "--state-dir", empty}, nil, exitUnavailable, "go run ./cmd/ledgerd dev"},
		{"no ledger at home", []string{"demo"}, []string{"HOME=" + empty}, exitUnavailable, filepath.Join(empty, ".local", "state", "ledgerd")},
		{"version", []string{"version"}, nil, exitOK, "ledgerctl "},
		{"version, in a form that is none", []string{"version", "-o", "xml"}, nil, exitUsage, "text or json"},
		{"a worker without an errand", []string{"demo", "worker"}, nil, exitError, "errand"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), tt.args, tt.env, strings.NewReader(""), &out, &out)
			if got := exitCode(err); got != tt.code {
				t.Errorf("exit code %d, want %d (%v)", got, tt.code, err)
			}
			if err != nil {
				out.WriteString(err.Error())
			}
			if !strings.Contains(out.String(), tt.says) {
				t.Errorf("%q is not in: %s", tt.says, &out)
			}
		})
	}
}

func TestVersionJSON(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"version", "-o", "json"}, nil, nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	var b build
	if err := json.Unmarshal(out.Bytes(), &b); err != nil || b.Go == "" || b.Version == "" {
		t.Errorf("version: %v: %s", err, &out)
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errCounts, 1},
		{fmt.Errorf("x: %w", usageError{errors.New("y")}), 2},
		{fmt.Errorf("x: %w", unavailableError{errors.New("y")}), 7},
		{status.Error(codes.NotFound, ""), 3},
		{status.Error(codes.Aborted, ""), 4},
		{status.Error(codes.FailedPrecondition, ""), 1},
		{ended{code: 5, says: "x"}, 5},
		{fmt.Errorf("x: %w", status.Error(codes.Unavailable, "")), 7},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exit code of %v: %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestStateDir(t *testing.T) {
	tests := []struct {
		name string
		flag string
		env  []string
		want string
	}{
		{"flag", "f", []string{"LEDGERD_STATE_DIR=l", "XDG_STATE_HOME=/x", "HOME=/h"}, "f"},
		{"this program's variable", "", []string{"LEDGERCTL_STATE_DIR=c", "LEDGERD_STATE_DIR=l", "HOME=/h"}, "c"},
		{"ledgerd's own variable", "", []string{"LEDGERD_STATE_DIR=l", "XDG_STATE_HOME=/x", "HOME=/h"}, "l"},
		{"state home", "", []string{"XDG_STATE_HOME=/x", "HOME=/h"}, filepath.Join("/x", "ledgerd")},
		{"a relative state home is none", "", []string{"XDG_STATE_HOME=x", "HOME=/h"}, filepath.Join("/h", ".local", "state", "ledgerd")},
		{"the last of several", "", []string{"HOME=/g", "HOME=/h"}, filepath.Join("/h", ".local", "state", "ledgerd")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := stateDir(tt.flag, tt.env); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestReadDev(t *testing.T) {
	tests := []struct {
		name, text string
		want       client.Config
		err        string
	}{
		{
			name: "whole",
			text: `{"grpc_addr":"127.0.0.1:1","admin_addr":"127.0.0.1:2","ca_file":"/ca","identities":{"agent-a":{"cert_file":"/c","key_file":"/k"}},"more":1}`,
			want: client.Config{Endpoint: "127.0.0.1:1", CAFile: "/ca", CertFile: "/c", KeyFile: "/k"},
		},
		{name: "no JSON", text: `{"grpc_addr":`, err: "dev.json"},
		{name: "without the identity", text: `{"grpc_addr":"127.0.0.1:1","ca_file":"/ca"}`, err: "agent-a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, devFile), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := readDev(dir)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, d.access()); diff != "" {
				t.Errorf("access (-want +got):\n%s", diff)
			}
		})
	}
}
