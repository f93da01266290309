// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// inspect judges whether a resource is as the original left it, before a compensation goes out.
func (d *decision) inspect(i Inspect) (Answer, error) {
	n := &d.next
	moved := i.Sequence != 0 && i.Sequence != n.Sequence
	if n.State != Received || n.Custody != Automation || !d.needsInspection() || d.reserved() || moved ||
		n.NextCheckTime.IsZero() || n.NextCheckTime.After(d.now) {
		return Answer{}, nil
	}
	asked := d.now
	if !i.Asked.IsZero() {
		asked = earliest(i.Asked, d.now)
	}
	outcome, fresh := i.Outcome, asked.Add(d.c.FreshFor)
	if outcome == InspectUnchanged && !d.open(fresh, asked) { // it may have been changed since
		outcome = InspectIndeterminate
	}
	if outcome == InspectIndeterminate {
		d.spendTime(i.Cause.asked())
		if n.Detail.BudgetSpent >= d.c.GiveUpAfter { // its version can't be known
			outcome = InspectNoVersion
		}
	}
	switch outcome {
	case InspectUnchanged:
		current := i.Current
		n.Detail.Precondition = &current
		n.Detail.ClearedUntil = fresh
		n.Detail.Retries, n.Detail.BudgetSpent, n.Detail.LastAnswer = 0, 0, time.Time{}
		n.NextCheckTime = n.Detail.ClearedUntil // unclaimed until then: looked at again
		d.record(EventCleared, true, nil, "")
	case InspectIndeterminate:
		d.backOff(0)
		d.record(EventEvidence, true, map[string]string{"finding": Indeterminate.String()}, "")
	default: // changed, gone, or no version known
		current := i.Current
		n.Detail.Changed = &Approval{Kind: ApproveChangedResource, Requester: n.Principal, ExpireTime: d.now.Add(d.c.ApprovalExpires), Resource: &current}
		d.queue(ResourceChanged)
		d.record(EventQueued, true, d.queueFacts(), "")
	}
	return Answer{}, nil
}
