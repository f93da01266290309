// SPDX-License-Identifier: Apache-2.0

// Package recent remembers the rows that this process has just written, so that the next command about one can be decided before anything
// is read: most operations are claimed and completed through one process, seconds apart.
//
// What it gives is a guess. It is good for one attempt, whose write must find all as the guess says or change nothing; it is never told
// to anybody. Whoever's guess was wrong, and whoever decides on it to write nothing, reads.
//
// It depends on the ledger's values and on an LRU list.
package recent

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// maxHistory is how many events a row may have to be remembered: a guess needs all of them, because the next command may be a copy of
	// an earlier one.
	maxHistory = 8
	// Guesses that an operation is new begin and end at half of maxTrust: a wrong one costs about what a right one saves.
	maxTrust = 128
)

// Rows are what is remembered. They may be used by many at once.
type Rows struct {
	mu   sync.Mutex
	rows *simplelru.LRU[ledger.OperationID, row]
	// trust is gained by claims of new keys and lost, twice as fast, by those of known ones.
	trust int
}

// row is one operation; without a history it is only known to exist.
type row struct {
	operation ledger.Operation
	history   []ledger.Event
}

// New makes room for a number of rows.
func New(limit int) *Rows {
	rows, err := simplelru.NewLRU[ledger.OperationID, row](limit, nil)
	if err != nil {
		panic(fmt.Sprintf("recent: %v", err)) // the limit is not positive
	}
	return &Rows{rows: rows, trust: maxTrust}
}

// Guess is what a read would probably find.
type Guess struct {
	made    bool
	current *ledger.Operation
	prior   []ledger.Event
	history []ledger.Event
}

// At is what would be found at a time, in a store of that timeline and watermark.
func (g Guess) At(now time.Time, timeline uint32, watermark ledger.Watermark) ledger.View {
	return ledger.View{Now: now, Timeline: timeline, Watermark: watermark, Current: g.current, Prior: g.prior}
}

// Guess says what a read would find, if that can be guessed: there is no such operation, or it is as this process left it, and nothing
// like it is UNKNOWN. Whose a slot is, how many are UNKNOWN, and what was forgotten, can't. A row is guessed once: if that is wrong, the next one would be, too.
func (r *Rows) Guess(reads ledger.ReadSet) (Guess, bool) {
	if len(reads.Related) > 0 || len(reads.Slots) > 0 || reads.Unknowns != nil || reads.Forgotten != "" || reads.Siblings != nil && !reads.MayCreate {
		return Guess{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known, found := r.rows.Get(reads.ID)
	switch {
	case reads.MayCreate:
		return Guess{made: true}, !found && r.trust >= maxTrust/2
	case len(known.history) == 0:
		return Guess{}, false
	}
	r.rows.Add(reads.ID, row{})
	operation := known.operation.Clone()
	g := Guess{made: true, current: &operation, history: known.history}
	if reads.CommandID != "" {
		for _, e := range known.history {
			if e.CommandID == reads.CommandID {
				g.prior = append(g.prior, e)
			}
		}
	}
	return g, true
}

// Read notes what was found by a read, and whether that came after a guess which did not hold.
func (r *Rows) Read(reads ledger.ReadSet, found, wrong bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reads.MayCreate {
		r.learn(!found && !wrong)
	}
	if _, known := r.rows.Peek(reads.ID); found && !known {
		r.rows.Add(reads.ID, row{})
	}
}

func (r *Rows) learn(fresh bool) {
	if fresh {
		r.trust = min(r.trust+1, maxTrust)
	} else {
		r.trust = max(r.trust-2, 0)
	}
}

// Wrote notes a change that was committed, with the guess that it was decided on, if any.
func (r *Rows) Wrote(from Guess, change ledger.Change) {
	next, history := change.Next, from.history
	last, before := [32]byte{}, next.LastHash
	if n := len(history); n > 0 {
		last = history[n-1].Hash
	}
	if change.Event != nil {
		before = change.Event.PrevHash
	}
	if last != before { // it is not the history of this row
		history = nil
	}
	if change.Event != nil {
		history = append(history, *change.Event)
	}
	known := row{operation: *next, history: history}
	// What is final is read to be shown; and what has more events than are known here may have the next command among them.
	if next.State.Final() || uint64(len(history)) != next.Sequence || len(history) > maxHistory {
		known = row{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if from.made && from.current == nil {
		r.learn(true)
	}
	r.rows.Add(next.ID, known)
}
