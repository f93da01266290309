// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"math/big"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// limited is a policy whose only scope has these limits, in line 4.
func limited(limits string) string {
	return scopesWith("scopes:", "- name: a", "  limits: "+limits, "  principals: [spiffe://ledger.test/a]", "  tools: [t]")
}

func TestLimits(t *testing.T) {
	policy := mustPolicy(t, `
trust_domain: ledger.test
scopes:
  - {name: plain, principals: [spiffe://ledger.test/plain], tools: ["*"]}
  - {name: shared, principals: [spiffe://ledger.test/first], tools: [a]}
  - name: shared
    principals: [spiffe://ledger.test/second]
    tools: [b]
    limits: {requests_per_second: 20, live_operations: 30, subject: {requests_per_second: 2, burst: 3}}
  - {name: "{principal}", principals: [spiffe://ledger.test/own/*], tools: ["*"], limits: {burst: 7}}
  - {name: "{principal}", principals: [spiffe://ledger.test/others/*], tools: ["*"]}
roles: [{role: operator, principals: [spiffe://ledger.test/person], tools: ["*"]}]
`)
	shared := scopeLimits{Limits{20, 40, 30}, Limits{2, 3, defaultSubjectLimits.LiveOperations}}
	own := defaultLimits
	own.scope.Burst = 7
	for principal, want := range map[Principal]scopeLimits{
		"spiffe://ledger.test/plain":    defaultLimits,
		"spiffe://ledger.test/first":    shared,
		"spiffe://ledger.test/second":   shared,
		"spiffe://ledger.test/own/a":    own,
		"spiffe://ledger.test/others/a": defaultLimits,
		"spiffe://ledger.test/person":   defaultLimits,
		"spiffe://ledger.test/nobody":   defaultLimits,
	} {
		scope, subject := policy.Limits(principal)
		if diff := cmp.Diff(want, scopeLimits{scope, subject}, cmp.AllowUnexported(scopeLimits{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", principal, diff)
		}
	}
	if scope, subject := (&Policy{}).Limits("spiffe://ledger.test/plain"); scope != defaultScopeLimits || subject != defaultSubjectLimits {
		t.Errorf("the zero policy: %v, %v", scope, subject)
	}
}

// A certificate on the list is refused at the next call on the connection that
// it opened; one of the same principal that is not goes on.
func TestACertificateIsDeniedOnAnOpenConnection(t *testing.T) {
	const billing = "spiffe://ledger.test/agent/billing"
	ca := newTestCA(t, "root A")
	var policy atomic.Pointer[Policy]
	policy.Store(mustPolicy(t, identityPolicy))
	address := servePolicy(t, ca, policy.Load, testClock)
	stolen, kept := mustIssue(t, ca, clientSpec(billing)), mustIssue(t, ca, clientSpec(billing))
	lost, honest := dialAs(t, address, ca, stolen.TLS()), dialAs(t, address, ca, kept.TLS())
	for range 2 {
		if got, err := whoAmI(t, lost); got != billing {
			t.Fatalf("principal %q, error %v", got, err)
		}
	}
	policy.Store(mustPolicy(t, identityPolicy+`denied_serials: ["`+serialOf(issuedCertificate(t, stolen.DER).SerialNumber)+`"]`))
	if got, err := whoAmI(t, lost); ruleOf(err) != RuleRevoked {
		t.Errorf("the denied one: principal %q, error %v", got, err)
	}
	if got, err := whoAmI(t, honest); got != billing {
		t.Errorf("the other one: principal %q, error %v", got, err)
	}
	if _, err := grpc_health_v1.NewHealthClient(lost).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("health: %v", err)
	}
	if got, err := whoAmI(t, dialAs(t, address, ca, stolen.TLS())); ruleOf(err) != RuleRevoked {
		t.Errorf("a new connection: principal %q, error %v", got, err)
	}
}

func TestADeniedAuthorityDeniesWhatIsBelowIt(t *testing.T) {
	ca := newTestCA(t, "root A")
	ca.certificate = withIntermediates(t, ca)
	root := issuer{ca.certificate, ca.key}
	bad, good := root.below(t), root.below(t)
	policy := mustPolicy(t, identityPolicy+`denied_serials: ["`+serialOf(bad.certificate.SerialNumber)+`"]`)
	address := servePolicy(t, ca, func() *Policy { return policy }, testClock)
	ok := names(san{uriNameTag, "spiffe://ledger.test/agent/billing"})
	if got, err := whoAmI(t, dialAs(t, address, ca, bad.client(t, edKey(t), []issuer{bad}, ok))); ruleOf(err) != RuleRevoked {
		t.Errorf("below the denied one: principal %q, error %v", got, err)
	}
	if got, err := whoAmI(t, dialAs(t, address, ca, good.client(t, edKey(t), []issuer{good}, ok))); err != nil {
		t.Errorf("below the other one: principal %q, error %v", got, err)
	}
}

func TestSerialNumbersAreComparedAsNumbers(t *testing.T) {
	want := serialOf(big.NewInt(0x0a1b2c))
	for _, text := range []string{"0a1b2c", "A1B2C", "0A:1B:2C", "000a1b2c", "00:0a:1b:2c"} {
		policy := mustPolicy(t, identityPolicy+`denied_serials: ["`+text+`"]`)
		if !policy.deniedSerials[want] || len(policy.deniedSerials) != 1 {
			t.Errorf("%q is %v, want %s", text, policy.deniedSerials, want)
		}
	}
	longest := mustPolicy(t, identityPolicy+`denied_serials: ["`+strings.Repeat("7f", 20)+`"]`)
	if len(longest.deniedSerials) != 1 {
		t.Error("a serial number of 20 bytes is not read")
	}
}
