// SPDX-License-Identifier: Apache-2.0

// Package recovery finds out what became of operations whose outcome is unknown: it finds those that are due, takes each through the ledger, asks
// its target, and hands what it finds to the ledger, which decides. Any number of loops may run on one store.
//
// It guarantees:
//
//   - It assigns no state. What it wants is a command (BeginCheck, Reconcile, Regrant, Inspect, Expire, Retire) that the ledger decides like anybody else's, and the number
//     of a check fences what is answered too late.
//   - No transaction is open while a target is asked, and of loops that find the same operation one asks.
//   - What all loops on a store ask of a target is bounded by the contract's limits, by what the target itself wants (Retry-After), and by a breaker: these are
//     kept in the store, one record per tool, by the store's clock. Where that can't be read, nothing is asked. What can't be asked is not touched.
//     A loop that dies stops the others for no longer than its turns last.
//   - What one loop does is bounded by its workers, of which no tool has more than half.
//   - An operation that can't be dealt with delays only itself, and a tool that is slow or has a long backlog only its own operations.
//   - A target can't lead it elsewhere: an [Asker] follows no redirect, connects to no address inside of the operator's network that is not
//     listed, and reads and waits no more than it is allowed.
//   - Retention ([Sweeper]) runs beside it: it asks the ledger to expire and retire what is old, and removes only what is retired. Batches are small, with as much
//     time between them as they take; any number of sweepers may run on one store.
//   - Logs and metrics have the tool and the operation's id; no address, key, header or answer.
//
// It depends on the core alone. What contracts say of targets it is given as [Probes].
package recovery
