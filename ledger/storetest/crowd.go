// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// testCrowd: however a store gathers calls, each gets what it asked for and nothing of its neighbour's.
func testCrowd(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	key := func(i int) ledger.Key {
		k := testKey(fmt.Sprint("crowd ", i))
		k.Task = ledger.Task(fmt.Sprint("task-", i%8))
		return k
	}
	siblings := make([]ledger.OperationID, 8)
	for i := range siblings {
		k := key(i)
		k.Key += " sibling"
		siblings[i] = insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			o.State, o.TargetAttributes = ledger.Unknown, map[string]string{"a": "b"}
			return o
		}).ID
	}
	for round := range 3 {
		atOnce(t, callers, func(i int) error {
			k := key(i)
			id, command := k.Hash().OperationID(), fmt.Sprint("command ", i)
			reads := ledger.ReadSet{ID: id, CommandID: command, Related: []ledger.OperationID{siblings[i%8]}, Siblings: &ledger.Siblings{
				Scope: k.Scope, Tool: k.Tool, Task: k.Task,
			}}
			return s.Update(t.Context(), reads, func(v ledger.View) (ledger.Change, error) {
				related, found := v.Related[siblings[i%8]]
				switch {
				case round == 0 != (v.Current == nil), v.Current != nil && v.Current.ID != id:
					return ledger.Change{}, fmt.Errorf("caller %d, round %d: read %+v", i, round, v.Current)
				case len(v.Prior) != round || round > 0 && (v.Prior[0].OperationID != id || v.Prior[0].CommandID != command):
					return ledger.Change{}, fmt.Errorf("caller %d, round %d: earlier events %+v", i, round, v.Prior)
				case len(v.Related) != 1 || !found || related.ID != siblings[i%8]:
					return ledger.Change{}, fmt.Errorf("caller %d, round %d: related %+v", i, round, v.Related)
				case !cmp.Equal(v.UnknownSiblings, siblings[i%8:i%8+1]):
					return ledger.Change{}, fmt.Errorf("caller %d, round %d: siblings %v", i, round, v.UnknownSiblings)
				}
				if len(related.TargetAttributes) != 1 {
					return ledger.Change{}, fmt.Errorf("caller %d, round %d: somebody else has written into its copy", i, round)
				}
				related.TargetAttributes[command] = ""
				if v.Current == nil {
					return create(k, ledger.ClaimID(command))(v)
				}
				e := claim(ledger.ClaimID(command))
				e.CommandDigest = fmt.Sprint(round)
				return change(e, unchanged)(v)
			})
		})
	}
	for i := range callers {
		if events := mustVerify(t, s, key(i).Hash().OperationID()); len(events) != 3 {
			t.Errorf("caller %d: %d events, want 3", i, len(events))
		}
	}
}

// testRefusedInACrowd: what is wrong with one call is no other's error.
func testRefusedInACrowd(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for i := range callers {
		if i%2 == 1 {
			mustCreate(t, s, testKey(fmt.Sprint("refused ", i)))
		}
	}
	refusal := ledger.InvalidField("field", "rule")
	wrong := map[int]func(*ledger.Operation){
		10: func(o *ledger.Operation) { o.State = 7 },                           // of a new row
		21: func(o *ledger.Operation) { o.Custody = ledger.Operator },           // of one that is there
		40: func(o *ledger.Operation) { o.Custodian = "nobody's" },              // another rule
		51: func(o *ledger.Operation) { o.UpdateTime = o.CreateTime.Add(-1e9) }, // and another
	}
	errs := make([]error, callers)
	atOnce(t, callers, func(i int) error {
		k := testKey(fmt.Sprint("refused ", i))
		errs[i] = s.Update(t.Context(), ledger.ReadSet{ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) {
			decide := create(k, "c")
			if i%2 == 1 {
				decide = change(note("n"), unchanged)
			}
			c, err := decide(v)
			if i == 30 {
				return ledger.Change{}, refusal
			}
			if spoil := wrong[i]; spoil != nil {
				spoil(c.Next)
			}
			return c, err
		})
		return nil
	})
	for i, err := range errs {
		id, want := testID(fmt.Sprint("refused ", i)), 1+i%2
		switch {
		case i == 30:
			if !errors.Is(err, refusal) {
				t.Errorf("caller %d: got %v, want its own refusal", i, err)
			}
			want = 0
		case wrong[i] != nil:
			if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("caller %d: got %v, want an error that no retry mends", i, err)
			}
			want--
		case err != nil:
			t.Errorf("caller %d: %v", i, err)
		}
		if events, err := s.Events(t.Context(), id); err != nil || len(events) != want {
			t.Errorf("caller %d: %d events, want %d: %v", i, len(events), want, err)
		}
	}
}

// testUnseenCrowd: each call finds out what became of its own write, whoever shared the commit with it.
func testUnseenCrowd(t *testing.T, d Data) {
	plain := d.Open(t, Options{})
	for _, apply := range []bool{false, true} {
		var asked atomic.Int64
		s := d.Open(t, Options{CommitFault: func() (bool, error) {
			if asked.Add(1) == 2 { // the first one, for which nobody has waited, may be of a single call
				return apply, errFault
			}
			return true, nil
		}})
		for round := range 2 { // rows that are new, then rows that are there
			asked.Store(0)
			atOnce(t, callers, func(i int) error {
				k := testKey(fmt.Sprint("unseen ", apply, i))
				return s.Update(t.Context(), ledger.ReadSet{ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) {
					if round == 0 {
						return create(k, "c")(v)
					}
					return change(note("n"), unchanged)(v)
				})
			})
			if asked.Load() < 2 {
				t.Fatal("no commit has failed")
			}
			for i := range callers {
				if events := mustVerify(t, plain, testID(fmt.Sprint("unseen ", apply, i))); len(events) != round+1 {
					t.Errorf("persisted %t, caller %d: %d events, want %d", apply, i, len(events), round+1)
				}
			}
		}
	}
}
