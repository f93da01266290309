// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// Which answers free a key: each row of target-answers.tsv, by a real answer of the target and a worker that classifies as the table
// says. Afterwards a second worker claims the same key, and does what it is told. A reconciler takes the part of the recovery loop.
func TestC35(t *testing.T) {
	rows := targetAnswers(t)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(answersTried))); diff != "" {
		t.Fatalf("the rows of the table and those that are tried (-table +tried):\n%s", diff)
	}
	each(t, func(t *testing.T, e *env) {
		for _, row := range slices.Sorted(maps.Keys(rows)) {
			for _, try := range answersTried[row] {
				t.Run(try.name, func(t *testing.T) {
					if rows[row].call == "query" {
						answerToQuery(t, e, rows[row], try)
					} else {
						answerToAction(t, e, rows[row], try)
					}
				})
			}
		}
	})
}

// answerRow is a row of the table, under its second column.
type answerRow struct {
	call, state string
	retry       bool
}

func targetAnswers(t *testing.T) map[string]answerRow {
	t.Helper()
	text, err := os.ReadFile("testdata/target-answers.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]answerRow{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		columns := strings.Split(line, "\t")
		if len(columns) != 4 {
			t.Fatalf("a line has %d columns", len(columns))
		}
		rows[columns[1]] = answerRow{call: columns[0], state: columns[2], retry: columns[3] == "yes"}
	}
	return rows
}

// answered is a way to get one of the table's answers.
type answered struct {
	name  string
	tool  string // unset: card.charge
	knobs []target.Knob
	// url, if set, is where the request goes instead of the target.
	url string
	// currency, if set, is sent in place of EUR.
	currency string
	// effects at the target when the second worker has done what it was told.
	effects int
	// for a query: how old the last send is, and what the target finds.
	age time.Duration
}

// hangs is longer than the worker waits for an answer.
const hangs, answerPatience = time.Minute, 500 * time.Millisecond

var answersTried = map[string][]answered{
	"2xx with resource id": {{name: "created", effects: 1}},
	"4xx business refusal with a declared code (e.g. card_declined)": {
		{name: "402 card_declined", knobs: []target.Knob{refusal(402, "card_declined")}},
	},
	`400/422 validation refusal, declared "nothing created"`: {
		{name: "400", knobs: []target.Knob{refusal(400, "bad_request")}},
		{name: "422", currency: "none"},
	},
	`429 with Retry-After, declared "refused before acceptance"`: {
		{name: "429 with Retry-After", knobs: []target.Knob{target.Status(429).After(time.Second).Times(1)}, effects: 1},
	},
	"500, 502, 504, or 503 without that marker": {
		{name: "500", knobs: []target.Knob{target.Status(500)}},
		{name: "502", knobs: []target.Knob{target.Status(502)}},
		{name: "503", knobs: []target.Knob{target.Status(503)}},
		{name: "504 that lands later", knobs: []target.Knob{target.LateCommit(hangs)}, effects: 1},
	},
	"connect refused / DNS failure before any byte was sent": {
		{name: "connection refused", url: "http://127.0.0.1:1", effects: 1},
		{name: "name not found", url: "http://target.invalid", effects: 1},
	},
	"reset, EOF or deadline after the request was written": {
		{name: "reset", knobs: []target.Knob{target.AcceptReset()}, effects: 1},
		{name: "EOF", knobs: []target.Knob{target.DropBeforeAccept()}},
		{name: "deadline", knobs: []target.Knob{target.AcceptHang(hangs)}, effects: 1},
	},
	"found, fields match":  {{name: "found", knobs: []target.Knob{target.AcceptReset()}, age: time.Minute, effects: 1}},
	"found, fields differ": {{name: "found with another amount", knobs: []target.Knob{target.AcceptReset(), target.ScaleBug()}, age: time.Minute, effects: 1}},
	"not found, adapter declares absence definitive, age of last send > quiet period": {
		{name: "not found", knobs: []target.Knob{target.DropBeforeAccept().Times(1)}, age: 5 * time.Minute, effects: 1},
	},
	"timeout, 5xx, 429": {
		{name: "query fails with 503", knobs: []target.Knob{target.AcceptReset(), target.QueryDown()}, age: time.Minute, effects: 1},
		{name: "query is throttled", knobs: []target.Knob{target.AcceptReset(), {Fault: target.FaultQueryDown, Code: 429, RetryAfter: 2 * time.Second}}, age: time.Minute, effects: 1},
		{name: "query times out", knobs: []target.Knob{target.AcceptReset(), {Fault: target.FaultQueryDown, Hang: hangs}}, age: time.Minute, effects: 1},
	},
	"tool kind has no query and no key": {
		{name: "message without an answer", tool: "mail.send", knobs: []target.Knob{target.AcceptReset()}, effects: 1},
	},
}

func refusal(code int, reason string) target.Knob {
	k := target.Status(code)
	k.Reason = reason
	return k
}

// standsAs is what the table's words mean, and what a Claim is told then.
var standsAs = map[string]struct {
	state   pb.State
	reason  pb.QueueReason
	outcome string
}{
	"completed":         {pb.State_STATE_COMPLETED, 0, "REPLAY"},
	"failed-definitely": {pb.State_STATE_FAILED, 0, "FAILED"},
	"unknown":           {pb.State_STATE_UNKNOWN, 0, "UNKNOWN"},
	"stays retryable under the same key after the delay; key is not burnt": {pb.State_STATE_RECEIVED, 0, "WAITING"},
	"not accepted (definite)":                      {pb.State_STATE_RECEIVED, 0, "EXECUTE"},
	"manual review (contradiction), not completed": {pb.State_STATE_UNKNOWN, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH, "UNKNOWN"},
	"retryable under the same key":                 {pb.State_STATE_RECEIVED, 0, "EXECUTE"},
	"unknown, next check later with backoff":       {pb.State_STATE_UNKNOWN, 0, "UNKNOWN"},
	"manual review, no further call":               {pb.State_STATE_UNKNOWN, pb.QueueReason_QUEUE_REASON_NO_METHOD, "UNKNOWN"},
}

// answerToAction lets a worker act, and another one after it.
func answerToAction(t *testing.T, e *env, row answerRow, try answered) {
	a := act(t, e, startTarget(t, target.Payments), try)
	a.wantRow(t, e, row)
}

// answerToQuery lets a worker act without seeing what came of it, and a reconciler ask.
func answerToQuery(t *testing.T, e *env, row answerRow, try answered) {
	a := act(t, e, startTarget(t, target.Payments), try)
	wantState(t, a.w.view(t, a.operation), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_AUTOMATION, 0)
	e.age(t, a.operation, try.age)
	recovery := e.node.dial(t, reconciler)
	check := recovery.beginCheck(t, a.operation)
	settled := recovery.reconcile(t, a.operation, check.GetCheckNumber(), a.query(t)).GetOperation()
	if row.state == "unknown, next check later with backoff" && !settled.GetNextCheckTime().AsTime().After(settled.GetUpdateTime().AsTime()) {
		t.Errorf("the next check is at %v, the last one ended at %v", settled.GetNextCheckTime().AsTime(), settled.GetUpdateTime().AsTime())
	}
	a.wantRow(t, e, row)
}

// action is a worker's call of the target, reported.
type action struct {
	answered
	w              *worker
	ft             double
	claim          *pb.ClaimRequest
	operation, key string
}

func act(t *testing.T, e *env, ft double, try answered) action {
	t.Helper()
	if try.tool == "" {
		try.tool = "card.charge"
	}
	a := action{answered: try, ft: ft, w: e.node.dial(t, billing), claim: request(try.tool, unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)}
	if err := ft.Server.SetKnobs(a.service(), try.knobs...); err != nil {
		t.Fatal(err)
	}
	g := a.w.grant(t, a.claim)
	a.operation, a.key = g.GetOperationId(), g.GetDownstreamKey()
	at := a.ft.Client
	if try.url != "" {
		at.BaseURL = try.url
	}
	a.send(t, a.w, at, a.claim.GetClaimId())
	return a
}

func (a action) service() target.Service {
	if a.tool == "mail.send" {
		return target.Messages
	}
	return target.Payments
}

// send performs the effect once and reports what the table makes of the answer.
func (a action) send(t *testing.T, w *worker, at target.Client, claimID string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerPatience)
	defer cancel()
	var kind, id string
	var err error
	if a.service() == target.Messages {
		var m target.Message
		m, err = at.SendMessage(ctx, a.key, target.MessageRequest{To: "A"})
		kind, id = "message", m.ID
	} else {
		order := target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"}
		if a.currency == "none" {
			order.Currency = ""
		}
		var c target.Charge
		c, err = at.Charge(ctx, a.key, order)
		kind, id = "charge", c.ID
	}
	if err == nil {
		w.applied(t, completion(a.operation, claimID, kind, id))
		return
	}
	report := &pb.CompleteRequest{OperationId: a.operation, ClaimId: claimID, SentExactlyOnce: true}
	var answer *target.Error
	switch {
	case !errors.As(err, &answer):
		t.Fatal(err)
	case answer.Class == target.NeverSent:
		report.Outcome, report.SentExactlyOnce = notExecuted(pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT, 0), false
	case answer.Status == http.StatusTooManyRequests && answer.RetryAfter > 0:
		report.Outcome = notExecuted(pb.NotExecutedKind_NOT_EXECUTED_KIND_REFUSED_BEFORE_ACCEPTANCE, answer.RetryAfter)
	case answer.Status == http.StatusBadRequest, answer.Status == http.StatusUnprocessableEntity:
		report.Outcome = rejection(pb.FailureKind_FAILURE_KIND_INVALID, answer.Code)
	case answer.Status == http.StatusPaymentRequired && answer.Code == "card_declined":
		report.Outcome = rejection(pb.FailureKind_FAILURE_KIND_DECLINED, answer.Code)
	default:
		w.markUnknown(t, a.operation, claimID)
		return
	}
	w.applied(t, report)
}

func notExecuted(kind pb.NotExecutedKind, after time.Duration) *pb.CompleteRequest_NotExecuted {
	return &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{Kind: kind, RetryAfter: durationpb.New(after)}}
}

func rejection(kind pb.FailureKind, code string) *pb.CompleteRequest_Rejected {
	return &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Kind: kind, Code: code}}
}

// query asks the target as a contract's probe does.
func (a action) query(t *testing.T) *pb.Evidence {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerPatience)
	defer cancel()
	charges, err := a.ft.FindCharges(ctx, a.key)
	var answer *target.Error
	told := errors.As(err, &answer) && answer.Class == target.Answered
	switch {
	case told && answer.Status == http.StatusTooManyRequests:
		return indeterminate(pb.IndeterminateCause_INDETERMINATE_CAUSE_THROTTLED, answer.RetryAfter)
	case told:
		return indeterminate(pb.IndeterminateCause_INDETERMINATE_CAUSE_UNAVAILABLE, 0)
	case err != nil:
		return indeterminate(pb.IndeterminateCause_INDETERMINATE_CAUSE_TIMEOUT, 0)
	case len(charges) == 0:
		return &pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}}
	}
	c := charges[0]
	observed, err := json.Marshal(map[string]string{"amount": string(c.Amount), "currency": c.Currency, "to": c.To})
	if err != nil {
		t.Fatal(err)
	}
	return found("charge", c.ID, string(observed), c.Created)
}

func indeterminate(cause pb.IndeterminateCause, after time.Duration) *pb.Evidence {
	return &pb.Evidence{Finding: &pb.Evidence_Indeterminate{Indeterminate: &pb.Indeterminate{Cause: cause, RetryAfter: durationpb.New(after)}}}
}

// wantRow fails unless the operation stands as the row says, and a second worker under the same key is told so and acts on it.
func (a action) wantRow(t *testing.T, e *env, row answerRow) {
	t.Helper()
	stands, ok := standsAs[row.state]
	if !ok {
		t.Fatalf("the table's state %q means nothing here", row.state)
	}
	custody := pb.Custody_CUSTODY_AUTOMATION
	if stands.reason != 0 {
		custody = pb.Custody_CUSTODY_QUEUED
	}
	wantState(t, a.w.view(t, a.operation), stands.state, custody, stands.reason)
	sends := a.ft.account(t).Sends(a.service(), a.key)

	second := e.node.dial(t, billing)
	next := again(a.claim)
	answer := second.claim(t, next)
	wantOutcome(t, answer, stands.outcome)
	if outcome(answer) == "WAITING" {
		if wait := answer.GetWaiting(); wait.GetReason() != pb.WaitReason_WAIT_REASON_NOT_BEFORE || wait.GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("the Claim waits for %v, want a delay", wait)
		}
		eventually(t, "the delay is over", func() bool {
			answer = second.claim(t, next)
			return outcome(answer) != "WAITING"
		})
	}
	if got := outcome(answer) == "EXECUTE"; got != row.retry && row.call != "query" {
		t.Errorf("a second attempt is allowed: %v; the table says %v", got, row.retry)
	}
	if outcome(answer) == "EXECUTE" {
		if got := answer.GetGranted().GetDownstreamKey(); got != a.key {
			t.Errorf("the second attempt has the key %q, want %q", got, a.key)
		}
		a.currency = ""
		a.send(t, second, a.ft.Client, next.GetClaimId())
		sends++
		wantOutcome(t, second.claim(t, again(a.claim)), "REPLAY")
	}
	if len(a.knobs) > 0 && a.knobs[0].Fault == target.FaultLateCommit {
		if _, err := a.ft.Server.Land(); err != nil {
			t.Fatal(err)
		}
	}
	a.ft.wantAccount(t, a.service(), a.key, a.effects, sends)
}
