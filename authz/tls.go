// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
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
	certificate tls.Certificate
	authorities *x509.CertPool
}

// NotAfter is the end of the leaf's life, for a metric.
func (m *Material) NotAfter() time.Time { return m.certificate.Leaf.NotAfter }

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
	certificate, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		// Not wrapped: the parser's errors quote names out of the certificate.
		return nil, errors.New("certificate and key: must be PEM, the chain with the leaf first and the private key of that leaf")
	}
	if certificate.Leaf == nil { // GODEBUG x509keypairleaf=0
		if certificate.Leaf, err = x509.ParseCertificate(certificate.Certificate[0]); err != nil {
			return nil, errors.New("certificate: the leaf can't be parsed")
		}
	}
	if now.After(certificate.Leaf.NotAfter) {
		return nil, errors.New("certificate: has expired")
	}
	authorities, err := parseAuthorities(p.CA)
	if err != nil {
		return nil, err
	}
	return &Material{certificate: certificate, authorities: authorities}, nil
}

// parseAuthorities is stricter than AppendCertsFromPEM, which skips what it does
// not understand: half a file must not come into force.
func parseAuthorities(data []byte) (*x509.CertPool, error) {
	pool, count := x509.NewCertPool(), 0
	rest := bytes.TrimSpace(data)
	for len(rest) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("certificate authorities: must be PEM blocks of type CERTIFICATE and nothing else")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("certificate authorities: a block is not a certificate")
		}
		if !certificate.IsCA {
			return nil, errors.New("certificate authorities: a certificate is not an authority (CA:TRUE)")
		}
		pool.AddCert(certificate)
		count++
		rest = bytes.TrimSpace(rest)
	}
	if count == 0 {
		return nil, errors.New("certificate authorities: at least one is needed; none would mean nobody")
	}
	return pool, nil
}

// NewMaterialReloader is a reloader of TLS files; now is the clock that expired
// material is refused by.
func NewMaterialReloader(f Files, now func() time.Time, report Report) (*Reloader[*Material], error) {
	return NewReloader("tls", []string{f.Cert, f.Key, f.CA}, func(contents [][]byte) (*Material, error) {
		return ParseMaterial(PEM{Cert: contents[0], Key: contents[1], CA: contents[2]}, now())
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
