// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package target

import "os/exec"

// dieWithParent leaves it to the end of standard input.
func dieWithParent(*exec.Cmd) {}
