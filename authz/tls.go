// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
)

// PEM is one end's TLS material: its certificate chain with the leaf first, the
// leaf's private key, and the authorities that it believes about the other end.
type PEM struct {
	Cert, Key, CA []byte
}

// Files is the same as paths of PEM files.
type Files struct {
	Cert, Key, CA string
}

// Material is checked TLS material. It is never changed after it was made.
type Material struct {
	certificate  tls.Certificate
	authorities  *x509.CertPool
	authorityEnd time.Time // of the one that ends first
}

// NotAfter is the end of the leaf's life, for a metric.
func (m *Material) NotAfter() time.Time { return m.certificate.Leaf.NotAfter }

// AuthoritiesNotAfter is the end of the life of the authority that ends first,
// for a metric.
func (m *Material) AuthoritiesNotAfter() time.Time { return m.authorityEnd }

// Current returns m: material that is never reloaded is a [MaterialSource] too.
func (m *Material) Current() *Material { return m }

// MaterialSource gives the material in force: a *Material, or a
// *Reloader[*Material].
type MaterialSource interface {
	Current() *Material
}

// ParseMaterial checks that the key belongs to the leaf, that the leaf's life has
// not ended at now, and that the authorities are some and are authorities. No
// error holds a part of the input.
func ParseMaterial(p PEM, now time.Time) (*Material, error) {
	return parseMaterial(p, Files{Cert: "the certificate", Key: "the private key", CA: "the file of authorities"}, now)
}

// parseMaterial is ParseMaterial; its errors begin with these names.
func parseMaterial(p PEM, names Files, now time.Time) (*Material, error) {
	// Not wrapped, here and below: the parsers' errors quote names out of certificates.
	if !hasBlock(p.Cert, func(b *pem.Block) bool { return b.Type == certificateBlock }) {
		return nil, fmt.Errorf("%s: must be PEM with the certificate chain, the leaf first", names.Cert)
	}
	if !hasBlock(p.Key, isKey) {
		return nil, fmt.Errorf("%s: must be PEM with the leaf's private key", names.Key)
	}
	if hasBlock(p.Key, isEncrypted) {
		return nil, fmt.Errorf("%s: is encrypted, and nobody is there to give the passphrase: decrypt it, and protect the file", names.Key)
	}
	certificate, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: must be the private key of the leaf, which is the first certificate of %s", names.Key, names.Cert)
	}
	if certificate.Leaf == nil { // GODEBUG x509keypairleaf=0
		if certificate.Leaf, err = x509.ParseCertificate(certificate.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%s: the leaf can't be parsed", names.Cert)
		}
	}
	if now.After(certificate.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: has expired: put its successor there", names.Cert)
	}
	m := &Material{certificate: certificate, authorities: x509.NewCertPool()}
	if err := m.parseAuthorities(p.CA); err != nil {
		return nil, fmt.Errorf("%s: %w", names.CA, err)
	}
	return m, nil
}

const certificateBlock = "CERTIFICATE"

func isKey(b *pem.Block) bool {
	return b.Type == "PRIVATE KEY" || strings.HasSuffix(b.Type, " PRIVATE KEY")
}

func isEncrypted(b *pem.Block) bool {
	return b.Type == "ENCRYPTED PRIVATE KEY" || isKey(b) && b.Headers["DEK-Info"] != ""
}

func hasBlock(data []byte, is func(*pem.Block) bool) bool {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil || is(block) {
			return block != nil
		}
	}
}

// parseAuthorities is stricter than AppendCertsFromPEM, which skips what it does
// not understand: half a file must not come into force.
func (m *Material) parseAuthorities(data []byte) error {
	rest := bytes.TrimSpace(data)
	for len(rest) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != certificateBlock {
			return errors.New("must be PEM blocks of type CERTIFICATE and nothing else")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return errors.New("has a block that is not a certificate")
		}
		if !certificate.IsCA {
			return errors.New("has a certificate that is not an authority's (CA:TRUE)")
		}
		m.authorities.AddCert(certificate)
		if m.authorityEnd.IsZero() || certificate.NotAfter.Before(m.authorityEnd) {
			m.authorityEnd = certificate.NotAfter
		}
		rest = bytes.TrimSpace(rest)
	}
	if m.authorityEnd.IsZero() {
		return errors.New("must hold at least one authority's certificate; none would mean nobody")
	}
	return nil
}

// NewMaterialReloader is a reloader of TLS files; now is the clock that expired
// material is refused by. Errors name the file.
func NewMaterialReloader(f Files, now func() time.Time, report Report) (*Reloader[*Material], error) {
	return NewReloader("tls", []string{f.Cert, f.Key, f.CA}, func(contents [][]byte) (*Material, error) {
		return parseMaterial(PEM{Cert: contents[0], Key: contents[1], CA: contents[2]}, f, now())
	}, report)
}

// ServerTLS is the configuration of the gRPC listener: TLS 1.3, a client
// certificate required and verified, no resumption, HTTP/2. Leaf and client
// authorities are asked of source at each handshake, so that both can be
// rotated without a restart; connections that are open keep what they have.
func ServerTLS(source MaterialSource) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              x509.NewCertPool(), // nobody, should the hook ever be left out
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return serverSnapshot(source.Current()), nil
		},
		// Only for listeners that ask whether there is a certificate; handshakes use the snapshot.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &source.Current().certificate, nil
		},
	}
}

func serverSnapshot(m *Material) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              m.authorities,
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
		Certificates:           []tls.Certificate{m.certificate},
	}
}

// ClientTLS is the configuration of a client: TLS 1.3, its pair asked of source
// at each handshake, and the server believed if an authority of the material in
// force now stands for serverName. Authorities are not reloaded: a rotation puts
// both into the file before the server's leaf changes. serverName "" leaves the
// name to the dialer, which takes it from the address.
func ClientTLS(source MaterialSource, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    source.Current().authorities,
		ServerName: serverName,
		NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			// Sent whatever authorities the server names: a refusal by the server is clearer than silence.
			return &source.Current().certificate, nil
		},
	}
}
