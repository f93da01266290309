// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrNoFaketime says that a server's clock can't be set on this machine.
var ErrNoFaketime = errors.New("no libfaketime: install the package faketime")

// clocked is an environment in which the time is what a file in the server's directory says, at each look.
func clocked(env []string, dir string) ([]string, error) {
	var library string
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			library = found[0]
		}
	}
	if library == "" {
		return nil, ErrNoFaketime
	}
	file := filepath.Join(dir, "clock")
	if _, err := os.Stat(file); err != nil {
		if err := os.WriteFile(file, []byte("+0\n"), 0o644); err != nil { // it is no secret from the server's user
			return nil, fmt.Errorf("pgtest: %w", err)
		}
	}
	return append(env, "LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"), nil
}

// SetClock sets the clock of a server that was started with one, in whole seconds off the machine's.
func (s *Server) SetClock(off time.Duration) error {
	file := filepath.Join(s.dir, "clock")
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%+d\n", int64(off/time.Second)), 0o644); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil { // nobody reads half of it
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}
