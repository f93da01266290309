// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Role is a right beyond one's own operations. Nobody has one by default.
type Role string

// The roles: operators settle by hand, reconcilers submit evidence, auditors
// read.
const (
	RoleOperator   Role = "operator"
	RoleReconciler Role = "reconciler"
	RoleAuditor    Role = "auditor"
)

// SubjectRule says whether the callers of a scope may name the end user whom
// they act for. The zero value forbids it.
type SubjectRule uint8

// The subject rules.
const (
	SubjectForbidden SubjectRule = iota
	SubjectAllowed
	SubjectRequired
)

func (r SubjectRule) String() string {
	switch r {
	case SubjectAllowed:
		return "allowed"
	case SubjectRequired:
		return "required"
	default:
		return "forbidden"
	}
}

// Scope is what the policy gives to one principal.
type Scope struct {
	// Name is the namespace of the principal's keys.
	Name string
	// Subject is the rule for the subject of its keys.
	Subject SubjectRule
}

// ownScope as the name of a scope gives each principal a scope of its own, by
// its own name.
const ownScope = "{principal}"

// Policy is a checked policy. It is never changed after it was made, so that
// any number of goroutines may ask it. The zero value lets nobody do anything.
type Policy struct {
	domain spiffeid.TrustDomain
	dns    map[string]Principal
	denied principalSet
	// deniedSerials are serial numbers of certificates, see serialOf.
	deniedSerials map[string]bool
	scopes        []scopeRule
	roles         []roleRule
}

type scopeRule struct {
	name       string
	subject    SubjectRule
	principals principalSet
	tools      toolSet
	limits     *scopeLimits // nil: the defaults
	limitsLine int
}

func (r *scopeRule) nameFor(principal Principal) string {
	if r.name == ownScope {
		return string(principal)
	}
	return r.name
}

type roleRule struct {
	role       Role
	principals principalSet
	tools      toolSet
}

// TrustDomain returns the trust domain whose SPIFFE IDs are principals.
func (p *Policy) TrustDomain() string { return p.domain.Name() }

// Scope returns the scope of a principal; false if the policy gives it none.
func (p *Policy) Scope(principal Principal) (Scope, bool) {
	rule := p.scopeRule(principal)
	if rule == nil {
		return Scope{}, false
	}
	return Scope{Name: rule.nameFor(principal), Subject: rule.subject}, true
}

// ToolAllowed says whether a principal may use a tool in its scope.
func (p *Policy) ToolAllowed(principal Principal, tool string) bool {
	rule := p.scopeRule(principal)
	return rule != nil && rule.tools.match(tool)
}

// scopeRule returns the one rule that fits. The parser refuses a policy in which
// two do; should two fit nevertheless, the principal gets none.
func (p *Policy) scopeRule(principal Principal) *scopeRule {
	if p.denied.match(principal) {
		return nil
	}
	var found *scopeRule
	for i := range p.scopes {
		if !p.scopes[i].principals.match(principal) {
			continue
		}
		if found != nil {
			return nil
		}
		found = &p.scopes[i]
	}
	return found
}

// HasRole says whether a principal has a role for a tool.
func (p *Policy) HasRole(principal Principal, role Role, tool string) bool {
	return p.anyRole(principal, role, func(tools toolSet) bool { return tools.match(tool) })
}

// HasAnyRole says whether a principal has a role for some tool: enough to call a
// method, not to act on an operation.
func (p *Policy) HasAnyRole(principal Principal, role Role) bool {
	return p.anyRole(principal, role, func(toolSet) bool { return true })
}

func (p *Policy) anyRole(principal Principal, role Role, tools func(toolSet) bool) bool {
	if p.denied.match(principal) {
		return false
	}
	for i := range p.roles {
		rule := &p.roles[i]
		if rule.role == role && rule.principals.match(principal) && tools(rule.tools) {
			return true
		}
	}
	return false
}

// RoleTools returns the tools for which a principal has a role: all of them, or
// some by name and those whose longer names begin with a prefix.
func (p *Policy) RoleTools(principal Principal, role Role) (every bool, exact, prefixes []string) {
	p.anyRole(principal, role, func(tools toolSet) bool {
		every = every || tools.every
		exact = slices.AppendSeq(exact, maps.Keys(tools.exact))
		prefixes = append(prefixes, tools.prefixes...)
		return false
	})
	slices.Sort(exact)
	slices.Sort(prefixes)
	return every, slices.Compact(exact), slices.Compact(prefixes)
}

// ReachesScope says whether some principal could still have the scope: what
// `policy check --against` asks for each scope with unsettled operations.
func (p *Policy) ReachesScope(name string) bool {
	for i := range p.scopes {
		rule := &p.scopes[i]
		if rule.name == ownScope {
			if scope, ok := p.Scope(Principal(name)); ok && scope.Name == name {
				return true
			}
		} else if rule.name == name && rule.principals.reaches(p.denied) {
			return true
		}
	}
	return false
}

// DevPolicy is the policy of the development server: each agent of the
// development authority is its own scope with every tool and may name a
// subject, and the operator has all roles. Errors: a trust domain or an operator
// that is none.
func DevPolicy(trustDomain string, operator Principal) (*Policy, error) {
	domain, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil || domain.Name() != trustDomain {
		return nil, fmt.Errorf("trust domain: must be a lower-case SPIFFE trust domain name, such as dev.local")
	}
	if _, ok := spiffePrincipal(domain, string(operator)); !ok {
		return nil, fmt.Errorf("operator: must be a SPIFFE ID of the trust domain")
	}
	every := toolSet{every: true}
	var agents, operators principalSet
	agents.add(string(AgentPrincipal(trustDomain, wildcard)))
	operators.add(string(operator))
	policy := &Policy{
		domain: domain,
		scopes: []scopeRule{{name: ownScope, subject: SubjectAllowed, principals: agents, tools: every}},
	}
	for _, role := range []Role{RoleOperator, RoleReconciler, RoleAuditor} {
		policy.roles = append(policy.roles, roleRule{role: role, principals: operators, tools: every})
	}
	return policy, nil
}

// wildcard as a whole segment of a principal pattern fits any one segment.
const wildcard = "*"

// principalSet fits the principals of a list of patterns. The zero value fits
// nobody.
type principalSet struct {
	exact map[Principal]bool
	wild  [][]string // patterns with a wildcard, by segments
}

// add takes a pattern that the parser has checked.
func (s *principalSet) add(pattern string) {
	if isWild(pattern) {
		s.wild = append(s.wild, strings.Split(pattern, "/"))
		return
	}
	if s.exact == nil {
		s.exact = make(map[Principal]bool)
	}
	s.exact[Principal(pattern)] = true
}

func (s principalSet) match(principal Principal) bool {
	if s.exact[principal] {
		return true
	}
	for _, pattern := range s.wild {
		if matchSegments(pattern, string(principal)) {
			return true
		}
	}
	return false
}

// reaches says whether denied leaves somebody of the set. Of a pattern with a
// wildcard it is taken for granted.
func (s principalSet) reaches(denied principalSet) bool {
	for principal := range s.exact {
		if !denied.match(principal) {
			return true
		}
	}
	return len(s.wild) > 0
}

// matchSegments compares segment by segment without splitting the name: it runs
// on every call.
func matchSegments(pattern []string, name string) bool {
	for i, want := range pattern {
		segment, rest, more := strings.Cut(name, "/")
		if more == (i == len(pattern)-1) {
			return false
		}
		if want != segment && (want != wildcard || segment == "") {
			return false
		}
		name = rest
	}
	return true
}

func isWild(pattern string) bool { return strings.Contains(pattern, wildcard) }

// overlap says whether some principal fits both patterns.
func overlap(a, b string) bool {
	if !isWild(a) && !isWild(b) {
		return a == b
	}
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	if len(as) != len(bs) {
		return false
	}
	for i := range as {
		if as[i] != bs[i] && as[i] != wildcard && bs[i] != wildcard {
			return false
		}
	}
	return true
}

// toolSet fits the tools of a list of patterns. The zero value fits none.
type toolSet struct {
	every    bool
	exact    map[string]bool
	prefixes []string // each with its final dot
}

// add takes a pattern that the parser has checked.
func (s *toolSet) add(pattern string) {
	switch prefix, wild := strings.CutSuffix(pattern, wildcard); {
	case pattern == wildcard:
		s.every = true
	case wild:
		s.prefixes = append(s.prefixes, prefix)
	default:
		if s.exact == nil {
			s.exact = make(map[string]bool)
		}
		s.exact[pattern] = true
	}
}

func (s toolSet) match(tool string) bool {
	if tool == "" {
		return false
	}
	if s.every || s.exact[tool] {
		return true
	}
	for _, prefix := range s.prefixes {
		if len(tool) > len(prefix) && strings.HasPrefix(tool, prefix) {
			return true
		}
	}
	return false
}
