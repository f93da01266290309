// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Inspector asks a target whether a resource is as an operation left it. It is called by several goroutines.
type Inspector interface {
	// Inspect returns by the end of ctx at the latest.
	Inspect(ctx context.Context, original *ledger.Operation) Look
}

// Look is what a target says of a resource.
type Look struct {
	Outcome ledger.Inspection
	// Current is the resource as it is now, without a version where none is known.
	Current ledger.ResourceRef
	// Cause of an indeterminate one, and how long the target wants to be left alone; 0: it has answered, and said nothing of that.
	Cause      ledger.IndeterminateCause
	RetryAfter time.Duration
	// Why is as in a Verdict.
	Why string
}

// means is what a look says of the target as a whole, and how long it wants to be left alone: as the answer to a check does.
func (k Look) means() (outcome, time.Duration) {
	switch {
	case k.Outcome == ledger.InspectIndeterminate:
		return means(ledger.Evidence{Finding: ledger.Indeterminate, Cause: k.Cause, RetryAfter: min(k.RetryAfter, longestSaid)})
	case k.Why != "": // it was not asked
		return unused, 0
	default:
		return answered, 0
	}
}

// waitsForInspection: a compensation that nobody may claim before its original's target has been asked.
func waitsForInspection(answer ledger.Answer) bool {
	op := answer.Operation
	return op != nil && op.State == ledger.Received && op.Custody == ledger.Automation && !op.Compensates.IsZero() &&
		!op.NextCheckTime.IsZero() && !op.NextCheckTime.After(answer.Now)
}

// inspect asks how the resource stands that a compensation would undo, as that was found. The ledger decides whether it still matters.
func (l *Loop) inspect(ctx context.Context, d *Done, found ledger.Answer) {
	compensation := found.Operation
	original, _, err := l.ledger.Look(ctx, compensation.Compensates, func(*ledger.Operation) error { return nil })
	if err != nil && !errors.Is(err, ledger.ErrOperationNotFound) {
		d.Err = err
		return
	}
	finding := ledger.Inspect{Actor: loop, Outcome: ledger.InspectNoVersion, Sequence: compensation.Sequence, Asked: found.Now}
	if inspector := l.probes.Inspector(original.Tool); err == nil && inspector != nil && original.Result != nil {
		c, _ := l.ledger.Contract(original.Tool)
		back, again := l.borrow(ctx, original.Tool, c.CheckTimeout)
		if back == nil { // it stays due
			d.Left, d.turned, d.again = true, true, again
			return
		}
		var look Look
		taken := l.untilMoved(ctx, d.ID, c.CheckTimeout, func(now *ledger.Operation) bool { return now.Sequence != compensation.Sequence }, func(ctx context.Context) {
			look = inspector.Inspect(ctx, &original)
		})
		if taken && look.Outcome == ledger.InspectIndeterminate { // cut off
			back(unused, 0)
			return
		}
		back(look.means())
		l.lookTold(original.Tool, *d, look)
		finding.Outcome, finding.Current, finding.Cause = look.Outcome, look.Current, look.Cause
	}
	l.do(ctx, d, "", func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return finding, nil })
}

var inspections = map[ledger.Inspection]string{
	ledger.InspectIndeterminate: "indeterminate", ledger.InspectUnchanged: "unchanged", ledger.InspectChanged: "changed",
	ledger.InspectGone: "gone", ledger.InspectNoVersion: "no version",
}
