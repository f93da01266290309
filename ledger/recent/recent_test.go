// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"fmt"
	"testing"

	"github.com/opsledger/opsledger/ledger"
)

func id(n int) (id ledger.OperationID) {
	copy(id[:], fmt.Sprintf("%16d", n))
	return id
}

// written is the row of that id after so many events, with the last of them.
func written(n int, events uint64, state ledger.State) ledger.Change {
	return ledger.Change{
		Next: &ledger.Operation{ID: id(n), State: state, Sequence: events, LastHash: hash(events), TargetAttributes: map[string]string{"a": "b"}},
		Event: &ledger.Event{
			OperationID: id(n), Sequence: events, CommandID: fmt.Sprint("command ", events), PrevHash: hash(events - 1), Hash: hash(events),
		},
	}
}

func hash(event uint64) [32]byte { return [32]byte{31: byte(event)} }

func TestARowIsGuessedOnceAndAsItWasWritten(t *testing.T) {
	r := New(8)
	r.Wrote(Guess{}, written(1, 1, ledger.Processing))
	g, ok := r.Guess(ledger.ReadSet{ID: id(1), CommandID: "command 1"})
	if !ok || g.current == nil || g.current.Sequence != 1 || len(g.prior) != 1 {
		t.Fatalf("%t, %+v; want the row and the event of the command", ok, g)
	}
	g.current.TargetAttributes["a"] = "changed"
	if _, ok := r.Guess(ledger.ReadSet{ID: id(1)}); ok {
		t.Error("the row was guessed again")
	}
	second := written(1, 2, ledger.Unknown)
	r.Wrote(g, second)
	if second.Next.TargetAttributes["a"] != "b" {
		t.Error("a taker's change went into another row")
	}
	if g, ok = r.Guess(ledger.ReadSet{ID: id(1), CommandID: "command 1"}); !ok || g.current.Sequence != 2 || len(g.prior) != 1 {
		t.Errorf("after a second write: %t, %+v; want the row and one event of the command", ok, g)
	}
}

func TestWhatIsNotGuessed(t *testing.T) {
	for name, prepare := range map[string]func(r *Rows) ledger.ReadSet{
		"a row of which nothing is known": func(*Rows) ledger.ReadSet { return ledger.ReadSet{ID: id(1)} },
		"a new key that wants slots": func(*Rows) ledger.ReadSet {
			return ledger.ReadSet{ID: id(1), MayCreate: true, Slots: []ledger.Slot{{1}}}
		},
		"a new key of a tool whose unknowns count": func(*Rows) ledger.ReadSet {
			return ledger.ReadSet{ID: id(1), MayCreate: true, Unknowns: &ledger.Unknowns{Tool: "t", Limit: 1}}
		},
		"a row that was read": func(r *Rows) ledger.ReadSet {
			r.Read(ledger.ReadSet{ID: id(1)}, true, false)
			return ledger.ReadSet{ID: id(1)}
		},
		"a final row": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 1, ledger.Completed))
			return ledger.ReadSet{ID: id(1)}
		},
		"a row with events that are not known": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 2, ledger.Processing))
			return ledger.ReadSet{ID: id(1)}
		},
		"a row whose history is another one": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 1, ledger.Processing))
			g, _ := r.Guess(ledger.ReadSet{ID: id(1)})
			other := written(1, 2, ledger.Processing)
			other.Event.PrevHash = hash(9)
			r.Wrote(g, other)
			return ledger.ReadSet{ID: id(1)}
		},
		"a row with a long history": func(r *Rows) ledger.ReadSet {
			var g Guess
			for n := range uint64(maxHistory + 1) {
				r.Wrote(g, written(1, n+1, ledger.Processing))
				g, _ = r.Guess(ledger.ReadSet{ID: id(1)})
			}
			return ledger.ReadSet{ID: id(1)}
		},
		"a row with its relatives": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 1, ledger.Processing))
			return ledger.ReadSet{ID: id(1), Related: []ledger.OperationID{id(2)}}
		},
		"a row with its siblings": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 1, ledger.Processing))
			return ledger.ReadSet{ID: id(1), Siblings: &ledger.Siblings{}}
		},
		"a claim of a key that is known": func(r *Rows) ledger.ReadSet {
			r.Wrote(Guess{}, written(1, 1, ledger.Completed))
			return ledger.ReadSet{ID: id(1), MayCreate: true, Siblings: &ledger.Siblings{}}
		},
		"a claim where most keys are known": func(r *Rows) ledger.ReadSet {
			for n := range maxTrust/4 + 1 {
				r.Read(ledger.ReadSet{ID: id(2 + n), MayCreate: true}, true, false)
			}
			return ledger.ReadSet{ID: id(1), MayCreate: true}
		},
		"a row that was forgotten for newer ones": func(r *Rows) ledger.ReadSet {
			for n := range 9 {
				r.Wrote(Guess{}, written(1+n, 1, ledger.Processing))
			}
			return ledger.ReadSet{ID: id(1)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(8)
			if g, ok := r.Guess(prepare(r)); ok {
				t.Errorf("guessed %+v", g)
			}
		})
	}
}

func TestThatAKeyIsNewIsGuessedAgainWhereMostAre(t *testing.T) {
	r := New(8)
	claim := func(n int) ledger.ReadSet { return ledger.ReadSet{ID: id(n), MayCreate: true} }
	for n := range maxTrust {
		r.Read(claim(n), false, true)
	}
	for n := range maxTrust / 2 {
		if _, ok := r.Guess(claim(n)); ok {
			t.Fatalf("guessed after %d new keys, want %d", n, maxTrust/2)
		}
		r.Read(claim(n), false, false)
	}
	if _, ok := r.Guess(claim(0)); !ok {
		t.Error("not guessed, although the last keys were all new")
	}
}

func TestALeaseThatWasRenewedIsRemembered(t *testing.T) {
	r := New(8)
	r.Wrote(Guess{}, written(1, 1, ledger.Processing))
	g, _ := r.Guess(ledger.ReadSet{ID: id(1)})
	renewed := written(1, 1, ledger.Processing)
	renewed.Event, renewed.Next.Attempts = nil, 7
	r.Wrote(g, renewed)
	if g, ok := r.Guess(ledger.ReadSet{ID: id(1)}); !ok || g.current.Attempts != 7 {
		t.Errorf("%t, %+v; want the row as it was renewed", ok, g.current)
	}
}
