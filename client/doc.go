// SPDX-License-Identifier: Apache-2.0

// Package client is the Go SDK of the ledger: [Do] performs one side effect under the ledger's protection.
//
//	var createTicket = client.Effect[TicketRequest, Ticket]{
//		Tool: "tickets.create",
//		Execute: func(ctx context.Context, call client.Call, r TicketRequest) (Ticket, error) {
//			return api.Create(ctx, call.Key, r) // one send, with call.Key as the idempotency key
//		},
//	}
//
//	out, err := client.Do(ctx, ledger, createTicket, client.Intent{Task: task.ID, Step: "open-incident", Time: task.Decided}, request)
//	if err != nil {
//		return err // this call sent nothing
//	}
//	return client.Match(out,
//		func(d client.Done[Ticket]) error { return use(d.Value) },
//		func(r client.Rejection) error { return r.Err() }, // definitely no effect
//		func(u client.Unknown) error { return task.Park(u.OperationID) })
//
// What it guarantees:
//
//   - An error means that this call sent nothing to the target, for certain. Everything else is a value of which [Match]
//     names all three variants: done, rejected, unknown. Leaving one out does not compile.
//   - There is no default key. It derives from the [Intent], never from the id of a tool call or an attempt.
//   - It executes only under a grant that this very call asked for, at most once, and only while the grant's send window is
//     open; what follows the send has until the end of the lease, which is renewed meanwhile. Times are counted from the moment before
//     the call was sent, on a clock that counts suspension where there is one. An execution that the ledger wants to stop is
//     cancelled with a [StoppedError] as its cause.
//   - Unknown is never turned into "try again". Only [NotSent], [RefusedBeforeAcceptance] and [Rejected] classify an error of
//     Execute, the latter two only where it is known that the request left once ([Call.Sending], [OneSend]); any other error, and a
//     panic, is unknown.
//   - What Execute learned is reported also when the caller's context has ended, and whatever panics while it is put into words. If it
//     can't be recorded, the outcome is unknown with Recorded false, never an error.
//   - Without the ledger nothing is executed, but for tools of which the ledger said not long ago that they only read.
//
// Package clienttest is a ledger in memory for the tests of what uses this package, which depends on the generated contract, gRPC
// and crypto/tls.
package client
