// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package main

import (
	"testing"

	"github.com/opsledger/opsledger/failpoint"
)

func TestABinaryWithoutFailpointsRefusesThem(t *testing.T) {
	if _, err := output(t, []string{failpoint.Variable + "=rpc.claim.after-commit=kill"}, "version"); exitCode(err) != 2 {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
}
