// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
)

// OneSend is a transport for the client that an Execute sends its one request with, over base (nil: http.DefaultTransport), which must not
// retry by itself. Requests need the context that Execute was given. It refuses a second one under the same grant, a redirect or a
// retry among them, and one after the send window; it keeps net/http from sending a request again by itself, as it does on a new
// connection with those that carry an Idempotency-Key; and it lets [Do] know that the request left exactly once and was answered,
// which makes a rejection definite.
//
// If no connection came about and base is an *http.Transport, the error says [NotSent]; wrap it, if at all, by %w. So what traces or
// signs requests goes around this transport rather than under it. Calls that are not the effect (a token, a look-up) go through
// another client.
func OneSend(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &oneSend{base}
}

type oneSend struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *oneSend) RoundTrip(req *http.Request) (*http.Response, error) {
	h, ok := req.Context().Value(holdKey{}).(*hold)
	if !ok {
		closeBody(req)
		return nil, &notSentError{ErrNoGrant, true}
	}
	if err := h.sending(underWay); err != nil {
		closeBody(req)
		if errors.Is(err, ErrSentAlready) { // this request was not, but another one may have been
			return nil, err
		}
		return nil, &notSentError{err, true}
	}
	empty := req.Body == nil || req.Body == http.NoBody
	once := req.Clone(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { h.seeking() },
		GotConn: func(c httptrace.GotConnInfo) { onConnection(h, c.Conn, t.shared(c.Conn), empty) },
	}))
	// A transport sends again what it can read again. An empty body that is not http.NoBody can't be.
	once.GetBody = nil
	if empty && repeatable(once) {
		once.Body, once.ContentLength = io.NopCloser(unrepeatable{}), 0
	}
	if once.Body != nil && once.Body != http.NoBody {
		once.Body = windowBody{once.Body, h}
	}
	res, err := t.base.RoundTrip(once)
	if err == nil {
		h.landed()
		return res, nil
	}
	if h.lost(t.traced(once)) {
		return nil, &notSentError{err, true}
	}
	return res, err
}

// CloseIdleConnections lets http.Client close those of the base.
func (t *oneSend) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// traced: the base tells of each connection that the request is written to. A scheme that was registered with it need not.
func (t *oneSend) traced(req *http.Request) bool {
	_, is := t.base.(*http.Transport)
	return is && req.URL != nil && (req.URL.Scheme == "http" || req.URL.Scheme == "https")
}

// shared: other requests may be on the connection, since it speaks HTTP/2.
func (t *oneSend) shared(conn net.Conn) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	base, ok := t.base.(*http.Transport)
	return conn == nil || ok && base.Protocols != nil && base.Protocols.UnencryptedHTTP2()
}

// onConnection ends the execution before a request is written that must not be any more. HTTP/2 looks at its context again before it
// writes. HTTP/1 does not, but its connection is this request's alone: closed, it takes nothing. Over HTTP/2 net/http also
// sends an empty request again that was refused or broken off.
func onConnection(h *hold, conn net.Conn, shared, empty bool) {
	if why := h.connected(shared && empty, !shared); why != nil {
		h.stop(why)
		if !shared {
			_ = conn.Close()
		}
	}
}

// repeatable is a request without a body that net/http would send again by itself: see http.Transport.
func repeatable(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return len(req.Header["Idempotency-Key"]) > 0 || len(req.Header["X-Idempotency-Key"]) > 0
}

// windowBody is a body that is not read, and so not written, unless that begins within the send window.
type windowBody struct {
	io.ReadCloser
	hold *hold
}

func (b windowBody) Read(p []byte) (int, error) {
	if err := b.hold.mayRead(); err != nil {
		return 0, err
	}
	return b.ReadCloser.Read(p)
}

type unrepeatable struct{}

func (unrepeatable) Read([]byte) (int, error) { return 0, io.EOF }

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
