// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// The scenes about what becomes of an unknown outcome: the effect is found, or it is proven that there is none, or nobody can be asked now, or ever.

// settlePatience bounds what recovery takes to find out: the send window, effect_within, and its looks.
const settlePatience = 45 * time.Second

// recovered goes on where duplicate ended: recovery finds the ticket, and a third worker gets the replay, which it returns.
func (d *demo) recovered(ctx context.Context, l lost) (account, error) {
	d.scene("RECOVERED", "The ledger asks the service for that ticket, by the key that was sent with it. A third worker gets the intent.")
	l.errand.Patient, l.errand.Sabotage = true, false
	third, err := d.workToEnd(ctx, l.errand)
	if err != nil {
		return third, fmt.Errorf("third worker: %w", err)
	}
	happened, err := d.since(l.from)
	if err != nil {
		return third, err
	}
	tickets, sends := strings.Join(happened.Created(target.Tickets, l.key), ", "), happened.Sends(target.Tickets, l.key)
	d.questions(happened, target.Tickets, l.key, third.Unknown, "found "+third.Resource+" under the original key: UNKNOWN -> COMPLETED")
	d.line("the third worker got the replay: %s    requests that the service got: %d", third.Resource, sends)
	d.print("\n")
	d.check("recovered: what the third worker was told", third.Resource, tickets)
	d.check("recovered: tickets made under the key", happened.Effects(target.Tickets, l.key), 1)
	d.check("recovered: requests that the service got under the key", sends, 1)
	return third, d.service.SetKnobs(ctx, target.Tickets)
}

// repeated is a charge that the service never took: that is proven, and then it is sent again under the same key. It returns that charge.
func (d *demo) repeated(ctx context.Context) (account, error) {
	d.scene("REPEATED", "The connection of a charge breaks before the service takes it. A worker can't tell that from a lost answer.")
	a, told, err := attempt(ctx, d, target.Payments, d.charge(now), d.newIntent(target.Payments), d.chargeRequest(proven), target.DropBeforeAccept().Times(1))
	if err != nil {
		return told, err
	}
	defer a.done()
	d.check("repeated: what the worker was told", told.String(), "unknown")
	// It asks on, and executes when it is granted again.
	until, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	early := told.Unknown
	for told.Unknown != nil && rest(until, askAgain) {
		if early = told.Unknown; ctx.Err() == nil {
			if told, err = a.ask(until); err != nil {
				return told, err
			}
		}
	}
	happened, err := d.since(a.from)
	if err != nil {
		return told, err
	}
	key := firstSend(happened, target.Payments).Key
	charges, sends := happened.Created(target.Payments, key), happened.Sends(target.Payments, key)
	d.questions(happened, target.Payments, key, early, "not found. That proves now that nothing happened: UNKNOWN -> RECEIVED")
	d.line("granted again, the same key: %s    charges made %d    requests that the service got: %d", told, len(charges), sends)
	d.print("\n")
	d.check("repeated: what the worker was told at the end", told.Resource, strings.Join(charges, ", "))
	d.check("repeated: charges made", len(charges), 1)
	d.check("repeated: requests that the service got under the key", sends, 2)
	d.check("repeated: requests that the service got", happened.Sends(target.Payments, target.AnyKey), 2)
	return told, nil
}

// staysUnknown is a charge whose answer is lost, while the service can't be asked. It returns what the worker was told last.
func (d *demo) staysUnknown(ctx context.Context) (a intended, told account, err error) {
	d.scene("STAYS UNKNOWN", "The answer to a charge is lost, and the service's status query is down.")
	a, told, err = attempt(ctx, d, target.Payments, d.charge(now), d.newIntent(target.Payments), d.chargeRequest(doubtful),
		target.AcceptReset().Times(1), target.QueryDown())
	if err != nil {
		return a, told, err
	}
	defer a.done()
	until, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	var happened target.Log
	questions := 0
	for told.Unknown != nil && (questions < 2 || time.Until(told.Unknown.NextCheck) <= 0) && rest(until, askAgain) {
		if told, err = a.ask(until); err != nil {
			return a, told, err
		}
		if happened, err = d.since(a.from); err != nil {
			return a, told, err
		}
		questions = happened.Queries(target.Payments, firstSend(happened, target.Payments).Key)
	}
	charges, sends := happened.Effects(target.Payments, target.AnyKey), happened.Sends(target.Payments, target.AnyKey)
	d.check("stays unknown: charges made", charges, 1)
	d.check("stays unknown: requests that the service got", sends, 1)
	if told.Unknown == nil || questions < 2 {
		return a, told, fmt.Errorf("after %d questions the worker was told: %v", questions, told)
	}
	d.check("stays unknown: state of the operation", told.Unknown.State, "UNKNOWN")
	d.line("asked %d times, no answer: %s    charges made %d    requests that the service got: %d", questions, told.Unknown.State, charges, sends)
	d.line("nobody sends it again; next check in %.1f s, at %s", time.Until(told.Unknown.NextCheck).Seconds(), told.Unknown.NextCheck.Format("15:04:05 MST"))
	d.print("\n")
	return a, told, nil
}

// waitsForPerson is a message whose answer is lost: nobody can be asked, and nothing is repeated.
func (d *demo) waitsForPerson(ctx context.Context) error {
	d.scene("WAITS FOR YOU", "The answer to a message is lost. Messages can neither be looked up nor recognised, so nothing sends it again.")
	message := client.Effect[target.MessageRequest, target.Message]{
		Tool: "messages.send",
		Execute: func(ctx context.Context, call client.Call, r target.MessageRequest) (target.Message, error) {
			if err := call.Sending(); err != nil {
				return target.Message{}, client.NotSent(err)
			}
			m, err := d.service.SendMessage(ctx, call.Key, r)
			return m, classify(err)
		},
		Resource: func(m target.Message) *opsledgerv1.ResourceRef {
			return &opsledgerv1.ResourceRef{Type: "message", Id: m.ID}
		},
		Summary: func(target.MessageRequest) string { return "message to on-call about db-1" },
		Wait:    client.NoWait,
	}
	a, _, err := attempt(ctx, d, target.Messages, message, d.newIntent(target.Messages), target.MessageRequest{To: "on-call", Body: "disk full on db-1"},
		target.AcceptReset().Times(1))
	if err != nil {
		return err
	}
	defer a.done()
	told, err := a.ask(ctx)
	if err != nil {
		return err
	}
	happened, err := d.since(a.from)
	if err != nil {
		return err
	}
	messages, sends := happened.Effects(target.Messages, target.AnyKey), happened.Sends(target.Messages, target.AnyKey)
	d.check("waits for you: messages sent", messages, 1)
	d.check("waits for you: requests that the service got", sends, 1)
	u := told.Unknown
	if u == nil {
		d.problem("waits for you: what the worker was told: %v, must be unknown", told)
		return nil
	}
	d.check("waits for you: why a person has to look at it", u.QueueReason, "NO_METHOD")
	d.check("waits for you: next action", u.NextAction, "WAIT_FOR_PERSON")
	d.line("%s, %s    messages sent %d    requests that the service got: %d", u.State, u.NextAction, messages, sends)
	d.print("\n")
	d.line("Your turn:  %s", d.command("op take-over "+u.ID+" --reason trying-it"))
	if d.standalone {
		d.line("            (this ledger ends with the demonstration; one that stays is: go run ./cmd/ledgerd dev)")
	}
	d.print("\n")
	return nil
}

// command is one of this program's for the ledger of the demonstration.
func (d *demo) command(args string) string {
	c := "go run ./cmd/ledgerctl " + args
	if d.stateDir != "" {
		c += " --state-dir " + d.stateDir
	}
	return c
}

// intended is one effect that this process is to make.
type intended struct {
	intent client.Intent
	ask    func(ctx context.Context) (account, error) // asks the ledger, and executes if it is granted
	from   int                                        // in the service's log
	done   func()
}

func (d *demo) newIntent(service target.Service) client.Intent {
	return client.Intent{Task: d.newTask(string(service)), Step: step, Time: time.Now()}
}

// attempt sends an effect whose first answer goes wrong, as the knobs say.
func attempt[Req, Res any](
	ctx context.Context, d *demo, service target.Service, effect client.Effect[Req, Res], intent client.Intent, request Req, knobs ...target.Knob,
) (intended, account, error) {
	before, err := d.log()
	if err != nil {
		return intended{}, account{}, err
	}
	if err := d.service.SetKnobs(ctx, service, knobs...); err != nil {
		return intended{}, account{}, err
	}
	ledgers, done, err := d.connect(ctx, 1)
	if err != nil {
		return intended{}, account{}, err
	}
	a := intended{intent: intent, from: len(before.Entries), done: done}
	a.ask = func(ctx context.Context) (account, error) {
		out, err := client.Do(ctx, ledgers[0], effect, intent, request)
		if err != nil {
			return account{}, err
		}
		return accountOf(out), nil
	}
	told, err := a.ask(ctx)
	if err != nil {
		done()
	}
	return a, told, err
}

// questions tells when the service was asked about a key, after it was sent: the answer to the last one, and that the ones before it proved nothing.
func (d *demo) questions(happened target.Log, service target.Service, key string, early *unknownOperation, last string) {
	var sent time.Time
	var asked []time.Duration
	for _, e := range happened.Entries {
		switch {
		case e.Service != service || e.Key != key:
		case e.Kind == target.Send && sent.IsZero():
			sent = e.Time
		case e.Kind == target.Query:
			asked = append(asked, e.Time.Sub(sent))
		}
	}
	for i, after := range asked {
		switch {
		case i == len(asked)-1:
			d.line("asked after %4.1f s: %s", after.Seconds(), last)
		case early != nil && early.Finding == "NOT_FOUND":
			d.line("asked after %4.1f s: not found. That proves nothing: what was sent may take effect until %.1f s",
				after.Seconds(), early.Settles.Sub(sent).Seconds())
		}
	}
	if len(asked) == 0 {
		d.problem("the service was not asked")
	}
}

// firstSend is the first request that a service got.
func firstSend(happened target.Log, service target.Service) target.Entry {
	for _, e := range happened.Entries {
		if e.Service == service && e.Kind == target.Send {
			return e
		}
	}
	return target.Entry{}
}

// since is the service's log behind its first lines.
func (d *demo) since(lines int) (target.Log, error) {
	log, err := d.log()
	if err != nil {
		return target.Log{}, err
	}
	return target.Log{Entries: log.Entries[lines:]}, nil
}

// workToEnd runs a worker process, and returns what it says at its end.
func (d *demo) workToEnd(ctx context.Context, e errand) (account, error) {
	var a account
	w, err := d.work(ctx, e)
	if err != nil {
		return a, err
	}
	defer w.kill()
	if err := w.wait(); err != nil {
		return a, errors.Join(err, ctx.Err())
	}
	return a, json.Unmarshal(w.stdout.Bytes(), &a)
}
