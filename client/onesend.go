// SPDX-License-Identifier: Apache-2.0

package client

import (
	"io"
	"net/http"
	"net/http/httptrace"
)

// OneSend is a transport for the client that an Execute sends its one request with, over base (nil: a copy of http.DefaultTransport).
// Requests need the context that Execute was given. It refuses a second one under the same grant, a redirect or a retry among them, and
// one after the send window; it keeps net/http from sending a request again by itself on a new connection, as it does with
// those that carry an Idempotency-Key; and it lets [Do] know that the request left exactly once, which makes a rejection definite.
//
// If no connection came about and base is an *http.Transport, the error says [NotSent]; wrap it, if at all, by %w. Calls that are not
// the effect (a token, a look-up) go through another client.
func OneSend(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
		if t, ok := base.(*http.Transport); ok {
			base = t.Clone()
		}
	}
	return &oneSend{base}
}

type oneSend struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *oneSend) RoundTrip(req *http.Request) (*http.Response, error) {
	h, ok := req.Context().Value(holdKey{}).(*hold)
	if !ok {
		closeBody(req)
		return nil, NotSent(ErrNoGrant)
	}
	_, traces := t.base.(*http.Transport)
	declare := h.sending
	if traces {
		declare = h.sendingOn
	}
	if err := declare(); err != nil {
		closeBody(req)
		if h.sent() { // this request was not, but another one was
			return nil, err
		}
		return nil, NotSent(err)
	}
	once := req.Clone(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { h.connected() },
	}))
	// A transport sends again what it can read again. An empty body that is not http.NoBody can't be.
	once.GetBody = nil
	if (once.Body == nil || once.Body == http.NoBody) && repeatable(once) {
		once.Body, once.ContentLength = io.NopCloser(unrepeatable{}), 0
	}
	if once.Body != nil && once.Body != http.NoBody {
		once.Body = windowBody{once.Body, h}
	}
	res, err := t.base.RoundTrip(once)
	if err != nil && traces && h.neverLeft() {
		return nil, NotSent(err)
	}
	return res, err
}

// CloseIdleConnections lets http.Client close those of the base.
func (t *oneSend) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
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

// windowBody is a body that is not read, and so not written, once the send window is over without a connection.
type windowBody struct {
	io.ReadCloser
	hold *hold
}

func (b windowBody) Read(p []byte) (int, error) {
	if err := b.hold.mayWrite(); err != nil {
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
