// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

func killGroup(p *os.Process) error { return p.Kill() }

// killedBy: without signals there is no proof that a worker was killed, so the demonstration's count is not right there.
func killedBy(*os.ProcessState) (int, bool) { return 0, false }
