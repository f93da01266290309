// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func TestWhatFailsIsPutOffLongerEachTime(t *testing.T) {
	p := newPutOff()
	p.most = 2
	a, b, c := ledger.OperationID{1}, ledger.OperationID{2}, ledger.OperationID{3}
	now := time.Unix(1000, 0)
	var got []time.Duration
	for range 12 {
		p.failed(a, now)
		until := p.ids[a].until
		if !p.waits(a, until.Add(-1)) || p.waits(a, until) || p.waits(b, now) {
			t.Fatal("it does not wait until then, or others do")
		}
		got = append(got, until.Sub(now))
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{5 * s, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 320 * s, 640 * s, 1280 * s, 1800 * s, 1800 * s, 1800 * s}, got); diff != "" {
		t.Error(diff)
	}
	p.forget(a)
	p.failed(a, now)
	if got := p.ids[a].until.Sub(now); got != 5*s {
		t.Errorf("after it went well once: %v", got)
	}
	p.failed(b, now)
	p.failed(c, now)
	if len(p.ids) != 2 || !p.waits(c, now) {
		t.Errorf("of more than are kept, %d are, the last: %v", len(p.ids), p.waits(c, now))
	}
}
