// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/recovery"
)

// Inspector is nil for tools whose targets can't be asked for the version of a resource.
func (p probes) Inspector(tool ledger.Tool) recovery.Inspector {
	c, ok := p.contracts.Declared(tool)
	switch {
	case !ok || c.Inspect == nil:
		return nil
	case c.Inspect.HTTP != nil:
		return httpInspector{c.Inspect.HTTP, p.asker}
	default:
		return ownerInspector{c.Inspect.GRPC, p.owners}
	}
}

// httpInspector asks by the contract's question.
type httpInspector struct {
	look  *contract.Look
	asker *recovery.Asker
}

// Inspect sends the question and judges its answer.
func (h httpInspector) Inspect(ctx context.Context, original *ledger.Operation) recovery.Look {
	left := original.Result.Resource
	url, err := h.look.URL(original, left)
	if err != nil { // its text is constant; no later look will know more
		return recovery.Look{Outcome: ledger.InspectNoVersion, Why: err.Error()}
	}
	got, unasked := get(ctx, h.asker, url, h.look.Headers())
	if unasked != nil {
		return recovery.Look{Outcome: ledger.InspectIndeterminate, Cause: unasked.Cause, Why: unasked.Why}
	}
	look := recovery.Look{}
	look.Outcome, look.Current = h.look.Judge(got, original, left)
	look.Cause, look.RetryAfter = h.look.NoAnswer(got)
	return look
}

// get asks for one page.
func get(ctx context.Context, asker *recovery.Asker, url string, headers []contract.Header) (contract.Answer, *recovery.Unasked) {
	question := recovery.Question{URL: url}
	for _, header := range headers {
		question.Headers = append(question.Headers, recovery.Header(header))
	}
	got, unasked := asker.Get(ctx, question)
	return contract.Answer{Status: got.Status, Header: got.Header, Body: got.Body}, unasked
}
