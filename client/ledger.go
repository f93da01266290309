// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// serviceConfig is the default of every connection. All calls can be sent again, but only UNAVAILABLE says that this helps.
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{
		"name": [{"service": "opsledger.v1.LedgerService"}, {"service": "opsledger.v1.OperatorService"}],
		"retryPolicy": {
			"maxAttempts": 4,
			"initialBackoff": "0.1s",
			"maxBackoff": "2s",
			"backoffMultiplier": 2,
			"retryableStatusCodes": ["UNAVAILABLE"]
		}
	}]
}`

const (
	defaultCallTimeout   = 10 * time.Second
	defaultReportTimeout = 30 * time.Second
)

// Config says where the ledger is and who calls.
type Config struct {
	// Endpoint is host:port of the ledger, or another target that gRPC understands. Required.
	Endpoint string
	// CAFile holds the certificates (PEM) of the authorities that the ledger's certificate may come from. Required; read by Dial.
	CAFile string
	// CertFile and KeyFile are the caller's identity (PEM). Required; read again for each connection, so that they can rotate.
	CertFile string
	KeyFile  string
	// ServerName is the name that the ledger's certificate must have; unset: the endpoint's host.
	ServerName string

	Options
}

// Options is what has a useful default; the zero value is usable.
type Options struct {
	// CallTimeout bounds one send of a call to the ledger, beyond the time that the call asks it to wait. 0 or less: 10 s.
	CallTimeout time.Duration
	// ReportTimeout bounds the attempts to report what became of an execution; it runs on after the caller's context has
	// ended. 0 or less: 30 s.
	ReportTimeout time.Duration
}

// Ledger is a ledger as one process sees it. Its methods and [Do] may be used concurrently.
type Ledger struct {
	service       opsledgerv1.LedgerServiceClient
	closer        io.Closer
	now           clock
	callTimeout   time.Duration
	reportTimeout time.Duration
	tools         toolCache
}

// Dial prepares mutual TLS 1.3 to the ledger. It reads the files but waits for no connection, so that services can start in
// any order: a ledger that cannot be reached is an error of [Do]. An error names the setting, or the file that cannot be read.
func Dial(ctx context.Context, c Config) (*Ledger, error) {
	connection, err := Connect(ctx, c)
	if err != nil {
		return nil, err
	}
	l := New(connection, c.Options)
	l.closer = connection
	return l, nil
}

// Connect is Dial without the SDK: the connection alone, for the ledger's other services. Whoever calls it closes it; Options don't count.
func Connect(ctx context.Context, c Config) (*grpc.ClientConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial ledger: %w", err)
	}
	for _, required := range []struct{ name, value string }{
		{"endpoint", c.Endpoint}, {"ca file", c.CAFile}, {"cert file", c.CertFile}, {"key file", c.KeyFile},
	} {
		if required.value == "" {
			return nil, fmt.Errorf("dial ledger: %s: is required", required.name)
		}
	}
	authorities, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("dial ledger: ca file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		return nil, errors.New("dial ledger: ca file: holds no certificate")
	}
	identity := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		return &pair, nil
	}
	if _, err := identity(); err != nil { // now, rather than as a failed handshake later
		return nil, fmt.Errorf("dial ledger: %w", err)
	}
	connection, err := grpc.NewClient(c.Endpoint,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion:           tls.VersionTLS13,
			RootCAs:              roots,
			ServerName:           c.ServerName,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return identity() },
		})),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // none out of DNS: it could add retries
	)
	if err != nil {
		return nil, fmt.Errorf("dial ledger: endpoint: %w", err)
	}
	return connection, nil
}

// New uses a connection that the caller made and closes. Whoever makes one must retry nothing but UNAVAILABLE on it.
func New(connection grpc.ClientConnInterface, o Options) *Ledger {
	l := &Ledger{
		service:       opsledgerv1.NewLedgerServiceClient(connection),
		now:           uptime,
		callTimeout:   o.CallTimeout,
		reportTimeout: o.ReportTimeout,
	}
	if l.callTimeout <= 0 {
		l.callTimeout = defaultCallTimeout
	}
	if l.reportTimeout <= 0 {
		l.reportTimeout = defaultReportTimeout
	}
	return l
}

// Close ends the connection that Dial made. Executions that are under way can't be reported any more.
func (l *Ledger) Close() error {
	if l.closer == nil {
		return nil
	}
	return l.closer.Close()
}

// workerID names this process, anew at each start: host, process id, and a random part, since both of them come back.
var workerID = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, host)
	return fmt.Sprintf("%.64s/%d/%.8s", host, os.Getpid(), uuid.NewString())
}()
