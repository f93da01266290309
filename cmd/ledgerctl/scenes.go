// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

const (
	// hang is longer than the demonstration: the answer never comes.
	hang = 10 * time.Minute
	// lag is how long the ticket service's queries don't show a new ticket: shorter than its contract's effect_within, as that promises, and
	// longer than the first question takes to come.
	lag = 6 * time.Second
	// callers of one key at the same time.
	callers = 64
	// killed is the number of SIGKILL.
	killed = "signal 9"
	// chargeLease has an outcome settle soon.
	chargeLease = 2 * time.Second
)

// now is a hold that holds nobody.
var now = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// duplicate is the first scene: a lost answer, a killed worker, and a second worker with the same intent.
func (d *demo) duplicate(ctx context.Context) (lost, error) {
	d.scene("DUPLICATE",
		"A worker creates a ticket. The service commits it, and its answer is lost. The worker is killed.",
		"A second worker gets the same intent.")
	d.line("%-28stickets made", "")
	naive, err := d.lostAnswer(ctx, nil, nil)
	if err != nil {
		return lost{}, err
	}
	d.row("retry on timeout (naive)", naive)
	access := d.ledger.access()
	with := "with the ledger"
	if d.sabotage {
		with = "with the ledger (sabotaged)"
	}
	kept, err := d.lostAnswer(ctx, &access, &access)
	if err != nil {
		return lost{}, err
	}
	d.row(with, kept)
	d.print("\n")

	d.check("naive: how the first worker ended", naive.ended, killed)
	d.check("naive: tickets made", len(naive.tickets), 2)
	d.check("with the ledger: how the first worker ended", kept.ended, killed)
	d.check("with the ledger: tickets made", len(kept.tickets), 1)
	d.check("with the ledger: requests that the service got", kept.sends, 1)
	u := kept.second.Unknown
	if u == nil {
		return kept, fmt.Errorf("the second worker was told: %v", kept.second)
	}
	d.check("with the ledger: state of the operation", u.State, "UNKNOWN")
	if d.sabotage {
		d.line("The second worker was told UNKNOWN, took the end of the lease for a permission, and sent it again.")
		d.print("\n")
		return kept, nil
	}
	d.line("The second worker sent nothing. The ledger told it:")
	d.line("operation     %s", u.ID)
	d.line("state         %s: the ticket may or may not exist", u.State)
	d.line("next action   %s%s", u.NextAction, inBrackets(u.WaitReason, u.QueueReason))
	d.line("why no retry  The first worker may have sent the request, and a repeat could make a second ticket.")
	d.line("              The end of its lease proves nothing; only evidence from the service, or a person, does.")
	d.print("\n")
	return kept, nil
}

func inBrackets(words ...string) string {
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, ", ") + ")"
}

// lost is what came of a lost answer.
type lost struct {
	ended   string // the first worker's wait status
	pid     int
	tickets []string
	sends   int
	second  account
	errand  errand // the second worker's
	from    int    // in the service's log
	key     string // that the first worker sent
}

func (a account) String() string {
	switch {
	case a.Resource != "":
		return a.Resource
	case a.Unknown != nil:
		return "unknown"
	default:
		return a.Other
	}
}

// lostAnswer kills the first worker after the service has committed its ticket, and gives the same intent to a second one.
func (d *demo) lostAnswer(ctx context.Context, first, second *client.Config) (lost, error) {
	before, err := d.log()
	if err != nil {
		return lost{}, err
	}
	if err := d.service.SetKnobs(ctx, target.Tickets, target.AcceptHang(hang).Times(1), target.ListLag(lag)); err != nil {
		return lost{}, err
	}
	e := errand{Target: d.target.URL(), Ledger: first, Task: d.newTask("ticket"), Since: time.Now(), Title: "disk full on db-1"}
	w, err := d.work(ctx, e)
	if err != nil {
		return lost{}, err
	}
	defer w.kill()
	if err := d.committed(ctx, w, len(before.Entries)); err != nil {
		return lost{}, err
	}
	w.kill()

	e.Ledger, e.Sabotage = second, d.sabotage
	l := lost{ended: howItEnded(w.cmd.ProcessState), pid: w.pid(), errand: e, from: len(before.Entries)}
	if l.second, err = d.workToEnd(ctx, e); err != nil {
		return lost{}, fmt.Errorf("second worker: %w", err)
	}
	happened, err := d.since(l.from)
	if err != nil {
		return lost{}, err
	}
	l.tickets = happened.Created(target.Tickets, target.AnyKey)
	l.sends = happened.Sends(target.Tickets, target.AnyKey)
	l.key = firstSend(happened, target.Tickets).Key
	return l, nil
}

// work starts a worker process.
func (d *demo) work(ctx context.Context, e errand) (*child, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("errand: %w", err)
	}
	return begin(ctx, []string{d.self, "demo", "worker"}, d.env, bytes.NewReader(text))
}

const (
	commitPatience = 30 * time.Second
	lookInterval   = 2 * time.Millisecond
)

// committed returns when the service's log shows an effect after the first lines.
func (d *demo) committed(ctx context.Context, w *child, lines int) error {
	ctx, cancel := context.WithTimeout(ctx, commitPatience)
	defer cancel()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		log, err := d.log()
		if err != nil {
			return err
		}
		if (target.Log{Entries: log.Entries[lines:]}).Effects(target.Tickets, target.AnyKey) > 0 {
			return nil
		}
		select {
		case <-w.done:
			return fmt.Errorf("first worker: ended before the service had its request: %w", w.wait())
		case <-ctx.Done():
			return fmt.Errorf("first worker: the service got no request: %w", ctx.Err())
		case <-look.C:
		}
	}
}

// charge is the effect of the scenes about charges. Its execution waits for hold first.
func (d *demo) charge(hold <-chan struct{}) client.Effect[target.ChargeRequest, target.Charge] {
	return client.Effect[target.ChargeRequest, target.Charge]{
		Tool: "payments.charge",
		Execute: func(ctx context.Context, call client.Call, r target.ChargeRequest) (target.Charge, error) {
			select {
			case <-hold:
			case <-ctx.Done():
				return target.Charge{}, client.NotSent(ctx.Err())
			}
			if err := call.Sending(); err != nil {
				return target.Charge{}, client.NotSent(err)
			}
			c, err := d.service.Charge(ctx, call.Key, r)
			return c, classify(err)
		},
		Resource: func(c target.Charge) *opsledgerv1.ResourceRef {
			return &opsledgerv1.ResourceRef{Type: "charge", Id: c.ID, Version: strconv.Itoa(c.Revision)}
		},
		Lease: chargeLease,
		Wait:  client.NoWait, // what callers are told is what the scenes show
	}
}

// counts of what callers were told.
type counts struct {
	executed, replayed, inProgress, other int
	ids                                   []string // of the charges, each once
	operation                             string   // that made them, by the ledger's id
	err                                   error    // the first one
}

// concurrent is one key, and many callers at the same time, each with a connection of its own. It returns the charge that they made.
func (d *demo) concurrent(ctx context.Context, intent client.Intent) (account, error) {
	d.scene("CONCURRENT", fmt.Sprintf("%d callers claim one charge at the same time, each over an mTLS connection of its own.", callers))
	before, err := d.log()
	if err != nil {
		return account{}, err
	}
	ledgers, done, err := d.connect(ctx, callers)
	if err != nil {
		return account{}, err
	}
	defer done()
	// Whoever is granted sends when all others have been answered, so that each of these answers is about a running execution.
	first := d.ask(ctx, ledgers, intent, true)
	second := d.ask(ctx, ledgers, intent, false)
	happened, err := d.since(len(before.Entries))
	if err != nil {
		return account{}, err
	}
	charges := happened.Created(target.Payments, target.AnyKey)
	d.line("granted %d    in progress %d    charges made %d", first.executed, first.inProgress, len(charges))
	d.line("asked once more: %d replays of %s", second.replayed, strings.Join(second.ids, ", "))
	d.print("\n")
	for _, c := range []counts{first, second} {
		if c.err != nil {
			d.problem("concurrent: %v", c.err)
		}
	}
	d.check("concurrent: callers that were told to execute", first.executed, 1)
	d.check("concurrent: callers that were told in progress", first.inProgress, callers-1)
	d.check("concurrent: charges made", len(charges), 1)
	d.check("concurrent: requests that the service got", happened.Sends(target.Payments, target.AnyKey), 1)
	d.check("concurrent: replays", second.replayed, callers)
	d.check("concurrent: charges that the callers know", strings.Join(second.ids, ", "), strings.Join(charges, ", "))
	return account{Resource: strings.Join(second.ids, ", "), Operation: second.operation}, nil
}

// connect connects so many callers, each by a connection of its own: what they ask afterwards takes no handshake.
func (d *demo) connect(ctx context.Context, n int) (ledgers []*client.Ledger, done func(), err error) {
	done = func() {
		for _, l := range ledgers {
			_ = l.Close()
		}
	}
	for range n {
		l, err := client.Dial(ctx, d.ledger.access())
		if err != nil {
			done()
			return nil, nil, err
		}
		ledgers = append(ledgers, l)
		if _, err := l.Tool(ctx, "payments.charge"); err != nil {
			done()
			return nil, nil, err
		}
	}
	return ledgers, done, nil
}

// ask lets all callers ask at the same time.
func (d *demo) ask(ctx context.Context, ledgers []*client.Ledger, intent client.Intent, together bool) counts {
	var (
		mu       sync.Mutex
		total    counts
		answered atomic.Int64
		ready    sync.WaitGroup
		finished sync.WaitGroup
	)
	start, others := make(chan struct{}), make(chan struct{})
	if !together {
		close(others)
	}
	ready.Add(len(ledgers))
	for _, l := range ledgers {
		finished.Go(func() {
			ready.Done()
			<-start
			out, err := client.Do(ctx, l, d.charge(others), intent, d.chargeRequest(sure))
			mu.Lock()
			total.add(out, err)
			mu.Unlock()
			if answered.Add(1) == int64(len(ledgers)-1) && together {
				close(others)
			}
		})
	}
	ready.Wait()
	close(start)
	finished.Wait()
	return total
}

func (c *counts) add(out client.Outcome[target.Charge], err error) {
	if err != nil {
		c.other++
		if c.err == nil {
			c.err = err
		}
		return
	}
	id := client.Match(out,
		func(d client.Done[target.Charge]) string {
			if d.Replayed {
				c.replayed++
			} else {
				c.executed++
			}
			c.operation = d.Operation.GetId()
			return d.Result.GetResource().GetId()
		},
		func(client.Rejection) string { c.other++; return "" },
		func(u client.Unknown) string {
			if u.Reason == client.ReasonInProgress {
				c.inProgress++
			} else {
				c.other++
			}
			return ""
		})
	if id != "" && !slices.Contains(c.ids, id) {
		c.ids = append(c.ids, id)
	}
}

// conflict is the key of a charge that was made, with another amount.
func (d *demo) conflict(ctx context.Context, intent client.Intent) error {
	d.scene("CONFLICT", "The same key, and the amount changed from 10.00 to 100.00.")
	before, err := d.log()
	if err != nil {
		return err
	}
	l, done, err := d.connect(ctx, 1)
	if err != nil {
		return err
	}
	defer done()
	_, refusal := client.Do(ctx, l[0], d.charge(now), intent, d.chargeRequest("100.00"))
	happened, err := d.since(len(before.Entries))
	if err != nil {
		return err
	}
	sends := happened.Sends(target.Payments, target.AnyKey)
	var e *client.Error
	if !errors.As(refusal, &e) {
		e = &client.Error{}
	}
	reason := strings.TrimPrefix(e.Reason.String(), "ERROR_REASON_")
	categories := strings.Join(e.Categories, ", ")
	d.line("refused: %s    differs: %s    requests that the service got: %d", reason, categories, sends)
	d.print("\n")
	d.check("conflict: why it was refused", reason, "FINGERPRINT_CONFLICT")
	d.check("conflict: what differs", categories, "amount")
	d.check("conflict: requests that the service got", sends, 0)
	return nil
}

func (d *demo) chargeRequest(amount target.Amount) target.ChargeRequest {
	return target.ChargeRequest{Amount: amount, Currency: "EUR", To: "order-7"}
}
