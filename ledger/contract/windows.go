// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"maps"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// shortestLease leaves a worker time to send and to report.
const shortestLease = time.Second

func leases(s section, c *ledger.Contract) {
	l := s.sub("lease", []string{"default", "max", "total"})
	l.duration("default", &c.LeaseDefault)
	// What is left out adapts to what is given, so that one line is enough.
	c.LeaseMax = max(c.LeaseMax, c.LeaseDefault)
	l.duration("max", &c.LeaseMax)
	c.LeaseTotal = max(c.LeaseTotal, c.LeaseMax)
	l.duration("total", &c.LeaseTotal)
	if !l.has("default") {
		c.LeaseDefault = min(c.LeaseDefault, c.LeaseMax)
	}
	c.SendWithin = min(c.SendWithin, c.LeaseDefault)
	s.duration("send_within", &c.SendWithin)

	if c.LeaseDefault < shortestLease {
		s.fault(l.where("default"), "lease.default must be at least %s: a shorter one lapses while the worker still sends", shortestLease)
	}
	if c.LeaseMax < c.LeaseDefault {
		s.fault(l.where("max"), "lease.max must be at least lease.default; raise it or shorten lease.default")
	}
	if c.LeaseTotal < c.LeaseMax {
		s.fault(l.where("total"), "lease.total must be at least lease.max; raise it or shorten lease.max")
	}
	if c.SendWithin > c.LeaseDefault {
		s.fault(s.where("send_within"), "send_within must be at most lease.default: a worker may not send after its lease; shorten it or lengthen lease.default")
	}
}

func recovery(s section, c *ledger.Contract) {
	r := s.sub("recovery",
		[]string{"method", "key_retention", "effect_within", "repeat_when_absent", "verify", "checks"},
		"probe", "inspect", "limits", "guide")
	if i, ok := r.choice("method", "operator", "probe", "regrant"); ok {
		c.Method = []ledger.Method{ledger.MethodOperator, ledger.MethodProbe, ledger.MethodRegrant}[i]
	}
	r.duration("key_retention", &c.KeyRetention)
	r.duration("effect_within", &c.EffectWithin)
	if v, ok := r.boolean("repeat_when_absent"); ok {
		c.Repeat = ledger.RepeatForbidden
		if v {
			c.Repeat = ledger.RepeatAllowed
		}
	}
	verify(r, c)
	checks(r, c)
	if c.EffectWithin > 0 && c.EffectWithin < c.LeaseTotal {
		s.fault(r.where("effect_within"), "recovery.effect_within must be at least lease.total, because the contract allows a call to take that long; raise it to the longest time after which a sent request can still take effect, or shorten lease.total (90s unless given)")
	}
	if c.KeyRetention > 0 && c.Effect != ledger.Keyed {
		s.fault(r.where("key_retention"), "recovery.key_retention is for targets that deduplicate by key; write effect: keyed, or remove it")
	}
	repeats(r, c)
}

// repeats judges whether what the contract repeats without a person can be repeated without a second effect.
func repeats(r section, c *ledger.Contract) {
	byItself := ""
	switch {
	case c.Method == ledger.MethodRegrant && c.Effect == ledger.Unsafe:
		r.fault(r.where("method"), "recovery.method regrant sends again without a query, which an unsafe tool cannot bear; write probe or operator")
		return
	case c.Method == ledger.MethodRegrant:
		byItself = "recovery.method regrant"
	case c.Repeat == ledger.RepeatAllowed && c.Method != ledger.MethodProbe:
		r.fault(r.where("repeat_when_absent"), "recovery.repeat_when_absent needs somebody who can say that it is absent; write method: probe, or remove it")
		return
	case c.Repeat == ledger.RepeatAllowed:
		byItself = "recovery.repeat_when_absent"
	case c.Repeat == ledger.RepeatDefault && c.Method == ledger.MethodProbe && c.Effect != ledger.Unsafe:
		byItself = "a tool that is not unsafe is repeated when absent, which"
	}
	if byItself == "" || c.Effect == ledger.Read {
		return
	}
	if c.EffectWithin == 0 {
		r.fault(r.node, "%s needs recovery.effect_within: nothing that was sent is repeated without a bound on when it can still land; state it, or write repeat_when_absent: false (with regrant: method: operator)", byItself)
		return
	}
	if c.Effect != ledger.Keyed {
		return
	}
	switch {
	case c.KeyRetention == 0:
		r.fault(r.node, "%s needs recovery.key_retention for a keyed tool: how long the target remembers a key; state it, or write repeat_when_absent: false (with regrant: method: operator)", byItself)
	case c.KeyRetention <= c.SendWithin+c.EffectWithin:
		r.fault(r.where("key_retention"), "recovery.key_retention must be longer than send_within + effect_within: a repeat has to land while the target still remembers the key")
	}
}

func verify(r section, c *ledger.Contract) {
	c.Verify = r.list("verify", "a category that request.fields declares", func(category string) bool {
		return slices.Contains(slices.Collect(maps.Values(c.Categories)), category)
	})
	c.VerifyStated = r.has("verify")
	if c.Method == ledger.MethodProbe && !c.VerifyStated {
		r.fault(r.node, "recovery.verify is missing: which categories must the resource that is found show equal? write verify: [amount], or verify: [] if any resource under the key will do")
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
	if !s.has("first") {
		c.FirstCheck = min(c.FirstCheck, c.MaxInterval)
	}
	if c.FirstCheck > c.MaxInterval {
		r.fault(s.where("max_interval"), "recovery.checks.max_interval must be at least checks.first; raise it or shorten first")
	}
	if c.MaxInterval > c.GiveUpAfter {
		r.fault(s.where("give_up_after"), "recovery.checks.give_up_after must be at least checks.max_interval; raise it or shorten max_interval")
	}
	if c.CheckTimeout < shortestCheck || c.CheckTimeout > longestCheck {
		r.fault(s.where("timeout"), "recovery.checks.timeout must be from %s to %s", shortestCheck, longestCheck)
	}
}

func retention(s section, c *ledger.Contract) {
	r := s.sub("retention", []string{"retry_window", "completed"}, "history", "tombstone")
	r.duration("retry_window", &c.RetryWindow)
	r.duration("completed", &c.RetainCompleted)
	if c.RetainCompleted < c.RetryWindow {
		s.fault(r.where("completed"), "retention.completed must be at least retention.retry_window: a retry asks for the result for that long; raise it (720h unless given) or shorten retry_window")
	}
}
