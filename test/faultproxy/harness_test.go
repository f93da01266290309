// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream answers each line with the same line in upper case and keeps what
// it got and how each connection ended.
type upstream struct {
	net.Listener
	lines chan string
	ends  chan error
}

func newUpstream(t *testing.T, network, address string) *upstream {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{Listener: listener, lines: make(chan string, 100), ends: make(chan error, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					line, err := r.ReadString('\n')
					if line != "" {
						u.lines <- line
					}
					if err != nil {
						u.ends <- err
						return
					}
					_, _ = io.WriteString(conn, strings.ToUpper(line))
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return u
}

func start(t *testing.T, upstream net.Addr, opts Options) *Proxy {
	t.Helper()
	p, err := Start(upstream.Network(), upstream.String(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial(p.Addr().Network(), p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	// A bound for the whole test: nothing here waits for it.
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func wait(t *testing.T, trap *Trap) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := trap.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func expect(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != text {
		t.Fatalf("read %q, %v; want %q", buf, err, text)
	}
}
