// SPDX-License-Identifier: Apache-2.0

// Package contract reads what the owners of tools declare about them: what a repeat does, how long a call may take, how an unknown
// outcome is found out.
//
// It guarantees:
//
//   - A file is good as a whole or not at all. Unknown and repeated keys, numbers without a unit, windows that contradict each other
//     and keys that this release does not serve are errors with file, line and what to write instead; no error repeats a value.
//   - The same declaration has the same version, however it is written: order, white space and units do not count.
//   - A broken file leaves the last good one in force (Source).
//
// It depends on the YAML parser and on package ledger.
//
// # The file
//
//	strict: true                     # tools without a contract are refused; default: they are UNSAFE and settled by people
//	tools:
//	  payments.charge:
//	    effect: keyed                # read | idempotent | keyed | unsafe; required
//	    lease: {default: 30s, max: 60s, total: 90s}
//	    send_within: 30s
//	    require_intent_time: true
//	    while_unknown: block         # block | allow
//	    max_attempts: 5
//	    attributes: [order_id]
//	    request: {fields: {amount: {category: amount}, recipient: {category: recipient}}}
//	    answers: {declined: [card_declined], invalid: [bad_request], sticky: true}
//	    recovery:
//	      method: probe              # probe | operator (default) | regrant
//	      key_retention: 24h
//	      effect_within: 2m
//	      repeat_when_absent: true
//	      verify: [amount, recipient]
//	      checks: {first: 5s, max_interval: 10m, give_up_after: 24h, timeout: 10s}
//	    replay: {schemas: ["payments.charge.result/1"], payload_limit: 16KiB, result_attributes: [etag]}
//	    retention: {retry_window: 168h, completed: 720h}
//
// Everything but effect has a default, that of a tool without a contract; leases and windows that are left out adapt to those that are
// given. "method: probe" says that the target can be queried. This release sends no queries itself: a reconciler takes the
// operation by BeginCheck and submits what it saw by Reconcile.
//
// # Windows
//
// They are judged against each other when the file is read: lease.default <= lease.max <= lease.total; send_within <= lease.default;
// effect_within >= lease.total, because the contract itself allows one call to take that long; what is repeated without a person
// states effect_within, and KEYED also a key_retention longer than send_within + effect_within, because a repeat has to land while the
// target still knows the key; checks.first <= checks.max_interval <= checks.give_up_after; retention.completed >=
// retention.retry_window.
package contract
