// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// The next page begins where the scan has ended, be it with one that is wanted, with one that is not, or at the limit.
func TestWhereAPageEnds(t *testing.T) {
	at := func(n byte) ledger.DuePosition {
		return ledger.DuePosition{Time: time.Unix(int64(n), 0), ID: ledger.OperationID{n}}
	}
	for name, c := range map[string]struct {
		looked []ledger.LookedAt
		want   ledger.DuePage
	}{
		"nothing is due":          {nil, ledger.DuePage{}},
		"all is looked at":        {[]ledger.LookedAt{{at(1), true, false}}, ledger.DuePage{Due: []ledger.DuePosition{at(1)}}},
		"the limit":               {[]ledger.LookedAt{{at(1), true, false}, {at(2), true, false}}, ledger.DuePage{Due: []ledger.DuePosition{at(1), at(2)}, End: at(2)}},
		"the scan, on one wanted": {[]ledger.LookedAt{{at(9), true, true}}, ledger.DuePage{Due: []ledger.DuePosition{at(9)}, End: at(9)}},
		"the scan, on another":    {[]ledger.LookedAt{{at(1), true, false}, {at(9), false, true}}, ledger.DuePage{Due: []ledger.DuePosition{at(1)}, End: at(9)}},
	} {
		if diff := cmp.Diff(c.want, ledger.PageOf(c.looked, 2)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
