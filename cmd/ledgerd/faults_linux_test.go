// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is a user who owns nothing.
const nobody = 65534

// asNobody does something with the rights that nobody has to files, also where the tests are root's.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if os.Getuid() == 0 {
			if err := unix.Setfsuid(nobody); err != nil {
				done <- err
				return
			}
		}
		do()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatMayNotBeReadIsNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	for dir := h.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cert.pem", "key.pem", "ca.pem", "policy.yaml", "contracts.yaml", "secrets.yaml", "store"} {
		if err := os.Chmod(h.path(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.write(t, "locked", "")
	if err := os.Chmod(h.path("locked"), 0); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"tls-cert", "tls-key", "tls-ca", "policy", "contracts", "secrets", "config", "store-file"} {
		flag := "--" + setting
		var err error
		asNobody(t, func() { err = run(call(t), append(h.args, flag, h.path("locked")), nil, io.Discard, io.Discard) })
		want := fmt.Sprintf("%s (%s): %s: may not be read or written by this user", flag, envName(setting), h.path("locked"))
		if exitCode(err) != 2 || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v", setting, exitCode(err), err)
		}
	}
	execute(t, h.path("ledger.db"), "CREATE TABLE t (a)")
	if err := os.Chmod(h.path("ledger.db"), 0o666); err != nil {
		t.Fatal(err)
	}
	var err error
	asNobody(t, func() {
		err = run(t.Context(), []string{"migrate", "up", "--store", "sqlite:" + h.path("ledger.db")}, nil, io.Discard, io.Discard)
	})
	if exitCode(err) != 2 || !strings.Contains(err.Error(), h.path("ledger.db")+": can't be opened") {
		t.Errorf("a directory where there can be no log beside the file: exit code %d, %v", exitCode(err), err)
	}
	for title, path := range map[string]string{"a file": h.path("locked"), "a directory that takes no files": filepath.Join(h.dir, "new.db")} {
		var err error
		asNobody(t, func() {
			err = run(t.Context(), []string{"migrate", "up", "--store", "sqlite:" + path}, nil, io.Discard, io.Discard)
		})
		want := fmt.Sprintf("--store (LEDGERD_STORE): %s: may not be read or written by this user", path)
		if exitCode(err) != 2 || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v", title, exitCode(err), err)
		}
	}
}
