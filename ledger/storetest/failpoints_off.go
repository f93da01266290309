// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package storetest

// withFailpoints are the cases that need a binary with failpoints.
var withFailpoints []testCase
