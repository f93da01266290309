// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/test/target"
)

// TestOneSend: what is sent by HTTP through the guard, and what follows from it.
func TestOneSend(t *testing.T) {
	declined := client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
	for name, tt := range map[string]struct {
		status  int
		execute func(context.Context, *http.Client, string) error
		want    string
		arrived int32
	}{
		"one request, rejected": {402, func(ctx context.Context, c *http.Client, url string) error {
			return errors.Join(post(ctx, c, url), declined)
		}, "rejected card_declined", 1},
		"rejected, but sent elsewhere": {402, func(ctx context.Context, _ *http.Client, url string) error {
			return errors.Join(post(ctx, http.DefaultClient, url), declined)
		}, "unknown CHECK_SCHEDULED", 1},
		"a second request": {200, func(ctx context.Context, c *http.Client, url string) error {
			return errors.Join(post(ctx, c, url), post(ctx, c, url))
		}, "unknown CHECK_SCHEDULED", 1},
		"a redirect": {307, func(ctx context.Context, c *http.Client, url string) error { return post(ctx, c, url) }, "unknown CHECK_SCHEDULED", 1},
		"without the context of the execution": {200, func(_ context.Context, c *http.Client, url string) error {
			return post(context.Background(), c, url)
		}, "error", 0},
		"nobody listens": {200, func(ctx context.Context, c *http.Client, _ string) error {
			return post(ctx, c, "http://127.0.0.1:1")
		}, "error", 0},
		"called not sent after all": {200, func(ctx context.Context, c *http.Client, url string) error {
			return client.NotSent(post(ctx, c, url))
		}, "unknown CHECK_SCHEDULED", 1},
		"without a body": {204, func(ctx context.Context, c *http.Client, url string) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
			if err != nil {
				return err
			}
			req.Header.Set("Idempotency-Key", "k")
			return answer(c.Do(req))
		}, "done {C-1}", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int32
			at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				arrived.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
			}))
			defer at.Close()
			l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
			guarded := &http.Client{Transport: client.OneSend(nil)}
			defer guarded.CloseIdleConnections()
			e := charging(func(ctx context.Context, _ client.Call) (charge, error) {
				return charge{"C-1"}, tt.execute(ctx, guarded, at.URL)
			})
			intent := intended(t)
			out, err := client.Do(bounded(t), l.Client(), e, intent, ten)
			got := told(out, err)
			if strings.HasPrefix(got, "unknown") { // as somebody else is told it
				got = told(client.Do(bounded(t), l.Client(), charging(never(t)), intent, ten))
			}
			if !strings.HasPrefix(got, tt.want) || arrived.Load() != tt.arrived {
				t.Errorf("told %q after %d requests, want %q after %d", got, arrived.Load(), tt.want, tt.arrived)
			}
		})
	}
}

func post(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{}`))
	if err != nil {
		return err
	}
	return answer(c.Do(req))
}

func answer(res *http.Response, err error) error {
	if err == nil {
		err = res.Body.Close()
	}
	return err
}

// TestNoResendOnAnOldConnection: net/http sends a request with an Idempotency-Key again when a connection that it used before turns out
// to be closed, also with a body that it can read again, and the guard keeps it from that.
func TestNoResendOnAnOldConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		body    io.Reader
		guarded bool
		arrived int32
	}{
		"guarded": {nil, true, 1}, "net/http by itself": {nil, false, 2},
		"guarded, with a body": {strings.NewReader("{}"), true, 1}, "net/http by itself, with a body": {strings.NewReader("{}"), false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int32
			url := answersOnce(t, &arrived)
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			if err := get(t.Context(), &http.Client{Transport: base}, url); err != nil { // so that there is an old connection
				t.Fatal(err)
			}
			transport := http.RoundTripper(base)
			if tt.guarded {
				transport = client.OneSend(base)
			}
			l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
			got := told(client.Do(bounded(t), l.Client(), charging(func(ctx context.Context, _ client.Call) (charge, error) {
				req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, tt.body)
				if err != nil {
					return charge{}, client.NotSent(err)
				}
				req.Header.Set("Idempotency-Key", "k")
				return charge{}, answer((&http.Client{Transport: transport}).Do(req))
			}), intended(t), ten))
			if n := arrived.Load() - 1; n != tt.arrived || got != "unknown" && tt.guarded {
				t.Errorf("told %q, the request arrived %d times, want %d", got, n, tt.arrived)
			}
		})
	}
}

func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// answersOnce is a server that answers the first request of a connection and reads, and then closes, at the second.
func answersOnce(t *testing.T, arrived *atomic.Int32) (url string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for range 2 {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if arrived.Add(1) == 2 { // the request under test, on the old connection
						return
					}
					_ = req.Body.Close()
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// TestC05: the answer to the first request is lost. What reads is asked again; what has an effect is never sent again by itself.
func TestC05(t *testing.T) {
	for tool, tt := range map[string]struct {
		service target.Service
		want    string
		sends   int
		again   string // told to a second call
		custody opsledgerv1.Custody
	}{
		"ticket.get":    {target.Tickets, "done {}", 2, "done {} replayed", opsledgerv1.Custody_CUSTODY_AUTOMATION},
		"ticket.create": {target.Tickets, "unknown", 1, "unknown CHECK_SCHEDULED", opsledgerv1.Custody_CUSTODY_AUTOMATION},
		"mail.send":     {target.Messages, "unknown", 1, "unknown QUEUED", opsledgerv1.Custody_CUSTODY_QUEUED},
	} {
		t.Run(tool, func(t *testing.T) {
			ft, err := target.Start(t.Context(), target.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ft.Close() })
			fault := target.AcceptReset()
			if tool == "ticket.get" {
				fault = target.QueryDown()
			}
			if err := ft.SetKnobs(tt.service, fault.Times(1)); err != nil {
				t.Fatal(err)
			}
			l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{
				clienttest.Contract("ticket.get", ledger.Read), clienttest.Contract("ticket.create", ledger.Keyed),
			}})
			e := client.Effect[request, struct{}]{Tool: tool, Execute: func(ctx context.Context, c client.Call, r request) (struct{}, error) {
				at, err := target.Client{BaseURL: ft.URL()}, c.Sending()
				switch {
				case err != nil:
					err = client.NotSent(err)
				case tool == "ticket.get":
					_, err = at.FindTickets(ctx, c.Key)
				case tool == "ticket.create":
					_, err = at.CreateTicket(ctx, c.Key, target.TicketRequest{Title: r.Amount})
				default:
					_, err = at.SendMessage(ctx, c.Key, target.MessageRequest{To: r.Amount})
				}
				return struct{}{}, err
			}}
			intent := intended(t)
			out, err := client.Do(bounded(t), l.Client(), e, intent, ten)
			if got := told(out, err); got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
			l.Advance(30 * time.Second)
			out, err = client.Do(bounded(t), l.Client(), e, intent, ten)
			if got := told(out, err); got != tt.again {
				t.Errorf("then told %q, want %q", got, tt.again)
			}
			log, err := target.ReadLog(ft.LogPath())
			if err != nil {
				t.Fatal(err)
			}
			requests := 0
			for _, entry := range log.Entries {
				if entry.Kind == target.Send || entry.Kind == target.Query {
					requests++
				}
			}
			if effects := len(log.Created(tt.service, target.AnyKey)); requests != tt.sends || effects > 1 {
				t.Errorf("%d requests and %d effects, want %d and at most one", requests, effects, tt.sends)
			}
			found, err := l.Service().Lookup(t.Context(), &opsledgerv1.LookupRequest{
				Selector: &opsledgerv1.LookupRequest_OperationId{OperationId: operationOf(out)},
			})
			if err != nil || found.GetOperation().GetCustody() != tt.custody {
				t.Errorf("custody %v, want %v: %v", found.GetOperation().GetCustody(), tt.custody, err)
			}
		})
	}
}
