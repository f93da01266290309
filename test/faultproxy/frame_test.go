// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// encoded is the messages as they go over the wire.
func encoded(t *testing.T, messages ...interface{ Encode([]byte) ([]byte, error) }) []byte {
	t.Helper()
	var b []byte
	for _, m := range messages {
		var err error
		if b, err = m.Encode(b); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func TestPostgresMessagesAtAnySplit(t *testing.T) {
	startup := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"}}
	client := encoded(t, &pgproto3.SSLRequest{}, startup,
		&pgproto3.Query{String: "BEGIN"}, &pgproto3.Parse{Query: "SELECT 'commit'"}, &pgproto3.Sync{}, &pgproto3.Query{String: "commit"})
	clientPoint := len(client)
	client = append(client, encoded(t, &pgproto3.Query{String: "BEGIN"})...)
	server := append([]byte("N"), encoded(t, &pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
		&pgproto3.DataRow{Values: [][]byte{[]byte("COMMIT")}}, &pgproto3.EmptyQueryResponse{}, &pgproto3.CommandComplete{CommandTag: []byte("COMMIT")})...)
	serverPoint := len(server)
	server = append(server, encoded(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})...)

	for size := 1; size < 40; size++ {
		shared := &conversation{}
		check := func(dir Direction, text []byte, point Point, want int) {
			f, s := &framer{dir: dir, shared: shared}, &scan{point: point}
			var ends []int
			for at := 0; at < len(text); at += size {
				chunk := text[at:min(at+size, len(text))]
				for _, e := range s.ends(chunk, f.feed(chunk)) {
					ends = append(ends, at+e)
				}
			}
			if len(ends) != 1 || ends[0] != want {
				t.Errorf("reads of %d bytes, direction %d: ends %v, want %d", size, dir, ends, want)
			}
		}
		check(ClientToServer, client, PostgresMessage(ClientToServer, 'Q', "COMMIT"), clientPoint)
		check(ServerToClient, server, PostgresMessage(ServerToClient, 'C', "commit"), serverPoint)
	}
}

func TestWhatIsNoProtocolHasNoFrames(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x08\x00\x01\x00\x00rest", "\x00\x00\x00\x03\x00\x03\x00\x00", "\x00\x00\x00\x10\x04\xd2\x16\x2e12345678"} {
		f := &framer{dir: ClientToServer, shared: &conversation{}}
		if got := f.feed([]byte(text)); len(got) != 0 || f.protocol != protoRaw {
			t.Errorf("%q: protocol %d, %d frames", text, f.protocol, len(got))
		}
	}
}

// countingHealth counts the calls that reached the handler.
type countingHealth struct {
	*health.Server
	calls atomic.Int64
}

func (c *countingHealth) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	c.calls.Add(1)
	return c.Server.Check(ctx, req)
}

func TestHTTP2RequestsOfGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &countingHealth{Server: health.NewServer()}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})

	tests := []struct {
		name  string
		rule  Rule
		calls int64 // of the second request, at the server
	}{
		{name: "executed, answer lost", rule: Rule{Point: HTTP2Request(), Nth: 2, Cut: Cut{How: RST, Await: HTTP2Response()}}, calls: 1},
		{name: "answer cut before its end", rule: Rule{Point: HTTP2Response(), Nth: 2, Incomplete: true, Cut: Cut{How: FIN}}, calls: 1},
		{name: "request lost", rule: Rule{Point: HTTP2Request(), Nth: 2, Incomplete: true, Cut: Cut{What: Both}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := start(t, listener.Addr(), Options{})
			trap := p.Arm(tt.rule)
			conn, err := grpc.NewClient("passthrough:///"+p.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := healthpb.NewHealthClient(conn)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
			before := service.calls.Load()
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
				t.Errorf("second call: %v", err)
			}
			wait(t, trap)
			if got := service.calls.Load() - before; got != tt.calls {
				t.Errorf("the handler ran %d times, want %d", got, tt.calls)
			}
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
				t.Errorf("third call: %v", err)
			}
		})
	}
}

func TestTLSRecordsAreCounted(t *testing.T) {
	var calls atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		_, _ = io.WriteString(w, "done")
	}))
	defer server.Close()
	p := start(t, server.Listener.Addr(), Options{})
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	conn, err := tls.Dial("tcp", p.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "example.com", MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const request = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"
	write(t, conn, request)
	buf := make([]byte, 4096)
	if _, err := conn.Read(buf); err != nil {
		t.Fatal(err)
	}
	// Now both directions are at rest: the next record is the next request.
	trap := p.Arm(Rule{Point: TLSRecord(ClientToServer), Cut: Cut{How: RST, Await: TLSRecord(ServerToClient)}})
	write(t, conn, request)
	if n, err := conn.Read(buf); err == nil {
		t.Errorf("%d bytes of an answer came", n)
	}
	wait(t, trap)
	if got := calls.Load(); got != 2 {
		t.Errorf("the handler ran %d times", got)
	}
}
