// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"syscall"
)

// killGroup kills the process and all that it has started.
func killGroup(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

// killedBy is the signal that ended the process, if one did.
func killedBy(s *os.ProcessState) (int, bool) {
	w, ok := s.Sys().(syscall.WaitStatus)
	if !ok || !w.Signaled() {
		return 0, false
	}
	return int(w.Signal()), true
}
