// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// putOff are operations that are due and are not looked at for a while, in this process alone: those that could not be dealt with, longer each time, and
// those with which nothing was to be done.
type putOff struct {
	most int
	ids  map[ledger.OperationID]delay
}

type delay struct {
	until  time.Time
	failed int
}

const (
	mostPutOff   = 1 << 16
	firstPutOff  = 5 * time.Second
	longestDelay = 30 * time.Minute
	leftFor      = 15 * time.Second
)

func newPutOff() *putOff { return &putOff{most: mostPutOff, ids: map[ledger.OperationID]delay{}} }

func (p *putOff) waits(id ledger.OperationID, now time.Time) bool {
	d, ok := p.ids[id]
	return ok && now.Before(d.until)
}

func (p *putOff) failed(id ledger.OperationID, now time.Time) {
	d := p.ids[id]
	wait := firstPutOff
	for range min(d.failed, 20) {
		wait = min(2*wait, longestDelay)
	}
	p.note(id, delay{now.Add(wait), d.failed + 1})
}

// turned away at a target, for so long at least: it is tried again soon, and less and less often while others are faster.
func (p *putOff) turned(id ledger.OperationID, after time.Duration, now time.Time) {
	d := p.ids[id]
	wait := max(spread(grown(firstRefused, d.failed+1, longestRefused)), min(after, leftFor))
	p.note(id, delay{now.Add(wait), d.failed + 1})
}

func (p *putOff) left(id ledger.OperationID, now time.Time) {
	p.note(id, delay{until: now.Add(leftFor)})
}

func (p *putOff) note(id ledger.OperationID, d delay) {
	for other := range p.ids { // any of them: it is noted again
		if len(p.ids) < p.most {
			break
		}
		delete(p.ids, other)
	}
	p.ids[id] = d
}

func (p *putOff) forget(id ledger.OperationID) { delete(p.ids, id) }
