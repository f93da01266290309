// SPDX-License-Identifier: Apache-2.0

// Package faultproxy is a proxy for one upstream at a time, TCP or unix socket,
// that breaks connections at exact points of the conversation.
//
// A point is named by what passes, not by time: a number of bytes, a pattern,
// a PostgreSQL message, an HTTP/2 request or response, a TLS record; or a hook
// looks at the bytes and decides. At the point the proxy cuts both halves, or
// forwards the request and drops the answer, by FIN or by RST; see [Rule] and
// [Cut]. Directions can be paused, and everything can be cut now.
//
// It guarantees that not one byte behind the point passes, and that Close ends
// all its goroutines. It never looks at a clock but for the delays it is given.
// Traffic under TLS is forwarded as it is: only bytes, records, hooks and
// [Proxy.CutNow] apply to it.
//
// The package depends on the standard library only.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Direction is a direction of the conversation.
type Direction int

// The directions.
const (
	ClientToServer Direction = iota
	ServerToClient
)

// Options sets up a proxy.
type Options struct {
	// Network and Address are where to listen; unset: tcp, a free port of
	// 127.0.0.1. For libpq's way of naming a socket: unix, DIR/.s.PGSQL.5432.
	Network string
	Address string
	// OnClientData and OnServerData see every chunk before it passes and
	// decide about it; conn numbers the connections from 1. Chunks are what one
	// read returned: their borders mean nothing. A hook runs in the
	// connection's goroutine of that direction and may block, as a barrier;
	// Close waits for it. It must not keep or change b. Unset: all passes.
	OnClientData func(conn int, b []byte) Action
	OnServerData func(conn int, b []byte) Action
}

// Proxy forwards connections to one upstream.
type Proxy struct {
	hooks      [2]func(int, []byte) Action
	listener   net.Listener
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu               sync.Mutex
	network, address string // of the upstream
	links            map[int]*link
	last             int
	traps            []*Trap
	paused           [2]chan struct{} // closed by Resume; nil while not paused
}

// Start listens and forwards each connection to the upstream, a network and an
// address as net.Dial takes them. A connection whose upstream cannot be
// reached is reset.
func Start(network, address string, opts Options) (*Proxy, error) {
	if opts.Network == "" {
		opts.Network = "tcp"
	}
	if opts.Address == "" && opts.Network == "tcp" {
		opts.Address = "127.0.0.1:0"
	}
	listener, err := net.Listen(opts.Network, opts.Address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		network: network, address: address, listener: listener, ctx: ctx, cancel: cancel,
		hooks: [2]func(int, []byte) Action{opts.OnClientData, opts.OnServerData},
		links: map[int]*link{},
	}
	p.goroutines.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() net.Addr { return p.listener.Addr() }

// Close stops listening, closes all connections and waits for the proxy's
// goroutines. Traps that have not fired never will.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	p.mu.Lock()
	for _, l := range p.links {
		l.abort()
	}
	p.mu.Unlock()
	p.goroutines.Wait()
	return err
}

// CutNow closes both halves of all present connections and returns their
// number. What the proxy has read but not forwarded is lost.
func (p *Proxy) CutNow(how How) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.end(how)
	}
	return len(p.links)
}

// Redirect forwards the connections to come to another upstream, as an address
// that moves to another machine does. Those that are there stay; CutNow ends
// them.
func (p *Proxy) Redirect(network, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.address = network, address
}

// Connections returns how many connections there are, and how many there have
// been.
func (p *Proxy) Connections() (now, ever int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links), p.last
}

// Pause holds back what arrives in the direction, on all connections, also
// those to come, until Resume. Points are recognised when bytes pass, so none
// is reached meanwhile.
func (p *Proxy) Pause(dir Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused[dir] == nil {
		p.paused[dir] = make(chan struct{})
	}
}

// Resume lets pass what Pause held back.
func (p *Proxy) Resume(dir Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused[dir] != nil {
		close(p.paused[dir])
		p.paused[dir] = nil
	}
}

// gate is closed when the direction is open; nil means that it is.
func (p *Proxy) gate(dir Direction) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused[dir]
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // Close, or a listener that cannot go on: the peers see it
		}
		p.mu.Lock()
		p.last++
		num := p.last
		p.mu.Unlock()
		p.goroutines.Go(func() { p.serve(num, client) })
	}
}

// serve forwards one connection until both directions have ended.
func (p *Proxy) serve(num int, client net.Conn) {
	p.mu.Lock()
	network, address := p.network, p.address
	p.mu.Unlock()
	server, err := (&net.Dialer{}).DialContext(p.ctx, network, address)
	if err != nil {
		hangUp(client, RST)
		return
	}
	l := newLink(p, num, client, server)
	p.mu.Lock()
	p.links[num] = l
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		l.abort() // Close has looked at the links before this one was there
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(ClientToServer) })
	pumps.Go(func() { l.pump(ServerToClient) })
	pumps.Wait()
	l.abort()
	p.mu.Lock()
	delete(p.links, num)
	p.mu.Unlock()
}
