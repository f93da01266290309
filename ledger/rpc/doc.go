// SPDX-License-Identifier: Apache-2.0

// Package rpc serves LedgerService over gRPC: decode, authorise, call the core, encode. It decides nothing about operations.
//
// What it guarantees:
//
//   - One order of checks: identity, form, the right to name a subject, then the core. So bad input gets the same answer from every
//     store, and stores nothing.
//   - What is wrong with the form of a request is told all at once, as google.rpc.BadRequest with fields and rules, never with values.
//   - An operation of another scope or subject, one that does not exist, and an id that no key has get one NOT_FOUND, byte for byte.
//   - A true outcome is never refused for its form: what a report has too long, or under a name that the contract does not declare, is
//     cut or dropped and named. A report that states no outcome at all is refused.
//   - A payload is kept only if the contract declares its schema, and only up to the contract's limit. The default contract declares
//     none, so it keeps resource and code, and no payload.
//   - Whether a result may be shown is asked again on every path that shows one: own scope and subject, and the tool still allowed. If
//     not: that it has completed or failed, and no more.
//   - Waiting is an OK answer. Every status that is not OK carries google.rpc.ErrorInfo of the domain "opsledger"; errors.go is the only
//     place that knows status codes. What it does not know is INTERNAL with an id that is in the log, without a text.
//   - Logs, spans and metrics carry tool, operation id (not in metrics) and the fingerprint's prefix; never a key, subject, request or
//     payload. A metric's tool is "other" unless it has a contract.
//
// It depends on packages ledger and fingerprint, the generated messages, gRPC, its middleware and the OpenTelemetry API. Policy and
// contracts come as the interfaces that ledger declares, identity as a function.
package rpc
