// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// noCoreDumps keeps this process from leaving its memory, which holds keys and requests, on a disk. Neither limit can be raised again
// without privileges.
func noCoreDumps() error {
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}

// isExposed: every user of this host may read a file.
func isExposed(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}
