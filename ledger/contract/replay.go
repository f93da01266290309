// SPDX-License-Identifier: Apache-2.0

package contract

import "github.com/opsledger/opsledger/ledger"

// Rule says who may see a recorded result.
type Rule struct{ program *program }

// Caller is who asks for a replay, as the certificate and the policy name it; Subject as it was given in this very call.
type Caller struct {
	Principal ledger.Principal
	Scope     ledger.Scope
	Subject   string
}

// Allows reports whether a caller may see the operation's result now. What can't be evaluated means no.
func (r *Rule) Allows(c Caller, op *ledger.Operation) bool {
	vars := operationVariables(op)
	vars["caller.principal"], vars["caller.scope"], vars["caller.subject"] = string(c.Principal), string(c.Scope), c.Subject
	vars["op.principal"], vars["op.scope"] = string(op.Principal), string(op.Scope)
	var resource ledger.ResourceRef
	if op.Result != nil {
		resource = op.Result.Resource
	}
	vars["op.resource.type"], vars["op.resource.id"], vars["op.resource.uri"] = resource.Type, resource.ID, resource.URI
	return hear(r.program, vars) == yes
}
