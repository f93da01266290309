// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/rpc"
)

// policyInForce is the policy as the core sees it. Each question goes to the policy in force at that moment.
type policyInForce func() *authz.Policy

var _ ledger.Policy = policyInForce(nil)

func (p policyInForce) Scope(who ledger.Principal) (ledger.Scope, ledger.SubjectRule, bool) {
	scope, ok := p().Scope(authz.Principal(who))
	if !ok {
		return "", ledger.SubjectForbidden, false
	}
	rule := ledger.SubjectForbidden
	switch scope.Subject {
	case authz.SubjectAllowed:
		rule = ledger.SubjectAllowed
	case authz.SubjectRequired:
		rule = ledger.SubjectRequired
	}
	return ledger.Scope(scope.Name), rule, true
}

func (p policyInForce) ToolAllowed(who ledger.Principal, tool ledger.Tool) bool {
	return p().ToolAllowed(authz.Principal(who), string(tool))
}

func (p policyInForce) HasRole(who ledger.Principal, role ledger.Role, tool ledger.Tool) bool {
	return p().HasRole(authz.Principal(who), authz.Role(role), string(tool))
}

// HasAnyRole lets a service refuse a caller without the role before it looks at an operation.
func (p policyInForce) HasAnyRole(who ledger.Principal, role ledger.Role) bool {
	return p().HasAnyRole(authz.Principal(who), authz.Role(role))
}

func (p policyInForce) RoleTools(who ledger.Principal, role ledger.Role) ledger.ToolPatterns {
	every, exact, prefixes := p().RoleTools(authz.Principal(who), authz.Role(role))
	tools := ledger.ToolPatterns{Every: every, Prefixes: prefixes}
	for _, name := range exact {
		tools.Exact = append(tools.Exact, ledger.Tool(name))
	}
	return tools
}

// limits of a principal's scope, and of each subject of it.
func (p policyInForce) limits(who ledger.Principal) (scope, subject rpc.Limits) {
	ofAll, ofOne := p().Limits(authz.Principal(who))
	return limitsOf(ofAll), limitsOf(ofOne)
}

func limitsOf(l authz.Limits) rpc.Limits {
	return rpc.Limits{PerSecond: float64(l.RequestsPerSecond), Burst: l.Burst, Live: l.LiveOperations}
}
