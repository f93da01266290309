// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// link is one proxied connection. Each direction has a goroutine, its pump.
type link struct {
	p     *Proxy
	num   int
	conns [2]net.Conn // by the direction that reads from it
	over  chan struct{}

	// Each entry belongs to the pump of that direction.
	framers [2]*framer
	scans   [2]map[*Trap]*scan

	mu        sync.Mutex
	swallow   bool // what the server says does not pass any more
	clientCut bool // what the client says does not pass any more
	isOver    bool
	await     *scan
	answered  chan struct{} // closed when await was seen or the server ended
}

func newLink(p *Proxy, num int, client, server net.Conn) *link {
	shared := &conversation{}
	return &link{
		p: p, num: num, conns: [2]net.Conn{client, server}, over: make(chan struct{}),
		framers:  [2]*framer{{dir: ClientToServer, shared: shared}, {dir: ServerToClient, shared: shared}},
		scans:    [2]map[*Trap]*scan{{}, {}},
		answered: make(chan struct{}),
	}
}

// pump moves one direction until its source ends or the link is over.
func (l *link) pump(dir Direction) {
	source, sink := l.conns[dir], l.conns[1-dir]
	if dir == ServerToClient {
		defer close(l.answered) // an answer that will not come is not awaited
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := source.Read(buf)
		if n > 0 && !l.handle(dir, buf[:n]) {
			return
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			// While answers are swallowed the client's end is the cut's affair.
			if dir == ClientToServer || !l.swallowing() {
				closeWrite(sink)
			}
			return
		case l.passes(dir):
			l.end(RST) // the source broke: so does the rest
			return
		default:
			return
		}
	}
}

// handle lets a chunk pass as far as hook, rules and state allow. It returns
// false when the pump has nothing more to do.
func (l *link) handle(dir Direction, b []byte) bool {
	if !l.waitGate(dir) {
		return true // the rest is read and thrown away
	}
	if dir == ServerToClient && l.swallowing() {
		l.lookForAwaited(b)
		return true
	}
	if !l.passes(dir) {
		return true
	}
	cut, pass := (*Cut)(nil), len(b)
	if hook := l.p.hooks[dir]; hook != nil {
		act := hook(l.num, b)
		l.wait(act.Delay)
		if act.Cut != nil {
			cut, pass = act.Cut, min(max(0, act.Pass), len(b))
		}
	}
	trap, at := l.firstTrap(dir, b[:pass])
	if trap != nil {
		cut, pass = &trap.rule.Cut, at
		if trap.rule.Incomplete {
			pass--
		}
	}
	if cut != nil && cut.What == DropAnswer {
		// Before the request passes: its answer must not win the race.
		l.startSwallowing(dir, *cut)
	}
	if pass > 0 {
		if _, err := l.conns[1-dir].Write(b[:pass]); err != nil {
			l.end(RST)
			return false
		}
	}
	if cut != nil {
		l.cut(dir, *cut)
		if trap != nil {
			trap.cut()
		}
	}
	return true
}

// cut ends what the cut says. It runs in the pump that reached the point.
func (l *link) cut(dir Direction, c Cut) {
	if c.What == Both {
		l.wait(c.Delay)
		l.end(c.How)
		return
	}
	if dir == ClientToServer && c.Await.set() {
		select {
		case <-l.seen():
		case <-l.answered:
		case <-l.over:
		}
	}
	l.wait(c.Delay)
	l.mu.Lock()
	l.clientCut = true
	l.mu.Unlock()
	hangUp(l.conns[ClientToServer], c.How)
	closeWrite(l.conns[ServerToClient])
}

// end ends both halves: by RST at once; by FIN in order, what still arrives is
// thrown away until the peers close.
func (l *link) end(how How) {
	if l.finish() {
		for _, c := range l.conns {
			hangUp(c, how)
		}
	}
}

// abort closes both halves, whatever is left in them.
func (l *link) abort() {
	l.finish()
	for _, c := range l.conns {
		_ = c.Close() // a second close is no matter
	}
}

// finish puts an end to all that passes; false if that was done before.
func (l *link) finish() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return false
	}
	l.isOver, l.swallow, l.clientCut = true, true, true
	close(l.over)
	return true
}

func (l *link) swallowing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.swallow
}

func (l *link) passes(dir Direction) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return dir == ClientToServer && !l.clientCut || dir == ServerToClient && !l.swallow
}

// startSwallowing drops the server's answers from now on and begins to look
// for the one that is awaited.
func (l *link) startSwallowing(dir Direction, c Cut) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.swallow = true
	if dir == ClientToServer && c.Await.set() {
		l.await = &scan{point: c.Await, seen: make(chan struct{})}
	}
}

// seen is closed when the awaited answer was seen.
func (l *link) seen() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.await.seen
}

func (l *link) lookForAwaited(b []byte) {
	events := l.framers[ServerToClient].feed(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.await != nil && len(l.await.ends(b, events)) > 0 {
		l.await.once.Do(func() { close(l.await.seen) })
	}
}

// firstTrap returns the trap that cuts within b, and where its point lies. It
// feeds b to the framer, so each byte must come here or to lookForAwaited once.
func (l *link) firstTrap(dir Direction, b []byte) (*Trap, int) {
	events := l.framers[dir].feed(b)
	l.p.mu.Lock()
	traps := slices.Clone(l.p.traps)
	l.p.mu.Unlock()
	type hit struct {
		trap *Trap
		end  int
	}
	var hits []hit
	for _, t := range traps {
		if t.rule.Point.dir != dir || t.rule.Conn != 0 && t.rule.Conn != l.num {
			continue
		}
		s := l.scans[dir][t]
		if s == nil {
			s = &scan{point: t.rule.Point}
			l.scans[dir][t] = s
		}
		for _, end := range s.ends(b, events) {
			hits = append(hits, hit{t, end})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.end - b.end })
	for _, h := range hits {
		if h.trap.reached() {
			return h.trap, h.end
		}
	}
	return nil, 0
}

// waitGate waits until the direction is not paused; false if the link is over
// before.
func (l *link) waitGate(dir Direction) bool {
	for gate := l.p.gate(dir); gate != nil; gate = l.p.gate(dir) {
		select {
		case <-gate:
		case <-l.over:
			return false
		}
	}
	return true
}

func (l *link) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.over:
	}
}

// hangUp ends a connection: by RST at once; by FIN only what is written, since
// a close with unread bytes would be sent as RST.
func hangUp(c net.Conn, how How) {
	if how == FIN {
		closeWrite(c)
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // makes Close send RST
	}
	_ = c.Close()
}

// closeWrite sends FIN. A connection that has ended already is no matter.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
