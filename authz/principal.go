// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
)

// Principal is a caller's identity: a SPIFFE ID in its canonical form, or the
// name that the policy gives to a DNS SAN. At most 2048 bytes.
type Principal string

// maxPrincipal is the longest SPIFFE ID that implementations must support
// (SPIFFE-ID 2.3); a longer one is refused.
const maxPrincipal = 2048

// Rule names what a certificate broke. The values are a closed set, fit for a
// metric label; none holds a part of the certificate.
type Rule string

// The rules, in the order in which they are checked.
const (
	RuleNotVerified   Rule = "a verified client certificate is required"
	RuleExpired       Rule = "the certificate has expired"
	RuleRevoked       Rule = "a certificate is denied by the policy"
	RuleAuthority     Rule = "a certificate authority is not a client"
	RuleUsage         Rule = "the extended key usage must name client authentication"
	RuleMalformed     Rule = "the subject alternative names are malformed"
	RuleManyURIs      Rule = "exactly one URI SAN is allowed"
	RuleNotSPIFFE     Rule = "the URI SAN must be a SPIFFE ID with a path, in canonical form"
	RuleForeignDomain Rule = "the SPIFFE ID must be of this trust domain"
	RuleNoName        Rule = "a URI SAN or a DNS SAN is required; the common name is not an identity"
	RuleManyDNS       Rule = "exactly one DNS SAN is allowed without a URI SAN"
	RuleUnmappedDNS   Rule = "the DNS SAN is not mapped by the policy"
	RuleDenied        Rule = "the principal is denied by the policy"
	RuleNoScope       Rule = "the policy gives the principal no scope"
)

// IdentityError says that a caller has no identity here. Callers answer
// UNAUTHENTICATED with the reason IDENTITY_INVALID.
type IdentityError struct {
	Rule Rule
}

func (e *IdentityError) Error() string { return "identity refused: " + string(e.Rule) }

func refuse(rule Rule) error { return &IdentityError{Rule: rule} }

// PrincipalFromPeer returns the principal of a connection's peer at the time
// now. info is peer.Peer.AuthInfo of a server that requires and verifies client
// certificates; anything but verified TLS is refused. Errors are
// [*IdentityError].
func (p *Policy) PrincipalFromPeer(info credentials.AuthInfo, now time.Time) (Principal, error) {
	leaf, err := p.verifiedLeaf(info, now)
	if err != nil {
		return "", err
	}
	return p.principalOfLeaf(leaf)
}

// verifiedLeaf returns the leaf that the handshake verified. A connection
// outlives certificates, so that their end and their denial are looked at again
// here: one chain at least must still be whole.
func (p *Policy) verifiedLeaf(info credentials.AuthInfo, now time.Time) (*x509.Certificate, error) {
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok || !tlsInfo.State.HandshakeComplete {
		return nil, refuse(RuleNotVerified)
	}
	chains := tlsInfo.State.VerifiedChains
	if len(chains) == 0 || len(chains[0]) == 0 {
		return nil, refuse(RuleNotVerified)
	}
	broken := RuleExpired
	for _, chain := range chains {
		if slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return now.After(c.NotAfter) }) {
			continue
		}
		if !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return p.deniedSerials[serialOf(c.SerialNumber)] }) {
			return chain[0], nil
		}
		broken = RuleRevoked
	}
	return nil, refuse(broken)
}

// serialOf is the form in which serial numbers are compared.
func serialOf(number *big.Int) string { return number.Text(16) }

func (p *Policy) principalOfLeaf(leaf *x509.Certificate) (Principal, error) {
	if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return "", refuse(RuleAuthority)
	}
	// crypto/tls lets a leaf without the extension pass: it may then be used for anything.
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return "", refuse(RuleUsage)
	}
	uris, err := rawURIs(leaf)
	if err != nil {
		return "", err
	}
	if len(uris) > 0 {
		return p.principalOfURI(leaf, uris)
	}
	return p.principalOfDNS(leaf)
}

func (p *Policy) principalOfURI(leaf *x509.Certificate, raw []string) (Principal, error) {
	if len(raw) != 1 {
		return "", refuse(RuleManyURIs)
	}
	id, err := x509svid.IDFromCert(leaf)
	// net/url lowers the scheme and drops an empty fragment before go-spiffe sees them: two
	// certificates with different bytes would be one principal.
	if err != nil || id.String() != raw[0] || id.Path() == "" || len(raw[0]) > maxPrincipal {
		return "", refuse(RuleNotSPIFFE)
	}
	if !id.MemberOf(p.domain) {
		return "", refuse(RuleForeignDomain)
	}
	return p.admit(Principal(id.String()))
}

func (p *Policy) principalOfDNS(leaf *x509.Certificate) (Principal, error) {
	switch len(leaf.DNSNames) {
	case 0:
		return "", refuse(RuleNoName)
	case 1:
	default:
		return "", refuse(RuleManyDNS)
	}
	principal, ok := p.dns[leaf.DNSNames[0]]
	if !ok {
		return "", refuse(RuleUnmappedDNS)
	}
	return p.admit(principal)
}

func (p *Policy) admit(principal Principal) (Principal, error) {
	if p.denied.match(principal) {
		return "", refuse(RuleDenied)
	}
	return principal, nil
}

var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// uriNameTag is the context tag of uniformResourceIdentifier (RFC 5280 4.2.1.6).
const uriNameTag = 6

// rawURIs returns the URI SANs as the certificate has them, before any parser
// has normalised them.
func rawURIs(leaf *x509.Certificate) ([]string, error) {
	var uris []string
	for _, extension := range leaf.Extensions {
		if !extension.Id.Equal(oidSubjectAltName) {
			continue
		}
		var names []asn1.RawValue
		rest, err := asn1.Unmarshal(extension.Value, &names)
		if err != nil || len(rest) != 0 {
			return nil, refuse(RuleMalformed)
		}
		for _, name := range names {
			if name.Class == asn1.ClassContextSpecific && name.Tag == uriNameTag {
				uris = append(uris, string(name.Bytes))
			}
		}
	}
	return uris, nil
}

// spiffePrincipal returns the principal that text writes, if it is a SPIFFE ID
// of the domain with a path.
func spiffePrincipal(domain spiffeid.TrustDomain, text string) (Principal, bool) {
	id, err := spiffeid.FromString(text)
	if err != nil || !id.MemberOf(domain) || id.Path() == "" || len(text) > maxPrincipal {
		return "", false
	}
	return Principal(id.String()), true
}
