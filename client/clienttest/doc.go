// SPDX-License-Identifier: Apache-2.0

// Package clienttest is a ledger in memory for tests of code that uses package client: the real decision behind the real gRPC service,
// on a store that is a map, without files, certificates or a network.
//
//	l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{clienttest.Contract("tickets.create", ledger.Keyed)}})
//	l.Inject(clienttest.Complete, clienttest.CrashAfterCommit)
//	out, err := client.Do(ctx, l.Client(), createTicket, intent, request) // unknown, not recorded
//	l.Restart()
//	l.Advance(time.Minute)                                                 // past the lease
//
// What it guarantees: it answers as ledgerd does, from the same code. A fault hits one call of its method. Time passes by itself, and by Advance for what the ledger measures; the times of grants that
// a process has in hands are its own and stay as they are. Nothing survives Close.
//
// It has no recovery loop and no people: Evidence stands in for both. It depends on packages client, ledger, ledger/fingerprint and ledger/rpc,
// on gRPC and on package testing.
package clienttest
