// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

// CA is a small certificate authority for development and tests: one ECDSA
// P-256 key, no revocation, no log. It is not for production.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Leaf is a certificate and its key.
type Leaf struct {
	DER []byte
	Key *ecdsa.PrivateKey
}

// LeafSpec is what a leaf should hold. Nothing is checked, so that tests can mint
// what no honest authority would.
type LeafSpec struct {
	CommonName string
	// URIs are written as they are, byte by byte; ASCII only.
	URIs      []string
	DNS       []string
	IPs       []net.IP
	Usage     []x509.ExtKeyUsage
	NotBefore time.Time
	NotAfter  time.Time
	// IsCA makes it an authority: a leaf must not be one.
	IsCA bool
}

// skew is how long before its making a certificate is already valid, for clocks
// that are a little behind.
const skew = 5 * time.Minute

// NewCA makes an authority that is valid from now on.
func NewCA(commonName string, now time.Time, validity time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate authority key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority: %w", err)
	}
	return &CA{certificate: certificate, key: key}, nil
}

// Issue signs a leaf with a key of its own.
func (ca *CA) Issue(spec LeafSpec) (*Leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: spec.CommonName},
		NotBefore:             spec.NotBefore,
		NotAfter:              spec.NotAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           spec.Usage,
		BasicConstraintsValid: true,
		IsCA:                  spec.IsCA,
		DNSNames:              spec.DNS,
		IPAddresses:           spec.IPs,
	}
	for _, uri := range spec.URIs {
		// Parsing would normalise: the opaque part is written as it is.
		template.URIs = append(template.URIs, &url.URL{Opaque: uri})
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return &Leaf{DER: der, Key: key}, nil
}

// PEM returns the authority's certificate, without its key.
func (ca *CA) PEM() []byte { return certificatePEM(ca.certificate.Raw) }

// TLS returns the leaf for a tls.Config.
func (l *Leaf) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{l.DER}, PrivateKey: l.Key}
}

// PEM returns the leaf's certificate and its key (PKCS #8).
func (l *Leaf) PEM() (certificate, key []byte, err error) {
	key, err = keyPEM(l.Key)
	return certificatePEM(l.DER), key, err
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// parsePair reads a certificate and the key that belongs to it.
func parsePair(certificate, key []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate and key: %w", err)
	}
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, errors.New("key: must be ECDSA")
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	return leaf, private, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
