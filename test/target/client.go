// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"
)

// Class says what an error of the client proves.
type Class int

// The classes.
const (
	// Unknown: the request may have been written and no answer could be read.
	// The effect may exist, or come to exist.
	Unknown Class = iota
	// NeverSent: there was no connection, so not one byte was sent.
	NeverSent
	// Answered: the service answered with a status that is not 2xx. What that
	// proves is for the reader to know: a 504 proves nothing.
	Answered
)

// String names the class.
func (c Class) String() string {
	switch c {
	case NeverSent:
		return "never sent"
	case Answered:
		return "answered"
	default:
		return "unknown"
	}
}

// Error is the error of every method of [Client] that sends.
type Error struct {
	Class Class
	// Status, Code and RetryAfter are of the answer, where there was one.
	Status     int
	Code       string
	RetryAfter time.Duration
	// Err is what happened to the connection, where there was no answer.
	Err error
}

// Error says the class and the status; it carries nothing of the request.
func (e *Error) Error() string {
	if e.Class == Answered {
		return fmt.Sprintf("target: answered with status %d", e.Status)
	}
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return fmt.Sprintf("target: %v: deadline exceeded", e.Class)
	}
	return fmt.Sprintf("target: %v: no answer", e.Class)
}

// Unwrap returns what happened to the connection.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of an error of a [Client]; any other error is
// [Unknown].
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Unknown
}

// Client speaks to a service. Each call sends exactly one request on a
// connection of its own: net/http sends some requests again when a reused
// connection breaks, those with an Idempotency-Key header among them, and a
// ledger's worker must know how often it sent. For the same reason it follows
// no redirect and uses no proxy. The time limit is the context's.
type Client struct {
	BaseURL string
}

// CreateTicket makes a ticket.
func (c Client) CreateTicket(ctx context.Context, key string, req TicketRequest) (Ticket, error) {
	var t Ticket
	return t, c.do(ctx, http.MethodPost, "/tickets", keyed(key), req, &t)
}

// ChangeTicket changes a ticket; with a revision that is not 0 only if that is
// still the ticket's, else the answer is status 412.
func (c Client) ChangeTicket(ctx context.Context, key, id string, revision int, change TicketChange) (Ticket, error) {
	var t Ticket
	return t, c.do(ctx, http.MethodPatch, "/tickets/"+url.PathEscape(id), conditional(key, revision), change, &t)
}

// DeleteTicket removes a ticket, under the condition of ChangeTicket.
func (c Client) DeleteTicket(ctx context.Context, key, id string, revision int) error {
	return c.do(ctx, http.MethodDelete, "/tickets/"+url.PathEscape(id), conditional(key, revision), nil, nil)
}

// GetTicket reads a ticket; one that is not there is status 404.
func (c Client) GetTicket(ctx context.Context, id string) (Ticket, error) {
	var t Ticket
	return t, c.do(ctx, http.MethodGet, "/tickets/"+url.PathEscape(id), nil, nil, &t)
}

// FindTickets lists the tickets that were made under the key, oldest first.
func (c Client) FindTickets(ctx context.Context, key string) ([]Ticket, error) {
	return find[Ticket](ctx, c, "/tickets", key)
}

// Charge makes a charge, or answers the one that was made under the key.
func (c Client) Charge(ctx context.Context, key string, req ChargeRequest) (Charge, error) {
	var v Charge
	return v, c.do(ctx, http.MethodPost, "/charges", keyed(key), req, &v)
}

// FindCharges lists the charges of the key, while the service remembers it.
func (c Client) FindCharges(ctx context.Context, key string) ([]Charge, error) {
	return find[Charge](ctx, c, "/charges", key)
}

// Refund makes a refund, or answers the one that was made under the key.
func (c Client) Refund(ctx context.Context, key string, req RefundRequest) (Refund, error) {
	var v Refund
	return v, c.do(ctx, http.MethodPost, "/refunds", keyed(key), req, &v)
}

// SendMessage sends a message. The reference is written to the effect log, for
// the judge who counts; the service uses it for nothing.
func (c Client) SendMessage(ctx context.Context, reference string, req MessageRequest) (Message, error) {
	var v Message
	return v, c.do(ctx, http.MethodPost, "/messages", map[string]string{referenceHeader: reference}, req, &v)
}

// SetKnobs replaces the knobs of a service; none clears them.
func (c Client) SetKnobs(ctx context.Context, service Service, knobs ...Knob) error {
	return c.do(ctx, http.MethodPost, "/knobs", nil, knobsBody{Service: service, Knobs: knobs}, nil)
}

// Land makes all effects that late_commit holds back land now.
func (c Client) Land(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/land", nil, nil, nil)
}

func keyed(key string) map[string]string { return map[string]string{keyHeader: key} }

func conditional(key string, revision int) map[string]string {
	header := keyed(key)
	if revision != 0 {
		header["If-Match"] = strconv.Quote(strconv.Itoa(revision))
	}
	return header
}

func find[T any](ctx context.Context, c Client, path, key string) ([]T, error) {
	var list struct {
		Data []T `json:"data"`
	}
	err := c.do(ctx, http.MethodGet, path+"?idempotency_key="+url.QueryEscape(key), nil, nil, &list)
	return list.Data, err
}

// do sends one request and reads its answer into out.
func (c Client) do(ctx context.Context, method, path string, header map[string]string, body, out any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return &Error{Class: NeverSent, Err: err}
		}
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, bytes.NewReader(text))
	if err != nil {
		return &Error{Class: NeverSent, Err: err}
	}
	req.GetBody = nil // without it the transport cannot send the body again
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	once := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := once.Do(req)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err // its text holds the URL, and that a key
		}
		if !connected.Load() {
			return &Error{Class: NeverSent, Err: err}
		}
		return &Error{Class: Unknown, Err: err}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return answered(res, answer)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		return &Error{Class: Unknown, Status: res.StatusCode, Err: err}
	}
	return nil
}

// answered is the error of a status that is not 2xx; a body that cannot be
// read only costs the code.
func answered(res *http.Response, body []byte) *Error {
	e := &Error{Class: Answered, Status: res.StatusCode}
	var p problem
	if json.Unmarshal(body, &p) == nil {
		e.Code = p.Code
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
