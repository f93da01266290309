// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that nobody sets and that goes on while the machine sleeps; Go's own monotonic one stands still then.
func sinceBoot() func() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return sinceStart()
	}
	return func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it went a moment ago
		return time.Duration(t.Nano())
	}
}
