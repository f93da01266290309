// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// modelTarget is the system that workers call, with its true behaviour: what it deduplicates, how late a request may land, how stale its
// status query is. A request that left at a time lands and can be seen within the bound, or never lands.
type modelTarget struct {
	class     ledger.Effect
	retention time.Duration // KEYED: how long it remembers a key after it first accepted it; 0: for ever
	sticky    bool          // a declared rejection holds for the key for ever

	flying     []*packet
	effects    []landing
	rejections []landing
	accepted   time.Time
	stuck      bool // a rejection that sticks was given
	refuses    bool // it said that it refuses this key from now on
}

// packet is one request on its way. An answer that comes back is seen by its attempt at once.
type packet struct {
	attempt  *attempt
	lands    time.Time
	visible  time.Time
	fate     fate
	answered bool
}

type fate uint8

const (
	accept fate = iota
	decline
	declineOddly // with a code that the contract does not declare
	overloaded   // refused before acceptance
	drop
)

type landing struct {
	attempt  *attempt
	resource string
	code     string
	visible  time.Time
}

// attempt is one worker's process behind one claim_id. It is honest: what it reports it has seen, and after a report it sends nothing.
type attempt struct {
	number   int // in the order of grants; 0: never granted
	id       ledger.ClaimID
	worker   string
	reserve  bool
	until    time.Time     // end of its send window, counted from when it sent the call; zero: it knows of no grant
	quiet    bool          // it has reported, and sends no more
	granted  bool          // the ledger granted it at some time, whether it knows or not
	window   time.Time     // end of its send window as the ledger counts
	class    ledger.Effect // by which it was granted
	copies   int
	resource string
	declined string
	refused  bool
}

// maySend: it knows of a send window that is open by its own clock.
func (a *attempt) maySend(now time.Time) bool { return !a.quiet && a.until.After(now) }

// maySendYet: at a time, something of it may still leave. Whoever has reported sends nothing more.
func (a *attempt) maySendYet(now time.Time) bool { return a.granted && !a.quiet && a.window.After(now) }

// deliver lets everything land that is due, in order.
func (m *modelTarget) deliver(now time.Time) (order []*attempt) {
	slices.SortStableFunc(m.flying, func(a, b *packet) int { return a.lands.Compare(b.lands) })
	for len(m.flying) > 0 && !m.flying[0].lands.After(now) {
		p := m.flying[0]
		m.flying = m.flying[1:]
		if m.land(p) {
			order = append(order, p.attempt)
		}
	}
	return order
}

// land reports whether the request took effect, or did again what it had done.
func (m *modelTarget) land(p *packet) bool {
	remembers := !m.accepted.IsZero() && (m.retention == 0 || p.lands.Before(m.accepted.Add(m.retention)))
	switch {
	case p.fate == drop:
		return false
	case m.refuses || p.fate == overloaded:
		if p.answered {
			p.attempt.refused = true
		}
		return false
	case m.class == ledger.Keyed && remembers:
		if p.answered {
			p.attempt.resource = m.effects[len(m.effects)-1].resource
		}
		return true
	case m.stuck, p.fate == decline && (!m.sticky || len(m.effects) == 0), p.fate == declineOddly:
		code := "card_declined"
		if p.fate == declineOddly && !m.stuck {
			code = "odd"
		}
		m.stuck = m.stuck || m.sticky && code == "card_declined"
		m.rejections = append(m.rejections, landing{attempt: p.attempt, code: code, visible: p.visible})
		if p.answered {
			p.attempt.declined = code
		}
		return false
	}
	resource := fmt.Sprintf("ch_%d", len(m.effects)+1)
	m.effects = append(m.effects, landing{attempt: p.attempt, resource: resource, visible: p.visible})
	m.accepted = p.lands
	if p.answered {
		p.attempt.resource = resource
	}
	return true
}

// seen by a status query at a time; by its key a target that has forgotten it sees nothing, by searching a person sees all.
func (m *modelTarget) seen(at time.Time, byKey bool) (effects, rejections []landing) {
	if byKey && m.class == ledger.Keyed && m.retention != 0 && !m.accepted.IsZero() && !at.Before(m.accepted.Add(m.retention)) {
		return nil, nil
	}
	visible := func(l []landing) (out []landing) {
		for i := range l {
			if !l[i].visible.After(at) {
				out = append(out, l[i])
			}
		}
		return out
	}
	return visible(m.effects), visible(m.rejections)
}

// mayLand: something of an earlier attempt is on its way, or may yet leave, or is there.
func (m *modelTarget) mayLand(before *attempt, attempts []*attempt, now time.Time) string {
	for _, p := range m.flying {
		if p.attempt.number < before.number && p.fate == accept && !m.refuses {
			return fmt.Sprintf("a request of attempt %d is on its way", p.attempt.number)
		}
	}
	for _, a := range attempts {
		if a.number < before.number && a.maySendYet(now) && !m.refuses {
			return fmt.Sprintf("attempt %d may still send", a.number)
		}
	}
	for i := range m.effects {
		return fmt.Sprintf("attempt %d took effect", m.effects[i].attempt.number)
	}
	return ""
}
