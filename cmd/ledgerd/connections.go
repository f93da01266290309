// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
)

// shares are how many connections a listener has at a time: at most, by one address, and by one principal.
type shares struct{ most, address, principal int }

// connections share those of one listener among the addresses that they come from and, once the handshake says who it is, among
// principals. Nobody has more than a share, and nobody more than are still free, so that there is always room for somebody else; who
// asks for more is hung up on, and may come again. An address is all of a network of IPv6 that one host usually has.
type connections struct {
	shares  shares
	refused func(limit string)

	mu         sync.Mutex
	all        int
	addresses  map[netip.Prefix]int
	principals map[authz.Principal]int
}

// newConnections shares those of a listener, whose name is that of metrics.
func newConnections(listener string, s shares, meter metric.Meter) (*connections, error) {
	name := attribute.String("ledger.connection.listener", listener)
	refused, err := meter.Int64Counter("ledger.connections.refused", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections that were hung up on because there were too many: of all, of one address, or of one principal."))
	if err != nil {
		return nil, err
	}
	c := &connections{shares: s, addresses: map[netip.Prefix]int{}, principals: map[authz.Principal]int{}}
	c.refused = func(limit string) {
		refused.Add(context.Background(), 1, metric.WithAttributes(name, attribute.String("ledger.connection.limit", limit)))
	}
	_, err = meter.Int64ObservableUpDownCounter("ledger.connections.open", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections that are open."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(c.open()), metric.WithAttributes(name))
			return nil
		}))
	return c, err
}

func (c *connections) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// enter takes a place for an address; refused says by which limit there is none, or "".
func (c *connections) enter(from netip.Prefix) (refused string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch free := c.shares.most - c.all; {
	case free <= 0:
		return "all"
	case c.addresses[from] >= min(c.shares.address, free):
		return "address"
	}
	c.all++
	c.addresses[from]++
	return ""
}

func (c *connections) leave(from netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	less(c.addresses, from)
}

// admit gives a connection that has a place to a principal, unless it has enough.
func (c *connections) admit(who authz.Principal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The connection itself is not free any more.
	if free := c.shares.most - c.all + 1; c.principals[who] >= min(c.shares.principal, free) {
		return false
	}
	c.principals[who]++
	return true
}

func (c *connections) dismiss(who authz.Principal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	less(c.principals, who)
}

func less[K comparable](counts map[K]int, k K) {
	if counts[k]--; counts[k] == 0 {
		delete(counts, k)
	}
}

// sharedListener hangs up on who has enough connections.
type sharedListener struct {
	net.Listener
	connections *connections
}

func (l sharedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := origin(conn.RemoteAddr())
		refused := l.connections.enter(from)
		if refused == "" {
			return &heldConn{Conn: conn, release: func() { l.connections.leave(from) }}, nil
		}
		_ = conn.Close()
		l.connections.refused(refused)
	}
}

// hostBits of IPv6 are one host's to choose from.
const hostBits = 64

// origin is what counts as one address.
func origin(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits -= hostBits
	}
	from, _ := ip.Prefix(bits) // of an address without a zone there is one
	return from
}

// heldConn gives its place back when it is closed.
type heldConn struct {
	net.Conn
	release func()
	once    sync.Once
}

func (c *heldConn) Close() error {
	defer c.once.Do(c.release)
	return c.Conn.Close()
}

// errTooMany ends a connection after its handshake.
var errTooMany = errors.New("the principal has too many connections")

// sharedCredentials hang up on principals who have enough connections. Certificates that the policy knows no principal of are one.
type sharedCredentials struct {
	credentials.TransportCredentials
	connections *connections
	identify    func(credentials.AuthInfo) (authz.Principal, error)
}

func (s sharedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	who, err := s.identify(info)
	if err != nil {
		who = "" // each call says why it is refused
	}
	if !s.connections.admit(who) {
		s.connections.refused("principal")
		return nil, nil, errors.Join(errTooMany, conn.Close())
	}
	return &heldConn{Conn: conn, release: func() { s.connections.dismiss(who) }}, info, nil
}

func (s sharedCredentials) Clone() credentials.TransportCredentials {
	s.TransportCredentials = s.TransportCredentials.Clone()
	return s
}
