// SPDX-License-Identifier: Apache-2.0

package client

import "time"

// SetClock gives a ledger's client another clock.
func SetClock(l *Ledger, now func() time.Duration) { l.now = now }
