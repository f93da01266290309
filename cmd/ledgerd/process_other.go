// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

// noCoreDumps has nothing to do: there are none.
func noCoreDumps() error { return nil }
