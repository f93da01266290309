// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// from dials from an address of the loopback.
func from(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: patience}
}

// occupy opens a connection with its handshake, and says whether the server kept it.
func occupy(t *testing.T, addr, address string, m *authz.Material) (net.Conn, bool) {
	t.Helper()
	raw, err := from(address).DialContext(call(t), "tcp", addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("the loopback has one address only: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(patience))
	conn := tls.Client(raw, authz.ClientTLS(m, "127.0.0.1"))
	// The server speaks first once it has taken the connection.
	_, err = conn.Read(make([]byte, 1))
	return conn, err == nil
}

// occupyAll opens connections until one is refused.
func occupyAll(t *testing.T, addr, address string, m *authz.Material) []net.Conn {
	t.Helper()
	var all []net.Conn
	for range 100 {
		conn, kept := occupy(t, addr, address, m)
		if !kept {
			break
		}
		all = append(all, conn)
	}
	return all
}

func dialFrom(t *testing.T, addr, address string, m *authz.Material) pb.LedgerServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(m, ""))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return from(address).DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewLedgerServiceClient(conn)
}

// again opens a connection as soon as there is room.
func again(t *testing.T, addr, address string, m *authz.Material) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if _, kept := occupy(t, addr, address, m); kept {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not get in again", address)
		}
	}
}

// Who holds a grant and comes back finds room to report it, whatever one address and one principal have opened.
func TestOneAddressLeavesRoomForTheReportsOfOthers(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, append(h.args, "--max-connections", "40", "--max-connections-per-principal", "40")...)
	worker, flood := h.as(t, agentA), h.as(t, agentB)
	req := claim("key-1")
	granted, err := dialFrom(t, r.at.GRPC, "127.0.0.3", worker).Claim(call(t), req)
	if err != nil || granted.GetGranted() == nil {
		t.Fatalf("%v, %v", granted, err)
	}

	held := occupyAll(t, r.at.GRPC, "127.0.0.2", flood)
	if len(held) != 10 {
		t.Errorf("one address has %d connections of 40, want a quarter", len(held))
	}
	if _, kept := occupy(t, r.at.GRPC, "127.0.0.2", worker); kept {
		t.Error("another principal has more of the same address")
	}
	done, err := dialFrom(t, r.at.GRPC, "127.0.0.4", worker).Complete(call(t), &pb.CompleteRequest{
		OperationId: granted.GetGranted().GetOperationId(), ClaimId: req.GetClaimId(), SentExactlyOnce: true,
		Outcome: &pb.CompleteRequest_Succeeded{Succeeded: &pb.Result{Resource: &pb.ResourceRef{Id: "T-1"}}},
	})
	if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Errorf("the report of another address: %v, %v", done, err)
	}
	_, metrics := r.get("/metrics")
	if !strings.Contains(metrics, `ledger_connections_refused_total{ledger_connection_limit="address",ledger_connection_listener="grpc"}`) {
		t.Error("refused connections are not counted")
	}
	if strings.Contains(metrics, "127.0.0.") {
		t.Error("an address is in the metrics")
	}
	_ = held[0].Close()
	again(t, r.at.GRPC, "127.0.0.2", flood)
}

func TestManyAddressesOfOnePrincipalLeaveRoomForOthers(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, append(h.args, "--max-connections", "40", "--max-connections-per-principal", "5")...)
	for title, one := range map[string]string{"a principal": agentB, "all that the policy does not know": ""} {
		t.Run(title, func(t *testing.T) {
			var held []net.Conn
			for i := range 6 {
				id := one
				if id == "" {
					id = fmt.Sprintf("spiffe://elsewhere.test/agent/%d", i) // of another trust domain
				}
				conn, kept := occupy(t, r.at.GRPC, fmt.Sprintf("127.0.1.%d", i+1), h.as(t, id))
				if kept != (i < 5) {
					t.Fatalf("connection %d is taken: %v", i+1, kept)
				}
				held = append(held, conn)
			}
			if err := getTool(t, dialFrom(t, r.at.GRPC, "127.0.1.1", h.as(t, agentA))); err != nil {
				t.Errorf("another principal: %v", err)
			}
			for _, conn := range held {
				_ = conn.Close()
			}
			for range 5 {
				again(t, r.at.GRPC, "127.0.1.9", h.as(t, cmp.Or(one, "spiffe://elsewhere.test/agent/x")))
			}
		})
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `ledger_connections_refused_total{ledger_connection_limit="principal"`) ||
		strings.Contains(metrics, "spiffe:") {
		t.Error("refused connections are not counted, or a principal is named")
	}
}

// Handshakes that do not end are connections, too.
func TestConnectionsWithoutAHandshakeCount(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, append(h.args, "--max-connections", "8")...)
	for range 2 {
		silent, err := from("127.0.0.2").DialContext(call(t), "tcp", r.at.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	if _, kept := occupy(t, r.at.GRPC, "127.0.0.2", h.as(t, agentA)); kept {
		t.Error("there was still room for its address")
	}
	if _, kept := occupy(t, r.at.GRPC, "127.0.0.3", h.as(t, agentA)); !kept {
		t.Error("there is no room for another one")
	}
}

func TestProbesFindRoomAtTheAdminListener(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	for range adminShares.most {
		conn, err := from("127.0.0.2").DialContext(call(t), "tcp", r.at.Admin)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if code, _ := r.get(readyPath); code != http.StatusOK {
		t.Errorf("a probe from another address: %d", code)
	}
}

// TestThereIsAlwaysRoomForOneMore is about any number of greedy addresses or principals, each of which may have all by its share.
func TestThereIsAlwaysRoomForOneMore(t *testing.T) {
	const most = 100
	host := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	for title, ask := range map[string]func(c *connections, who int) (refused bool){
		"addresses": func(c *connections, who int) bool { return c.enter(host(who)) != "" },
		"principals": func(c *connections, who int) bool {
			address := host(c.all + 1000) // each connection from another one
			if c.enter(address) != "" {
				return true
			}
			if c.admit(authz.Principal(fmt.Sprint(who))) {
				return false
			}
			c.leave(address)
			return true
		},
	} {
		for greedy := 1; greedy < 50; greedy++ {
			c := &connections{shares: shares{most, most, most}, addresses: map[netip.Prefix]int{}, principals: map[authz.Principal]int{}}
			for range most {
				for who := range greedy {
					ask(c, who)
				}
			}
			if c.all < most/2 {
				t.Errorf("%d %s have only %d of %d", greedy, title, c.all, most)
			}
			if ask(c, greedy) {
				t.Errorf("%d %s have %d of %d: there is no room for one more", greedy, title, c.all, most)
			}
		}
	}
	full := &connections{shares: shares{most: 1, address: 1, principal: 1}, addresses: map[netip.Prefix]int{}, principals: map[authz.Principal]int{}}
	one := netip.MustParsePrefix("10.0.0.1/32")
	if full.enter(one) != "" || !full.admit("one") || full.enter(one) != "all" {
		t.Error("one place is not one")
	}
	full.dismiss("one")
	full.leave(one)
	if full.all != 0 || len(full.addresses) != 0 || len(full.principals) != 0 || full.enter(one) != "" {
		t.Errorf("what is left: %+v", full)
	}
}

func TestWhatCountsAsOneAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7":                "192.0.2.7/32",
		"::ffff:192.0.2.7":         "192.0.2.7/32",
		"2001:db8:1:2:3:4:5:6":     "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::1":     "2001:db8:1:2::/64",
		"fe80::1%eth0":             "fe80::/64",
		"::1":                      "::/64",
		"2001:db8:1:3::1":          "2001:db8:1:3::/64",
		"0:0:0:0:0:ffff:c000:0207": "192.0.2.7/32",
	} {
		ip := netip.MustParseAddr(addr)
		got := origin(&net.TCPAddr{IP: ip.AsSlice(), Zone: ip.Zone(), Port: 4711})
		if got.String() != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := origin(&net.UnixAddr{Name: "/run/x", Net: "unix"}); got.IsValid() {
		t.Errorf("a socket: %s", got)
	}
}
