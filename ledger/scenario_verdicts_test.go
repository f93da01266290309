// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// verdicts are what must not happen, by the names that testdata/traces.txt gives them. Each looks at the target's effects, or at an invariant,
// after a line, never at what the file expects; it says what has happened, or "".
var verdicts = map[string]func(*script) string{
	"two effects": func(s *script) string {
		return s.each(func(on string, op *ledger.Operation) string {
			effects := len(s.target.of(on).effects)
			if class := max(op.Terms.Effect, s.contractOf(on).Effect); effects > 1 && (class == ledger.Keyed || class == ledger.Unsafe) {
				return fmt.Sprintf("I12: %s has %d effects", on, effects)
			}
			return ""
		})
	},
	"FAILED with an effect": func(s *script) string {
		return s.each(func(on string, op *ledger.Operation) string {
			return when(op.State == ledger.Failed && len(s.target.of(on).effects) > 0, on+" has failed, and has an effect")
		})
	},
	"COMPLETED without an effect": func(s *script) string {
		return s.each(func(on string, op *ledger.Operation) string {
			return when(op.State == ledger.Completed && len(s.target.of(on).effects) == 0, on+" has completed, and has no effect")
		})
	},
	"COMPLETED by another request": func(s *script) string {
		return s.each(func(on string, op *ledger.Operation) string {
			own := false
			for _, e := range s.target.of(on).effects {
				own = own || scriptFingerprint(s.requests[e.from]).Digest == op.Fingerprint.Digest
			}
			return when(op.State == ledger.Completed && !own, on+" has completed, and its effects are of another request")
		})
	},
	"a claim_id granted twice": func(s *script) string {
		return s.each(func(on string, _ *ledger.Operation) string {
			_, events := s.sys.read(s.id(on))
			grants := map[string]int{}
			for i := range events {
				if e := &events[i]; e.Kind == ledger.EventGranted {
					grants[e.CommandID]++
					if grants[e.CommandID] > 1 {
						return "I1: a claim_id has two epochs of " + on
					}
				}
			}
			return ""
		})
	},
	"a live grant freed": func(s *script) string {
		l := s.last
		c, ok := l.cmd.(ledger.Complete)
		return when(ok && l.before != nil && l.before.LeaseAlive(s.sys.now()) && l.before.State == ledger.Processing &&
			l.before.Grant.ClaimID != c.ClaimID && l.after.State == ledger.Received, "I1: who does not hold the grant has freed it")
	},
	"granted while a person has it": func(s *script) string {
		return when(s.held() && s.last.answer.Grant != nil, "I6: granted while a person has it")
	},
	"moved while a person has it": func(s *script) string {
		before, after := s.last.before, s.last.after
		return when(s.held() && (before.State != after.State || before.Custody != after.Custody || before.Check.Number != after.Check.Number),
			"I6: automation has acted while a person has it")
	},
	"granted beside what was found": func(s *script) string {
		l := s.last
		return when(l.before != nil && l.before.Detail.FoundThere && l.answer.Grant != nil, "I2: granted beside what was found")
	},
	"a conflict changes the row": func(s *script) string {
		l := s.last
		c, ok := l.cmd.(ledger.Claim)
		return when(ok && l.before != nil && l.before.Fingerprint.Digest != c.Fingerprint.Digest && !cmp.Equal(l.before, l.after),
			"I4: another request has changed the row")
	},
	"freed, and queued without a start": func(s *script) string {
		return s.each(func(on string, _ *ledger.Operation) string {
			_, events := s.sys.read(s.id(on))
			for i := range events {
				if i > 0 && events[i].Kind == ledger.EventQueued && events[i-1].Facts["outcome"] == "never_happened_retry" {
					return "a person has freed " + on + ", and the next claim queues it again"
				}
			}
			return ""
		})
	},
	"attention for what is consistent": func(s *script) string {
		return s.each(func(on string, op *ledger.Operation) string {
			effects := s.target.of(on).effects
			return when(op.NeedsAttention && op.State == ledger.Completed && len(effects) == 1 && effects[0].id == op.Result.Resource.ID,
				on+" needs attention, and has completed with the one effect that it has")
		})
	},
	"two effects of one intent": func(s *script) string {
		effects := map[string]int{}
		for on, looks := range s.looks {
			effects[looks] += len(s.target.of(on).effects)
			if effects[looks] > 1 {
				return "I11: what looks like " + looks + " has two effects"
			}
		}
		return ""
	},
	"two compensations": func(s *script) string {
		effects := map[string]int{}
		for on, original := range s.originals {
			effects[original] += len(s.target.of(on).effects)
			if effects[original] > 1 {
				return "I10: " + original + " is compensated twice"
			}
		}
		return ""
	},
	"compensated after it was retired": func(s *script) string {
		return s.compensated(func(original *ledger.Operation, _ string) bool { return original.State == ledger.Retired })
	},
	"compensated while contradicted": func(s *script) string {
		return s.compensated(func(original *ledger.Operation, _ string) bool { return original.NeedsAttention })
	},
	"compensated before it has settled": func(s *script) string {
		return s.compensated(func(original *ledger.Operation, on string) bool {
			return ledger.Stand(original, s.contractOf(on), s.sys.now()).SettleTime.After(s.sys.now())
		})
	},
}

// each asks about every operation that is there.
func (s *script) each(ask func(on string, op *ledger.Operation) string) string {
	for on, key := range s.ops {
		if op, _ := s.sys.read(key.Hash().OperationID()); op != nil {
			if what := ask(on, op); what != "" {
				return what
			}
		}
	}
	return ""
}

// held: the last line is a command of somebody else, while a person had the operation. A check may be asked for by anybody, and of a whole tool.
func (s *script) held() bool {
	l := s.last
	if l.before == nil || l.before.Custody != ledger.Operator {
		return false
	}
	switch l.cmd.(type) {
	case ledger.TakeOver, ledger.HandBack, ledger.Resolve, ledger.Approve, ledger.Note:
		return false
	}
	return true
}

// compensated asks about the original of each compensation that has an effect, as it stands now.
func (s *script) compensated(wrongly func(original *ledger.Operation, on string) bool) string {
	for on, original := range s.originals {
		op, _ := s.sys.read(s.id(original))
		if len(s.target.of(on).effects) > 0 && op != nil && wrongly(op, original) {
			return "I10: " + on + " has an effect, and must not have been sent"
		}
	}
	return ""
}
