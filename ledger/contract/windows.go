// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// shortestLease leaves a worker time to send and to report.
const shortestLease = time.Second

// note writes down what holds where a window that was left out has adapted to others.
func (s section) note(key string, d time.Duration) { s.said.set(key, durationText(d)) }

func leases(s section, c *ledger.Contract) {
	l := s.sub("lease", []string{"default", "max", "total"})
	l.duration("default", &c.LeaseDefault)
	// What is left out adapts to what is given, so that one line is enough.
	c.LeaseMax = max(c.LeaseMax, c.LeaseDefault)
	l.duration("max", &c.LeaseMax)
	c.LeaseTotal = max(c.LeaseTotal, c.LeaseMax)
	l.duration("total", &c.LeaseTotal)
	if !l.has("max") && l.has("total") {
		c.LeaseMax = max(min(c.LeaseMax, c.LeaseTotal), min(c.LeaseDefault, c.LeaseTotal))
		l.note("max", c.LeaseMax)
	}
	if !l.has("default") {
		c.LeaseDefault = min(c.LeaseDefault, c.LeaseMax)
		l.note("default", c.LeaseDefault)
	}
	c.SendWithin = min(c.SendWithin, c.LeaseDefault)
	s.duration("send_within", &c.SendWithin)

	if c.LeaseDefault < shortestLease {
		s.judge(l.where("default"), "lease.default must be at least %s: a shorter one lapses while the worker still sends", durationText(shortestLease))
	}
	if c.LeaseMax < c.LeaseDefault {
		s.judge(l.where("max"), "lease.max must be at least lease.default; raise it or shorten lease.default")
	}
	if c.LeaseTotal < c.LeaseMax {
		s.judge(l.where("total"), "lease.total must be at least lease.max; raise it or shorten lease.max")
	}
	if c.SendWithin > c.LeaseDefault {
		s.judge(s.where("send_within"), "send_within must be at most lease.default: a worker may not send after its lease; shorten it or lengthen lease.default")
	}
}

// The bounds of a check's own timeout: the connection to the target must have a chance, and a check must not hold its operation.
const (
	shortestCheck = 100 * time.Millisecond
	longestCheck  = 5 * time.Minute
)

func checks(r section, c *ledger.Contract) {
	s := r.sub("checks", []string{"first", "max_interval", "give_up_after", "timeout"})
	s.duration("first", &c.FirstCheck)
	c.MaxInterval = max(c.MaxInterval, c.FirstCheck)
	s.duration("max_interval", &c.MaxInterval)
	c.GiveUpAfter = max(c.GiveUpAfter, c.MaxInterval)
	s.duration("give_up_after", &c.GiveUpAfter)
	s.duration("timeout", &c.CheckTimeout)
	if !s.has("max_interval") && s.has("give_up_after") {
		c.MaxInterval = max(min(c.MaxInterval, c.GiveUpAfter), min(c.FirstCheck, c.GiveUpAfter))
		s.note("max_interval", c.MaxInterval)
	}
	if !s.has("first") {
		c.FirstCheck = min(c.FirstCheck, c.MaxInterval)
		s.note("first", c.FirstCheck)
	}
	if c.FirstCheck > c.MaxInterval {
		r.judge(s.where("max_interval"), "recovery.checks.max_interval must be at least checks.first; raise it or shorten first")
	}
	if c.MaxInterval > c.GiveUpAfter {
		r.judge(s.where("give_up_after"), "recovery.checks.give_up_after must be at least checks.max_interval; raise it or shorten max_interval")
	}
	if c.CheckTimeout < shortestCheck || c.CheckTimeout > longestCheck {
		r.judge(s.where("timeout"), "recovery.checks.timeout must be from %s to %s", durationText(shortestCheck), durationText(longestCheck))
	}
	if c.Method == ledger.MethodProbe && c.EffectWithin > 0 && c.GiveUpAfter < c.SendWithin+c.EffectWithin {
		r.judge(s.where("give_up_after"), "recovery.checks.give_up_after must be at least send_within + effect_within: before that no answer proves that nothing happened; raise it (24h unless given)")
	}
}

func retention(s section, c *ledger.Contract) {
	r := s.sub("retention", []string{"retry_window", "completed", "history", "tombstone"})
	r.duration("retry_window", &c.RetryWindow)
	r.duration("completed", &c.RetainCompleted)
	c.RetainHistory = max(c.RetainHistory, c.RetainCompleted)
	r.duration("history", &c.RetainHistory)
	if !c.RequireIntentTime { // a forgotten key could not be told from a new one: it is never forgotten
		if c.RetainTombstone = 0; r.has("tombstone") {
			s.judge(r.where("tombstone"), "retention.tombstone has no effect without require_intent_time, because a forgotten key could not be told from a new one; remove it, or write require_intent_time: true")
		}
	} else {
		c.RetainTombstone = max(c.RetainTombstone, c.RetainHistory)
		for _, u := range c.Unique { // a look-alike is recognised by what is remembered
			c.RetainTombstone = max(c.RetainTombstone, u.Within)
		}
		r.duration("tombstone", &c.RetainTombstone)
	}
	if !r.has("history") && r.has("tombstone") {
		c.RetainHistory = max(min(c.RetainHistory, c.RetainTombstone), min(c.RetainCompleted, c.RetainTombstone))
		r.note("history", c.RetainHistory)
	}
	for _, rule := range []struct {
		least, given time.Duration
		key, because string
	}{
		{c.LeaseTotal, c.RetryWindow, "retry_window", "must be at least lease.total: whoever lost the answer to its call asks again when that is over"},
		{c.RetryWindow, c.RetainCompleted, "completed", "must be at least retention.retry_window: a retry asks for the result for that long; raise it (720h unless given) or shorten retry_window"},
		{c.RetainCompleted, c.RetainHistory, "history", "must be at least retention.completed: a result is kept with the events that explain it; raise it (9600h unless given)"},
		{c.RetryWindow, c.RetainTombstone, "tombstone", "must be at least retention.retry_window: a retry after it would be a new operation; raise it (9600h unless given) or shorten retry_window"},
		{c.RetainHistory, c.RetainTombstone, "tombstone", "must be at least retention.history: events belong to a key; raise it (9600h unless given) or shorten history"},
	} {
		if rule.given < rule.least && rule.given > 0 {
			s.judge(r.where(rule.key), "retention.%s %s", rule.key, rule.because)
			break
		}
	}
	for _, u := range c.Unique {
		if c.RetainTombstone > 0 && u.Within > c.RetainTombstone {
			s.judge(r.where("tombstone"), "retention.tombstone must be at least unique.within: look-alikes are recognised by what is remembered; raise it or shorten within")
			break
		}
	}
}
