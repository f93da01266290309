// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestForwardsWithoutARule(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "fp") // a socket's path has to be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			address, opts := "127.0.0.1:0", Options{}
			if network == "unix" {
				address = filepath.Join(dir, "up")
				opts = Options{Network: "unix", Address: filepath.Join(dir, ".s.PGSQL.5432")}
			}
			u := newUpstream(t, network, address)
			p := start(t, u.Addr(), opts)
			conn := dial(t, p)
			write(t, conn, "one\n")
			expect(t, conn, "ONE\n")
			if now, ever := p.Connections(); now != 1 || ever != 1 {
				t.Errorf("%d connections, %d ever", now, ever)
			}
			conn.Close()
			if err := receive(t, u.ends); !errors.Is(err, io.EOF) {
				t.Errorf("the server saw %v", err)
			}
		})
	}
}

func TestCutsAtThePoint(t *testing.T) {
	tests := []struct {
		name   string
		rule   Rule
		sends  []string
		server string // all that the server got
		client string // all that the client got
		err    error  // what the client read in the end; EOF as nil
		end    error  // what the server read in the end
	}{
		{
			name:   "answer dropped by RST",
			rule:   Rule{Point: Pattern(ClientToServer, []byte("commit\n")), Cut: Cut{How: RST, Await: Bytes(ServerToClient, 1)}},
			sends:  []string{"begin\n", "commit\n"},
			server: "begin\ncommit\n", client: "BEGIN\n", err: syscall.ECONNRESET, end: io.EOF,
		},
		{
			name:   "answer dropped by FIN",
			rule:   Rule{Point: Pattern(ClientToServer, []byte("commit\n"))},
			sends:  []string{"begin\n", "commit\n"},
			server: "begin\ncommit\n", client: "BEGIN\n", end: io.EOF,
		},
		{
			name:   "answer cut at its own end",
			rule:   Rule{Point: Pattern(ServerToClient, []byte("COMMIT\n")), Incomplete: true, Cut: Cut{How: FIN}},
			sends:  []string{"begin\n", "commit\n"},
			server: "begin\ncommit\n", client: "BEGIN\nCOMMIT", end: io.EOF,
		},
		{
			name:   "request that never arrives whole",
			rule:   Rule{Point: Pattern(ClientToServer, []byte("commit\n")), Incomplete: true, Cut: Cut{What: Both}},
			sends:  []string{"begin\n", "commit\n"},
			server: "begin\ncommit", client: "BEGIN\n", end: io.EOF,
		},
		{
			name:   "both by RST",
			rule:   Rule{Point: Pattern(ServerToClient, []byte("BEGIN\n")), Nth: 2, Cut: Cut{What: Both, How: RST, Delay: time.Millisecond}},
			sends:  []string{"begin\n", "begin\n"},
			server: "begin\nbegin\n", err: syscall.ECONNRESET, end: syscall.ECONNRESET,
			client: "BEGIN\n", // what came shortly before a reset may be lost
		},
		{
			name:   "after so many bytes",
			rule:   Rule{Point: Bytes(ClientToServer, 9), Cut: Cut{What: Both}},
			sends:  []string{"begin\n", "commit\n"},
			server: "begin\ncom", client: "BEGIN\n", end: io.EOF,
		},
		{
			name:   "pattern in one chunk with more behind it",
			rule:   Rule{Point: Pattern(ClientToServer, []byte("mit\n")), Cut: Cut{What: Both}},
			sends:  []string{"commit\nrollback\n"},
			server: "commit\n", end: io.EOF,
		},
		{
			name:   "another connection's rule",
			rule:   Rule{Conn: 2, Point: Bytes(ClientToServer, 1), Cut: Cut{What: Both}},
			sends:  []string{"begin\n"},
			server: "begin\n", client: "BEGIN\n", end: io.EOF,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := newUpstream(t, "tcp", "127.0.0.1:0")
			p := start(t, u.Addr(), Options{})
			trap := p.Arm(tt.rule)
			conn := dial(t, p)
			var got strings.Builder
			for i, line := range tt.sends {
				write(t, conn, line)
				if i < len(tt.sends)-1 {
					expect(t, conn, strings.ToUpper(line))
					got.WriteString(strings.ToUpper(line))
				}
			}
			if tt.rule.Conn == 0 {
				wait(t, trap)
			} else {
				expect(t, conn, tt.client)
				got.WriteString(tt.client)
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			rest, err := io.ReadAll(conn)
			got.Write(rest)
			if !errors.Is(err, tt.err) {
				t.Errorf("the client's end: %v, want %v", err, tt.err)
			}
			if !strings.HasPrefix(got.String(), tt.client) || tt.err == nil && got.String() != tt.client {
				t.Errorf("the client got %q, want %q", got.String(), tt.client)
			}
			if err := receive(t, u.ends); !errors.Is(err, tt.end) {
				t.Errorf("the server's end: %v, want %v", err, tt.end)
			}
			var server strings.Builder
			for len(u.lines) > 0 {
				server.WriteString(<-u.lines)
			}
			if server.String() != tt.server {
				t.Errorf("the server got %q, want %q", server.String(), tt.server)
			}
		})
	}
}

func TestPatternAcrossReads(t *testing.T) {
	for cut := 1; cut < 6; cut++ {
		s := &scan{point: Pattern(ClientToServer, []byte("commit"))}
		text := "xcommitcommit"
		first := s.ends([]byte(text[:cut+1]), nil)
		second := s.ends([]byte(text[cut+1:]), nil)
		for i := range second {
			second[i] += cut + 1
		}
		if got := append(first, second...); !slices.Equal(got, []int{7, 13}) {
			t.Errorf("split at %d: %v", cut, got)
		}
	}
}

func TestBytesAcrossReads(t *testing.T) {
	s := &scan{point: Bytes(ClientToServer, 3)}
	if got := s.ends(make([]byte, 2), nil); len(got) != 0 {
		t.Errorf("first: %v", got)
	}
	if got := s.ends(make([]byte, 5), nil); !slices.Equal(got, []int{1, 4}) {
		t.Errorf("second: %v", got)
	}
}

func TestRuleTwiceInARow(t *testing.T) {
	u := newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, u.Addr(), Options{})
	trap := p.Arm(Rule{Point: Pattern(ClientToServer, []byte("commit\n")), Times: 2, Cut: Cut{How: RST, Await: Pattern(ServerToClient, []byte("COMMIT\n"))}})
	for range 2 {
		conn := dial(t, p)
		write(t, conn, "commit\n")
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("an answer came")
		}
	}
	wait(t, trap)
	conn := dial(t, p)
	write(t, conn, "commit\n")
	expect(t, conn, "COMMIT\n")
	if trap.Cuts() != 2 {
		t.Errorf("%d cuts", trap.Cuts())
	}
}

func TestDisarmedRuleDoesNotCut(t *testing.T) {
	u := newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, u.Addr(), Options{})
	trap := p.Arm(Rule{Point: Bytes(ClientToServer, 1), Cut: Cut{What: Both}})
	trap.Disarm()
	conn := dial(t, p)
	write(t, conn, "a\n")
	expect(t, conn, "A\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := trap.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
}

func TestCutNow(t *testing.T) {
	for _, how := range []How{FIN, RST} {
		u := newUpstream(t, "tcp", "127.0.0.1:0")
		p := start(t, u.Addr(), Options{})
		conn := dial(t, p)
		write(t, conn, "a\n")
		expect(t, conn, "A\n")
		if n := p.CutNow(how); n != 1 {
			t.Errorf("%d connections cut", n)
		}
		want := map[How]error{FIN: io.EOF, RST: syscall.ECONNRESET}[how]
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("the client read %v, want %v", err, want)
		}
		if err := receive(t, u.ends); !errors.Is(err, want) {
			t.Errorf("the server read %v, want %v", err, want)
		}
	}
}

func TestRedirectLeavesWhatIsThere(t *testing.T) {
	before, after := newUpstream(t, "tcp", "127.0.0.1:0"), newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, before.Addr(), Options{})
	first := dial(t, p)
	write(t, first, "a\n")
	expect(t, first, "A\n")
	p.Redirect("tcp", after.Addr().String())
	second := dial(t, p)
	write(t, second, "b\n")
	expect(t, second, "B\n")
	write(t, first, "c\n")
	expect(t, first, "C\n")
	for u, want := range map[*upstream][]string{before: {"a\n", "c\n"}, after: {"b\n"}} {
		for _, line := range want {
			if got := receive(t, u.lines); got != line {
				t.Errorf("%q arrived, want %q", got, line)
			}
		}
		if len(u.lines) > 0 {
			t.Errorf("more than %q arrived", want)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	u := newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, u.Addr(), Options{})
	conn := dial(t, p)
	p.Pause(ServerToClient)
	p.Pause(ServerToClient)
	write(t, conn, "a\n")
	if got := receive(t, u.lines); got != "a\n" {
		t.Errorf("the server got %q", got)
	}
	read := make(chan string, 1)
	go func() {
		buf := make([]byte, 10)
		n, _ := conn.Read(buf)
		read <- string(buf[:n])
	}()
	p.Resume(ServerToClient)
	if got := receive(t, read); got != "A\n" {
		t.Errorf("the client got %q", got)
	}
	p.Pause(ClientToServer)
	write(t, conn, "b\n")
	if n := p.CutNow(RST); n != 1 {
		t.Errorf("%d connections cut", n)
	}
	if err := receive(t, u.ends); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server read %v", err)
	}
	if len(u.lines) != 0 {
		t.Error("what was held back arrived")
	}
	p.Resume(ClientToServer)
	p.Resume(ClientToServer)
}

func TestHooksDecide(t *testing.T) {
	u := newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, u.Addr(), Options{
		OnClientData: func(conn int, b []byte) Action {
			if conn == 2 {
				return Action{Cut: &Cut{What: Both, How: RST}, Pass: 2}
			}
			return Action{Delay: time.Millisecond}
		},
		OnServerData: func(_ int, b []byte) Action {
			if strings.Contains(string(b), "SECRET") {
				return Action{Cut: &Cut{How: FIN}}
			}
			return Action{}
		},
	})
	conn := dial(t, p)
	write(t, conn, "a\n")
	expect(t, conn, "A\n")
	write(t, conn, "secret\n")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("dropped answer: %v", err)
	}
	second := dial(t, p)
	write(t, second, "b\n")
	if _, err := second.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("cut by a hook: %v", err)
	}
}

func TestUpstreamThatIsNotThere(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	p := start(t, gone.Addr(), Options{})
	// The reset may come before the dialler has looked at its connection.
	conn, err := net.Dial("tcp", p.Addr().String())
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("dial and read: %v", err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	u := newUpstream(t, "tcp", "127.0.0.1:0")
	p := start(t, u.Addr(), Options{})
	awaits := p.Arm(Rule{Point: Pattern(ClientToServer, []byte("b\n")), Cut: Cut{Await: Pattern(ServerToClient, []byte("never"))}})
	conns := []net.Conn{dial(t, p), dial(t, p), dial(t, p)}
	for _, conn := range conns {
		write(t, conn, "a\n")
		expect(t, conn, "A\n")
	}
	write(t, conns[0], "b\n") // hangs in its rule
	p.Pause(ServerToClient)
	write(t, conns[1], "c\n") // hangs in the pause
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := conns[2].Read(make([]byte, 1)); err == nil {
		t.Error("a connection lives on")
	}
	_ = awaits.Wait(t.Context()) // ends with the proxy, if not with the cut
}

// The wait before a cut is the rule's, on the clock.
func TestWaitTakesTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(nil, 1, nil, nil)
		begin := time.Now()
		l.wait(time.Hour)
		if got := time.Since(begin); got != time.Hour {
			t.Errorf("waited %v", got)
		}
	})
}
