// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"

	"github.com/opsledger/opsledger/ledger"
)

// Inspector asks a target whether a resource is as an operation left it. It is called by several goroutines.
type Inspector interface {
	// Inspect returns by the end of ctx at the latest; the resource as it is now is without a version where none is known. why is as in a
	// Verdict.
	Inspect(ctx context.Context, original *ledger.Operation) (outcome ledger.Inspection, current ledger.ResourceRef, why string)
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
		back, again := l.borrow(ctx, original.Tool)
		if back == nil { // it stays due
			d.Left, d.turned, d.again = true, true, again
			return
		}
		c, _ := l.ledger.Contract(original.Tool)
		var why string
		taken := l.untilMoved(ctx, d.ID, c.CheckTimeout, func(now *ledger.Operation) bool { return now.Sequence != compensation.Sequence }, func(ctx context.Context) {
			finding.Outcome, finding.Current, why = inspector.Inspect(ctx, &original)
		})
		how := answered
		if finding.Outcome == ledger.InspectIndeterminate {
			how = unused // it is not said whether the target has answered
		}
		back(how)
		if taken && finding.Outcome == ledger.InspectIndeterminate { // cut off
			return
		}
		l.inspected(*d, finding.Outcome, why)
	}
	l.do(ctx, d, "", func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return finding, nil })
}

// inspected logs a look at a resource.
func (l *Loop) inspected(d Done, outcome ledger.Inspection, why string) {
	about := []any{attrTool, string(d.Tool), attrOperation, d.ID.String(), "resource", inspections[outcome]}
	if why == "" {
		l.log.Debug("a target was asked about a resource", about...)
		return
	}
	l.log.Warn("a target could not be asked about a resource", append(about, "why", why)...)
}

var inspections = map[ledger.Inspection]string{
	ledger.InspectIndeterminate: "indeterminate", ledger.InspectUnchanged: "unchanged", ledger.InspectChanged: "changed",
	ledger.InspectGone: "gone", ledger.InspectNoVersion: "no version",
}
