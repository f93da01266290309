// SPDX-License-Identifier: Apache-2.0

// Package target is the system on the other side of the ledger, for demos and
// tests: a real HTTP service that has effects, keeps its own account of them,
// and fails where it is told to.
//
// It offers three kinds of service:
//
//   - tickets can be queried by idempotency key but are not deduplicated:
//     every POST makes another one.
//   - payments (charges and refunds) are deduplicated by the Idempotency-Key
//     header; keys are forgotten after a window, for queries as well.
//   - messages can neither be deduplicated nor queried.
//
// The effect log is an append-only file of JSON lines. A line is on disk
// (fsync) before anything is answered, so that [ReadLog] counts the sends,
// effects and queries per key also after the service was killed by SIGKILL. At
// its start the service rebuilds its state from that file; effects that were
// accepted but had not landed yet will land.
//
// A [Knob] makes a service fail in one way, for a number of requests or until
// it is cleared: by [Server.SetKnobs], [Client.SetKnobs] or POST /knobs.
//
// [Start] runs the service in this process, [Spawn] in one of its own that can
// be killed, [Main] is that process. [Client] sends each request exactly once
// and says what an error means: never sent, answered, or unknown.
//
// The service trusts everybody who can reach it and speaks plain HTTP: it is
// for loopback. The package depends on the standard library only.
package target
