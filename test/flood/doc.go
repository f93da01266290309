// SPDX-License-Identifier: Apache-2.0

// Package flood floods a ledgerd process, over the loopback, with what a port has to bear: streams that stay open,
// handshakes that do not end, headers and messages that are too large, idle connections, rapid resets, and requests beyond the limits.
//
// It shows that the process stays under 512 MiB of resident memory, that a well-behaved client's 99th percentile stays within twice that
// of the same load without the flood, and that everything the flood held is given back. All of it is bounded in number and time.
//
// The package has tests only. They need Linux's /proc and the go command, which builds ledgerd. The sizes are reduced unless
// OPSLEDGER_TEST_FLOOD=full.
package flood
