// SPDX-License-Identifier: Apache-2.0

//go:build guards

package fingerprint

import (
	"testing"

	"github.com/opsledger/opsledger/guard"
)

// TestNothingObservedUnguarded: without the guard an empty observation would be as good as an equal one.
func TestNothingObservedUnguarded(t *testing.T) {
	guard.Without(guard.Observed)
	t.Cleanup(func() { guard.Without() })
	if v := nothingObserved(t); !v.OK() {
		t.Errorf("nothing has happened without it: %+v", v)
	}
	t.Log("without: an empty observation verifies the amount")
}

// TestAnotherOriginalUnguarded: without the guard the refund of another charge would be told as this one's.
func TestAnotherOriginalUnguarded(t *testing.T) {
	guard.Without(guard.Relations)
	t.Cleanup(func() { guard.Without() })
	if record, again := anotherOriginal(t); record.Digest != again.Digest {
		t.Error("nothing has happened without it")
	}
	t.Log("without: a claim that compensates another original is the same request")
}
