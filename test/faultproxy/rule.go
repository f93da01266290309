// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"time"
)

// How is the way in which a connection ends.
type How int

// The ways. On a unix socket RST is a plain close.
const (
	// FIN ends the stream in order; the peer reads EOF.
	FIN How = iota
	// RST resets the connection; the peer's read fails with ECONNRESET. What
	// was sent shortly before may be lost with it.
	RST
)

// What is which halves of a connection a cut ends.
type What int

const (
	// DropAnswer forwards the request up to the point, swallows everything
	// that the server says from then on, and ends the client's connection. The
	// server's connection ends in order, when the client's has.
	DropAnswer What = iota
	// Both ends both connections at the point.
	Both
)

// Cut is what happens at a point.
type Cut struct {
	What What
	How  How
	// Delay passes between the point, or the awaited answer, and the end of
	// the connection.
	Delay time.Duration
	// Await, for DropAnswer at a point of the client's: the client's
	// connection ends only when the server has said this, counted from the
	// point on. The zero Point waits for nothing. If the server ends the
	// connection first, the client's ends then.
	Await Point
}

// Action is what a hook decides about a chunk. The zero Action lets it pass.
type Action struct {
	// Delay passes before the chunk does.
	Delay time.Duration
	// Cut, if set, is made after Pass bytes of the chunk have passed (at most
	// all of them).
	Cut  *Cut
	Pass int
}

// Point is a place in one direction of a connection: the end of something that
// passes. Each occurrence is an event; [Rule] says which of them counts.
type Point struct {
	dir     Direction
	bytes   int64
	pattern []byte
	match   func(frame) bool
}

// Bytes is the place behind every n-th byte in the direction, n from 1,
// counted on each connection from its beginning or from the arming of the
// rule, whichever is later.
func Bytes(dir Direction, n int64) Point { return Point{dir: dir, bytes: max(1, n)} }

// Pattern is the end of each occurrence of the bytes in the direction, also
// across reads. Occurrences do not overlap.
func Pattern(dir Direction, pattern []byte) Point {
	return Point{dir: dir, pattern: bytes.Clone(pattern)}
}

// TLSRecord is the end of each TLS application data record in the direction.
// In TLS 1.3 a part of the handshake and session tickets travel in such
// records as well: arm the rule when the handshake is over, or count them.
func TLSRecord(dir Direction) Point {
	return Point{dir: dir, match: func(f frame) bool { return f.protocol == protoTLS && f.kind == 23 }}
}

// HTTP2Request is the end of each request (a frame with END_STREAM from the
// client) on a connection in clear text with prior knowledge.
func HTTP2Request() Point { return Point{dir: ClientToServer, match: endsStream} }

// HTTP2Response is the end of each response (a frame with END_STREAM from the
// server), also that of a response which is only a status.
func HTTP2Response() Point { return Point{dir: ServerToClient, match: endsStream} }

func endsStream(f frame) bool {
	const data, headers, endStream = 0, 1, 1
	return f.protocol == protoHTTP2 && (f.kind == data || f.kind == headers) && f.flags&endStream != 0
}

// PostgresMessage is the end of each message in clear text of the given type
// ('Q' query, 'P' parse, 'E' execute; from the server 'C' command complete, 'Z'
// ready, ...) whose first 4 KiB contain the text, letter case aside. A COMMIT
// that goes as a simple query is PostgresMessage(ClientToServer, 'Q',
// "commit"), one that pgx has prepared is PgxStatement("COMMIT"); the success
// of either is PostgresMessage(ServerToClient, 'C', "commit").
func PostgresMessage(dir Direction, kind byte, text string) Point {
	want := bytes.ToLower([]byte(text))
	return Point{dir: dir, match: func(f frame) bool {
		return f.protocol == protoPostgres && f.kind == kind && bytes.Contains(bytes.ToLower(f.body), want)
	}}
}

// PgxStatement is where pgx runs a statement without parameters and rows that
// it has prepared for itself, as the last one of a batch. bound is the end of
// the message that names it: held back, the statement does not run. sent is
// the end of the whole batch: the server has all of it.
func PgxStatement(sql string) (bound, sent Point) {
	sum := sha256.Sum256([]byte(sql))
	name := "stmtcache_" + hex.EncodeToString(sum[:24])
	rest := "\x00" + "\x00\x00\x00\x00\x00\x00" + // no parameters, no formats
		"D\x00\x00\x00\x06P\x00" + "E\x00\x00\x00\x09\x00\x00\x00\x00\x00" + "S\x00\x00\x00\x04"
	return PostgresMessage(ClientToServer, 'B', name), Pattern(ClientToServer, []byte(name+rest))
}

func (p Point) set() bool { return p.bytes > 0 || len(p.pattern) > 0 || p.match != nil }

// Rule says where to cut and how. Point is required.
type Rule struct {
	Point Point
	// Conn limits the rule to one connection, numbered from 1; 0: all.
	Conn int
	// Nth is the occurrence that counts, from 1, over all connections of the
	// rule and from its arming on; 0 is 1.
	Nth int
	// Incomplete holds back the last byte before the point: the message
	// begins to arrive but never does.
	Incomplete bool
	// Times is how often the rule cuts, each time counting Nth anew; 0 is 1.
	Times int
	Cut   Cut
}

// Trap is an armed rule.
type Trap struct {
	p    *Proxy
	rule Rule
	done chan struct{}

	// Under p.mu:
	seen  int // occurrences since the last cut
	left  int // cuts that have not been started
	ended int // cuts that have been made
}

// Arm puts a rule into force. The first rule whose point is reached wins. It
// panics for a rule without a point, which is a mistake in the test.
//
// Frames (PostgreSQL, HTTP/2, TLS) are followed from a connection's beginning,
// so a rule can be armed at any time.
func (p *Proxy) Arm(rule Rule) *Trap {
	if !rule.Point.set() {
		panic("faultproxy: a rule without a point")
	}
	rule.Nth, rule.Times = max(1, rule.Nth), max(1, rule.Times)
	t := &Trap{p: p, rule: rule, left: rule.Times, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t
}

// Disarm takes the rule out of force. A cut that has begun is made.
func (t *Trap) Disarm() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.left = 0
	t.p.traps = slices.DeleteFunc(t.p.traps, func(o *Trap) bool { return o == t })
}

// Cuts returns how often the rule has cut.
func (t *Trap) Cuts() int {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	return t.ended
}

// Wait returns when the rule has cut Times times, and with an error when the
// context or the proxy ends first.
func (t *Trap) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("faultproxy: the point was not reached: %w", context.Cause(ctx))
	case <-t.p.ctx.Done():
		select {
		case <-t.done: // both: the cuts count
			return nil
		default:
		}
		return fmt.Errorf("faultproxy: the proxy has ended: %w", net.ErrClosed)
	}
}

// reached counts one occurrence and says whether the cut is due.
func (t *Trap) reached() bool {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.left == 0 {
		return false
	}
	t.seen++
	if t.seen < t.rule.Nth {
		return false
	}
	t.seen = 0
	t.left--
	if t.left == 0 {
		t.p.traps = slices.DeleteFunc(t.p.traps, func(o *Trap) bool { return o == t })
	}
	return true
}

// cut tells that a cut was made.
func (t *Trap) cut() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.ended++
	if t.ended == t.rule.Times {
		close(t.done)
	}
}
