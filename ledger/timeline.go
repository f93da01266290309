// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"time"
)

// Timeline is one of a store's lives. A new one begins with each failover or restore that may have lost commits, and with it the quarantine that
// a Watermark describes.
type Timeline struct {
	// Number is the upper half of each epoch of its grants. It never repeats.
	Number    uint32
	BeginTime time.Time
	// LostSince is from when on commits of the timeline before may have been lost; zero: none were, or the store is new.
	LostSince time.Time
	Cause     TimelineCause
}

// TimelineCause says why a timeline began.
type TimelineCause string

// The causes. CauseSwitched begins no timeline: another server has the store, and it is declared that nothing was lost.
const (
	CauseCreated     TimelineCause = "created"
	CauseFailover    TimelineCause = "failover"     // the server has changed its own timeline
	CauseOtherServer TimelineCause = "other server" // the server has another identity
	CauseLostCommit  TimelineCause = "lost commit"  // what was acknowledged is not there
	CauseRestored    TimelineCause = "restored"     // a person said so
	CauseSwitched    TimelineCause = "switched"
)

// RestoreStore is the part of a store that knows of its timelines. The stores are RestoreStores, and have the same errors.
type RestoreStore interface {
	// Restored begins a timeline because a person knows that commits since a time may have been lost. A time that lies ahead is an InvalidField.
	Restored(ctx context.Context, lostSince time.Time) (Timeline, error)
	// Timelines returns all of them, the oldest first.
	Timelines(ctx context.Context) ([]Timeline, error)
}

// numbered is when the numbers of timelines are counted from. No ledger is older.
var numbered = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// NextTimeline is the number of a timeline that begins now, after that one and the latest that anybody is known to have seen. It counts minutes: a
// backup that is restored twice knows nothing of the timeline between, whose workers may still hold its epochs.
func NextTimeline(last uint32, now time.Time) uint32 {
	return max(last+1, uint32(max(now.Sub(numbered)/time.Minute, 0)))
}

// watermarkMemory is for how long a second loss counts from when the first one did: a key without intent_time does not say which of them took it.
const watermarkMemory = 366 * 24 * time.Hour

// Moved is the watermark of a timeline that begins at a time, after one that had w.
func (w Watermark) Moved(at, lostSince time.Time) Watermark {
	if !w.At.IsZero() {
		if at.Before(w.At) {
			at = w.At
		}
		if w.LostSince.Before(lostSince) && at.Sub(w.At) < watermarkMemory {
			lostSince = w.LostSince
		}
	}
	switch {
	case at.Before(lostSince):
		lostSince = at
	case lostSince.Before(numbered): // no time at all would say that nothing was lost
		lostSince = numbered
	}
	return Watermark{At: at, LostSince: lostSince}
}

// LostSince is from when on commits may have been lost, if the last one that is left is of that time. Another one may have been decided earlier and
// committed later, and its time be that of another clock.
func LostSince(left time.Time) time.Time { return left.Add(-intentSkew) }

// CheckLostSince refuses a time that no loss can begin at.
func CheckLostSince(lostSince, now time.Time) error {
	if lostSince.After(now) {
		return InvalidField("lost_since", "must not lie ahead of the store's clock")
	}
	return nil
}
