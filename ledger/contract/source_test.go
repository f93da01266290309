// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

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
