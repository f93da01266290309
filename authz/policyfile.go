// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"errors"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// PolicyError is one fault of a policy file: where it is and what to write
// instead. It never repeats a value of the file.
type PolicyError struct {
	File string
	Line int // 0: the whole file
	Rule string
}

func (e *PolicyError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Rule)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Rule)
}

// maxPolicyFile bounds what is read before anything is known about it, in bytes.
const maxPolicyFile = 4 << 20

// ParseFile reads and checks a policy file. The error holds every fault found,
// each a [*PolicyError], or the operating system's error.
func ParseFile(path string) (*Policy, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err // it names the file
	}
	return Parse(path, data)
}

// Parse checks a policy; file is the name that errors show.
func Parse(file string, data []byte) (*Policy, error) {
	c := &policyParser{file: file, policy: &Policy{}}
	if len(data) > maxPolicyFile {
		c.fault(0, "must have at most %d bytes", maxPolicyFile)
		return nil, errors.Join(c.faults...)
	}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		c.syntaxFault(err)
		return nil, errors.Join(c.faults...)
	}
	c.root(document.Content[0])
	if len(c.faults) > 0 {
		return nil, errors.Join(c.faults...)
	}
	return c.policy, nil
}

// policyParser collects all faults of one file, so that one run of `policy
// check` shows them together.
type policyParser struct {
	file   string
	policy *Policy
	faults []error
	// scoped holds the patterns of all scope rules so far: no two may fit one principal.
	scoped []placed
}

type placed struct {
	pattern string
	line    int
}

func (c *policyParser) fault(line int, format string, args ...any) {
	c.faults = append(c.faults, &PolicyError{File: c.file, Line: line, Rule: fmt.Sprintf(format, args...)})
}

func (c *policyParser) syntaxFault(err error) {
	var load *yaml.LoadError
	if errors.As(err, &load) && load.Mark.Line > 0 {
		c.fault(load.Mark.Line, "must be YAML: %s", load.Message)
		return
	}
	c.fault(0, "must be exactly one YAML document; begin with trust_domain: NAME")
}

func (c *policyParser) root(node *yaml.Node) {
	fields := c.mapping(node, "the policy", "trust_domain", "scopes", "roles", "dns", "denied", "denied_serials")
	if fields == nil {
		return
	}
	// Without the domain no pattern can be judged: one clear fault instead of many.
	if !c.trustDomain(node, fields["trust_domain"]) {
		return
	}
	// dns comes first: a bare name is a principal only if an entry gives it.
	for _, entry := range c.optionalList(fields["dns"], "dns") {
		c.dns(entry)
	}
	if fields["scopes"] == nil {
		c.fault(node.Line, "scopes is missing, so that nobody could do anything; write scopes: [{name: ..., principals: [...], tools: [...]}]")
	}
	for _, entry := range c.optionalList(fields["scopes"], "scopes") {
		c.scope(entry)
	}
	for _, entry := range c.optionalList(fields["roles"], "roles") {
		c.role(entry)
	}
	if denied := fields["denied"]; denied != nil {
		for _, pattern := range c.principals(denied, "denied") {
			c.policy.denied.add(pattern.pattern)
		}
	}
	for _, serial := range c.texts(fields["denied_serials"], "denied_serials") {
		c.deniedSerial(serial)
	}
	c.shareLimits()
	c.checkOwnNames(node)
}

// deniedSerial reads a serial number as openssl and browsers write it.
func (c *policyParser) deniedSerial(entry placed) {
	text := strings.ReplaceAll(entry.pattern, ":", "")
	number, ok := new(big.Int).SetString(text, 16)
	if !ok || !serialForm.MatchString(entry.pattern) {
		c.fault(entry.line, "denied_serials: must be the serial number of a certificate in at most 40 hexadecimal digits, with or without colons between its bytes")
		return
	}
	if c.policy.deniedSerials == nil {
		c.policy.deniedSerials = make(map[string]bool)
	}
	c.policy.deniedSerials[serialOf(number)] = true
}

func (c *policyParser) trustDomain(parent, node *yaml.Node) bool {
	if node == nil {
		c.fault(parent.Line, "trust_domain is missing; write the domain of the SPIFFE IDs, such as trust_domain: ledger.test")
		return false
	}
	name, ok := c.text(node, "trust_domain")
	if !ok {
		return false
	}
	domain, err := spiffeid.TrustDomainFromString(name)
	// The parser also takes a whole SPIFFE ID; here only the name is meant.
	if err != nil || domain.Name() != name {
		c.fault(node.Line, "trust_domain must be a SPIFFE trust domain in lower case without scheme or path, such as ledger.test")
		return false
	}
	c.policy.domain = domain
	return true
}

func (c *policyParser) scope(node *yaml.Node) {
	fields := c.mapping(node, "a scope", "name", "principals", "tools", "subject", "limits")
	if fields == nil || !c.required(node, fields, "a scope", "name", "principals", "tools") {
		return
	}
	rule := scopeRule{tools: c.tools(fields["tools"])}
	if name, ok := c.text(fields["name"], "name"); ok {
		if name != ownScope && !nameForm.MatchString(name) {
			c.fault(fields["name"].Line, `name must be %s, or "{principal}" for a scope of each principal's own`, nameRule)
		}
		rule.name = name
	}
	if subject := fields["subject"]; subject != nil {
		rule.subject = c.subject(subject)
	}
	if limits := fields["limits"]; limits != nil {
		rule.limits, rule.limitsLine = c.limits(limits), limits.Line
	}
	for _, pattern := range c.principals(fields["principals"], "principals") {
		if i := slices.IndexFunc(c.scoped, func(other placed) bool { return overlap(other.pattern, pattern.pattern) }); i >= 0 {
			c.fault(pattern.line, "principals: the scope pattern at line %d fits the same principal; a principal has one scope, so narrow one of the two", c.scoped[i].line)
			continue
		}
		rule.principals.add(pattern.pattern)
		c.scoped = append(c.scoped, pattern)
	}
	c.policy.scopes = append(c.policy.scopes, rule)
}

func (c *policyParser) subject(node *yaml.Node) SubjectRule {
	text, _ := c.text(node, "subject")
	for _, rule := range []SubjectRule{SubjectForbidden, SubjectAllowed, SubjectRequired} {
		if text == rule.String() {
			return rule
		}
	}
	c.fault(node.Line, "subject must be required, allowed or forbidden")
	return SubjectForbidden
}

func (c *policyParser) role(node *yaml.Node) {
	fields := c.mapping(node, "a role", "role", "principals", "tools")
	if fields == nil || !c.required(node, fields, "a role", "role", "principals", "tools") {
		return
	}
	text, _ := c.text(fields["role"], "role")
	rule := roleRule{role: Role(text), tools: c.tools(fields["tools"])}
	if !slices.Contains([]Role{RoleOperator, RoleReconciler, RoleAuditor}, rule.role) {
		c.fault(fields["role"].Line, "role must be operator, reconciler or auditor")
	}
	for _, pattern := range c.principals(fields["principals"], "principals") {
		rule.principals.add(pattern.pattern)
	}
	c.policy.roles = append(c.policy.roles, rule)
}

func (c *policyParser) dns(node *yaml.Node) {
	fields := c.mapping(node, "a dns entry", "name", "principal")
	if fields == nil || !c.required(node, fields, "a dns entry", "name", "principal") {
		return
	}
	host, hostOK := c.text(fields["name"], "name")
	if hostOK && (len(host) > 253 || !hostForm.MatchString(host)) {
		c.fault(fields["name"].Line, "name must be one DNS name in lower case without a wildcard or a final dot, such as host.example")
		hostOK = false
	}
	text, ok := c.text(fields["principal"], "principal")
	if ok && !nameForm.MatchString(text) {
		if _, ok = spiffePrincipal(c.policy.domain, text); !ok {
			c.fault(fields["principal"].Line, "principal must be %s, or a SPIFFE ID such as spiffe://%s/agent/name", nameRule, c.policy.domain.Name())
		}
	}
	if !hostOK || !ok {
		return
	}
	if _, again := c.policy.dns[host]; again {
		c.fault(fields["name"].Line, "name is mapped by an earlier dns entry; keep one of the two")
		return
	}
	if c.policy.dns == nil {
		c.policy.dns = make(map[string]Principal)
	}
	c.policy.dns[host] = Principal(text)
}

// checkOwnNames refuses a bare name with a scope of its own that is also the
// fixed name of a scope: the two namespaces would be one. A SPIFFE ID can't be a
// fixed name.
func (c *policyParser) checkOwnNames(node *yaml.Node) {
	bare := make(map[string]bool)
	for _, principal := range c.policy.dns {
		if rule := c.policy.scopeRule(principal); rule != nil && rule.name == ownScope {
			bare[string(principal)] = true
		}
	}
	for _, rule := range c.policy.scopes {
		if bare[rule.name] {
			c.fault(node.Line, `scopes: a fixed name is also the name of a dns principal with the scope "{principal}"; rename one of the two`)
		}
	}
}

var (
	// nameForm is the form of fixed scope names and of bare principals; it has neither a slash nor a colon.
	nameForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`)
	hostForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	// toolForm is the form of a tool's name in the API.
	toolForm   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`)
	serialForm = regexp.MustCompile(`^([0-9A-Fa-f]{1,40}|[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){0,19})$`)
)

const nameRule = "a letter and up to 127 letters, digits, dots, dashes or underscores"

// principals reads a list of principal patterns.
func (c *policyParser) principals(node *yaml.Node, field string) []placed {
	var patterns []placed
	for _, entry := range c.texts(node, field) {
		text := entry.pattern
		if nameForm.MatchString(text) {
			if !c.isDNSPrincipal(text) {
				c.fault(entry.line, "%s: no dns entry gives this name to a principal; add one, or write a SPIFFE ID such as spiffe://%s/agent/name", field, c.policy.domain.Name())
				continue
			}
		} else if !c.isSPIFFEPattern(text) {
			c.fault(entry.line, `%s: must be a SPIFFE ID of the trust domain in which "*" may stand for one whole path segment, such as spiffe://%s/agent/*`, field, c.policy.domain.Name())
			continue
		}
		patterns = append(patterns, entry)
	}
	return patterns
}

func (c *policyParser) isDNSPrincipal(name string) bool {
	for _, principal := range c.policy.dns {
		if principal == Principal(name) {
			return true
		}
	}
	return false
}

// isSPIFFEPattern puts a letter in the place of each wildcard: what is left must
// be a SPIFFE ID, in which a "*" can't occur.
func (c *policyParser) isSPIFFEPattern(text string) bool {
	segments := strings.Split(text, "/")
	for i, segment := range segments {
		if segment == wildcard {
			segments[i] = "x"
		}
	}
	_, ok := spiffePrincipal(c.policy.domain, strings.Join(segments, "/"))
	return ok
}

// tools reads a list of tool patterns.
func (c *policyParser) tools(node *yaml.Node) toolSet {
	var set toolSet
	for _, entry := range c.texts(node, "tools") {
		prefix, wild := strings.CutSuffix(entry.pattern, ".*")
		if entry.pattern != wildcard && !toolForm.MatchString(prefix) {
			c.fault(entry.line, `tools: must be a tool's name, "prefix.*" for all whose name begins with "prefix.", or "*" for every tool`)
			continue
		}
		if wild && strings.HasSuffix(prefix, ".") {
			c.fault(entry.line, `tools: a prefix is followed by one dot; write "prefix.*"`)
			continue
		}
		set.add(entry.pattern)
	}
	return set
}
