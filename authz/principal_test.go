// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const identityPolicy = `
trust_domain: ledger.test
scopes:
  - name: "{principal}"
    principals: [spiffe://ledger.test/agent/*, build-host]
    tools: ["*"]
dns:
  - {name: build.ledger.test, principal: build-host}
denied: [spiffe://ledger.test/agent/evil]
`

// noHandshake stands for a certificate that the handshake already refuses.
const noHandshake Rule = "handshake"

// identityCase is one certificate and what has to come of it: a principal, or
// the rule that it breaks.
type identityCase struct {
	name      string
	spec      LeafSpec
	untrusted bool
	// mint, if set, makes what a LeafSpec can't say, instead of spec.
	mint      func(t *testing.T, root *CA) tls.Certificate
	principal Principal
	rule      Rule
}

// checkIdentity makes a call with each certificate and compares who the server
// took the caller for. The whole way is real: TLS, gRPC, the interceptor.
func checkIdentity(t *testing.T, cases []identityCase) {
	t.Helper()
	trusted, other := newTestCA(t, "root A"), newTestCA(t, "root A") // the same name, another key
	trusted.certificate = withIntermediates(t, trusted)
	policy := mustPolicy(t, identityPolicy)
	address := servePolicy(t, trusted, func() *Policy { return policy }, testClock)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ca := trusted
			if c.untrusted {
				ca = other
			}
			var certificate tls.Certificate
			if c.mint != nil {
				certificate = c.mint(t, ca)
			} else {
				certificate = mustIssue(t, ca, c.spec).TLS()
			}
			got, err := whoAmI(t, dialAs(t, address, trusted, certificate))
			if c.rule == noHandshake {
				if status.Code(err) != codes.Unavailable {
					t.Errorf("principal %q, error %v; the handshake must fail", got, err)
				}
				return
			}
			if got != c.principal || ruleOf(err) != c.rule {
				t.Errorf("principal %q, error %v; want %q and %q", got, err, c.principal, c.rule)
			}
		})
	}
}

// withIntermediates lets an authority have other authorities below it.
func withIntermediates(t *testing.T, ca *CA) *x509.Certificate {
	t.Helper()
	template := *ca.certificate
	template.MaxPathLen, template.MaxPathLenZero = -1, false
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, ca.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func dialAs(t *testing.T, address string, roots *CA, certificate tls.Certificate) *grpc.ClientConn {
	t.Helper()
	config := testClient(roots.PEM(), nil)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// whoAmI asks the double who calls; the error is that of a caller whom it has
// not seen.
func whoAmI(t *testing.T, conn *grpc.ClientConn) (Principal, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := opsledgerv1.NewLedgerServiceClient(conn).GetTool(ctx, &opsledgerv1.GetToolRequest{})
	if s := status.Convert(err); s.Code() == codes.DataLoss {
		return Principal(s.Message()), nil
	}
	return "", err
}

// ruleOf is the rule that a refused caller is told; empty without an error.
func ruleOf(err error) Rule {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && s.Code() == codes.Unauthenticated && info.GetReason() == "IDENTITY_INVALID" {
			return Rule(info.GetMetadata()["rule"])
		}
	}
	if err != nil {
		return Rule(err.Error())
	}
	return ""
}

func assertIdentity(t *testing.T, got Principal, err error, want Principal, rule Rule) {
	t.Helper()
	if got != want {
		t.Errorf("principal %q, want %q", got, want)
	}
	var identity *IdentityError
	switch {
	case rule == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case rule != "" && !errors.As(err, &identity):
		t.Errorf("error %v, want an IdentityError", err)
	case rule != "" && identity.Rule != rule:
		t.Errorf("rule %q, want %q", identity.Rule, rule)
	}
}

// TestIdentityCorpus mints every row of the corpus; the certificate is made from
// the row, the verdict is written here by hand.
func TestIdentityCorpus(t *testing.T) {
	const billing, support = "spiffe://ledger.test/agent/billing", "spiffe://ledger.test/agent/support"
	verdicts := map[string]identityCase{
		"I01": {principal: billing},
		"I02": {rule: RuleNoName},
		"I03": {principal: billing},
		"I04": {rule: RuleManyURIs},
		"I07": {principal: billing},
		"I16": {rule: RuleForeignDomain},
		"I21": {rule: noHandshake},
		"I22": {rule: noHandshake},
		"I23": {principal: billing},
		"I28": {principal: support},
	}
	var cases []identityCase
	for id, columns := range readCorpus(t) {
		c, ok := verdicts[id]
		if !ok {
			t.Errorf("row %s has no verdict", id)
			continue
		}
		delete(verdicts, id)
		c.name = id
		c.spec = clientSpec()
		if columns[1] != "-" {
			c.spec.CommonName = columns[1]
		}
		for san := range strings.SplitSeq(columns[2], ",") {
			san = strings.TrimSpace(san)
			if uri, ok := strings.CutPrefix(san, "URI:"); ok {
				c.spec.URIs = append(c.spec.URIs, uri)
			} else if dns, ok := strings.CutPrefix(san, "DNS:"); ok {
				c.spec.DNS = append(c.spec.DNS, dns)
			} else if san != "(none)" {
				t.Fatalf("row %s: a SAN that is neither URI nor DNS", id)
			}
		}
		c.untrusted = strings.Contains(columns[3], "untrusted")
		if strings.Contains(columns[3], "expired") {
			c.spec.NotAfter = testNow.Add(-time.Minute)
		}
		cases = append(cases, c)
	}
	if len(verdicts) > 0 {
		t.Errorf("verdicts without a row: %v", slices.Sorted(maps.Keys(verdicts)))
	}
	slices.SortFunc(cases, func(a, b identityCase) int { return strings.Compare(a.name, b.name) })
	checkIdentity(t, cases)
}

// readCorpus returns the columns (id, common name, SANs, chain, verdict) by id.
func readCorpus(t *testing.T) map[string][]string {
	t.Helper()
	file, err := os.Open("testdata/identity-san.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	rows := make(map[string][]string)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		columns := strings.Split(lines.Text(), "|")
		if len(columns) != 5 {
			t.Fatalf("a row with %d columns", len(columns))
		}
		for i := range columns {
			columns[i] = strings.TrimSpace(columns[i])
		}
		if rows[columns[0]] != nil {
			t.Fatalf("row %s is there twice", columns[0])
		}
		rows[columns[0]] = columns
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestIdentityRules(t *testing.T) {
	const billing = "spiffe://ledger.test/agent/billing"
	spoil := func(change func(*LeafSpec)) LeafSpec {
		spec := clientSpec(billing)
		change(&spec)
		return spec
	}
	uri := func(text string) LeafSpec { return clientSpec(text) }
	dns := func(names ...string) LeafSpec {
		spec := clientSpec()
		spec.DNS = names
		return spec
	}
	checkIdentity(t, []identityCase{
		{name: "common name that looks like a SPIFFE ID", spec: LeafSpec{CommonName: billing, Usage: clientSpec().Usage, NotBefore: testNow.Add(-time.Hour), NotAfter: testNow.Add(time.Hour)}, rule: RuleNoName},
		{name: "two SPIFFE IDs", spec: clientSpec(billing, "spiffe://ledger.test/agent/support"), rule: RuleManyURIs},
		{name: "the same SPIFFE ID twice", spec: clientSpec(billing, billing), rule: RuleManyURIs},
		{name: "other domain", spec: uri("spiffe://other.test/agent/billing"), rule: RuleForeignDomain},
		{name: "subdomain", spec: uri("spiffe://a.ledger.test/agent/billing"), rule: RuleForeignDomain},
		{name: "domain as a prefix", spec: uri("spiffe://ledger.test.evil/agent/billing"), rule: RuleForeignDomain},
		{name: "upper-case scheme", spec: uri("SPIFFE://ledger.test/agent/billing"), rule: RuleNotSPIFFE},
		{name: "upper-case host", spec: uri("spiffe://Ledger.test/agent/billing"), rule: RuleNotSPIFFE},
		{name: "other scheme", spec: uri("https://ledger.test/agent/billing"), rule: RuleNotSPIFFE},
		{name: "escaped dot in the path", spec: uri("spiffe://ledger.test/agent/%2e/billing"), rule: RuleNotSPIFFE},
		{name: "escaped letter in the path", spec: uri("spiffe://ledger.test/agent/b%69lling"), rule: RuleNotSPIFFE},
		{name: "escaped dot in the host", spec: uri("spiffe://ledger%2etest/agent/billing"), rule: noHandshake},
		{name: "escaped slash", spec: uri("spiffe://ledger.test/agent%2fbilling"), rule: RuleNotSPIFFE},
		{name: "dot segment", spec: uri("spiffe://ledger.test/agent/./billing"), rule: RuleNotSPIFFE},
		{name: "dot dot segment", spec: uri("spiffe://ledger.test/agent/../billing"), rule: RuleNotSPIFFE},
		{name: "empty segment", spec: uri("spiffe://ledger.test/agent//billing"), rule: RuleNotSPIFFE},
		{name: "trailing slash", spec: uri(billing + "/"), rule: RuleNotSPIFFE},
		{name: "no path", spec: uri("spiffe://ledger.test"), rule: RuleNotSPIFFE},
		{name: "only a slash", spec: uri("spiffe://ledger.test/"), rule: RuleNotSPIFFE},
		{name: "no host", spec: uri("spiffe:///agent/billing"), rule: RuleNotSPIFFE},
		{name: "user info", spec: uri("spiffe://admin@ledger.test/agent/billing"), rule: RuleNotSPIFFE},
		{name: "empty user info", spec: uri("spiffe://@ledger.test/agent/billing"), rule: RuleNotSPIFFE},
		{name: "port", spec: uri("spiffe://ledger.test:443/agent/billing"), rule: RuleNotSPIFFE},
		{name: "empty port", spec: uri("spiffe://ledger.test:/agent/billing"), rule: RuleNotSPIFFE},
		{name: "query", spec: uri(billing + "?a=b"), rule: RuleNotSPIFFE},
		{name: "empty query", spec: uri(billing + "?"), rule: RuleNotSPIFFE},
		{name: "fragment", spec: uri(billing + "#a"), rule: RuleNotSPIFFE},
		{name: "empty fragment, which net/url drops", spec: uri(billing + "#"), rule: RuleNotSPIFFE},
		{name: "wildcard", spec: uri("spiffe://ledger.test/agent/*"), rule: RuleNotSPIFFE},
		{name: "template of the policy", spec: uri("{principal}"), rule: RuleNotSPIFFE},
		{name: "longer than any SPIFFE ID may be", spec: uri("spiffe://ledger.test/agent/" + strings.Repeat("a", maxPrincipal)), rule: RuleNotSPIFFE},
		{name: "a bad URI beside a mapped DNS name", spec: spoil(func(s *LeafSpec) {
			s.URIs, s.DNS = []string{"corpid://hr/agent/billing"}, []string{"build.ledger.test"}
		}), rule: RuleNotSPIFFE},
		{name: "no extended key usage", spec: spoil(func(s *LeafSpec) { s.Usage = nil }), rule: RuleUsage},
		{name: "any extended key usage", spec: spoil(func(s *LeafSpec) { s.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }), rule: RuleUsage},
		{name: "server's extended key usage", spec: spoil(func(s *LeafSpec) { s.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), rule: noHandshake},
		{name: "CA:TRUE", spec: spoil(func(s *LeafSpec) { s.IsCA = true }), rule: RuleAuthority},
		{name: "not valid yet", spec: spoil(func(s *LeafSpec) { s.NotBefore = testNow.Add(time.Minute) }), rule: noHandshake},
		{name: "denied", spec: uri("spiffe://ledger.test/agent/evil"), rule: RuleDenied},
		{name: "mapped DNS name", spec: dns("build.ledger.test"), principal: "build-host"},
		{name: "two DNS names", spec: dns("build.ledger.test", "other.ledger.test"), rule: RuleManyDNS},
		{name: "the same DNS name twice", spec: dns("build.ledger.test", "build.ledger.test"), rule: RuleManyDNS},
		{name: "unmapped DNS name", spec: dns("other.ledger.test"), rule: RuleUnmappedDNS},
		{name: "DNS name in upper case", spec: dns("BUILD.ledger.test"), rule: RuleUnmappedDNS},
		{name: "wildcard DNS name", spec: dns("*.ledger.test"), rule: RuleUnmappedDNS},
	})
}

func TestCertificateExpiresInsideAnOpenConnection(t *testing.T) {
	ca := newTestCA(t, "root A")
	policy, err := Parse("policy.yaml", []byte(identityPolicy))
	if err != nil {
		t.Fatal(err)
	}
	material := mustMaterial(t, leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM()))
	listener := listenTLS(t, atTestNow(ServerTLS(material)))
	spec := clientSpec("spiffe://ledger.test/agent/billing")
	server, _ := listener.dial(t, testClient(ca.PEM(), mustIssue(t, ca, spec)))
	info := credentials.TLSInfo{State: server.state}

	got, err := policy.PrincipalFromPeer(info, spec.NotAfter)
	assertIdentity(t, got, err, "spiffe://ledger.test/agent/billing", "")
	got, err = policy.PrincipalFromPeer(info, spec.NotAfter.Add(time.Second))
	assertIdentity(t, got, err, "", RuleExpired)
}

type otherAuth struct{ credentials.CommonAuthInfo }

func (otherAuth) AuthType() string { return "other" }

func TestPeerWithoutVerifiedTLS(t *testing.T) {
	policy, err := Parse("policy.yaml", []byte(identityPolicy))
	if err != nil {
		t.Fatal(err)
	}
	unverified := credentials.TLSInfo{}
	unverified.State.HandshakeComplete = true
	unverified.State.PeerCertificates = []*x509.Certificate{{}}
	for name, info := range map[string]credentials.AuthInfo{
		"no transport security": nil,
		"other transport":       otherAuth{},
		"unverified chain":      unverified,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := policy.PrincipalFromPeer(info, testNow)
			assertIdentity(t, got, err, "", RuleNotVerified)
		})
	}
}
