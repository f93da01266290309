// SPDX-License-Identifier: Apache-2.0

//go:build !guards

package guard

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestReleaseHasNoSwitch: the server has no name of a guard to switch it off by, and nothing that would.
func TestReleaseHasNoSwitch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledgerd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/opsledger/opsledger/cmd/ledgerd").CombinedOutput(); err != nil {
		t.Fatalf("build ledgerd: %v: %s", err, out)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("guard.go")
	if err != nil {
		t.Fatal(err)
	}
	forbidden := regexp.MustCompile(`Guard = "([a-z]+-[a-z-]+)"`).FindAllSubmatch(source, -1) // one word alone may be anybody's
	if len(forbidden) < 30 {
		t.Fatalf("%d guards were found in guard.go", len(forbidden))
	}
	for _, m := range append(forbidden, [][]byte{nil, []byte("opsledger/guard.")}) {
		if bytes.Contains(binary, m[1]) {
			t.Errorf("%s is in it", m[1])
		}
	}
	if !bytes.Contains(binary, []byte("opsledger/ledger.Decide")) {
		t.Error("it shows no names of functions, so that it could show no switch")
	}
}

func TestGuardsAreOn(t *testing.T) {
	if !SettleTime.On() || SettleTime.Off() || !Guard("").On() {
		t.Error("a guard is off")
	}
	if n := testing.AllocsPerRun(100, func() { _ = SettleTime.On() }); n != 0 {
		t.Errorf("asking allocates %v times", n)
	}
}
