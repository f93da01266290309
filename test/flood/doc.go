// SPDX-License-Identifier: Apache-2.0

// Package flood floods ledgerd processes with what they have to bear.
//
// From without, over the loopback: streams that stay open, handshakes that do not end, headers and messages that are too large, idle connections,
// rapid resets, and requests beyond the limits. It shows that the process stays under 512 MiB of resident memory, that a well-behaved client's
// 99th percentile stays within twice that of the same load without the flood, and that everything the flood held is given back.
//
// From within: a backlog of one tool's operations whose workers were not heard of again, with two processes that recover. It shows that the
// tool's target is asked no more than its contract allows, by both together; that another tool's operations are settled at once; that
// claims' 99th percentile stays within one and a half times that of the same load without the backlog; and that a process stays under 200 MiB.
//
// All of it is bounded in number and time. The package has tests only. They need Linux's /proc and the go command, which builds ledgerd. The
// sizes are reduced unless OPSLEDGER_TEST_FLOOD=full.
package flood
