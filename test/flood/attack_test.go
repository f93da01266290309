// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"bufio"
	"bytes"
	stdgzip "compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// sizes of a flood.
type sizes struct {
	Idle       int // connections that say nothing after their handshake
	Handshakes int // connections whose handshake does not end
	Streams    int // connections with as many open streams as they get
	Opens      int // streams that each of these opens per second
	Headers    int // connections at a time with headers of 16 MB
	Messages   int // connections with messages of 16 MB, plain and compressed
	Resets     int // connections that open streams and reset them
	PerSecond  int // resets of each of these
	Requests   int // callers beyond their limit
}

// orders of the flood's process.
type orders struct {
	Addr  string
	Files authz.Files
	Sizes sizes
}

const (
	largeHeaders = 16 << 20
	largeMessage = 16 << 20
	openStreams  = 160 // more than a connection may have
	claimPath    = "/opsledger.v1.LedgerService/Claim"
)

// flood is one rise and fall.
type flood struct {
	orders
	config *tls.Config
	bomb   []byte
	counts sync.Map // of *atomic.Int64
	group  sync.WaitGroup
}

func (f *flood) count(what string) {
	n, _ := f.counts.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

func (f *flood) counted() map[string]int {
	all := map[string]int{}
	f.counts.Range(func(what, n any) bool {
		all[what.(string)] = int(n.(*atomic.Int64).Load())
		return true
	})
	return all
}

// beTheFlood rises and falls as it is told, until there is nobody to tell it.
func beTheFlood(path string, in io.Reader, out io.Writer) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	material, err := authz.NewMaterialReloader(o.Files, time.Now, nil)
	if err != nil {
		return err
	}
	packed := bomb()
	var f *flood
	var fall context.CancelFunc
	for words := bufio.NewScanner(in); words.Scan(); {
		switch words.Text() {
		case `"rise"`:
			f = &flood{orders: o, config: authz.ClientTLS(material, "127.0.0.1"), bomb: packed}
			var ctx context.Context
			ctx, fall = context.WithCancel(context.Background())
			defer fall()
			if err := f.rise(ctx); err != nil {
				return err
			}
		case `"fall"`:
			fall()
			f.group.Wait()
		}
		if err := json.NewEncoder(out).Encode(f.counted()); err != nil {
			return err
		}
	}
	return nil
}

// rise starts everything and returns when the idle connections are there and idle, and all others have begun.
func (f *flood) rise(ctx context.Context) error {
	idle := make(chan error)
	const dialers = 8
	for i := range dialers {
		f.group.Go(func() { idle <- f.idle(ctx, (f.Sizes.Idle+i)/dialers) })
	}
	var failed error
	for range dialers {
		if err := <-idle; err != nil {
			failed = err
		}
	}
	if failed != nil {
		return fmt.Errorf("idle connections: %w", failed)
	}
	f.each(ctx, f.Sizes.Handshakes, f.slowHandshake)
	f.each(ctx, f.Sizes.Streams, f.streams)
	f.each(ctx, f.Sizes.Headers, f.headers)
	f.each(ctx, f.Sizes.Messages, f.messages)
	f.each(ctx, f.Sizes.Resets, f.resets)
	f.each(ctx, f.Sizes.Requests, f.requests)
	pause(ctx, 2*spread)
	return nil
}

// spread is over how long those who do the same begin: a flood is more than its first moment.
const spread = 500 * time.Millisecond

// each lets so many go on doing something, with a pause in between, until ctx ends.
func (f *flood) each(ctx context.Context, n int, do func(context.Context)) {
	for i := range n {
		f.group.Go(func() {
			pause(ctx, time.Duration(i)*spread/time.Duration(n))
			for ctx.Err() == nil {
				do(ctx)
				pause(ctx, 250*time.Millisecond)
			}
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// closing closes a connection when ctx ends; the returned function does it before.
func closing(ctx context.Context, conn net.Conn) func() {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func() {
		stop()
		_ = conn.Close()
	}
}

func (f *flood) idle(ctx context.Context, n int) error {
	for range n {
		p, err := f.connect(ctx)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, p.close)
		f.count("idle connections")
	}
	return nil
}

// slowHandshake begins a handshake, a byte at a time, until the server has had enough.
func (f *flood) slowHandshake(ctx context.Context) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.Addr)
	if err != nil {
		return
	}
	defer closing(ctx, conn)()
	f.count("handshakes begun")
	hello := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 506)...)
	for _, b := range hello {
		if _, err := conn.Write([]byte{b}); err != nil {
			f.count("handshakes ended by the server")
			return
		}
		pause(ctx, 250*time.Millisecond)
	}
}

// streams opens more streams than a connection may have, and leaves them open.
func (f *flood) streams(ctx context.Context) {
	p, err := f.connect(ctx)
	if err != nil {
		return
	}
	defer p.close()
	for range openStreams {
		if p.open(f.Addr) != nil || ctx.Err() != nil {
			return
		}
		f.count("streams opened")
		pause(ctx, time.Second/time.Duration(f.Sizes.Opens))
	}
	select {
	case <-ctx.Done():
	case <-p.ended:
	}
}

// headers sends 16 MB of headers for one stream.
func (f *flood) headers(ctx context.Context) {
	p, err := f.connect(ctx)
	if err != nil {
		return
	}
	defer p.close()
	p.block.Reset()
	_ = p.encoder.WriteField(hpack.HeaderField{Name: "x-large", Value: strings.Repeat("~", 4<<10), Sensitive: true})
	fragment := bytes.Repeat(p.block.Bytes(), 3) // a frame has at most 16 KiB
	if p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream(), BlockFragment: fragment}) != nil {
		return
	}
	f.count("large headers begun")
	for sent := 0; sent < largeHeaders; sent += len(fragment) {
		if p.framer.WriteContinuation(p.last, false, fragment) != nil {
			f.count("large headers ended by the server")
			return
		}
	}
	f.count("large headers sent")
}

// messages begins requests of 16 MB, and sends some that are small on the way and 16 MB when they are unpacked.
func (f *flood) messages(ctx context.Context) {
	p, err := f.connect(ctx)
	if err != nil {
		return
	}
	defer p.close()
	large := append(prefix(false, largeMessage), make([]byte, 4<<10)...)
	for ctx.Err() == nil {
		if p.open(f.Addr) != nil || p.framer.WriteData(p.last, false, large) != nil ||
			p.open(f.Addr, "grpc-encoding", gzip.Name) != nil {
			return
		}
		for data := f.bomb; len(data) > 0; {
			n := min(len(data), 16<<10)
			if p.framer.WriteData(p.last, n == len(data), data[:n]) != nil {
				return
			}
			data = data[n:]
		}
		f.count("large messages")
		pause(ctx, 100*time.Millisecond)
	}
}

// prefix is what gRPC puts before a message.
func prefix(compressed bool, size int) []byte {
	b := make([]byte, 1, 5)
	if compressed {
		b[0] = 1
	}
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

// bomb is a message that is small on the way.
func bomb() []byte {
	var packed bytes.Buffer
	w := stdgzip.NewWriter(&packed)
	_, _ = w.Write(make([]byte, largeMessage)) // a buffer takes all
	_ = w.Close()
	return append(prefix(true, packed.Len()), packed.Bytes()...)
}

// resets opens streams with a request and resets them.
func (f *flood) resets(ctx context.Context) {
	p, err := f.connect(ctx)
	if err != nil {
		return
	}
	defer p.close()
	const together = 20
	tick := time.NewTicker(together * time.Second / time.Duration(f.Sizes.PerSecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.ended:
			f.count("resetting connections ended by the server")
			return
		case <-tick.C:
		}
		for range together {
			if p.open(f.Addr) != nil || p.framer.WriteData(p.last, true, make([]byte, 5)) != nil || p.framer.WriteRSTStream(p.last, http2.ErrCodeCancel) != nil {
				return
			}
			f.count("resets")
		}
	}
}

// requests asks for more than its limit lets it have.
func (f *flood) requests(ctx context.Context) {
	conn, err := grpc.NewClient(f.Addr, grpc.WithTransportCredentials(credentials.NewTLS(f.config)))
	if err != nil {
		return
	}
	defer conn.Close()
	client := pb.NewLedgerServiceClient(conn)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := client.GetTool(ctx, &pb.GetToolRequest{Tool: "tickets.create"})
		cancel()
		if code := status.Code(err); code != codes.Canceled {
			f.count("requests: " + code.String())
		}
	}
}

// plain is a connection of HTTP/2 without the manners of a client.
type plain struct {
	conn    *tls.Conn
	close   func()
	framer  *http2.Framer
	block   *bytes.Buffer
	encoder *hpack.Encoder
	last    uint32 // the stream that was opened last
	next    uint32
	ended   chan struct{} // closed when the server has ended it
}

func (f *flood) connect(ctx context.Context) (*plain, error) {
	raw, err := (&tls.Dialer{Config: f.config}).DialContext(ctx, "tcp", f.Addr)
	if err != nil {
		return nil, err
	}
	conn := raw.(*tls.Conn)
	p := &plain{conn: conn, close: closing(ctx, conn), framer: http2.NewFramer(conn, conn), block: &bytes.Buffer{}, next: 1, ended: make(chan struct{})}
	p.encoder = hpack.NewEncoder(p.block)
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = p.framer.WriteSettings()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	f.group.Go(func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, conn) // settings are never acknowledged, and no answer is read
	})
	return p, nil
}

// stream is a fresh one.
func (p *plain) stream() uint32 {
	stream := p.next
	p.last, p.next = stream, stream+2 // those of clients are odd
	return stream
}

// open begins a Claim, with more headers.
func (p *plain) open(authority string, more ...string) error {
	p.block.Reset()
	fields := append([]string{
		":method", "POST", ":scheme", "https", ":path", claimPath, ":authority", authority, "content-type", "application/grpc", "te", "trailers",
	}, more...)
	for i := 0; i < len(fields); i += 2 {
		if err := p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return err
		}
	}
	return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream(), BlockFragment: p.block.Bytes(), EndHeaders: true})
}
