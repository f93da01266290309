// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package main

import (
	"errors"
	"syscall"
	"testing"

	"github.com/opsledger/opsledger/failpoint"
)

func TestAFaultBeforeListeningEndsTheStart(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	restore := failpoint.Enable(failpoint.ServeBeforeListen, failpoint.Error())
	defer restore()
	if _, err := output(t, nil, h.args...); !errors.Is(err, failpoint.ErrInjected) || exitCode(err) != 1 {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
}

func TestAFaultInTheDrainStillStops(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	restore := failpoint.Enable(failpoint.ServeDrainStarted, failpoint.Error())
	defer restore()
	r := start(t, nil, append(h.args, "--drain-delay", "5m")...)
	r.signals <- syscall.SIGTERM
	if err := r.wait(); !errors.Is(err, failpoint.ErrInjected) {
		t.Errorf("ended with %v", err)
	}
	if code, _ := r.get("/livez"); code != 0 {
		t.Errorf("the admin listener still answers: %d", code)
	}
}
