// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/recovery"
)

// probes ask targets as the contracts in force say.
type probes struct {
	contracts contracts
	asker     *recovery.Asker
	owners    *owners
}

// Probe is nil for tools whose targets somebody else asks (external).
func (p probes) Probe(tool ledger.Tool) recovery.Probe {
	c, ok := p.contracts.Declared(tool)
	switch {
	case !ok || c.Method != ledger.MethodProbe || c.Probe == nil || c.Probe.External:
		return nil
	case c.Probe.HTTP != nil:
		return httpProbe{c.Probe.HTTP, p.asker}
	default:
		return ownerProbe{c.Probe.GRPC, p.owners, c.Contract}
	}
}

// httpProbe asks by the contract's query.
type httpProbe struct {
	query *contract.Query
	asker *recovery.Asker
}

// Ask sends the query and judges its answer.
func (h httpProbe) Ask(ctx context.Context, op *ledger.Operation) recovery.Verdict {
	url, err := h.query.URL(op)
	if err != nil { // its text is constant
		return unanswered(ledger.QueryNotUnderstood, err.Error())
	}
	first, answer, unasked := h.page(ctx, url, op)
	if unasked != nil {
		return unanswered(unasked.Cause, unasked.Why)
	}
	next, err := h.query.Next(url, answer, op)
	switch {
	case !first.Open() || next == "" && err == nil:
		return recovery.Verdict{Evidence: first.Evidence, Observed: first.Observed}
	case err != nil:
		return ofTwo(first, unanswered(ledger.QueryNotUnderstood, err.Error()))
	}
	second, answer, unasked := h.page(ctx, next, op)
	if unasked != nil {
		return ofTwo(first, unanswered(unasked.Cause, unasked.Why))
	}
	third, err := h.query.Next(next, answer, op)
	said := first.With(second, third != "" || err != nil)
	return recovery.Verdict{Evidence: said.Evidence, Observed: said.Observed}
}

// ofTwo is the verdict of a list of which only the first page could be had.
func ofTwo(first contract.Verdict, unread recovery.Verdict) recovery.Verdict {
	unread.Evidence = first.With(contract.Verdict{Evidence: unread.Evidence}, false).Evidence
	return unread
}

// page asks for one, and judges it.
func (h httpProbe) page(ctx context.Context, url string, op *ledger.Operation) (contract.Verdict, contract.Answer, *recovery.Unasked) {
	answer, unasked := get(ctx, h.asker, url, h.query.Headers())
	if unasked != nil {
		return contract.Verdict{}, contract.Answer{}, unasked
	}
	return h.query.Judge(answer, op), answer, nil
}

// unanswered: nothing is known, for one of few constant reasons.
func unanswered(cause ledger.IndeterminateCause, why string) recovery.Verdict {
	return recovery.Verdict{Evidence: ledger.Evidence{Finding: ledger.Indeterminate, Cause: cause}, Why: why}
}
