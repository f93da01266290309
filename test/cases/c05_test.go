// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/target"
)

// The answer to the first call is lost, and all later ones are normal; workers use the Go SDK with its default retry policy. What only reads is called again;
// what can be asked about is asked about first, and sent at most once more, under the same key; what is opaque is called once, and a person gets it.
func TestC05(t *testing.T) {
	lost, dropped := target.AcceptReset().Times(1), target.DropBeforeAccept().Times(1)
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Run("a read", func(t *testing.T) {
				t.Parallel()
				readAgain(t, newRecovering(t, store, nodeOptions{}))
			})
			for _, tool := range []string{"card.charge", "ticket.create"} {
				t.Run(tool+", made and not answered", func(t *testing.T) {
					t.Parallel()
					askedFirst(t, newRecovering(t, store, nodeOptions{}), tool, lost, 1)
				})
				t.Run(tool+", dropped", func(t *testing.T) {
					t.Parallel()
					askedFirst(t, newRecovering(t, store, nodeOptions{}), tool, dropped, 2)
				})
			}
			t.Run("a message", func(t *testing.T) {
				t.Parallel()
				sentOnce(t, newRecovering(t, store, nodeOptions{}), lost)
			})
		})
	}
}

// sdkTool is how workers call the target for a tool.
type sdkTool struct {
	service           target.Service
	method, path, key string // key: the header that carries the downstream key
	request           map[string]string
}

var sdkTools = map[string]sdkTool{
	"ticket.get":    {target.Tickets, http.MethodGet, "/tickets/T-1001", "", map[string]string{"id": "T-1001"}},
	"ticket.create": {target.Tickets, http.MethodPost, "/tickets", "Idempotency-Key", map[string]string{"title": "disk full", "queue": "ops"}},
	"card.charge":   {target.Payments, http.MethodPost, "/charges", "Idempotency-Key", effectRequest},
	"mail.send":     {target.Messages, http.MethodPost, "/messages", "X-Reference", map[string]string{"to": "A"}},
}

// sdkCall is one intent, as a worker keeps it.
type sdkCall struct {
	sdkTool
	ledger *client.Ledger
	effect client.Effect[map[string]string, *pb.ResourceRef]
	intent client.Intent
}

// newCall is a call of the tool at a URL, over net/http with its connections and its own retries, as workers do it.
func newCall(t *testing.T, r recovering, tool, url string) sdkCall {
	t.Helper()
	l, err := client.Dial(t.Context(), sdkConfig(t, r.node.grpcAddr, billing))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	c := sdkCall{sdkTool: sdkTools[tool], ledger: l, intent: client.Intent{Task: unique(t), Step: "call", Time: time.Now()}}
	sends := http.Client{Transport: client.OneSend(transport)}
	c.effect = client.Effect[map[string]string, *pb.ResourceRef]{
		Tool: tool, Lease: 2 * time.Second, Wait: client.NoWait,
		Execute: func(ctx context.Context, call client.Call, body map[string]string) (*pb.ResourceRef, error) {
			text, err := json.Marshal(body)
			if err != nil {
				return nil, client.NotSent(err)
			}
			req, err := http.NewRequestWithContext(ctx, c.method, url+c.path, bytes.NewReader(text))
			if err != nil {
				return nil, client.NotSent(err)
			}
			if c.key != "" {
				req.Header.Set(c.key, call.Key)
			}
			answer, err := sends.Do(req)
			if err != nil {
				return nil, err
			}
			defer answer.Body.Close()
			made := &pb.ResourceRef{Type: string(c.service)}
			if answer.StatusCode >= http.StatusMultipleChoices {
				return nil, fmt.Errorf("the target answered with status %d", answer.StatusCode)
			}
			return made, json.NewDecoder(answer.Body).Decode(&struct {
				ID *string `json:"id"`
			}{&made.Id})
		},
		Resource: func(made *pb.ResourceRef) *pb.ResourceRef { return made },
	}
	return c
}

// do asks the ledger once, and executes if it is told to. It returns the resource, or what is unknown.
func (c sdkCall) do(t *testing.T) (string, *client.Unknown) {
	t.Helper()
	out, err := client.Do(within(t), c.ledger, c.effect, c.intent, c.request)
	if err != nil {
		t.Fatal(err)
	}
	var unknown *client.Unknown
	return client.Match(out,
		func(d client.Done[*pb.ResourceRef]) string { return d.Result.GetResource().GetId() },
		func(r client.Rejection) string { t.Fatal(r.Err()); return "" },
		func(u client.Unknown) string { unknown = &u; return "" }), unknown
}

// readAgain reads a ticket through a proxy that resets the first answer.
func readAgain(t *testing.T, r recovering) {
	made, err := r.ft.CreateTicket(within(t), "", target.TicketRequest{Title: "disk full"})
	if err != nil {
		t.Fatal(err)
	}
	first := faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}
	var answers int
	proxy, err := faultproxy.Start("tcp", strings.TrimPrefix(r.ft.URL(), "http://"), faultproxy.Options{
		OnServerData: func(int, []byte) (a faultproxy.Action) {
			if answers++; answers == 1 {
				a.Cut = &first
			}
			return a
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	c := newCall(t, r, "ticket.get", "http://"+proxy.Addr().String())
	id, unknown := c.do(t)
	if unknown != nil || id != made.ID {
		t.Errorf("the read ended with %q, %+v", id, unknown)
	}
	calls := 0
	for _, e := range r.ft.account(t).Entries {
		if e.Kind == target.Query && e.ID == made.ID {
			calls++
		}
	}
	if calls != 2 {
		t.Errorf("the target was called %d times, want 2", calls)
	}
}

// askedFirst loses a call, and asks on until the ledger knows.
func askedFirst(t *testing.T, r recovering, tool string, fault target.Knob, sends int) {
	c := newCall(t, r, tool, r.ft.URL())
	if err := r.ft.Server.SetKnobs(c.service, fault); err != nil {
		t.Fatal(err)
	}
	_, unknown := c.do(t)
	if unknown == nil || unknown.Reason != client.ReasonUnknown || !unknown.Recorded {
		t.Fatalf("the first call ended with %+v, want unknown", unknown)
	}
	settles := unknown.Operation.GetSettleTime().AsTime()
	if n := r.ft.account(t).Sends(c.service, target.AnyKey); n != 1 {
		t.Errorf("the target had %d requests when the first call had ended, want one", n)
	}
	var id string
	eventually(t, "it is known", func() bool {
		id, unknown = c.do(t)
		return unknown == nil
	})
	log := r.ft.account(t)
	made := log.Created(c.service, target.AnyKey)
	if len(made) != 1 || made[0] != id {
		t.Errorf("it ended with %q, the target has %v", id, made)
	}
	key := ""
	var asked time.Time
	for _, e := range log.Entries {
		switch {
		case e.Service != c.service:
		case e.Kind == target.Query && e.Key == key:
			asked = e.Time
		case e.Kind == target.Send && key == "":
			key = e.Key
		case e.Kind == target.Send && (e.Key != key || asked.Before(settles)):
			t.Errorf("the second request has the same key: %v; the target was asked last at %v, the settle time is %v", e.Key == key, asked, settles)
		}
	}
	if asked.IsZero() {
		t.Error("the target was not asked")
	}
	r.ft.wantAccount(t, c.service, key, 1, sends)
	r.ft.wantAccount(t, c.service, target.AnyKey, 1, sends)
}

// sentOnce loses the answer to a message.
func sentOnce(t *testing.T, r recovering, fault target.Knob) {
	c := newCall(t, r, "mail.send", r.ft.URL())
	if err := r.ft.Server.SetKnobs(c.service, fault); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if _, unknown := c.do(t); unknown == nil || unknown.Reason != client.ReasonUnknown {
			t.Fatalf("call %d ended with %+v, want unknown", n+1, unknown)
		} else if n > 0 && unknown.NextAction != pb.NextAction_NEXT_ACTION_WAIT_FOR_PERSON {
			t.Errorf("call %d is told %v", n+1, unknown.NextAction)
		} else {
			r.settles(t, unknown.OperationID, pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_NO_METHOD)
		}
	}
	r.ft.wantAccount(t, c.service, target.AnyKey, 1, 1)
}
