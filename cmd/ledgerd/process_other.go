// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import (
	"io/fs"
	"os"
)

// noCoreDumps has nothing to do: there are none.
func noCoreDumps() error { return nil }

// isExposed can't be told by a mode.
func isExposed(string) bool { return false }

// keepOwner leaves owners to the directory.
func keepOwner(*os.File, fs.FileInfo) error { return nil }

// syncDirectory has nothing to do: names are as durable as the file system makes them.
func syncDirectory(string) error { return nil }
