// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// Done is what came of one due operation.
type Done struct {
	ID   ledger.OperationID
	Tool ledger.Tool
	// Check is the number under which the target was asked; 0: it was not.
	Check   uint64
	Finding ledger.Finding
	Cause   ledger.IndeterminateCause
	// State of the operation after it.
	State ledger.State
	// Left: there was nothing to be done with it.
	Left bool
	// Err: it could not be dealt with.
	Err error

	// with is the turn that it had, if any; how and after are what the turn's end says of the target.
	with  *pass
	how   outcome
	after time.Duration
	// turned away: no turn was to be had to look at a resource, and there is none for that time.
	turned bool
	again  time.Duration
}

// loop is who asks for what the loop does.
var loop = ledger.Actor{Kind: ledger.ActorRecovery, Name: "recovery"}

// source is where evidence was read, for the history.
const source = "probe"

// longestSaid bounds what a target can put off by its own word: else one mistake of it stops a tool's recovery for as long as it says.
const longestSaid = time.Hour

var (
	errPanicked = errors.New("the check has panicked")
	errLate     = errors.New("the turn to ask the target was over before it could be asked")
)

// deal takes one due operation as far as it comes, with the turn to ask its target.
func (l *Loop) deal(ctx context.Context, id ledger.OperationID, tool ledger.Tool, with *pass) (d Done) {
	d = Done{ID: id, Tool: tool, with: with}
	defer func() {
		if recover() != nil { // its text may hold an answer
			d.Err = errPanicked
		}
	}()
	if c, _ := l.ledger.Contract(tool); c.Method == ledger.MethodRegrant {
		answer := l.do(ctx, &d, "", func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
			return ledger.Regrant{Actor: loop}, nil
		})
		if waitsForInspection(answer) {
			l.inspect(ctx, &d, answer)
		}
		return d
	}
	probe := l.probes.Probe(tool)
	if l.left(tool) {
		l.do(ctx, &d, "", func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
			return ledger.GiveUp{Actor: loop}, nil
		})
		l.unasked(d)
		return d
	}
	if with != nil && !until(ctx, with.begins) {
		d.Err = ctx.Err()
		return d
	}
	begin := ledger.CommandID(uuid.NewString())
	var timeout time.Duration
	answer := l.do(ctx, &d, begin, func(_ *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
		timeout = c.CheckTimeout
		return ledger.BeginCheck{CommandID: begin, Actor: loop}, nil
	})
	if waitsForInspection(answer) {
		l.inspect(ctx, &d, answer)
		return d
	}
	if answer.CheckNumber == 0 || probe == nil || with == nil { // with a contract that has changed just now its lease ends, and it is found again
		return d
	}
	d.Check = answer.CheckNumber
	began := time.Now()
	if began.Add(timeout).After(with.over) { // others may have the turn before the target has to answer
		d.Err = errLate
		return d
	}
	verdict, taken := l.ask(ctx, probe, answer.Operation, timeout)
	verdict.Evidence.RetryAfter = min(verdict.Evidence.RetryAfter, longestSaid)
	d.Finding, d.Cause = verdict.Evidence.Finding, verdict.Evidence.Cause
	took := time.Since(began)
	if taken && d.Finding == ledger.Indeterminate { // cut off; there is nothing to tell
		l.metrics.asked(l.label(tool), resultCutOff, took)
		return d
	}
	d.how, d.after = means(verdict.Evidence)
	if d.how == failed && with.trial {
		// It answers nobody, and not just nothing about this operation: that counts for no operation's giving up.
		verdict.Evidence.Cause, d.Cause = ledger.QueryUnavailable, ledger.QueryUnavailable
	}

	mismatch, chance := false, rand.Float64()
	reconcile := ledger.CommandID(uuid.NewString())
	l.do(ctx, &d, reconcile, func(op *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
		ev, err := l.judged(op, c, verdict)
		mismatch = len(ev.Different) > 0 || len(ev.Missing) > 0
		return ledger.Reconcile{CommandID: reconcile, Actor: loop, CheckNumber: d.Check, Evidence: ev, Chance: chance}, err
	})
	l.metrics.asked(l.label(tool), result(d, mismatch), took)
	l.told(d, verdict.Why)
	return d
}

// ask a target. It is cut off, and taken, when the operation is not the check's any more: a person has it, or it was settled.
func (l *Loop) ask(ctx context.Context, probe Probe, op *ledger.Operation, timeout time.Duration) (v Verdict, taken bool) {
	moved := func(now *ledger.Operation) bool {
		return now.Custody != ledger.Automation || now.State.Final() || now.Check.Number != op.Check.Number
	}
	taken = l.untilMoved(ctx, op.ID, timeout, moved, func(ctx context.Context) { v = probe.Ask(ctx, op) })
	return v, taken
}

// untilMoved does something within a time, cuts it off when an operation has moved, and reports whether it has.
func (l *Loop) untilMoved(ctx context.Context, id ledger.OperationID, timeout time.Duration, moved func(*ledger.Operation) bool, do func(context.Context)) (taken bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	var watch sync.WaitGroup
	watch.Go(func() {
		l.ledger.Watch(ctx, id, l.interval, func(ctx context.Context) bool {
			now, _, err := l.ledger.Look(ctx, id, func(*ledger.Operation) error { return nil })
			if taken = err == nil && moved(&now); taken {
				cancel()
			}
			return taken
		})
	})
	defer watch.Wait()
	defer cancel()
	do(ctx)
	return // taken is known when nobody watches any more
}

// until waits for a time; false: ctx has ended.
func until(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// means is what evidence says of the target as a whole, and how long it wants to be left alone.
func means(ev ledger.Evidence) (outcome, time.Duration) {
	switch {
	case ev.Finding != ledger.Indeterminate:
		return answered, 0
	case ev.Cause == ledger.QueryThrottled:
		return throttled, ev.RetryAfter
	case ev.Cause == ledger.QueryUnavailable, ev.Cause == ledger.QueryTimeout:
		return failed, ev.RetryAfter
	default:
		return answered, 0
	}
}

// do decides a command, and notes what came of it.
func (l *Loop) do(ctx context.Context, d *Done, id ledger.CommandID, prepare ledger.Prepare) ledger.Answer {
	var was uint64
	var due time.Time
	answer, err := l.ledger.Do(ctx, d.ID, string(id), func(op *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
		was, due = op.Sequence, op.NextCheckTime
		return prepare(op, c)
	})
	if err != nil {
		d.Err = err
		return ledger.Answer{}
	}
	d.State = answer.Operation.State
	d.Left = answer.Operation.Sequence == was
	if d.Check == 0 && !d.Left && !due.IsZero() && !l.left(d.Tool) {
		l.metrics.taken(l.label(d.Tool), answer.Now.Sub(due))
	}
	return answer
}

// judged compares what a target shows with what was asked for. What can't be read as a request shows nothing.
func (l *Loop) judged(op *ledger.Operation, c ledger.Contract, v Verdict) (ledger.Evidence, error) {
	ev := v.Evidence
	ev.Source = source
	if ev.Finding != ledger.FoundResource {
		return ev, nil
	}
	missing := c.Verify
	if len(v.Observed) > 0 {
		seen, err := l.requests.VerifyObserved(l.ring, op.Fingerprint, c, v.Observed)
		var unfit *fingerprint.Error
		switch {
		case err == nil:
			ev.Different, missing = seen.Different, seen.Missing
		case !errors.As(err, &unfit):
			return ledger.Evidence{}, err
		}
	}
	ev.Missing = slices.Compact(slices.Sorted(slices.Values(slices.Concat(ev.Missing, missing))))
	return ev, nil
}
