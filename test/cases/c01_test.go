// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// The client gave up, the server had done it: the natural retry is told "unknown", not "go ahead" and not an error. Evidence from the
// target settles it. A reconciler takes the part of the recovery loop.
func TestC01(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		ft := startTarget(t, target.Tickets, target.AcceptHang(10*time.Second))
		first := e.node.dial(t, billing)
		claim := request("ticket.create", unique(t), "run-7:create", `{"title":"disk full","queue":"ops"}`)
		g := first.grant(t, claim)
		operation, key := g.GetOperationId(), g.GetDownstreamKey()

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := ft.CreateTicket(ctx, key, target.TicketRequest{Title: "disk full", Queue: "ops"})
		if target.ClassOf(err) != target.Unknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the target's call ended with %v, want a time-out after the request was sent", err)
		}
		first.markUnknown(t, operation, claim.GetClaimId())

		second := e.node.dial(t, billing)
		answer := second.claim(t, again(claim))
		wantOutcome(t, answer, "UNKNOWN")
		if got := answer.GetOperation().GetId(); got != operation {
			t.Errorf("the second Claim is answered with the operation %q, want %q", got, operation)
		}
		if next := answer.GetNextAction(); next != pb.NextAction_NEXT_ACTION_WAIT {
			t.Errorf("the second Claim is told %v, want WAIT", next)
		}
		ft.wantAccount(t, target.Tickets, key, 1, 1)

		e.age(t, operation, time.Minute) // the first check is due
		recovery := e.node.dial(t, reconciler)
		check := recovery.beginCheck(t, operation)
		if check.GetDownstreamKey() != key {
			t.Errorf("the check is told another key than the grant was")
		}
		tickets, err := ft.FindTickets(within(t), check.GetDownstreamKey())
		if err != nil || len(tickets) != 1 {
			t.Fatalf("the target has %d tickets of the key, want one: %v", len(tickets), err)
		}
		observed, err := json.Marshal(map[string]string{"title": tickets[0].Title, "queue": tickets[0].Queue})
		if err != nil {
			t.Fatal(err)
		}
		settled := recovery.reconcile(t, operation, check.GetCheckNumber(), found("ticket", tickets[0].ID, string(observed), tickets[0].Created))
		wantState(t, settled.GetOperation(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)

		third := e.node.dial(t, billing)
		replay := third.claim(t, again(claim))
		wantOutcome(t, replay, "REPLAY")
		if got := replay.GetCompleted().GetResult().GetResource().GetId(); got != tickets[0].ID {
			t.Errorf("the replay has the ticket %q, want %q", got, tickets[0].ID)
		}
		ft.wantAccount(t, target.Tickets, key, 1, 1)
	})
}
