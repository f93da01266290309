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
}

// Probe is nil for tools whose targets somebody else asks (external), and for what this release does not ask.
func (p probes) Probe(tool ledger.Tool) recovery.Probe {
	c, ok := p.contracts.Declared(tool)
	if !ok || c.Method != ledger.MethodProbe || c.Probe == nil || c.Probe.HTTP == nil {
		return nil
	}
	return httpProbe{c.Probe.HTTP, p.asker}
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
		return recovery.Verdict{Evidence: ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, Why: err.Error()}
	}
	question := recovery.Question{URL: url}
	for _, header := range h.query.Headers() {
		question.Headers = append(question.Headers, recovery.Header(header))
	}
	answer, unasked := h.asker.Get(ctx, question)
	if unasked != nil {
		return recovery.Verdict{Evidence: ledger.Evidence{Finding: ledger.Indeterminate, Cause: unasked.Cause}, Why: unasked.Why}
	}
	said := h.query.Judge(contract.Answer{Status: answer.Status, Header: answer.Header, Body: answer.Body}, op)
	return recovery.Verdict{Evidence: said.Evidence, Observed: said.Observed}
}
