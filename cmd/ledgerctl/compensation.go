// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// The scenes about undoing: what is known of the original says whether a compensation may go out, and the service says whether it still fits.

// What the charges that are refunded are about.
const (
	sure     target.Amount = "10.00"
	proven   target.Amount = "20.00"
	doubtful target.Amount = "30.00"
)

// refundRequest is what a refund depends on besides the charge, which the grant names.
type refundRequest struct {
	Amount target.Amount `json:"amount"`
}

// refund undoes a charge. A worker that wait has ask waits until it may.
func (d *demo) refund(wait time.Duration) client.Effect[refundRequest, target.Refund] {
	return client.Effect[refundRequest, target.Refund]{
		Tool: "payments.refund",
		Execute: func(ctx context.Context, call client.Call, r refundRequest) (target.Refund, error) {
			if err := call.Sending(); err != nil {
				return target.Refund{}, client.NotSent(err)
			}
			v, err := d.service.Refund(ctx, call.Key, target.RefundRequest{Charge: call.Precondition.GetId(), Amount: r.Amount})
			return v, classify(err)
		},
		Resource: func(v target.Refund) *opsledgerv1.ResourceRef {
			return &opsledgerv1.ResourceRef{Type: "refund", Id: v.ID, Version: strconv.Itoa(v.Revision)}
		},
		Wait: wait,
	}
}

// undoing is a task's intent to undo what an operation of it has done.
func undoing(task, step, operation string) client.Intent {
	return client.Intent{Task: task, Step: step, Time: time.Now(), Compensates: operation}
}

// undoBlocked wants a charge undone that may not exist. It returns that intent.
func (d *demo) undoBlocked(ctx context.Context, charge client.Intent, doubted account) (client.Intent, error) {
	d.scene("UNDO BLOCKED", "A worker wants the charge of scene 6 refunded, while nobody knows whether it was made.")
	intent := undoing(charge.Task, "refund", doubted.Unknown.ID)
	a, told, err := attempt(ctx, d, target.Payments, d.refund(client.NoWait), intent, refundRequest{doubtful}, target.QueryDown())
	if err != nil {
		return intent, err
	}
	defer a.done()
	happened, err := d.since(a.from)
	if err != nil {
		return intent, err
	}
	if !told.blocked() {
		return intent, fmt.Errorf("the worker was told: %v", told)
	}
	refunds, sends := happened.Effects(target.Payments, target.AnyKey), happened.Sends(target.Payments, target.AnyKey)
	d.line("blocked: %s%s    refunds made %d    requests that the service got: %d", told.Unknown.NextAction, inBrackets(told.Unknown.WaitReason), refunds, sends)
	d.print("\n")
	d.check("undo blocked: why", told.Unknown.WaitReason, "ORIGINAL_UNSETTLED")
	d.check("undo blocked: refunds made", refunds, 0)
	d.check("undo blocked: requests that the service got", sends, 0)
	return intent, nil
}

// blocked: another operation has to move first, and nothing is stored of this one.
func (a account) blocked() bool { return a.Unknown != nil && a.Unknown.reason == client.ReasonBlocked }

// compensated goes on where staysUnknown and undoBlocked ended: the charge is found, nothing of it can land any more, and its refund goes out.
func (d *demo) compensated(ctx context.Context, charge intended, doubted account, intent client.Intent) error {
	d.scene("COMPENSATED", "The status query is back, and the worker asks again for the refund.")
	until, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	original, told, err := attempt(until, d, target.Payments, d.charge(now), charge.intent, d.chargeRequest(doubtful)) // without faults
	if err != nil {
		return err
	}
	defer original.done()
	for told.Unknown != nil && rest(until, askAgain) {
		if told, err = original.ask(until); err != nil {
			return err
		}
	}
	happened, err := d.since(charge.from)
	if err != nil {
		return err
	}
	sent, made := firstSend(happened, target.Payments), told.Resource
	d.questions(happened, target.Payments, sent.Key, doubted.Unknown, "found "+made+" under the original key: UNKNOWN -> COMPLETED")

	refund, soon, err := attempt(until, d, target.Payments, d.refund(client.NoWait), intent, refundRequest{doubtful})
	if err != nil {
		return err
	}
	defer refund.done()
	settles := doubted.Unknown.Settles
	if time.Now().Before(settles) {
		d.check("compensated: whether the refund is blocked until the charge has settled", soon.blocked(), true)
		d.line("the refund stays blocked: what was sent for the charge may take effect until %.1f s", settles.Sub(sent.Time).Seconds())
	}
	patient, done, err := attempt(until, d, target.Payments, d.refund(settlePatience), intent, refundRequest{doubtful})
	if err != nil {
		return err
	}
	defer patient.done()
	if happened, err = d.since(charge.from); err != nil {
		return err
	}
	if at := lookedAt(happened, target.Payments, made); at.IsZero() {
		d.problem("compensated: the service was not asked how the charge stands")
	} else {
		d.line("asked after %4.1f s: %s is as the charge left it", at.Sub(sent.Time).Seconds(), made)
	}
	if happened, err = d.since(refund.from); err != nil {
		return err
	}
	refunds, sends := happened.Created(target.Payments, target.AnyKey), happened.Sends(target.Payments, target.AnyKey)
	d.line("granted: %s    refunds made %d    requests that the service got: %d", done, len(refunds), sends)
	d.print("\n")
	d.check("compensated: what the worker was told", done.Resource, strings.Join(refunds, ", "))
	d.check("compensated: whether the refund was sent before the charge had settled", firstSend(happened, target.Payments).Time.Before(settles), false)
	d.check("compensated: refunds made", len(refunds), 1)
	d.check("compensated: requests that the service got", sends, 1)
	return nil
}

// lookedAt is when the service was last asked how a resource stands; zero: never.
func lookedAt(happened target.Log, service target.Service, id string) (at time.Time) {
	for _, e := range happened.Entries {
		if e.Service == service && e.Kind == target.Query && e.ID == id {
			at = e.Time
		}
	}
	return at
}

// closeRequest is a ticket to close.
type closeRequest struct {
	Ticket string `json:"ticket"`
}

// closing undoes a ticket, under the condition that it is as the grant says.
func (d *demo) closing() client.Effect[closeRequest, target.Ticket] {
	closed := "closed"
	return client.Effect[closeRequest, target.Ticket]{
		Tool: "tickets.close",
		Execute: func(ctx context.Context, call client.Call, r closeRequest) (target.Ticket, error) {
			revision, err := strconv.Atoi(call.Precondition.GetVersion())
			if err != nil {
				return target.Ticket{}, client.NotSent(err)
			}
			if err := call.Sending(); err != nil {
				return target.Ticket{}, client.NotSent(err)
			}
			t, err := d.service.ChangeTicket(ctx, call.Key, r.Ticket, revision, target.TicketChange{State: &closed})
			return t, classify(err)
		},
		Resource: func(t target.Ticket) *opsledgerv1.ResourceRef {
			return &opsledgerv1.ResourceRef{Type: "ticket", Id: t.ID, Version: strconv.Itoa(t.Revision)}
		},
		Summary:    func(r closeRequest) string { return "close " + r.Ticket },
		Attributes: func(r closeRequest) map[string]string { return map[string]string{"ticket": r.Ticket} },
		Wait:       client.NoWait,
	}
}

// changedSince is a ticket that somebody has edited since: a person decides whether it is closed all the same.
func (d *demo) changedSince(ctx context.Context, ticket account) error {
	id := ticket.Resource
	d.scene("CHANGED SINCE", "A worker wants "+id+" closed, the ticket of scene 2. A colleague has edited it since.")
	title := "disk full on db-1, and on db-2"
	edited, err := d.service.ChangeTicket(ctx, "", id, 0, target.TicketChange{Title: &title})
	if err != nil {
		return fmt.Errorf("edit the ticket: %w", err)
	}
	a, told, err := attempt(ctx, d, target.Tickets, d.closing(), undoing(d.newTask("ticket"), "close", ticket.Operation), closeRequest{id})
	if err != nil {
		return err
	}
	defer a.done()
	until, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for told.Unknown != nil && told.Unknown.QueueReason == "" && rest(until, askAgain) {
		if told, err = a.ask(until); err != nil {
			return err
		}
	}
	happened, err := d.since(a.from)
	if err != nil {
		return err
	}
	u := told.Unknown
	if u == nil || u.QueueReason == "" {
		return fmt.Errorf("the worker was told: %v", told)
	}
	sends := happened.Sends(target.Tickets, target.AnyKey)
	d.line("asked: %s is in version %d, which is not how it was left", id, edited.Revision)
	d.line("not closed: %s%s    requests that the service got: %d", u.NextAction, inBrackets(u.QueueReason), sends)
	d.print("\n")
	if lookedAt(happened, target.Tickets, id).IsZero() {
		d.problem("changed since: the service was not asked how the ticket stands")
	}
	d.check("changed since: why a person has to look at it", u.QueueReason, "RESOURCE_CHANGED")
	d.check("changed since: next action", u.NextAction, "WAIT_FOR_PERSON")
	d.check("changed since: requests that the service got", sends, 0)

	d.line("A person looks, and lets it be closed once:")
	view, err := d.types(ctx, "op get "+u.ID)
	if err != nil {
		return err
	}
	const agree = "if you agree: ledgerctl "
	approve := ""
	for _, line := range view {
		if command, ok := strings.CutPrefix(line, agree); ok {
			approve = command
		}
	}
	if approve == "" {
		return errors.New("op get does not say how to approve it")
	}
	d.line("%s", view[0])
	d.line("%s%s", agree, approve)
	said, err := d.types(ctx, strings.Replace(approve, "WHAT YOU CHECKED", "I wrote that, and am done", 1))
	if err != nil {
		return err
	}
	d.line("%s", said[0])
	d.print("\n")
	if told, err = a.ask(ctx); err != nil {
		return err
	}
	if happened, err = d.since(a.from); err != nil {
		return err
	}
	sends = happened.Sends(target.Tickets, target.AnyKey)
	d.line("granted, for version %d: %s is %s    requests that the service got: %d", edited.Revision, told, ticketState(happened), sends)
	d.print("\n")
	d.check("changed since: what the worker was told in the end", told.Resource, id)
	d.check("changed since: state of the ticket", ticketState(happened), "closed")
	d.check("changed since: requests that the service got in the end", sends, 1)
	return nil
}

// ticketState is the state of a ticket after its last change in the service's log.
func ticketState(happened target.Log) string {
	var t target.Ticket
	for _, e := range happened.Entries {
		if e.Service == target.Tickets && e.Kind == target.Effect {
			_ = json.Unmarshal(e.Resource, &t) // else it has no state
		}
	}
	return t.State
}

// types runs a command line of this program, in which a note comes last, as the person of the development ledger. It shows the line, and returns those
// of the answer.
func (d *demo) types(ctx context.Context, line string) ([]string, error) {
	d.line("$ %s", d.command(line))
	who := d.ledger.Identities[person]
	words, note, _ := strings.Cut(line, ` --note "`)
	args := strings.Fields(words)
	if note != "" {
		args = append(args, "--note", strings.TrimSuffix(note, `"`))
	}
	args = append(args, "--endpoint", d.ledger.GRPCAddr, "--ca", d.ledger.CAFile, "--cert", who.CertFile, "--key", who.KeyFile,
		"--server-name", "", "--output", string(outputText))
	c, err := begin(ctx, append([]string{d.self}, args...), d.env, nil)
	if err != nil {
		return nil, err
	}
	if err := c.wait(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return strings.Split(strings.TrimSpace(c.stdout.String()), "\n"), nil
}

// lostRefund is a refund whose answer is lost. It is an operation of its own: it is unknown and found out as any other, and its charge stays what it is.
func (d *demo) lostRefund(ctx context.Context, charge client.Intent, charged, other account) error {
	d.scene("LOST REFUND", "A refund is made, and its answer is lost.")
	d.line("%-28srefunds made", "")
	naive, err := d.refundNaively(ctx, other.Resource)
	if err != nil {
		return err
	}
	d.line("%-28s%-14d%s", "retry on timeout (naive)", len(naive), strings.Join(naive, ", "))
	intent := undoing(charge.Task, "refund", charged.Operation)
	a, told, err := attempt(ctx, d, target.Payments, d.refund(settlePatience), intent, refundRequest{sure}, target.AcceptReset().Times(1))
	if err != nil {
		return err
	}
	defer a.done()
	unknown := told.Unknown
	if unknown == nil {
		return fmt.Errorf("the worker was told: %v", told)
	}
	original, still, err := attempt(ctx, d, target.Payments, d.charge(now), charge, d.chargeRequest(sure))
	if err != nil {
		return err
	}
	defer original.done()
	until, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for told.Unknown != nil && rest(until, askAgain) {
		if told, err = a.ask(until); err != nil {
			return err
		}
	}
	happened, err := d.since(a.from)
	if err != nil {
		return err
	}
	key := firstSend(happened, target.Payments).Key
	refunds, sends := happened.Created(target.Payments, target.AnyKey), happened.Sends(target.Payments, target.AnyKey)
	d.line("%-28s%-14d%s", "with the ledger", len(refunds), strings.Join(refunds, ", "))
	d.print("\n")
	d.line("The refund is an operation of its own: %s. Its charge stays COMPLETED: %s", unknown.State, still)
	d.questions(happened, target.Payments, key, unknown, "found "+told.Resource+" under its own key: UNKNOWN -> COMPLETED")
	d.line("asked once more: the replay of %s    requests that the service got: %d", told, sends)
	d.print("\n")
	d.check("lost refund: naive: refunds made", len(naive), 2)
	d.check("lost refund: state of the operation", unknown.State, "UNKNOWN")
	d.check("lost refund: what a worker is told of the charge meanwhile", still.Resource, charged.Resource)
	d.check("lost refund: what the worker was told in the end", told.Resource, strings.Join(refunds, ", "))
	d.check("lost refund: refunds made", len(refunds), 1)
	d.check("lost refund: requests that the service got", sends, 1)
	return nil
}

// refundNaively sends a refund whose answer is lost, and sends it again.
func (d *demo) refundNaively(ctx context.Context, charge string) ([]string, error) {
	before, err := d.log()
	if err != nil {
		return nil, err
	}
	if err := d.service.SetKnobs(ctx, target.Payments, target.AcceptReset().Times(1)); err != nil {
		return nil, err
	}
	request := target.RefundRequest{Charge: charge, Amount: proven}
	if _, err = d.service.Refund(ctx, "", request); target.ClassOf(err) == target.Unknown {
		_, err = d.service.Refund(ctx, "", request)
	}
	if err != nil {
		return nil, fmt.Errorf("naive refund: %w", err)
	}
	happened, err := d.since(len(before.Entries))
	return happened.Created(target.Payments, target.AnyKey), err
}
