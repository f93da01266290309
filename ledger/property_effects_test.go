// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// i12Granted: whoever may send now can't be overtaken by, or add to, what an earlier attempt sent.
func (j *judge) i12Granted(s step) {
	if !j.executes(s) || j.excused() {
		return
	}
	effect := max(s.before.Terms.Effect, s.contract.Effect)
	if effect == ledger.Read || effect == ledger.Keyed && s.contract.EffectWithin > 0 {
		return
	}
	for _, a := range j.r.attempts {
		if a.id != s.after.Grant.ClaimID {
			continue
		}
		t := j.r.target
		if effect == ledger.Idempotent && s.contract.EffectWithin > 0 { // an effect that is there is done again, not twice
			landed := *t
			landed.effects = nil
			t = &landed
		}
		if why := t.mayLand(a, j.r.attempts, s.now); why != "" {
			j.fail("I12: %s is granted to attempt %d: %s", effect, a.number, why)
		}
	}
}

// i12Landed judges effects as the target counts them: never a second one of KEYED or UNSAFE, and none of IDEMPOTENT that an earlier attempt
// does over a later one's.
func (j *judge) i12Landed(order []*attempt) {
	op, _ := j.r.sys.read(j.r.id)
	if op == nil || j.excused() {
		return
	}
	switch max(op.Terms.Effect, j.r.target.class) {
	case ledger.Keyed, ledger.Unsafe:
		// What was sent while it was taken for READ was repeated by right; what was granted since adds nothing to it.
		if n := len(j.r.target.effects); n > 1 && j.copiesOfOne() < n && j.grantedAs(ledger.Keyed) {
			j.fail("I12: %d effects", n)
		}
	case ledger.Idempotent:
		for _, a := range order {
			if a.number < j.latest {
				j.fail("I12: attempt %d took effect after attempt %d", a.number, j.latest)
			}
			j.latest = a.number
		}
	}
}

// grantedAs: an effect is of an attempt that was granted by this class or a stricter one.
func (j *judge) grantedAs(class ledger.Effect) bool {
	for i := range j.r.target.effects {
		if j.r.target.effects[i].attempt.class >= class {
			return true
		}
	}
	return false
}

// copiesOfOne counts effects of the attempt that has most: its own transport has doubled them.
func (j *judge) copiesOfOne() int {
	most, of := 0, map[*attempt]int{}
	for i := range j.r.target.effects {
		a := j.r.target.effects[i].attempt
		of[a]++
		most = max(most, of[a])
	}
	return most
}

// excused: a person was hasty, the owner's bound is not true, or its class was not and the row that knew better was lost.
func (j *judge) excused() bool { return j.hasty || j.untrue || j.lost && j.loosened }

// atTheEnd: everything has landed. What is FAILED has no effect, what is COMPLETED has one.
func (j *judge) atTheEnd() {
	op, _ := j.r.sys.read(j.r.id)
	if op == nil || j.excused() || op.Terms.Effect == ledger.Read {
		return
	}
	n := len(j.r.target.effects)
	switch {
	case op.State == ledger.Failed && n > 0:
		j.fail("I12: FAILED (%s) with %d effects", op.Failure.Kind, n)
	case op.State == ledger.Completed && n == 0:
		j.fail("I12: COMPLETED without an effect")
	}
}

// i13: absence counts only from a search that began at or after settle time.
func (j *judge) i13(s step) {
	settle := j.settle(s.contract)
	switch c := s.cmd.(type) {
	case ledger.Reconcile:
		final := c.Evidence.Finding == ledger.NotAccepted && c.Evidence.Final
		absent := c.Evidence.Finding == ledger.NotFound || c.Evidence.Finding == ledger.NotAccepted
		if !absent || final || s.after.State == s.before.State && s.after.QueueReason != ledger.RepeatNotAllowed {
			return
		}
		if s.has(ledger.EventQuarantined) || s.after.State == ledger.Unknown && s.after.QueueReason == s.before.QueueReason {
			return
		}
		began, known := j.began[c.CheckNumber]
		if !known || settle.IsZero() || began.Before(settle) {
			j.fail("I13: absence is believed from a search that began before settle time")
		}
	case ledger.Resolve:
		j.searched(s, c.Resolution, settle)
	case ledger.Approve:
		if a := s.before.Detail.Proposal; a != nil {
			j.searched(s, *a.Resolution, settle)
		}
	}
}

func (j *judge) searched(s step, r ledger.Resolution, settle time.Time) {
	if !s.has(ledger.EventResolved) || r.Happened != nil || !s.before.EverStarted() {
		return
	}
	if settle.IsZero() {
		settle = j.windowEnd.Add(15 * time.Minute)
	}
	searched, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(r.Note, "searched the dashboard at ")) // as the store's clock may be wrong
	if err != nil || searched.Before(settle) {
		j.fail("I13: a person's search before settle time is believed")
	}
}
