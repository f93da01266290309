// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package storetest

import (
	"testing"

	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
)

// withFailpoints are the cases that need a binary with failpoints.
var withFailpoints = []testCase{{failpoints, testFailpoints}}

func testFailpoints(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for _, c := range []struct {
		point   failpoint.Name
		creates bool
		// kept: what was written is there although the caller was told that the store is unavailable
		kept bool
	}{
		{failpoint.StoreCreateBeforeCommit, true, false},
		{failpoint.StoreCreateAfterCommit, true, true},
		{failpoint.StoreUpdateBetweenReadAndWrite, false, false},
		{failpoint.StoreUpdateBeforeCommit, false, false},
		{failpoint.StoreUpdateAfterCommit, false, true},
	} {
		t.Run(string(c.point), func(t *testing.T) {
			k := testKey(string(c.point))
			reads := ledger.ReadSet{ID: k.Hash().OperationID()}
			decide, want := create(k, "c"), 1
			if !c.creates {
				mustCreate(t, s, k)
				decide, want = change(note("n"), unchanged), 2
			}
			restore := failpoint.Enable(c.point, failpoint.Error())
			err := s.Update(t.Context(), reads, decide)
			restore()
			wantUnavailable(t, "an error that stays", err)
			there := want - 1
			if c.kept {
				there = want
			}
			if events, err := s.Events(t.Context(), reads.ID); err != nil || len(events) != there {
				t.Fatalf("%d events, want %d: %v", len(events), there, err)
			}
			if c.kept {
				return
			}
			restore = failpoint.Enable(c.point, failpoint.Error().Times(1))
			mustUpdate(t, s, reads, decide)
			restore()
			if events := mustVerify(t, s, reads.ID); len(events) != want {
				t.Errorf("%d events after an error that passed, want %d", len(events), want)
			}
		})
	}
}
