// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

// noCoreDumps has nothing to do: there are none.
func noCoreDumps() error { return nil }

// isExposed can't be told by a mode.
func isExposed(string) bool { return false }
