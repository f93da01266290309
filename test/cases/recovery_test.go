// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// askedContracts let the loop ask the target at a URL. Windows are as short as a test can wait.
const askedContracts = `tools:
  ticket.get: {effect: read}
  ticket.create:
    effect: unsafe
    lease: {default: 2s, max: 4s, total: 4s}
    request: {fields: {title: {category: title}, queue: {category: target}}}
    recovery:
      method: probe
      effect_within: 4s
      repeat_when_absent: true
      probe:
        http:
          url: "URL/tickets?idempotency_key={downstream_key}"
          found: "status == 200 && size(body.data) == 1"
          not_found: "status == 200 && size(body.data) == 0"
          ambiguous: "status == 200 && size(body.data) > 1"
          observed: {title: "body.data[0].title", queue: "body.data[0].queue", created: "body.data[0].created"}
          result: {id: "body.data[0].id", type: "'ticket'"}
      verify: [title, target]
      checks: {first: 1s, max_interval: 5s, give_up_after: 1h, timeout: 2s}
      limits: {concurrency: 4, per_second: 100}
  card.charge:
    effect: keyed
    lease: {default: 2s, max: 4s, total: 4s}
    request: {fields: {amount: {type: money, currency: currency, category: amount}, currency: {category: amount}, to: {category: recipient}}}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 4s
      probe:
        http:
          url: "URL/charges?idempotency_key={downstream_key}"
          found: "status == 200 && size(body.data) == 1"
          not_found: "status == 200 && size(body.data) == 0"
          observed: {amount: "body.data[0].amount", currency: "body.data[0].currency", to: "body.data[0].to", created: "body.data[0].created"}
          result: {id: "body.data[0].id", type: "'charge'"}
      verify: [amount, recipient]
      checks: {first: 1s, max_interval: 5s, give_up_after: 1h, timeout: 2s}
      limits: {concurrency: 4, per_second: 100}
  file.put:
    effect: idempotent
    lease: {default: 2s, max: 4s, total: 4s}
    recovery: {method: regrant, effect_within: 4s}
`

// askedEffectWithin is the effect_within of those that can be asked.
const askedEffectWithin = 4 * time.Second

// recovering is a store with its target, and how a ledgerd is told to ask that.
type recovering struct {
	*env
	ft   double
	args []string
}

// newRecovering starts a target, and a ledgerd that recovers unless the options say otherwise.
func newRecovering(t *testing.T, store string, o nodeOptions) recovering {
	t.Helper()
	return newRecoveringBy(t, store, askedContracts, o)
}

// newRecoveringBy is newRecovering with contracts in which URL stands for the target's.
func newRecoveringBy(t *testing.T, store, contracts string, o nodeOptions) recovering {
	t.Helper()
	ft := startTarget(t, target.Payments)
	return recoveringAt(t, store, ft, strings.ReplaceAll(contracts, "URL", ft.URL()), o)
}

// recoveringAt is newRecovering with a target that runs, and the contracts.
func recoveringAt(t *testing.T, store string, ft double, contracts string, o nodeOptions) recovering {
	t.Helper()
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if err := os.WriteFile(path, []byte(contracts), 0o600); err != nil {
		t.Fatal(err)
	}
	r := recovering{ft: ft, args: []string{"--contracts", path, "--probe-allow", "127.0.0.1"}}
	o.args = slices.Concat([]string{"--recovery", "on"}, r.args, o.args)
	r.env = fresh(t, store, o)
	return r
}

// settles waits until an operation stands so, by nobody's doing but the loop's: looking at it moves nothing.
func (r recovering) settles(t *testing.T, operation string, state pb.State, custody pb.Custody, reason pb.QueueReason) *pb.Operation {
	t.Helper()
	asks := r.node.dial(t, billing)
	var op *pb.Operation
	eventually(t, fmt.Sprintf("the operation is %v, %v", state, custody), func() bool {
		op = asks.view(t, operation)
		return op.GetState() == state && op.GetCustody() == custody
	})
	wantState(t, op, state, custody, reason)
	return op
}

// An idempotent tool needs no query: once what was sent can take effect no more, it may be claimed again.
func TestRecoveryByRegrant(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			w := r.node.dial(t, billing)
			claim := request("file.put", unique(t), "K", `{"path":"a"}`)
			operation := w.grant(t, claim).GetOperationId()
			w.markUnknown(t, operation, claim.GetClaimId())
			r.settles(t, operation, pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_AUTOMATION, 0)
			w.grant(t, again(claim))
		})
	}
}

// The query is down: the outcome stays unknown, and it is asked again; it comes back, and shows another amount than was asked for.
func TestRecoveryWithoutAnAnswer(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			if err := r.ft.Server.SetKnobs(target.Payments, target.QueryDown(), target.ScaleBug().Times(1)); err != nil {
				t.Fatal(err)
			}
			w := r.node.dial(t, billing)
			claim := request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)
			g := w.grant(t, claim)
			if _, err := r.ft.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"}); err != nil {
				t.Fatal(err)
			}
			w.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
			eventually(t, "it was asked twice", func() bool {
				return r.node.metric(t, "ledger_evidence_queries_total", `ledger_tool_name="card.charge"`, `ledger_evidence_result="unavailable"`) >= 2
			})
			op := w.view(t, g.GetOperationId())
			wantState(t, op, pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_AUTOMATION, 0)
			wantOutcome(t, w.claim(t, again(claim)), "UNKNOWN")
			if r.row(t, g.GetOperationId())["next_check_time"] == "<nil>" {
				t.Error("there is no next check")
			}
			if err := r.ft.Server.SetKnobs(target.Payments); err != nil {
				t.Fatal(err)
			}
			r.settles(t, g.GetOperationId(), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH)
			r.ft.wantAccount(t, target.Payments, g.GetDownstreamKey(), 1, 1)
			if log := r.node.log(); strings.Contains(log, g.GetDownstreamKey()) || strings.Contains(log, r.ft.URL()) {
				t.Error("the log shows the key, or the address with it")
			}
		})
	}
}

// Two loops find the same operations: each check is asked once. Where one file is the store, one process recovers and another serves.
func TestRecoveryByTwo(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{args: []string{"--recovery", "off"}})
			loops := []*node{r.start(t, nodeOptions{recovers: true, args: r.args})}
			if store != "sqlite" {
				loops = append(loops, r.start(t, nodeOptions{recovers: true, args: r.args}))
			}
			const many = 24
			w := r.node.dial(t, billing)
			keys := map[string]string{}
			for i := range many {
				claim := request("card.charge", unique(t), fmt.Sprint(i), `{"amount":"10.00","currency":"EUR","to":"A"}`)
				g := w.grant(t, claim)
				if _, err := r.ft.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"}); err != nil {
					t.Fatal(err)
				}
				w.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
				keys[g.GetOperationId()] = g.GetDownstreamKey()
			}
			for operation, key := range keys {
				r.settles(t, operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
				if n := r.ft.account(t).Queries(target.Payments, key); n != 1 {
					t.Errorf("the target was asked %d times about one operation", n)
				}
			}
			total := 0.0
			for _, n := range loops {
				total += n.metric(t, "ledger_evidence_queries_total", `ledger_evidence_result="found"`)
			}
			if total != many {
				t.Errorf("the loops count %v checks, want %d", total, many)
			}
		})
	}
}

// C26 while others look: a call takes five times its lease, which nobody renews. Three loops (one where a file is the store) and five Claims come meanwhile; nobody is told to execute, and
// the target is asked at the pace of the contract, not of those who look. The worker's own answer then finds the operation settled, and agrees.
func TestC26Recovered(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			for range map[string]int{"postgres": 2}[store] { // one file has one process that serves
				r.start(t, nodeOptions{recovers: true, args: r.args})
			}
			if err := r.ft.Server.SetKnobs(target.Payments, target.AcceptHang(5*time.Second).Times(1), target.ListLag(4*time.Second)); err != nil {
				t.Fatal(err)
			}
			c := &longCall{
				w: r.node.dial(t, billing), ft: r.ft, ended: make(chan error, 1),
				claim: request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`),
			}
			c.claim.Lease = durationpb.New(time.Second)
			g := c.w.grant(t, c.claim)
			c.operation, c.key = g.GetOperationId(), g.GetDownstreamKey()
			ctx := within(t)
			go func() {
				var err error
				c.charge, err = r.ft.Charge(ctx, c.key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"})
				c.ended <- err
			}()
			for range 5 {
				c.pass(t, 800*time.Millisecond)
				if got := outcome(r.node.dial(t, billing).claim(t, again(c.claim))); got != "IN_PROGRESS" && got != "UNKNOWN" && got != "REPLAY" {
					t.Errorf("a Claim during the call was answered %s", got)
				}
			}
			if err := <-c.ended; err != nil {
				t.Fatal(err)
			}
			c.w.applied(t, completion(c.operation, c.claim.GetClaimId(), "charge", c.charge.ID))
			op := r.settles(t, c.operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			if op.GetAttempts() != 1 || op.GetNeedsAttention() {
				t.Errorf("there were %d grants, want one; somebody has to look at it: %v", op.GetAttempts(), op.GetNeedsAttention())
			}
			r.ft.wantAccount(t, target.Payments, c.key, 1, 1)
			// At the lease's end, and then not before settle time, which comes after the call.
			if n := r.ft.account(t).Queries(target.Payments, c.key); n < 1 || n > 3 {
				t.Errorf("the target was asked %d times, want 1 to 3", n)
			}
		})
	}
}

// C01 to its end: the client gives up, the server has done it, the retry is told "unknown", and the loop finds the ticket.
func TestC01Recovered(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			r := newRecovering(t, store, nodeOptions{})
			if err := r.ft.Server.SetKnobs(target.Tickets, target.AcceptHang(10*time.Second).Times(1)); err != nil {
				t.Fatal(err)
			}
			first := r.node.dial(t, billing)
			claim := request("ticket.create", unique(t), "run-7:create", `{"title":"disk full","queue":"ops"}`)
			g := first.grant(t, claim)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := r.ft.CreateTicket(ctx, g.GetDownstreamKey(), target.TicketRequest{Title: "disk full", Queue: "ops"}); target.ClassOf(err) != target.Unknown {
				t.Fatalf("the target's call ended with %v", err)
			}
			first.markUnknown(t, g.GetOperationId(), claim.GetClaimId())
			wantOutcome(t, r.node.dial(t, billing).claim(t, again(claim)), "UNKNOWN")
			r.settles(t, g.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			replay := r.node.dial(t, billing).claim(t, again(claim))
			wantOutcome(t, replay, "REPLAY")
			tickets := r.ft.account(t).Created(target.Tickets, g.GetDownstreamKey())
			if len(tickets) != 1 || replay.GetCompleted().GetResult().GetResource().GetId() != tickets[0] {
				t.Errorf("the replay has %v, the target %v", replay.GetCompleted().GetResult().GetResource(), tickets)
			}
			r.ft.wantAccount(t, target.Tickets, g.GetDownstreamKey(), 1, 1)
		})
	}
}
