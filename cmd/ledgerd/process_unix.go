// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import "golang.org/x/sys/unix"

// noCoreDumps keeps this process from leaving its memory, which holds keys and requests, on a disk. Neither limit can be raised again
// without privileges.
func noCoreDumps() error {
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
