// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Limits is what one scope, or one subject of it, may ask of one instance of the
// ledger.
type Limits struct {
	// RequestsPerSecond is the steady rate.
	RequestsPerSecond int
	// Burst is how many requests may come at once after a pause.
	Burst int
	// LiveOperations is how many grants and reservations may be open at a time.
	LiveOperations int
}

// The limits of what the policy says nothing about: they end what runs away, not
// what works hard.
var (
	defaultScopeLimits   = Limits{RequestsPerSecond: 5_000, Burst: 10_000, LiveOperations: 50_000}
	defaultSubjectLimits = Limits{RequestsPerSecond: 1_000, Burst: 2_000, LiveOperations: 5_000}
)

// scopeLimits are those of a scope, and of each subject of it.
type scopeLimits struct{ scope, subject Limits }

var defaultLimits = scopeLimits{defaultScopeLimits, defaultSubjectLimits}

// Limits returns the limits of a principal's scope and of each subject of it. A
// principal without a scope has those of what the policy says nothing about.
func (p *Policy) Limits(principal Principal) (scope, subject Limits) {
	limits := defaultLimits
	if rule := p.scopeRule(principal); rule != nil && rule.limits != nil {
		limits = *rule.limits
	}
	return limits.scope, limits.subject
}

// mostLimit is the largest number that a limit may have.
const mostLimit = 1_000_000

var limitKeys = []string{"requests_per_second", "burst", "live_operations"}

// limits reads what a scope's rule says about limits.
func (c *policyParser) limits(node *yaml.Node) *scopeLimits {
	fields := c.mapping(node, "limits", append(limitKeys, "subject")...)
	limits := defaultLimits
	c.fillLimits(fields, &limits.scope)
	if subject := fields["subject"]; subject != nil {
		c.fillLimits(c.mapping(subject, "limits of a subject", limitKeys...), &limits.subject)
	}
	return &limits
}

func (c *policyParser) fillLimits(fields map[string]*yaml.Node, limits *Limits) {
	if node := fields["requests_per_second"]; node != nil {
		limits.RequestsPerSecond = c.limit(node, "requests_per_second")
		limits.Burst = 2 * limits.RequestsPerSecond
	}
	if node := fields["burst"]; node != nil {
		limits.Burst = c.limit(node, "burst")
	}
	if node := fields["live_operations"]; node != nil {
		limits.LiveOperations = c.limit(node, "live_operations")
	}
}

func (c *policyParser) limit(node *yaml.Node, field string) int {
	n, err := strconv.Atoi(node.Value)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" || err != nil || n < 1 || n > mostLimit {
		c.fault(node.Line, "%s must be a whole number from 1 to %d; to shut somebody out, use denied", field, mostLimit)
		return 1
	}
	return n
}

// shareLimits gives the limits of a fixed scope to all its rules: they are the
// scope's, so that one rule of it says them.
func (c *policyParser) shareLimits() {
	said := make(map[string]*scopeRule)
	for i := range c.policy.scopes {
		rule := &c.policy.scopes[i]
		if rule.limits == nil || rule.name == ownScope {
			continue
		}
		if said[rule.name] != nil {
			c.fault(rule.limitsLine, "limits: an earlier rule of this scope has them, and they are the scope's; keep one of the two")
			continue
		}
		said[rule.name] = rule
	}
	for i := range c.policy.scopes {
		rule := &c.policy.scopes[i]
		if from := said[rule.name]; from != nil {
			rule.limits = from.limits
		}
	}
}
