// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

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

// keepOwner gives a file the owner and group of another one.
func keepOwner(file *os.File, of fs.FileInfo) error {
	now, err := file.Stat()
	if err != nil {
		return err
	}
	want, ok := of.Sys().(*syscall.Stat_t)
	is, known := now.Sys().(*syscall.Stat_t)
	if !ok || !known || want.Uid == is.Uid && want.Gid == is.Gid {
		return nil
	}
	return file.Chown(int(want.Uid), int(want.Gid))
}

// syncDirectory makes the names of a directory outlive a crash of the host.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
