// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// roundTripper is a transport that only its own code knows.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// through sends one request, and reads its answer.
func through(ctx context.Context, transport http.RoundTripper, method, url, body string) error {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return NotSent(err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// counting is a target that counts what arrives.
func counting(t *testing.T) (arrived *atomic.Int32, server *httptest.Server) {
	arrived = new(atomic.Int32)
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are broken off
	t.Cleanup(server.Close)
	return arrived, server
}

// http1 is a transport that leaves https to others.
func http1() *http.Transport {
	only := new(http.Protocols)
	only.SetHTTP1(true)
	return &http.Transport{Protocols: only}
}

// TestNoResendOverHTTP2: net/http sends again over HTTP/2 what the target refused or broke off, if it can, and the guard keeps it from
// that.
func TestNoResendOverHTTP2(t *testing.T) {
	for name, tt := range map[string]struct {
		code    http2.ErrCode
		noTLS   bool // without TLS
		method  string
		body    string
		guarded bool
		arrived int32
	}{
		"refused, empty":                   {http2.ErrCodeRefusedStream, false, http.MethodPost, "", true, 1},
		"refused, with a body":             {http2.ErrCodeRefusedStream, false, http.MethodPost, "{}", true, 1},
		"broken off, empty":                {http2.ErrCodeProtocol, false, http.MethodPost, "", true, 1},
		"broken off, empty, without TLS":   {http2.ErrCodeProtocol, true, http.MethodPost, "", true, 1},
		"broken off, empty, repeatable":    {http2.ErrCodeProtocol, false, http.MethodGet, "", true, 1},
		"broken off, with a body":          {http2.ErrCodeProtocol, false, http.MethodPut, "{}", true, 1},
		"broken off, net/http by itself":   {http2.ErrCodeProtocol, false, http.MethodPost, "", false, 2},
		"broken off, net/http with a body": {http2.ErrCodeProtocol, false, http.MethodPut, "{}", false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int32
			url, base := refusesFirst(t, tt.code, tt.noTLS, &arrived)
			defer base.CloseIdleConnections()
			told, _ := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, _ Call) (ticket, error) {
				transport := http.RoundTripper(base)
				if tt.guarded {
					transport = OneSend(base)
				}
				return ticket{ID: "T-1"}, through(ctx, transport, tt.method, url, tt.body)
			})
			if arrived.Load() != tt.arrived || tt.guarded && told != "unknown recorded=true" {
				t.Errorf("told %q, the request arrived %d times, want %d", told, arrived.Load(), tt.arrived)
			}
		})
	}
}

// refusesFirst is a target that speaks HTTP/2, resets the first request and answers the others, and a transport to it.
func refusesFirst(t *testing.T, code http2.ErrCode, noTLS bool, arrived *atomic.Int32) (url string, base *http.Transport) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	url, base = "http://"+listener.Addr().String(), &http.Transport{Protocols: new(http.Protocols)}
	base.Protocols.SetUnencryptedHTTP2(true)
	if !noTLS {
		_, other := counting(t)
		other.StartTLS() // lends its certificate
		trusted := other.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		listener = tls.NewListener(listener, &tls.Config{Certificates: other.TLS.Certificates, NextProtos: []string{"h2"}})
		url, base = "https://"+listener.Addr().String(), &http.Transport{TLSClientConfig: trusted, ForceAttemptHTTP2: true}
	}
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				framer := http2.NewFramer(conn, conn)
				for err := framer.WriteSettings(); err == nil; {
					var frame http2.Frame
					if frame, err = framer.ReadFrame(); err != nil {
						return
					}
					request, ok := frame.(*http2.HeadersFrame)
					switch {
					case !ok:
					case arrived.Add(1) == 1:
						err = framer.WriteRSTStream(request.StreamID, code)
					default:
						var fields bytes.Buffer
						_ = hpack.NewEncoder(&fields).WriteField(hpack.HeaderField{Name: ":status", Value: "204"})
						err = framer.WriteHeaders(http2.HeadersFrameParam{
							StreamID: request.StreamID, BlockFragment: fields.Bytes(), EndHeaders: true, EndStream: true,
						})
					}
				}
			}()
		}
	}()
	return url, base
}

// TestSuspendedWhileItConnects: a process that was stopped while it connected, until its send window was over, sends nothing.
func TestSuspendedWhileItConnects(t *testing.T) {
	for name, tt := range map[string]struct {
		http2, wrapped bool
		body           string
		want           string // what is told begins so
	}{
		"with a body":            {false, false, "{}", "error: nothing was sent"},
		"empty":                  {false, false, "", "error: nothing was sent"},
		"over HTTP/2":            {true, false, "{}", "unknown"},
		"over HTTP/2, empty":     {true, false, "", "unknown"},
		"through another's code": {false, true, "{}", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			arrived, target := counting(t)
			target.EnableHTTP2 = tt.http2
			target.StartTLS()
			base := target.Client().Transport.(*http.Transport)
			var slept atomic.Int64
			base.TLSClientConfig.VerifyConnection = func(tls.ConnectionState) error { // at the end of the handshake
				slept.Store(int64(2 * time.Minute))
				return nil
			}
			seen := false
			takes := func(c httptrace.GotConnInfo) { // after the guard has seen it
				seen = true
				if _, err := c.Conn.Write(nil); err == nil && !tt.http2 {
					t.Error("the connection can be written to")
				}
			}
			var transport http.RoundTripper = base
			if tt.wrapped {
				transport = roundTripper(base.RoundTrip)
			}
			l := serve(t, grants(time.Minute, time.Hour))
			l.now = func() time.Duration { return time.Duration(slept.Load()) }
			var runs atomic.Int32
			out, err := Do(t.Context(), l, creating(&runs, func(ctx context.Context, _ Call) (ticket, error) {
				return ticket{ID: "T-1"}, through(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: takes}),
					OneSend(transport), http.MethodPost, target.URL, tt.body)
			}), intent, request{})
			told := variant(out)
			if err != nil {
				told = "error: " + err.Error()
			}
			target.Close() // so that all has arrived that will
			if arrived.Load() != 0 || seen && !strings.HasPrefix(told, tt.want) {
				t.Errorf("told %q, %d requests have arrived", told, arrived.Load())
			}
			if !seen && !tt.wrapped && !strings.HasPrefix(told, "error: nothing was sent") { // the execution had ended before
				t.Errorf("told %q, without a connection", told)
			}
		})
	}
}

// TestSuspendedBeforeItWrites: a process that was stopped when it had its connection does not write its request's body any more.
func TestSuspendedBeforeItWrites(t *testing.T) {
	var whole atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			whole.Add(1)
		}
	}))
	defer target.Close()
	var slept atomic.Int64
	l := serve(t, grants(time.Minute, time.Hour))
	l.now = func() time.Duration { return time.Duration(slept.Load()) }
	var runs atomic.Int32
	out, err := Do(t.Context(), l, creating(&runs, func(ctx context.Context, _ Call) (ticket, error) {
		return ticket{ID: "T-1"}, through(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { slept.Store(int64(2 * time.Minute)) }, // after the guard has seen it
		}), OneSend(nil), http.MethodPost, target.URL, "{}")
	}), intent, request{})
	target.Close()
	if got := variant(out); err != nil || got != "unknown recorded=true" || whole.Load() != 0 {
		t.Errorf("told %q, %v, %d whole requests", got, err, whole.Load())
	}
	if !errors.Is(whyUnknown(out), ErrWindowOver) {
		t.Errorf("the cause is %v", whyUnknown(out))
	}
}

// TestUnderWay: while a request is under way nobody knows that it was not sent, nor what it was answered.
func TestUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		says     error
		reported string
	}{
		"not sent": {NotSent(errors.New("gave up")), "unknown UNCLASSIFIED"},
		"rejected": {declined, "rejected card_declined once=false"},
		"refused":  {RefusedBeforeAcceptance(errors.New("429"), 0), "not executed REFUSED_BEFORE_ACCEPTANCE once=false"},
	} {
		t.Run(name, func(t *testing.T) {
			began, end, back := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			deaf := roundTripper(func(*http.Request) (*http.Response, error) {
				close(began)
				<-end
				return nil, errors.New("reset")
			})
			f := grants(time.Minute, time.Minute)
			f.complete = func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
				return completed(opsledgerv1.State_STATE_UNKNOWN, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
			}
			told, got := ended(t, f, func(ctx context.Context, _ Call) (ticket, error) {
				go func() { back <- through(ctx, OneSend(deaf), http.MethodPost, "http://target", "{}") }()
				<-began
				return ticket{}, tt.says
			})
			close(end)
			<-back
			if told != "unknown recorded=true" || got != tt.reported {
				t.Errorf("told %q, reported %q, want %q", told, got, tt.reported)
			}
		})
	}
}

// TestWhatTheTransportSaw: what Execute says of its request is measured by what became of it.
func TestWhatTheTransportSaw(t *testing.T) {
	answers := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	breaks := roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") })
	dropping := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer dropping.Close()
	other := http1() // speaks protocols that are not net/http's own
	reads := roundTripper(func(r *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, r.Body)
		return nil, errors.Join(errors.New("reset"), err)
	})
	other.RegisterProtocol("quic", breaks)
	other.RegisterProtocol("https", reads)
	for name, tt := range map[string]struct {
		base http.RoundTripper
		url  string
		body string
		says func(error) error
		want string // what is reported
	}{
		"answered, called not sent":                   {answers, "http://target", "{}", NotSent, "unknown UNCLASSIFIED"},
		"answered, and rejected":                      {answers, "http://target", "{}", func(error) error { return declined }, "rejected card_declined once=true"},
		"broken, called not sent, which nobody knows": {breaks, "http://target", "{}", NotSent, "not executed NEVER_SENT once=false"},
		"broken, called rejected":                     {breaks, "http://target", "{}", func(error) error { return declined }, "rejected card_declined once=false"},
		"broken, on a protocol of its own":            {other, "quic://target", "{}", func(err error) error { return err }, "unknown UNCLASSIFIED"},
		"broken, on another's https":                  {other, "https://target", "{}", func(err error) error { return err }, "unknown UNCLASSIFIED"},
		"malformed":                                   {&http.Transport{}, "http://", "{}", func(err error) error { return err }, "not executed NEVER_SENT once=false"},
		"broken off, called not sent":                 {nil, dropping.URL, "", NotSent, "unknown CONNECTION_LOST"},
	} {
		t.Run(name, func(t *testing.T) {
			_, reported := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, _ Call) (ticket, error) {
				return ticket{}, tt.says(through(ctx, OneSend(tt.base), http.MethodPost, tt.url, tt.body))
			})
			if reported != tt.want {
				t.Errorf("reported %q, want %q", reported, tt.want)
			}
		})
	}
}

// TestAnotherAfterNoConnection: what found no connection was the one send all the same, and whatever is asked for after it, nothing was
// sent.
func TestAnotherAfterNoConnection(t *testing.T) {
	arrived, target := counting(t)
	target.Start()
	const nobody = "http://127.0.0.1:1"
	for name, tt := range map[string]struct {
		urls    []string
		told    string
		arrived int32
	}{
		"a request":                    {[]string{nobody, target.URL}, "error: nothing was sent: the one send under this grant found no connection", 0},
		"by hand":                      {[]string{nobody, "by hand"}, "error: nothing was sent: the one send under this grant found no connection", 0},
		"the other way around":         {[]string{target.URL, nobody}, "unknown recorded=true", 1},
		"by hand before":               {[]string{"by hand", nobody}, "unknown recorded=true", 0},
		"by hand, and without a grant": {[]string{"by hand", "without"}, "unknown recorded=true", 0},
	} {
		t.Run(name, func(t *testing.T) {
			arrived.Store(0)
			told, _ := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, c Call) (_ ticket, err error) {
				for _, url := range tt.urls {
					switch url {
					case "by hand":
						if err = c.Sending(); err != nil {
							err = NotSent(err)
						}
					case "without":
						err = through(context.WithoutCancel(t.Context()), OneSend(nil), http.MethodPost, target.URL, "{}")
					default:
						err = through(ctx, OneSend(nil), http.MethodPost, url, "{}")
					}
				}
				return ticket{ID: "T-1"}, err
			})
			if told != tt.told || arrived.Load() != tt.arrived {
				t.Errorf("told %q after %d requests, want %q after %d", told, arrived.Load(), tt.told, tt.arrived)
			}
		})
	}
}

// TestNoAnotherAfterItWasRead: a request whose body was read may have left, also where no connection was seen.
func TestNoAnotherAfterItWasRead(t *testing.T) {
	var tries atomic.Int32
	base := http1()
	base.RegisterProtocol("https", roundTripper(func(r *http.Request) (*http.Response, error) {
		tries.Add(1)
		_, err := io.Copy(io.Discard, r.Body)
		return nil, errors.Join(errors.New("reset"), err)
	}))
	told, _ := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, _ Call) (ticket, error) {
		var errs []error
		for range 2 {
			errs = append(errs, through(ctx, OneSend(base), http.MethodPost, "https://target", "{}"))
		}
		return ticket{}, errors.Join(errs...)
	})
	if told != "unknown recorded=true" || tries.Load() != 1 {
		t.Errorf("told %q after %d requests", told, tries.Load())
	}
}

// TestManyAtOnce: of many requests under one grant one is sent.
func TestManyAtOnce(t *testing.T) {
	arrived, target := counting(t)
	target.Start()
	told, _ := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, _ Call) (ticket, error) {
		errs := make([]error, 16)
		var all sync.WaitGroup
		for n := range errs {
			all.Go(func() { errs[n] = through(ctx, OneSend(nil), http.MethodPost, target.URL, "{}") })
		}
		all.Wait()
		return ticket{}, NotSent(errors.Join(errs...))
	})
	if told != "unknown recorded=true" || arrived.Load() != 1 {
		t.Errorf("told %q after %d requests", told, arrived.Load())
	}
}

// TestOneSendMadeAnew: an Execute that makes its client itself has the connections of those before.
func TestOneSendMadeAnew(t *testing.T) {
	_, target := counting(t)
	var connections atomic.Int32
	target.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	target.Start()
	for range 5 {
		told, _ := ended(t, grants(time.Minute, time.Minute), func(ctx context.Context, _ Call) (ticket, error) {
			return ticket{ID: "T-1"}, through(ctx, OneSend(nil), http.MethodPost, target.URL, "{}")
		})
		if !strings.HasPrefix(told, "done") {
			t.Error(told)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
