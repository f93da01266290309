// SPDX-License-Identifier: Apache-2.0

//go:build race

package main

// raceBuild: these tests run under the race detector, so the processes that they start do, too.
const raceBuild = true
