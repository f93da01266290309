// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const wholePolicy = `
trust_domain: ledger.test
scopes:
  - name: billing
    principals: [spiffe://ledger.test/agent/billing]
    tools: [payments.*, mail.send]
    subject: required
  - name: billing
    principals: [spiffe://ledger.test/agent/refunds]
    tools: [payments.refund]
    subject: allowed
  - name: shut
    principals: [spiffe://ledger.test/agent/shut]
    tools: ["*"]
  - name: "{principal}"
    principals: [spiffe://ledger.test/team/*/agent, build-host]
    tools: ["*"]
roles:
  - role: operator
    principals: [spiffe://ledger.test/person/alice]
    tools: [payments.*]
  - role: operator
    principals: [spiffe://ledger.test/person/alice]
    tools: [mail.send]
  - role: auditor
    principals: [spiffe://ledger.test/person/*]
    tools: ["*"]
dns:
  - name: build.example
    principal: build-host
denied: [spiffe://ledger.test/team/red/agent, spiffe://ledger.test/person/mallory, spiffe://ledger.test/agent/shut]
`

func mustPolicy(t *testing.T, text string) *Policy {
	t.Helper()
	policy, err := Parse("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func TestScope(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	if got := policy.TrustDomain(); got != "ledger.test" {
		t.Errorf("trust domain %q", got)
	}
	for _, c := range []struct {
		name      string
		principal Principal
		want      Scope
		ok        bool
	}{
		{"exact", "spiffe://ledger.test/agent/billing", Scope{"billing", SubjectRequired}, true},
		{"another rule of the same scope", "spiffe://ledger.test/agent/refunds", Scope{"billing", SubjectAllowed}, true},
		{"its own by wildcard", "spiffe://ledger.test/team/blue/agent", Scope{"spiffe://ledger.test/team/blue/agent", SubjectForbidden}, true},
		{"its own by DNS", "build-host", Scope{"build-host", SubjectForbidden}, true},
		{"denied within a wildcard", "spiffe://ledger.test/team/red/agent", Scope{}, false},
		{"wildcard never crosses a slash", "spiffe://ledger.test/team/blue/sub/agent", Scope{}, false},
		{"wildcard is one segment", "spiffe://ledger.test/team/agent", Scope{}, false},
		{"wildcard is not an empty segment", "spiffe://ledger.test/team//agent", Scope{}, false},
		{"shorter than the pattern", "spiffe://ledger.test/team/blue", Scope{}, false},
		{"longer than the pattern", "spiffe://ledger.test/team/blue/agent/x", Scope{}, false},
		{"longer than an exact name", "spiffe://ledger.test/agent/billing2", Scope{}, false},
		{"child of an exact name", "spiffe://ledger.test/agent/billing/x", Scope{}, false},
		{"other case", "spiffe://ledger.test/agent/Billing", Scope{}, false},
		{"operator without a scope", "spiffe://ledger.test/person/alice", Scope{}, false},
		{"unknown name", "other-host", Scope{}, false},
		{"empty", "", Scope{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := policy.Scope(c.principal)
			if ok != c.ok {
				t.Errorf("ok %v, want %v", ok, c.ok)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("scope (-want +got):\n%s", diff)
			}
		})
	}
}

func TestToolAllowed(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	const billing, team = "spiffe://ledger.test/agent/billing", "spiffe://ledger.test/team/blue/agent"
	for _, c := range []struct {
		name      string
		principal Principal
		tool      string
		want      bool
	}{
		{"exact", billing, "mail.send", true},
		{"longer than exact", billing, "mail.send_all", false},
		{"other case", billing, "Mail.send", false},
		{"prefix", billing, "payments.charge", true},
		{"prefix over several dots", billing, "payments.card.charge", true},
		{"prefix itself", billing, "payments", false},
		{"prefix with nothing behind it", billing, "payments.", false},
		{"prefix without the dot", billing, "payments2.charge", false},
		{"every tool", team, "anything", true},
		{"no tool", team, "", false},
		{"tool of the scope's other principal", "spiffe://ledger.test/agent/refunds", "mail.send", false},
		{"principal without a scope", "spiffe://ledger.test/person/alice", "payments.charge", false},
		{"denied", "spiffe://ledger.test/team/red/agent", "anything", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := policy.ToolAllowed(c.principal, c.tool); got != c.want {
				t.Errorf("allowed %v, want %v", got, c.want)
			}
		})
	}
}

func TestRoles(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	const alice, bob, mallory = "spiffe://ledger.test/person/alice", "spiffe://ledger.test/person/bob", "spiffe://ledger.test/person/mallory"
	for _, c := range []struct {
		name      string
		principal Principal
		role      Role
		tool      string
		want, any bool
	}{
		{"operator of the tool", alice, RoleOperator, "payments.charge", true, true},
		{"operator by a second rule", alice, RoleOperator, "mail.send", true, true},
		{"operator of other tools", alice, RoleOperator, "tickets.create", false, true},
		{"auditor by wildcard", bob, RoleAuditor, "tickets.create", true, true},
		{"auditor is no operator", bob, RoleOperator, "payments.charge", false, false},
		{"operator is no reconciler", alice, RoleReconciler, "payments.charge", false, false},
		{"worker has none", "spiffe://ledger.test/agent/billing", RoleReconciler, "payments.charge", false, false},
		{"denied", mallory, RoleAuditor, "payments.charge", false, false},
		{"role that is none", alice, "", "payments.charge", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := policy.HasRole(c.principal, c.role, c.tool); got != c.want {
				t.Errorf("has role %v, want %v", got, c.want)
			}
			if got := policy.HasAnyRole(c.principal, c.role); got != c.any {
				t.Errorf("has any role %v, want %v", got, c.any)
			}
		})
	}
}

func TestRoleTools(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	type tools struct {
		Every           bool
		Exact, Prefixes []string
	}
	for who, tt := range map[Principal]struct {
		role Role
		want tools
	}{
		"spiffe://ledger.test/person/alice":   {RoleOperator, tools{false, []string{"mail.send"}, []string{"payments."}}},
		"spiffe://ledger.test/person/bob":     {RoleAuditor, tools{true, nil, nil}},
		"spiffe://ledger.test/person/carol":   {RoleOperator, tools{}},
		"spiffe://ledger.test/person/mallory": {RoleAuditor, tools{}},
	} {
		every, exact, prefixes := policy.RoleTools(who, tt.role)
		if diff := cmp.Diff(tt.want, tools{every, exact, prefixes}); diff != "" {
			t.Errorf("%s as %s (-want +got):\n%s", who, tt.role, diff)
		}
	}
}

func TestReachesScope(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	for name, want := range map[string]bool{
		"billing":                              true,
		"build-host":                           true,
		"spiffe://ledger.test/team/new/agent":  true,
		"spiffe://ledger.test/team/red/agent":  false,
		"spiffe://ledger.test/agent/billing":   false, // has the scope billing now
		"gone":                                 false,
		"{principal}":                          false,
		"shut":                                 false, // its only principal is denied
		"spiffe://other.test/team/blue/agent":  false,
		"spiffe://ledger.test/team/blue/agent": true,
	} {
		if got := policy.ReachesScope(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestTheZeroPolicyLetsNobodyDoAnything(t *testing.T) {
	var policy Policy
	const principal = "spiffe://ledger.test/agent/billing"
	if _, ok := policy.Scope(principal); ok {
		t.Error("a scope")
	}
	if policy.ToolAllowed(principal, "mail.send") || policy.HasAnyRole(principal, RoleOperator) {
		t.Error("a right")
	}
}

func TestTwoFittingScopesAreNone(t *testing.T) {
	policy := mustPolicy(t, wholePolicy)
	policy.scopes = append(policy.scopes, policy.scopes[0]) // what the parser would refuse
	if scope, ok := policy.Scope("spiffe://ledger.test/agent/billing"); ok {
		t.Errorf("scope %v, want none", scope)
	}
}

func TestDevPolicy(t *testing.T) {
	operator := AgentPrincipal("dev.local", "operator")
	policy, err := DevPolicy("dev.local", operator)
	if err != nil {
		t.Fatal(err)
	}
	agent := AgentPrincipal("dev.local", "agent-a")
	for _, principal := range []Principal{agent, operator} {
		scope, ok := policy.Scope(principal)
		if !ok || scope != (Scope{Name: string(principal), Subject: SubjectAllowed}) {
			t.Errorf("scope %v, %v", scope, ok)
		}
		if !policy.ToolAllowed(principal, "any.tool") {
			t.Error("a tool is not allowed")
		}
	}
	for _, role := range []Role{RoleOperator, RoleReconciler, RoleAuditor} {
		if !policy.HasRole(operator, role, "any.tool") || policy.HasAnyRole(agent, role) {
			t.Errorf("%s: the operator must have it and the agent must not", role)
		}
	}
	if _, ok := policy.Scope("spiffe://other.local/agent/agent-a"); ok {
		t.Error("a foreign principal has a scope")
	}
	for name, args := range map[string][2]string{
		"upper-case domain": {"Dev.local", string(operator)},
		"domain as an ID":   {"spiffe://dev.local", string(operator)},
		"foreign operator":  {"dev.local", "spiffe://other.local/agent/operator"},
		"no operator":       {"dev.local", ""},
	} {
		if _, err := DevPolicy(args[0], Principal(args[1])); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// scopesWith is a policy whose scopes begin at line 2.
func scopesWith(lines ...string) string {
	return "trust_domain: ledger.test\n" + strings.Join(lines, "\n") + "\n"
}

const goodScope = "scopes: [{name: a, principals: [spiffe://ledger.test/agent/a], tools: [t]}]"

func TestPolicyFaults(t *testing.T) {
	one := func(principals, tools string) string {
		return scopesWith("scopes:", "- name: a", "  principals: "+principals, "  tools: "+tools)
	}
	for _, c := range []struct {
		name string
		text string
		line int
		rule string // a part of it: what to write instead
	}{
		{"empty file", "", 0, "begin with trust_domain"},
		{"only a comment", "# nothing\n", 0, "begin with trust_domain"},
		{"two documents", scopesWith(goodScope, "---", goodScope), 0, "exactly one YAML document"},
		{"not YAML", "trust_domain: [a\nb: 1\n", 2, "must be YAML"},
		{"not a mapping", "- a\n", 1, "must be a mapping with trust_domain"},
		{"no trust domain", goodScope, 1, "trust_domain is missing"},
		{"trust domain in upper case", "trust_domain: Ledger.test\n", 1, "in lower case"},
		{"trust domain with a scheme", "trust_domain: spiffe://ledger.test\n", 1, "without scheme"},
		{"trust domain as a number", "trust_domain: 1.5\n", 1, "put it in quotes"},
		{"unknown key", scopesWith(goodScope, "role: []"), 3, "write one of trust_domain, scopes, roles, dns, denied"},
		{"merge key", scopesWith("<<: {scopes: []}", goodScope), 2, "unknown key"},
		{"repeated key", scopesWith(goodScope, goodScope), 3, "given twice"},
		{"no scopes", scopesWith("roles: [{role: auditor, principals: [spiffe://ledger.test/a], tools: [t]}]"), 1, "scopes is missing"},
		{"empty scopes", scopesWith("scopes: []"), 2, "empty means nobody"},
		{"scopes without a value", scopesWith("scopes:"), 2, "must be a list"},
		{"unknown key of a scope", scopesWith("scopes:", "- name: a", "  tool: [t]", "  principals: [spiffe://ledger.test/a]", "  tools: [t]"), 4, "unknown key in a scope"},
		{"scope without principals", scopesWith("scopes: [{name: a, tools: [t]}]"), 2, "a scope needs principals"},
		{"scope without tools", scopesWith("scopes: [{name: a, principals: [spiffe://ledger.test/a]}]"), 2, "a scope needs tools"},
		{"empty principals", one("[]", "[t]"), 4, "empty means nobody"},
		{"principals without a value", one("", "[t]"), 4, "must be a list"},
		{"empty tools", one("[spiffe://ledger.test/a]", "[]"), 5, "empty means nobody"},
		{"principal as a list", one("[[spiffe://ledger.test/a]]", "[t]"), 4, "must be a text"},
		{"empty principal", one(`[""]`, "[t]"), 4, "must be a text"},
		{"scope name with a slash", scopesWith("scopes: [{name: a/b, principals: [spiffe://ledger.test/a], tools: [t]}]"), 2, `or "{principal}"`},
		{"scope name around the template", scopesWith(`scopes: [{name: "team-{principal}", principals: [spiffe://ledger.test/a], tools: [t]}]`), 2, `or "{principal}"`},
		{"unknown subject rule", scopesWith("scopes: [{name: a, principals: [spiffe://ledger.test/a], tools: [t], subject: maybe}]"), 2, "required, allowed or forbidden"},
		{"every principal", one(`["*"]`, "[t]"), 4, "spiffe://ledger.test/agent/*"},
		{"every principal of the scheme", one("[spiffe://*/a]", "[t]"), 4, "one whole path segment"},
		{"wildcard in a segment", one("[spiffe://ledger.test/agent/bill*]", "[t]"), 4, "one whole path segment"},
		{"two stars", one("[spiffe://ledger.test/**]", "[t]"), 4, "one whole path segment"},
		{"wildcard before a trailing slash", one("[spiffe://ledger.test/agent/*/]", "[t]"), 4, "one whole path segment"},
		{"domain without a path", one("[spiffe://ledger.test]", "[t]"), 4, "must be a SPIFFE ID"},
		{"foreign domain", one("[spiffe://other.test/agent/a]", "[t]"), 4, "of the trust domain"},
		{"name without a dns entry", one("[host-a]", "[t]"), 4, "no dns entry"},
		{"same principal twice", one("[spiffe://ledger.test/a, spiffe://ledger.test/a]", "[t]"), 4, "the same entry is at line 4"},
		{"same principal in two scopes", scopesWith(
			"scopes:",
			"- {name: a, principals: [spiffe://ledger.test/agent/a], tools: [t]}",
			"- {name: b, principals: [spiffe://ledger.test/agent/a], tools: [t]}"), 4, "pattern at line 3"},
		{"exact within a wildcard", scopesWith(
			"scopes:",
			"- {name: '{principal}', principals: [spiffe://ledger.test/agent/*], tools: [t]}",
			"- {name: b, principals: [spiffe://ledger.test/agent/b], tools: [t]}"), 4, "pattern at line 3"},
		{"crossing wildcards", scopesWith(
			"scopes:",
			"- {name: a, principals: [spiffe://ledger.test/x/*], tools: [t]}",
			"- {name: b, principals: [spiffe://ledger.test/*/y], tools: [t]}"), 4, "pattern at line 3"},
		{"same tool twice", one("[spiffe://ledger.test/a]", "[t, t]"), 5, "the same entry"},
		{"tool wildcard without a dot", one("[spiffe://ledger.test/a]", "[pay*]"), 5, `"prefix.*"`},
		{"tool wildcard in front", one("[spiffe://ledger.test/a]", `["*.send"]`), 5, `"prefix.*"`},
		{"tool wildcard without a prefix", one("[spiffe://ledger.test/a]", `[".*"]`), 5, `"prefix.*"`},
		{"tool wildcard after two dots", one("[spiffe://ledger.test/a]", `["a..*"]`), 5, "one dot"},
		{"tool with a slash", one("[spiffe://ledger.test/a]", "[a/b]"), 5, "must be a tool's name"},
		{"alias", scopesWith("scopes: &s [{name: a, principals: [spiffe://ledger.test/a], tools: [t]}]", "roles: *s"), 3, "must be a list"},
		{"empty roles", scopesWith(goodScope, "roles: []"), 3, "empty means nobody"},
		{"unknown role", scopesWith(goodScope, "roles: [{role: admin, principals: [spiffe://ledger.test/a], tools: [t]}]"), 3, "operator, reconciler or auditor"},
		{"role without tools", scopesWith(goodScope, "roles: [{role: operator, principals: [spiffe://ledger.test/a]}]"), 3, "a role needs tools"},
		{"role for nobody", scopesWith(goodScope, "roles: [{role: operator, principals: [], tools: [t]}]"), 3, "empty means nobody"},
		{"empty dns", scopesWith(goodScope, "dns: []"), 3, "empty means nobody"},
		{"wildcard dns", scopesWith(goodScope, `dns: [{name: "*.example", principal: a}]`), 3, "without a wildcard"},
		{"dns name in upper case", scopesWith(goodScope, "dns: [{name: Host.example, principal: a}]"), 3, "in lower case"},
		{"dns name twice", scopesWith(goodScope, "dns:", "- {name: h.example, principal: a}", "- {name: h.example, principal: b}"), 5, "earlier dns entry"},
		{"dns to a foreign principal", scopesWith(goodScope, "dns: [{name: h.example, principal: spiffe://other.test/a}]"), 3, "spiffe://ledger.test/agent/name"},
		{"empty denied", scopesWith(goodScope, "denied: []"), 3, "empty means nobody"},
		{"empty denied serials", scopesWith(goodScope, "denied_serials: []"), 3, "empty means nobody"},
		{"denied serial that is no number", scopesWith(goodScope, `denied_serials: ["0x1f"]`), 3, "hexadecimal"},
		{"denied serial with a sign", scopesWith(goodScope, `denied_serials: ["-1f"]`), 3, "hexadecimal"},
		{"denied serial with half a byte", scopesWith(goodScope, `denied_serials: ["0:1f"]`), 3, "hexadecimal"},
		{"denied serial that is too long", scopesWith(goodScope, `denied_serials: ["`+strings.Repeat("1", 41)+`"]`), 3, "at most 40"},
		{"denied serial without quotes", scopesWith(goodScope, "denied_serials: [1234]"), 3, "must be a text; put it in quotes"},
		{"limit of none", limited("{requests_per_second: 0}"), 4, "from 1 to 1000000"},
		{"limit that is a text", limited(`{burst: "5"}`), 4, "whole number"},
		{"limit that is a fraction", limited("{requests_per_second: 0.5}"), 4, "whole number"},
		{"limit that is too large", limited("{live_operations: 1000001}"), 4, "from 1 to 1000000"},
		{"unknown limit", limited("{per_minute: 1}"), 4, "unknown key in limits"},
		{"unknown limit of a subject", limited("{subject: {subject: {}}}"), 4, "unknown key in limits of a subject"},
		{"limits that are a number", limited("5"), 4, "limits must be a mapping"},
		{"limits of a subject that are a number", limited("{subject: 5}"), 4, "limits of a subject must be a mapping"},
		{"limits of one scope twice", scopesWith("scopes:",
			"- {name: a, principals: [spiffe://ledger.test/a], tools: [t], limits: {burst: 5}}",
			"- {name: a, principals: [spiffe://ledger.test/b], tools: [t], limits: {burst: 5}}"), 4, "keep one of the two"},
		{"own scope of a name that is a fixed scope", scopesWith(
			"dns: [{name: h.example, principal: billing}]",
			"scopes:",
			"- {name: billing, principals: [spiffe://ledger.test/agent/a], tools: [t]}",
			`- {name: "{principal}", principals: [billing], tools: [t]}`), 1, "rename one of the two"},
		{"too large", "#" + strings.Repeat("x", maxPolicyFile), 0, "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, err := Parse("policy.yaml", []byte(c.text))
			var fault *PolicyError
			if policy != nil || !errors.As(err, &fault) {
				t.Fatalf("policy %v, error %v; want a PolicyError", policy, err)
			}
			if fault.Line != c.line || !strings.Contains(fault.Rule, c.rule) {
				t.Errorf("%v\nwant line %d and %q", fault, c.line, c.rule)
			}
			place := "policy.yaml: "
			if c.line > 0 {
				place = fmt.Sprintf("policy.yaml:%d: ", c.line)
			}
			if !strings.HasPrefix(fault.Error(), place) {
				t.Errorf("%v\nwant it to begin with %q", fault, place)
			}
		})
	}
}

func TestAllFaultsAreShownTogether(t *testing.T) {
	_, err := Parse("policy.yaml", []byte(scopesWith(
		"scopes: [{name: a/b, principals: [spiffe://ledger.test/a], tools: []}]",
		"roles: [{role: admin, principals: [secret-name], tools: [t]}]")))
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Fatalf("want four faults:\n%v", err)
	}
	if strings.Contains(err.Error(), "secret-name") {
		t.Errorf("a value of the file is in the error:\n%v", err)
	}
}

func TestParseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if _, err := ParseFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	writeFile(t, path, wholePolicy)
	if _, err := ParseFile(path); err != nil {
		t.Error(err)
	}
}

// TestTheDocumentedPolicy keeps the example of the package comment true.
func TestTheDocumentedPolicy(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder
	for line := range strings.Lines(string(source)) {
		if text, ok := strings.CutPrefix(line, "//\t"); ok {
			example.WriteString(text)
		}
	}
	policy := mustPolicy(t, example.String())
	if !policy.HasRole("spiffe://ledger.test/person/alice", RoleOperator, "payments.charge") {
		t.Error("the example's operator has no role")
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
