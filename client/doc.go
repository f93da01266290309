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
//   - A ledger that has lost the grant in a failover of its database is told of it: see below.
//   - Without the ledger nothing is executed, but for tools of which the ledger said not long ago that they only read.
//
// # A ledger that has lost the grant
//
// It answers OPERATION_NOT_FOUND to whoever holds it; also of an operation that has a subject and is somebody else's since. What then happens:
//
//   - To Start: nothing is sent, and [Do] returns the error.
//   - To a renewal: the operation may be given to somebody else at any time. What has not left is not sent any more ([ErrGrantLost]): a Prepare is
//     stopped, [Call.Sending] and [OneSend] refuse. What has left goes on until the lease ends as it was last known; an Execute that sends
//     without declaring it goes on until its send window ends.
//   - To the report of what was sent: the key is claimed again, as it was, under the claim id of the grant, so that the ledger has a record and gives the
//     operation to nobody as new; nothing is executed for that, now or later in this call; and the report is made again. A ledger that knows that it may have lost
//     something keeps it as evidence (the outcome is unknown, with OBSERVED as its Disposition, and [Outcome.Returned] has what Execute
//     returned); one that grants the key to the claim id again takes it as the holder's, and the outcome is what it would have been.
//     As long as the ledger refuses the claim for its load, or stores nothing because the tool is blocked, it is tried until the report timeout ends.
//
// Whoever claims a key that was intended before the failover, and that the ledger does not know, is told that it is unknown ([Unknown.Quarantined]): it
// may have happened. A worker that does not use this package has to do the same; the contract's LedgerService says it in its terms.
//
// Package clienttest is a ledger in memory for the tests of what uses this package, which depends on the generated contract, gRPC
// and crypto/tls.
package client
