// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	unsafeTool = "tools: {t: {effect: unsafe}}"
	readTool   = "tools: {t: {effect: read}}"
	brokenTool = "tools: {t: {effect: 1}}"
)

func TestABrokenFileKeepsTheLastGoodContracts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	write(t, path, unsafeTool)
	var told []bool // true: good
	s, err := Open(path, func(err error) { told = append(told, err == nil) })
	if err != nil {
		t.Fatal(err)
	}
	step := func(wantChanged, wantErr bool, effect ledger.Effect, reports int) {
		t.Helper()
		changed, err := s.Reload()
		if changed != wantChanged || (err != nil) != wantErr {
			t.Errorf("changed %v, error %v; want %v, an error: %v", changed, err, wantChanged, wantErr)
		}
		if c, _ := s.Contract("t"); c.Effect != effect {
			t.Errorf("%s in force, want %s", c.Effect, effect)
		}
		if len(told) != reports {
			t.Errorf("%d reports, want %d", len(told), reports)
		}
	}
	step(false, false, ledger.Unsafe, 0)
	write(t, path, readTool)
	step(true, false, ledger.Read, 1)
	write(t, path, brokenTool)
	step(false, true, ledger.Read, 2)
	step(false, true, ledger.Read, 2) // told once
	write(t, path, readTool)
	step(false, false, ledger.Read, 3) // good again
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	step(false, true, ledger.Read, 4)
	write(t, path, "strict: true\n"+unsafeTool)
	step(true, false, ledger.Unsafe, 5)
	if !s.Strict() {
		t.Error("strict did not come into force")
	}
	for i, want := range []bool{true, false, true, false, true} {
		if told[i] != want {
			t.Errorf("report %d: good is %v, want %v", i, told[i], want)
		}
	}
}

// A set that could not be kept is not in force: what it judges could not be judged by it again.
func TestOnlyWhatIsKeptComesIntoForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	write(t, path, unsafeTool)
	var told []error
	s, err := Open(path, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	down := errors.New("down")
	failing := down
	var kept []ledger.ContractVersion
	keep := func(set *Set) error {
		if before, _ := s.Contract("t"); failing == nil && len(kept) == 1 && before.Version != kept[0].Version {
			t.Error("it was in force before it was kept")
		}
		if failing == nil {
			kept = append(kept, set.Versions()...)
		}
		return failing
	}
	if err := s.Keep(keep); !errors.Is(err, down) {
		t.Errorf("at the start: %v", err)
	}
	failing = nil
	if err := s.Keep(keep); err != nil || len(kept) != 1 {
		t.Fatalf("at the start: %v, %v", kept, err)
	}
	write(t, path, readTool)
	failing = down
	for range 2 {
		if changed, err := s.Reload(); changed || !errors.Is(err, down) {
			t.Errorf("changed %v, error %v", changed, err)
		}
		if c, _ := s.Contract("t"); c.Effect != ledger.Unsafe {
			t.Errorf("%s in force", c.Effect)
		}
	}
	failing = nil
	if changed, err := s.Reload(); !changed || err != nil || len(kept) != 2 {
		t.Fatalf("changed %v, error %v, kept %v", changed, err, kept)
	}
	if c, err := Decode(kept[1].Document); err != nil || c.Effect != ledger.Read || c.Version != kept[1].Version {
		t.Errorf("%v in force, %v", c.Effect, err)
	}
	// What is in force is kept again and again; that it can't be now is no fault of the file.
	for _, failing = range []error{nil, down} {
		if changed, err := s.Reload(); changed || err != nil {
			t.Errorf("nothing new: changed %v, error %v", changed, err)
		}
	}
	if len(kept) != 3 || kept[2].Version != kept[1].Version {
		t.Errorf("kept: %v", kept)
	}
	if len(told) != 2 || !errors.Is(told[0], down) || told[1] != nil {
		t.Errorf("told: %v", told)
	}
}

func TestThereIsNoSourceWithoutAGoodFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if _, err := Open(path, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	write(t, path, brokenTool)
	var fault *Error
	if _, err := Open(path, nil); !errors.As(err, &fault) {
		t.Errorf("broken file: %v", err)
	}
}

func TestADirectoryIsOneSet(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("b.yaml"), "tools: {b: {effect: read}}")
	write(t, at("a.yml"), "strict: true\ntools: {a: {effect: unsafe, compensation: {tool: b2, require_unchanged: false}}}")
	write(t, at("c.yaml"), "tools: {b2: {effect: keyed}}")
	write(t, at("README.md"), "tools: {")
	write(t, at(".hidden.yaml"), "tools: {")
	if err := os.Mkdir(at("..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	var told []error
	s, err := Open(dir, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ledger.Tool{"a", "b", "b2"}, s.Current().Tools()); diff != "" || !s.Strict() {
		t.Errorf("strict %v, tools %s", s.Strict(), diff)
	}
	step := func(what string, wantChanged bool, wantErr string, tools ...ledger.Tool) {
		t.Helper()
		changed, err := s.Reload()
		if changed != wantChanged || (err != nil) != (wantErr != "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: changed %v, error %v; want %v, %q", what, changed, err, wantChanged, wantErr)
		}
		if diff := cmp.Diff(tools, s.Current().Tools()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	all := []ledger.Tool{"a", "b", "b2"}
	step("nothing new", false, "", all...)
	write(t, at("d.yaml"), "tools:\n  b: {effect: read}")
	step("a tool in two files", false, at("d.yaml")+":2: b: the tool has two contracts, the other one at "+at("b.yaml")+":1", all...)
	write(t, at("d.yaml"), "tools: {d: {effect: read}}")
	step("another file", true, "", "a", "b", "b2", "d")
	write(t, at("d.yaml"), "strict: false\ntools: {d: {effect: read}}")
	step("two words on strict", false, at("d.yaml")+":1: strict must be the same in every file of a set, and is otherwise at "+at("a.yml")+":1", "a", "b", "b2", "d")
	write(t, at("d.yaml"), "strict: true")
	step("a file without tools", true, "", all...)
	if err := os.Remove(at("c.yaml")); err != nil {
		t.Fatal(err)
	}
	step("a tool that another one needs is gone", false, "compensation.tool has no contract in this set", all...)
	write(t, at("c.yaml"), "tools: {b2: {effect: keyed}}")
	if err := os.Mkdir(at("more"), 0o700); err != nil {
		t.Fatal(err)
	}
	step("a directory below", false, at("more")+": contracts are read from the files of one directory", all...)
	if err := os.Remove(at("more")); err != nil {
		t.Fatal(err)
	}
	step("all well again", false, "", all...)
	if err := os.Symlink(at("nowhere"), at("e.yaml")); err != nil {
		t.Fatal(err)
	}
	step("a link to nothing", false, "no such file", all...)
	good := []bool{false, true, false, true, false, false, true, false}
	for i, err := range told {
		if len(told) != len(good) || (err == nil) != good[i] {
			t.Fatalf("%d reports, want %v: %v", len(told), good, told)
		}
	}
}

func TestNoContractsToRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || err.Error() != dir+": has no file whose name ends in .yaml; write one that begins with tools:" {
		t.Errorf("an empty directory: %v", err)
	}
	write(t, filepath.Join(dir, "a.yaml"), "strict: true")
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "a.yaml:1: tools is missing") {
		t.Errorf("a directory without tools: %v", err)
	}
	write(t, filepath.Join(dir, "a.yaml"), "tools: {t: {effect: 1}}")
	write(t, filepath.Join(dir, "b.yaml"), "tools: {u: {effect: 2}}")
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "a.yaml:1: t: effect") || !strings.Contains(err.Error(), "b.yaml:1: u: effect") {
		t.Errorf("faults in two files: %v", err)
	}
}

func TestPollingFindsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "contracts.yaml")
		write(t, path, unsafeTool)
		s, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx, time.Second) }()
		write(t, path, readTool)
		time.Sleep(1500 * time.Millisecond) // of the bubble's clock
		synctest.Wait()
		if c, _ := s.Contract("t"); c.Effect != ledger.Read {
			t.Errorf("%s in force", c.Effect)
		}
		cancel()
		<-done
	})
}
