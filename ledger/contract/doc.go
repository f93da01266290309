// SPDX-License-Identifier: Apache-2.0

// Package contract reads what the owners of tools declare about them: what a repeat does, how long a call may take, how an unknown
// outcome is found out. docs/contracts.md has every key and a whole example; contract.schema.json is for editors.
//
// It guarantees:
//
//   - A set of files is good as a whole or not at all. Unknown and repeated keys, empty values, anchors, numbers without a unit, windows that
//     contradict each other and expressions that can't be evaluated are errors with file, line, tool, key and what to write instead; no
//     error repeats a value. Names in an expression, the keys of a file and its tools are no values.
//   - The same declaration has the same version, however it is written: order, white space, units and spelled-out defaults do not
//     count. Anything else does, except that a key which a later release adds moves no version by its mere existence (declared.go).
//   - A version can be kept and read again, by a process that has another file: Encode, Decode.
//   - A broken file leaves the last good set in force (Source).
//   - Nothing here asks a target. A Probe says where to ask, and what an answer means; an evaluation is bounded, and depends on nothing but
//     the answer and the operation.
//   - A secret is never in a contract. Headers name the file or the variable that holds it; a value that is written out is refused.
//
// It depends on the YAML parser, on CEL for expressions, and on package ledger, which knows the plain values (ledger.Contract) and nothing of
// expressions.
//
// # Where what is
//
// read.go is the strict reading of nodes, and notes what holds in one form (declared.go); parse.go, guards.go, windows.go and
// recovery.go read a contract's keys and judge them against each other; expression.go, body.go and address.go are the parts of a
// question and its answer; probe.go, inspect.go and replay.go run them; stored.go is what a store keeps; source.go reads and reloads.
//
// A fault of form (fault) is told at once. A fault of values that are good each by itself (judge) is told when the form of the whole
// contract is good, and not of a stored contract, which was judged by the rules of its time.
package contract
