// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

func TestTheStricterOfWhatIsRecordedAndWhatIsDeclaredHolds(t *testing.T) {
	const minute, day = time.Minute, 24 * time.Hour
	for name, c := range map[string]struct {
		recorded Terms
		declared Contract
		hint     Effect
		judged   Terms
		kept     Terms // at a grant
	}{
		"nothing recorded": {
			Terms{},
			Contract{Effect: Keyed, EffectWithin: minute, KeyRetention: day},
			0,
			Terms{Effect: Keyed, EffectWithin: minute, KeyRetention: day},
			Terms{Effect: Keyed, EffectWithin: minute, KeyRetention: day},
		},
		"a class made stricter": {
			Terms{Effect: Idempotent}, Contract{Effect: Unsafe}, 0, Terms{Effect: Unsafe}, Terms{Effect: Unsafe},
		},
		"a class made looser": {
			Terms{Effect: Unsafe}, Contract{Effect: Read}, 0, Terms{Effect: Unsafe}, Terms{Effect: Unsafe},
		},
		"a hint that is stricter": {
			Terms{Effect: Read}, Contract{Effect: Idempotent}, Keyed, Terms{Effect: Keyed}, Terms{Effect: Keyed},
		},
		"a hint that is looser": {
			Terms{Effect: Read}, Contract{Effect: Keyed}, Read, Terms{Effect: Keyed}, Terms{Effect: Keyed},
		},
		"a bound made longer": {
			Terms{EffectWithin: minute}, Contract{EffectWithin: 2 * minute}, 0, Terms{EffectWithin: 2 * minute}, Terms{EffectWithin: 2 * minute},
		},
		"a bound made shorter": {
			Terms{EffectWithin: 2 * minute}, Contract{EffectWithin: minute}, 0, Terms{EffectWithin: 2 * minute}, Terms{EffectWithin: 2 * minute},
		},
		"a bound taken back": {
			Terms{EffectWithin: minute}, Contract{}, 0, Terms{}, Terms{EffectWithin: minute},
		},
		"keys remembered longer": {
			Terms{Effect: Keyed, KeyRetention: day},
			Contract{Effect: Keyed, KeyRetention: 2 * day},
			0,
			Terms{Effect: Keyed, KeyRetention: day},
			Terms{Effect: Keyed, KeyRetention: day},
		},
		"keys remembered for less": {
			Terms{Effect: Keyed, KeyRetention: 2 * day},
			Contract{Effect: Keyed, KeyRetention: day},
			0,
			Terms{Effect: Keyed, KeyRetention: day},
			Terms{Effect: Keyed, KeyRetention: day},
		},
		"keys of which nothing is said any more": {
			Terms{Effect: Keyed, KeyRetention: day},
			Contract{Effect: Keyed},
			0,
			Terms{Effect: Keyed},
			Terms{Effect: Keyed, KeyRetention: day},
		},
		"keyed once, by a contract that calls it idempotent now": {
			Terms{Effect: Keyed, KeyRetention: day},
			Contract{Effect: Idempotent},
			0,
			Terms{Effect: Keyed},
			Terms{Effect: Keyed, KeyRetention: day},
		},
		"keyed once, unsafe now: the target still forgets what it is asked by": {
			Terms{Effect: Keyed, KeyRetention: day},
			Contract{Effect: Unsafe},
			0,
			Terms{Effect: Unsafe, KeyRetention: day},
			Terms{Effect: Unsafe, KeyRetention: day},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.declared.Version = "now"
			if got := c.declared.judged(c.recorded, c.hint); got != c.judged {
				t.Errorf("judged by %+v, want %+v", got, c.judged)
			}
			c.kept.ContractVersion = "now"
			if got := c.declared.recorded(c.recorded, c.hint); got != c.kept {
				t.Errorf("kept %+v, want %+v", got, c.kept)
			}
		})
	}
}
