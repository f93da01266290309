// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"
)

// testNow is the tests' present; handshakes are made at it, not at the wall clock.
var testNow = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func testClock() time.Time { return testNow }

func newTestCA(t *testing.T, name string) *CA {
	t.Helper()
	ca, err := NewCA(name, testNow, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// clientSpec is an honest client certificate, for tests to spoil.
func clientSpec(uris ...string) LeafSpec {
	return LeafSpec{
		URIs:      uris,
		Usage:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: testNow.Add(-time.Hour),
		NotAfter:  testNow.Add(time.Hour),
	}
}

func serverSpec() LeafSpec {
	return LeafSpec{
		DNS:       []string{"localhost"},
		IPs:       []net.IP{net.IPv4(127, 0, 0, 1)},
		Usage:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: testNow.Add(-time.Hour),
		NotAfter:  testNow.Add(time.Hour),
	}
}

func mustIssue(t *testing.T, ca *CA, spec LeafSpec) *Leaf {
	t.Helper()
	leaf, err := ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func leafPEM(t *testing.T, leaf *Leaf, authorities []byte) PEM {
	t.Helper()
	certificate, key, err := leaf.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return PEM{Cert: certificate, Key: key, CA: authorities}
}

func mustMaterial(t *testing.T, p PEM) *Material {
	t.Helper()
	material, err := ParseMaterial(p, testNow)
	if err != nil {
		t.Fatal(err)
	}
	return material
}

// atTestNow makes handshakes of a server configuration happen at testNow.
func atTestNow(config *tls.Config) *tls.Config {
	perClient := config.GetConfigForClient
	config.Time = testClock
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		snapshot, err := perClient(hello)
		if err == nil {
			snapshot.Time = testClock
		}
		return snapshot, err
	}
	return config
}

// testClient is a client that sends leaf, even one that its own parser refuses.
func testClient(roots []byte, leaf *Leaf) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    pool,
		ServerName: "localhost",
		NextProtos: []string{"h2"},
		Time:       testClock,
	}
	if leaf != nil {
		certificate := leaf.TLS()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	return config
}

// tlsListener is a listener on the loopback that hands out the server's view of
// each handshake.
type tlsListener struct {
	net.Listener
	handshakes chan handshake
}

type handshake struct {
	state tls.ConnectionState
	err   error
}

func listenTLS(t *testing.T, config *tls.Config) *tlsListener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &tlsListener{Listener: inner, handshakes: make(chan handshake, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			raw, err := inner.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
			conn := tls.Server(raw, config)
			err = conn.Handshake()
			if err == nil {
				_, err = conn.Write([]byte("x"))
			}
			l.handshakes <- handshake{state: conn.ConnectionState(), err: err}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = inner.Close()
		<-done
	})
	return l
}

// dial makes one connection and returns what both ends saw of it. In TLS 1.3 a
// client learns of a refused certificate only when it reads.
func (l *tlsListener) dial(t *testing.T, config *tls.Config) (server handshake, client handshake) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", l.Addr().String())
	if err == nil {
		deadline, _ := ctx.Deadline()
		_ = conn.SetDeadline(deadline)
		_, err = io.ReadFull(conn, make([]byte, 1))
		client.state = conn.(*tls.Conn).ConnectionState()
		_ = conn.Close()
	}
	client.err = err
	select {
	case server = <-l.handshakes:
	case <-ctx.Done():
		t.Fatal("the server saw no handshake")
	}
	return server, client
}

func issuedCertificate(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
