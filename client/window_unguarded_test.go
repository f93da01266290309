// SPDX-License-Identifier: Apache-2.0

//go:build guards

package client

import (
	"testing"

	"github.com/opsledger/opsledger/guard"
)

// TestGrantThatComesTooLateUnguarded: a worker that counts from the receipt sends after its window, as the ledger counts that.
func TestGrantThatComesTooLateUnguarded(t *testing.T) {
	guard.Without(guard.FromSending)
	t.Cleanup(func() { guard.Without() })
	runs, report, err := grantThatComesTooLate(t)
	if runs != 1 || err != nil {
		t.Errorf("nothing has happened without it: %d executions, reported %q, %v", runs, report, err)
	}
	t.Logf("without: executed 31s after the call, with a send window of 30s")
}
