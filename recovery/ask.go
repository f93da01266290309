// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// AskerOptions of an Asker. The zero value is useful.
type AskerOptions struct {
	// Allowed are places inside of the operator's network that may be asked; without it only public addresses are.
	Allowed Allowed
	// MaxBody is the most of an answer's body that is read, in bytes; 0: 1 MiB. A longer one says nothing.
	MaxBody int64
	// Env gives the variables that headers name; nil: those of the process.
	Env func(name string) string
	// RootCAs are believed for https; nil: those of the system, or of SSL_CERT_FILE.
	RootCAs *x509.CertPool
}

// Asker sends questions to targets over HTTP. It goes where the question says and nowhere else, and waits and reads no more than it is
// allowed. Any number of goroutines may use one.
type Asker struct {
	client  *http.Client
	maxBody int64
	env     func(string) string
}

// Question is one GET request.
type Question struct {
	URL     string
	Headers []Header
}

// Header of a question: Text, and behind it what File (without white space around it) or Env holds.
type Header struct {
	Name, Text, File, Env string
}

// Response is what a target answered.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Unasked is why there is no answer. Its text is constant: it shows no address, header or answer.
type Unasked struct {
	Cause ledger.IndeterminateCause
	Why   string
}

func (u *Unasked) Error() string { return u.Why }

// The reasons.
var (
	unaskedHeader   = &Unasked{ledger.QueryNotAuthorized, "a header's file or variable can't be read, is empty, or holds no header value"}
	unaskedPlace    = &Unasked{ledger.QueryNotAuthorized, "its address is inside of the operator's network, and probe-allow does not list it"}
	unaskedURL      = &Unasked{ledger.QueryNotUnderstood, "the address can't be read"}
	unaskedRedirect = &Unasked{ledger.QueryNotUnderstood, "it answered with a redirect, which is not followed"}
	unaskedLength   = &Unasked{ledger.QueryNotUnderstood, "its answer is too long"}
	unaskedTLS      = &Unasked{ledger.QueryUnavailable, "its certificate can't be verified, or it speaks no TLS"}
	unaskedTime     = &Unasked{ledger.QueryTimeout, "it did not answer in time"}
	unaskedLost     = &Unasked{ledger.QueryUnavailable, "it can't be reached, or the connection was lost"}
)

const (
	usualBody    = 1 << 20
	largestHead  = 64 << 10
	largestValue = 16 << 10
)

// NewAsker makes one.
func NewAsker(o AskerOptions) *Asker {
	a := &Asker{maxBody: o.MaxBody, env: o.Env}
	if a.maxBody <= 0 {
		a.maxBody = usualBody
	}
	if a.env == nil {
		a.env = os.Getenv
	}
	a.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would choose the address
			DialContext:            o.Allowed.Dial,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs},
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // a short body stays short
			MaxResponseHeaderBytes: largestHead,
			MaxIdleConnsPerHost:    4,
			MaxIdleConns:           64,
			IdleConnTimeout:        30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a
}

// Get asks. The end of ctx is its time limit, which it should have.
func (a *Asker) Get(ctx context.Context, q Question) (Response, *Unasked) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.URL, nil)
	if err != nil {
		return Response{}, unaskedURL
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "ledgerd")
	for _, h := range q.Headers {
		value, ok := a.value(h)
		if !ok {
			return Response{}, unaskedHeader
		}
		request.Header.Set(h.Name, value)
	}
	reached := false
	answer, err := a.client.Do(request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }})))
	if err != nil {
		return Response{}, why(ctx, err, reached)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 && answer.StatusCode < 400 { // not the answer to what was asked, whatever an expression makes of it
		return Response{}, unaskedRedirect
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, a.maxBody+1))
	switch {
	case err != nil:
		return Response{}, why(ctx, err, true)
	case int64(len(body)) > a.maxBody:
		return Response{}, unaskedLength
	}
	return Response{Status: answer.StatusCode, Header: answer.Header, Body: body}, nil
}

// value of a header. It is read each time: secrets are rotated.
func (a *Asker) value(h Header) (string, bool) {
	secret := ""
	switch {
	case h.File != "":
		file, err := os.Open(h.File)
		if err != nil {
			return "", false
		}
		defer file.Close()
		text, err := io.ReadAll(io.LimitReader(file, largestValue+1))
		if err != nil || len(text) > largestValue {
			return "", false
		}
		secret = strings.TrimSpace(string(text))
	case h.Env != "":
		secret = a.env(h.Env)
	default:
		return h.Text, true
	}
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return h.Text + secret, secret != "" && strings.IndexFunc(secret, control) < 0
}

// why sorts an error. Its own text has the address. Where no connection was made in time, nobody was asked.
func why(ctx context.Context, err error, reached bool) *Unasked {
	var timeout net.Error
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, ErrPlace):
		return unaskedPlace
	case errors.As(err, &certificate), errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return unaskedTLS
	case !reached:
		return unaskedLost
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return unaskedTime
	default:
		return unaskedLost
	}
}
