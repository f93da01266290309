// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"
)

// The tags of general names (RFC 5280 4.2.1.6).
const (
	otherNameTag = 0
	emailTag     = 1
	dnsTag       = 2
	ipTag        = 7
	registeredID = 8
)

// san is one general name, byte by byte.
type san struct {
	tag  int
	text string
}

// shape changes a client's certificate, or an authority's, before it is signed.
type shape func(*x509.Certificate)

// names makes a SAN extension of these general names, and no other.
func names(all ...san) shape {
	return func(c *x509.Certificate) {
		var values []asn1.RawValue
		for _, n := range all {
			values = append(values, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: n.tag, Bytes: []byte(n.text), IsCompound: n.tag == otherNameTag})
		}
		der, err := asn1.Marshal(values)
		if err != nil {
			panic(err)
		}
		c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: oidSubjectAltName, Value: der})
	}
}

// issuer is an authority of any shape.
type issuer struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func (i issuer) sign(t *testing.T, template *x509.Certificate, key crypto.Signer) *x509.Certificate {
	t.Helper()
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = testNow.Add(-time.Hour), testNow.Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.certificate, key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil { // the server has to find that out by itself
		return &x509.Certificate{Raw: der}
	}
	return signed
}

// below makes an authority that this one vouches for.
func (i issuer) below(t *testing.T, change ...shape) issuer {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true, MaxPathLen: -1, KeyUsage: x509.KeyUsageCertSign,
	}
	for _, c := range change {
		c(template)
	}
	key := ecKey(t, elliptic.P256())
	return issuer{i.sign(t, template, key), key}
}

// client makes a client's certificate, sent with those of the given authorities.
func (i issuer) client(t *testing.T, key crypto.Signer, chain []issuer, change ...shape) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	for _, c := range change {
		c(template)
	}
	sent := tls.Certificate{Certificate: [][]byte{i.sign(t, template, key).Raw}, PrivateKey: key}
	for _, c := range chain {
		sent.Certificate = append(sent.Certificate, c.certificate.Raw)
	}
	return sent
}

func ecKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func edKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestCertificatesOfEveryShape has what a LeafSpec can't say: other general
// names beside or instead of the URI, other keys, other chains.
func TestCertificatesOfEveryShape(t *testing.T) {
	const billing = "spiffe://ledger.test/agent/billing"
	longest := "spiffe://ledger.test/agent/" + strings.Repeat("a", maxPrincipal-len("spiffe://ledger.test/agent/"))
	uri := func(text string) san { return san{uriNameTag, text} }
	ok := names(uri(billing))
	// leaf is one of the root itself; through is one of an authority below it.
	leaf := func(change ...shape) func(*testing.T, *CA) tls.Certificate {
		return func(t *testing.T, root *CA) tls.Certificate {
			return issuer{root.certificate, root.key}.client(t, ecKey(t, elliptic.P256()), nil, change...)
		}
	}
	keyed := func(make func(*testing.T) crypto.Signer) func(*testing.T, *CA) tls.Certificate {
		return func(t *testing.T, root *CA) tls.Certificate {
			return issuer{root.certificate, root.key}.client(t, make(t), nil, ok)
		}
	}
	through := func(subject shape, change ...shape) func(*testing.T, *CA) tls.Certificate {
		return func(t *testing.T, root *CA) tls.Certificate {
			between := issuer{root.certificate, root.key}.below(t, change...)
			return between.client(t, ecKey(t, elliptic.P256()), []issuer{between}, subject)
		}
	}
	domains := func(permitted ...string) shape {
		return func(c *x509.Certificate) { c.PermittedURIDomains, c.PermittedDNSDomainsCritical = permitted, true }
	}
	checkIdentity(t, []identityCase{
		{name: "email alone", mint: leaf(names(san{emailTag, "billing@ledger.test"})), rule: RuleNoName},
		{name: "IP address alone", mint: leaf(names(san{ipTag, "\x7f\x00\x00\x01"})), rule: RuleNoName},
		{name: "registered id alone", mint: leaf(names(san{registeredID, "\x2a\x03\x04"})), rule: RuleNoName},
		{name: "no name at all", mint: leaf(), rule: RuleNoName},
		{name: "email beside the SPIFFE ID", mint: leaf(names(san{emailTag, "admin@ledger.test"}, uri(billing))), principal: billing},
		{name: "IP address beside the SPIFFE ID", mint: leaf(names(uri(billing), san{ipTag, "\x7f\x00\x00\x01"})), principal: billing},
		{name: "mapped DNS name beside the SPIFFE ID", mint: leaf(names(san{dnsTag, "build.ledger.test"}, uri(billing))), principal: billing},
		{name: "empty URI", mint: leaf(names(uri(""))), rule: RuleNotSPIFFE},
		{name: "empty URI beside the SPIFFE ID", mint: leaf(names(uri(""), uri(billing))), rule: RuleManyURIs},
		{name: "the longest SPIFFE ID", mint: leaf(names(uri(longest))), principal: Principal(longest)},
		{name: "one byte more", mint: leaf(names(uri(longest + "a"))), rule: RuleNotSPIFFE},
		{name: "underscore in the path", mint: leaf(names(uri("spiffe://ledger.test/agent/a_b"))), principal: "spiffe://ledger.test/agent/a_b"},
		{name: "underscore in the domain", mint: leaf(names(uri("spiffe://ledger_test/agent/billing"))), rule: RuleForeignDomain},
		{name: "other case of the path is another principal", mint: leaf(names(uri("spiffe://ledger.test/agent/Billing"))), principal: "spiffe://ledger.test/agent/Billing"},
		{name: "letters of other alphabets", mint: leaf(names(uri("spiffe://ledger.test/agent/b\u0456lling"))), rule: noHandshake},
		{name: "domain in punycode", mint: leaf(names(uri("spiffe://xn--ldger-lva.test/agent/billing"))), rule: RuleForeignDomain},
		{name: "NUL in the path", mint: leaf(names(uri("spiffe://ledger.test/agent/billing\x00.evil"))), rule: noHandshake},
		{name: "line end in the path", mint: leaf(names(uri("spiffe://ledger.test/agent/billing\r\n"))), rule: noHandshake},
		{name: "space after the path", mint: leaf(names(uri(billing + " "))), rule: RuleNotSPIFFE},
		{name: "two SAN extensions", mint: leaf(names(uri("spiffe://ledger.test/agent/other")), ok), rule: noHandshake},
		{name: "a critical extension that nobody knows", mint: leaf(ok, func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, Critical: true, Value: []byte{5, 0}})
		}), rule: noHandshake},
		{name: "right to sign certificates without CA:TRUE", mint: leaf(ok, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), rule: RuleAuthority},
		{name: "RSA key", mint: keyed(rsaKey), principal: billing},
		{name: "Ed25519 key", mint: keyed(edKey), principal: billing},
		{name: "P-384 key", mint: keyed(func(t *testing.T) crypto.Signer { return ecKey(t, elliptic.P384()) }), principal: billing},
		{name: "signed by itself", mint: func(t *testing.T, _ *CA) tls.Certificate {
			key := ecKey(t, elliptic.P256())
			return issuer{&x509.Certificate{Subject: pkix.Name{CommonName: "root A"}}, key}.client(t, key, nil, ok)
		}, rule: noHandshake},

		{name: "authority below the root", mint: through(ok), principal: billing},
		{name: "authority below the root that is not sent", mint: func(t *testing.T, root *CA) tls.Certificate {
			return issuer{root.certificate, root.key}.below(t).client(t, ecKey(t, elliptic.P256()), nil, ok)
		}, rule: noHandshake},
		{name: "authority below the root has expired", mint: through(ok, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = testNow.Add(-2*time.Hour), testNow.Add(-time.Minute)
		}), rule: noHandshake},
		{name: "another client as the authority", mint: through(ok, func(c *x509.Certificate) {
			c.IsCA, c.MaxPathLen, c.KeyUsage = false, 0, x509.KeyUsageDigitalSignature
		}), rule: noHandshake},
		{name: "authority below one that may have none below", mint: func(t *testing.T, root *CA) tls.Certificate {
			first := issuer{root.certificate, root.key}.below(t, func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 0, true })
			second := first.below(t)
			return second.client(t, ecKey(t, elliptic.P256()), []issuer{second, first}, ok)
		}, rule: noHandshake},
		{name: "authority for servers only", mint: through(ok, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), rule: noHandshake},
		{name: "authority for this domain", mint: through(ok, domains("ledger.test")), principal: billing},
		{name: "authority for another domain", mint: through(ok, domains("other.test")), rule: noHandshake},
		{name: "authority for another domain, and a name of that", mint: through(names(uri("spiffe://other.test/agent/billing")), domains("other.test")), rule: RuleForeignDomain},
	})
}
