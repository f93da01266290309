// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bytes"
	"encoding/binary"
	"sync"
)

// protocol is what a connection speaks, as far as the proxy follows it.
type protocol int

const (
	protoUnknown  protocol = iota // nothing was said yet
	protoRaw                      // nothing that has frames
	protoTLS                      // records: RFC 8446, section 5.1
	protoHTTP2                    // frames: RFC 9113, section 4.1
	protoPostgres                 // messages: PostgreSQL documentation, "Message Formats"
)

// keptBody is how many bytes of a frame's body a point may look at.
const keptBody = 4096

// frame is a unit of the protocol that has passed entirely.
type frame struct {
	protocol protocol
	kind     byte
	flags    byte
	body     []byte // its first bytes
}

// event is the end of a frame within a chunk.
type event struct {
	end   int
	frame frame
}

// conversation is what both directions of a connection have to know: the
// client speaks first and so tells the protocol.
type conversation struct {
	mu       sync.Mutex
	protocol protocol
	asked    int // PostgreSQL: encryption requests to be answered by one byte
}

func (c *conversation) get() protocol {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.protocol
}

func (c *conversation) set(p protocol) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol = p
}

func (c *conversation) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	c.protocol = protoUnknown
}

func (c *conversation) takeAsked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == 0 {
		return false
	}
	c.asked--
	return true
}

// framer follows one direction from its first byte on.
type framer struct {
	dir      Direction
	shared   *conversation
	protocol protocol
	header   []byte // of the frame that is arriving
	current  frame
	need     int // bytes of its body that are missing
	inBody   bool
	startup  bool // PostgreSQL: the message without a type
}

var http2Preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// feed takes the next bytes and returns the ends of the frames in them.
func (f *framer) feed(b []byte) []event {
	var events []event
	for pos := 0; pos < len(b) || f.inBody && f.need == 0; {
		if f.inBody {
			n := min(f.need, len(b)-pos)
			f.current.body = append(f.current.body, b[pos:pos+min(n, keptBody-len(f.current.body))]...)
			f.need -= n
			pos += n
			if f.need > 0 {
				break
			}
			events = append(events, event{end: pos, frame: f.current})
			f.inBody, f.header, f.current = false, nil, frame{}
			continue
		}
		if f.dir == ServerToClient && len(f.header) == 0 {
			if f.shared.takeAsked() {
				pos++ // the one byte that answers a request for encryption
				f.protocol = protoUnknown
				continue
			}
			if f.protocol == protoUnknown {
				f.protocol = f.shared.get()
			}
		}
		if f.protocol == protoRaw || f.dir == ServerToClient && f.protocol == protoUnknown {
			break
		}
		f.header = append(f.header, b[pos])
		pos++
		if f.protocol == protoUnknown {
			f.sniff()
		}
		f.parse()
	}
	return events
}

// sniff tells the protocol by the client's first bytes.
func (f *framer) sniff() {
	h := f.header
	switch {
	case len(h) < 3:
		return
	case h[0] == 22 && h[1] == 3:
		f.protocol = protoTLS
	case bytes.Equal(h, http2Preface[:3]):
		f.protocol = protoHTTP2
		f.inBody, f.need, f.header = true, len(http2Preface)-3, nil
		f.current = frame{protocol: protoHTTP2, kind: 255} // no type of a frame
	case h[0] == 0:
		f.protocol, f.startup = protoPostgres, true
	default:
		f.protocol = protoRaw
	}
	f.shared.set(f.protocol)
}

// parse begins the body when the header is complete.
func (f *framer) parse() {
	h := f.header
	switch {
	case f.protocol == protoTLS && len(h) == 5:
		f.begin(frame{protocol: protoTLS, kind: h[0]}, int(binary.BigEndian.Uint16(h[3:])))
	case f.protocol == protoHTTP2 && len(h) == 9:
		f.begin(frame{protocol: protoHTTP2, kind: h[3], flags: h[4]}, int(h[0])<<16|int(h[1])<<8|int(h[2]))
	case f.protocol == protoPostgres && f.startup && len(h) == 8:
		f.parseStartup(binary.BigEndian.Uint32(h), binary.BigEndian.Uint32(h[4:]))
	case f.protocol == protoPostgres && !f.startup && len(h) == 5:
		f.begin(frame{protocol: protoPostgres, kind: h[0]}, int(int32(binary.BigEndian.Uint32(h[1:])))-4)
	}
}

// parseStartup takes the first message of a PostgreSQL client, or the request
// for encryption before it.
func (f *framer) parseStartup(length, code uint32) {
	const cancelRequest, sslRequest, gssRequest = 80877102, 80877103, 80877104
	switch {
	case code == sslRequest || code == gssRequest:
		f.protocol, f.startup, f.header = protoUnknown, false, nil
		f.shared.ask()
	case code == cancelRequest || code>>16 != 3:
		f.protocol = protoRaw
		f.shared.set(protoRaw)
	default:
		f.startup = false
		f.begin(frame{protocol: protoPostgres}, int(length)-8)
	}
}

func (f *framer) begin(fr frame, need int) {
	if need < 0 {
		f.protocol = protoRaw // it does not speak what it seemed to
		return
	}
	f.inBody, f.need, f.current = true, need, fr
}

// scan looks for a point in one direction of one connection.
type scan struct {
	point  Point
	passed int64  // Bytes
	tail   []byte // Pattern: what may be its beginning

	seen chan struct{} // of an awaited point
	once sync.Once
}

// ends returns where in b the point's occurrences end, in order.
func (s *scan) ends(b []byte, events []event) []int {
	var ends []int
	switch {
	case s.point.match != nil:
		for _, e := range events {
			if s.point.match(e.frame) {
				ends = append(ends, e.end)
			}
		}
	case s.point.bytes > 0:
		n := s.point.bytes
		for next := n - s.passed%n; next <= int64(len(b)); next += n {
			ends = append(ends, int(next))
		}
		s.passed += int64(len(b))
	default:
		pattern, text := s.point.pattern, append(s.tail, b...)
		done := 0
		for {
			i := bytes.Index(text[done:], pattern)
			if i < 0 {
				break
			}
			done += i + len(pattern)
			ends = append(ends, done-len(s.tail))
		}
		rest := text[done:]
		s.tail = bytes.Clone(rest[max(0, len(rest)-len(pattern)+1):])
	}
	return ends
}
