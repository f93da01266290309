// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// boot returns the time since boot, suspension included; Go's own monotonic clock stands still while a machine sleeps.
func boot() (time.Duration, bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
