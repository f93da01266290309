// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestDial claims over real mutual TLS, and over what is none.
func TestDial(t *testing.T) {
	dir := t.TempDir()
	files, err := authz.EnsureDev(dir, authz.DevOptions{TrustDomain: "test.local", Clients: []string{"worker"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	others, err := authz.EnsureDev(t.TempDir(), authz.DevOptions{TrustDomain: "test.local", Clients: []string{"worker"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := files.Clients["worker"], others.Clients["worker"]
	endpoint := serveTLS(t, files.Server, tls.VersionTLS13)
	old := serveTLS(t, files.Server, tls.VersionTLS12)

	tests := []struct {
		name   string
		config Config
		want   codes.Code
	}{
		{"both sides are known", Config{Endpoint: endpoint, CAFile: ours.CA, CertFile: ours.Cert, KeyFile: ours.Key}, codes.OK},
		{"the ledger does not know us", Config{Endpoint: endpoint, CAFile: ours.CA, CertFile: theirs.Cert, KeyFile: theirs.Key}, codes.Unavailable},
		{"we don't know the ledger", Config{Endpoint: endpoint, CAFile: theirs.CA, CertFile: ours.Cert, KeyFile: ours.Key}, codes.Unavailable},
		{
			"the ledger has another name",
			Config{Endpoint: endpoint, CAFile: ours.CA, CertFile: ours.Cert, KeyFile: ours.Key, ServerName: "ledger.example"},
			codes.Unavailable,
		},
		{"the ledger speaks TLS 1.2", Config{Endpoint: old, CAFile: ours.CA, CertFile: ours.Cert, KeyFile: ours.Key}, codes.Unavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Dial(t.Context(), tt.config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			var runs atomic.Int32
			_, err = Do(t.Context(), l, creating(&runs, fine), intent, request{})
			if err == nil && tt.want != codes.OK || err != nil && err.(*Error).Code != tt.want {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if want := tt.want == codes.OK; want != (runs.Load() == 1) {
				t.Errorf("%d executions", runs.Load())
			}
		})
	}
}

func serveTLS(t *testing.T, files authz.Files, maxVersion uint16) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: maxVersion,
	})))
	opsledgerv1.RegisterLedgerServiceServer(server, &fakeLedger{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// TestDialRefuses names the setting that is wrong.
func TestDialRefuses(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.pem")
	tests := []struct {
		name   string
		config Config
		want   string
	}{
		{"no endpoint", Config{}, "endpoint: is required"},
		{"no authority", Config{Endpoint: "x:1"}, "ca file: is required"},
		{"no certificate", Config{Endpoint: "x:1", CAFile: empty}, "cert file: is required"},
		{"no key", Config{Endpoint: "x:1", CAFile: empty, CertFile: empty}, "key file: is required"},
		{"no such authority", Config{Endpoint: "x:1", CAFile: missing, CertFile: empty, KeyFile: empty}, "ca file: open"},
		{"an authority without certificates", Config{Endpoint: "x:1", CAFile: empty, CertFile: empty, KeyFile: empty}, "ca file: holds no certificate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Dial(t.Context(), tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
