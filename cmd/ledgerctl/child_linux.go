// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// ownGroup has the kernel kill the child also when this process is killed itself.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
