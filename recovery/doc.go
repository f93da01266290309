// SPDX-License-Identifier: Apache-2.0

// Package recovery finds out what became of operations whose outcome is unknown: it finds those that are due, takes each through the ledger, asks
// its target, and hands what it finds to the ledger, which decides. Any number of loops may run on one store.
//
// It guarantees:
//
//   - It assigns no state. What it wants is a command (BeginCheck, Reconcile, Regrant) that the ledger decides like anybody else's, and the number
//     of a check fences what is answered too late.
//   - No transaction is open while a target is asked, and of loops that find the same operation one asks.
//   - What it asks of a target is bounded: per tool by the contract's limits, and over all tools by its workers, of which no tool has more than half. The
//     limits are those of one process: two loops ask twice as much.
//   - An operation that can't be dealt with delays only itself, and a tool that is slow or has a long backlog only its own operations.
//   - A target can't lead it elsewhere: an [Asker] follows no redirect, connects to no address inside of the operator's network that is not
//     listed, and reads and waits no more than it is allowed.
//   - Logs and metrics have the tool and the operation's id; no address, key, header or answer.
//
// It depends on the core alone. What contracts say of targets it is given as [Probes].
package recovery
