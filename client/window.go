// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"time"
)

// clock tells the time that has passed since some moment; it never goes back.
type clock func() time.Duration

var start = time.Now()

// uptime counts suspension where the system has a clock for that, else it is Go's monotonic clock.
func uptime() time.Duration {
	if t, ok := boot(); ok {
		return t
	}
	return time.Since(start)
}

// ErrWindowOver is the cause of the end of an execution's context, and of the error of a [Do] whose grant came too late.
var ErrWindowOver = errors.New("the send window of the grant is over")

// watchInterval is how long after a suspension an execution may not have noticed that its window is over: timers count
// no suspension, so the clock is read again. [Call.MaySend] reads it at once.
const watchInterval = 200 * time.Millisecond

// window is the time within which the holder of a grant may send.
type window struct {
	now clock
	end time.Duration
}

func (w window) left() time.Duration { return w.end - w.now() }

// context ends with the window at the latest.
func (w window) context(parent context.Context) (context.Context, context.CancelFunc) {
	// The deadline is for transports that pass one on; it is also the timer of the usual case.
	ctx, stop := context.WithTimeoutCause(parent, w.left(), ErrWindowOver)
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if w.left() <= 0 {
					cancel(ErrWindowOver)
					return
				}
			}
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		stop()
	}
}
