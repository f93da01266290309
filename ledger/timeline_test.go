// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

// TestNumbersOfTimelinesNeverRepeat: neither after each other, nor where a backup is restored twice and the store has forgotten the one between.
func TestNumbersOfTimelinesNeverRepeat(t *testing.T) {
	now := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	first := NextTimeline(1, now)
	if next := NextTimeline(first, now); next != first+1 {
		t.Errorf("in the same minute: %d after %d", next, first)
	}
	if again := NextTimeline(1, now.Add(time.Minute)); again <= first {
		t.Errorf("restored again a minute later: %d, after %d was there", again, first)
	}
	if early := NextTimeline(7, time.Unix(0, 0)); early != 8 {
		t.Errorf("by a clock that is wrong: %d after 7", early)
	}
	if epoch := uint64(NextTimeline(1, now.AddDate(3, 0, 0)))<<32 + 1<<31; epoch >= 1<<53 {
		t.Errorf("epoch %d does not fit a number of JSON", epoch)
	}
}

func TestWatermarkMoves(t *testing.T) {
	at := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	first := Watermark{At: at, LostSince: at.Add(-time.Hour)}
	for name, c := range map[string]struct {
		from          Watermark
		at, lostSince time.Time
		want          Watermark
	}{
		"the first":                       {Watermark{}, at, at.Add(-time.Hour), first},
		"what was lost before still is":   {first, at.Add(time.Hour), at.Add(50 * time.Minute), Watermark{at.Add(time.Hour), first.LostSince}},
		"more is lost":                    {first, at.Add(time.Hour), at.Add(-2 * time.Hour), Watermark{at.Add(time.Hour), at.Add(-2 * time.Hour)}},
		"a clock that was set back":       {first, at.Add(-time.Hour), at.Add(-2 * time.Hour), Watermark{at, at.Add(-2 * time.Hour)}},
		"the clock before was ahead":      {Watermark{}, at, at.Add(time.Hour), Watermark{at, at}},
		"earlier than any ledger":         {Watermark{}, at, time.Time{}, Watermark{at, numbered}},
		"long ago: nobody tries it again": {first, at.Add(watermarkMemory), at.Add(watermarkMemory - time.Hour), Watermark{at.Add(watermarkMemory), at.Add(watermarkMemory - time.Hour)}},
	} {
		if got := c.from.Moved(c.at, c.lostSince); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
