// SPDX-License-Identifier: Apache-2.0

// Package ledger is the core of opsledger: what an operation is, and the one pure function that says what becomes of it.
//
// An agent asks a tool for a side effect, and the call times out. A timeout only says that the caller did not see the result. The
// ledger remembers every such operation, lets exactly one worker perform it, never turns "unknown" into "try again" without evidence,
// and hands what no evidence can settle to a person.
//
// # How it is built
//
//	Decide(operation, related, command, contract, now) -> (change, answer)   the meaning: pure, no I/O, no clock
//	Store                                                                    dumb and conditional: compare-and-swap, no rule
//	Ledger                                                                   the service: read, decide, write if nobody was faster
//
// Everything else is an adapter: package rpc in front, packages postgres and sqlite behind.
//
// # Words
//
//   - principal: the caller's identity out of its verified certificate. scope: the namespace of keys that the policy gives it.
//     subject: the end user acted for. key: (scope, tool, subject, task, key), stored as one hash only.
//   - claim_id: a random UUID that a worker draws for one Claim and its resends: the proof of its grant.
//   - grant: permission to execute once. epoch: the grant's number, a fencing token that never repeats.
//   - send window: the time within which the holder may send; renewing never extends it.
//   - effect_within: a request that was sent takes visible effect, if ever, within this time, as the tool's owner states.
//   - settle time: end of the last send window plus effect_within. Before it absence at the target proves nothing.
//   - in doubt (may_have_applied): an earlier attempt than the latest may have been applied.
//   - slot: what operations alike by a contract's unique rule share; one of them has it.
//   - custody: who may act for an unsettled operation: automation, the operators' queue, one operator.
//
// # States
//
//	          claim                    succeeded, found
//	(absent) ------> PROCESSING --------------------------> COMPLETED --> RETIRED
//	   |               |    ^  \                            ^
//	   | reserve       |    |   \ rejected, once            | found, succeeded
//	   v               |    |    `----> FAILED --> RETIRED  |
//	RECEIVED ----------+----'             ^                 |
//	   ^      start    | lease over,      | rejected there, |
//	   |               v mark unknown     | a person        |
//	   `----------- UNKNOWN --------------+-----------------'
//	     conclusive absence, not executed, a person
//
// RECEIVED: nobody executes it, and unless it is in doubt it is provably not at the target. PROCESSING: it may have been sent. UNKNOWN:
// the effect may or may not exist. COMPLETED, FAILED and RETIRED are final.
//
// Each row of the table stands in the function that decides it: claims and guards in decide_claim.go, workers' reports in
// decide_report.go, evidence and checks in decide_evidence.go, people's decisions and retention in decide_person.go, whose a slot is in slots.go. testdata/cells.txt is
// the same table written by another hand, one line a cell.
//
// # Guarantees
//
// Tests name them I1 to I16:
//
//   - I1: one grant per (operation, epoch), to one claim_id; at most one epoch's grant is alive.
//   - I2: a grant follows only a new key or RECEIVED; anything but READ comes back to RECEIVED by proof, evidence, a person, or a contract's
//     regrant where a repeat is harmless; never by time alone.
//   - I3: COMPLETED and FAILED never change; a result is byte for byte what was recorded.
//   - I4: a fingerprint never changes; a conflict changes nothing.
//   - I5: nothing of another scope or subject can be read, moved or inferred.
//   - I6: while a person has custody, automation starts no call to the target and moves no state.
//   - I7: every sequence number has exactly one event; the chain verifies.
//   - I8: a report or decision sent again is applied once.
//   - I9: what is unsettled, queued, held or contradicted is never retired.
//   - I10: a compensation goes out only while its original is COMPLETED, settled, not contradicted and unchanged.
//   - I11: a unique slot has at most one live operation.
//   - I12: effects at the target per key: at most one for KEYED, for UNSAFE under a true bound, and never a repeat that an earlier send can overtake.
//   - I13: absence counts only from a search that began after settle time.
//   - I14: contradicting evidence is never lost.
//   - I15: every grant that a caller saw was durable before the answer.
//   - I16: a true outcome is never refused for its form, for a right withdrawn since, for load or for draining. (What is no message of the
//     contract can't be read: texts that are no UTF-8, more than 1 MiB. SDKs report without what does not fit.)
//
// The package depends on the standard library and small value libraries only, and reads no clock: time is the store's, and an argument.
package ledger
