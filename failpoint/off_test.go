// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package failpoint

import (
	"context"
	"testing"
)

func TestWithoutTheTagNothingHappens(t *testing.T) {
	t.Setenv(Variable, string(RPCClaimAfterCommit)+"=panic")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range Names() {
		if err := Hit(ctx, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = Hit(ctx, RPCClaimAfterCommit) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
	if Built {
		t.Error("Built is true without the tag")
	}
}
