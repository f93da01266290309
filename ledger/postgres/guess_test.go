// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// TestGuessesOfTheDatabase: a decision on what the database was a moment ago is written only where it still is.
func TestGuessesOfTheDatabase(t *testing.T) {
	s, run := beside(t)
	n := 0
	claim := func() (views []ledger.View) {
		t.Helper()
		n++
		k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: fmt.Sprint(n)}
		reads := ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: "c", MayCreate: true, Siblings: &ledger.Siblings{Scope: k.Scope, Tool: k.Tool, Task: k.Task}}
		err := s.Update(t.Context(), reads, func(v ledger.View) (ledger.Change, error) {
			views = append(views, v)
			return claimed(t, k, v), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return views
	}
	claim()
	if views := claim(); len(views) != 1 || s.Stats().Reads != 1 {
		t.Fatalf("%d decisions, %d reads: want one decision on a guess", len(views), s.Stats().Reads)
	}
	for what, c := range map[string]struct {
		spoil func()
		holds func(ledger.View) bool
	}{
		"another timeline": {
			func() { run("UPDATE meta SET timeline = 7") },
			func(v ledger.View) bool { return v.Timeline == 7 },
		},
		"a watermark": {
			func() { run("UPDATE meta SET watermark_time = now(), watermark_lost_since = now()") },
			func(v ledger.View) bool { return !v.Watermark.At.IsZero() && !v.Watermark.LostSince.IsZero() },
		},
		"a clock that was set forward": {
			func() { s.seen.now = s.seen.now.Add(-time.Minute) },
			func(v ledger.View) bool { return time.Since(v.Now).Abs() < 30*time.Second },
		},
		"a clock that was set back": {
			func() { s.seen.now = s.seen.now.Add(time.Minute) },
			func(v ledger.View) bool { return time.Since(v.Now).Abs() < 30*time.Second },
		},
	} {
		claim() // so that the database has been seen a moment ago
		claim()
		c.spoil()
		views := claim()
		if len(views) != 2 || c.holds(views[0]) || !c.holds(views[1]) {
			t.Errorf("%s: decided on %+v: want a guess that does not hold, then what was read", what, views)
		}
	}
	claim()
	claim()
	run("UPDATE meta SET schema_version = 9")
	k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: "a schema that this release does not know"}
	err := s.Update(t.Context(), ledger.ReadSet{MayCreate: true, ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) {
		return claimed(t, k, v), nil
	})
	if !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("a claim in a schema that this release does not know: %v, want ErrStoreUnavailable", err)
	}
	run("UPDATE meta SET schema_version = 1")
	if _, _, err := s.Get(t.Context(), k.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) {
		t.Errorf("it was written: %v", err)
	}
}

// TestABatchOfCallersThatHaveGone: nothing is left to write of it.
func TestABatchOfCallersThatHaveGone(t *testing.T) {
	s, _ := beside(t)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := s.writes.Do(t.Context(), write{id: ledger.OperationID{1}, caller: gone}); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("got %v, want ErrStoreUnavailable", err)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// claimed is what a claim wants written.
func claimed(t *testing.T, k ledger.Key, v ledger.View) ledger.Change {
	t.Helper()
	c := ledger.Claim{
		Key: k, ClaimID: "c", WorkerID: "w", Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "p"}, ToolAllowed: true,
		Fingerprint: ledger.Fingerprint{Spec: 1, SecretID: "s", Contract: "c"},
	}
	contract := ledger.DefaultContract(k.Tool)
	contract.RequireIntentTime = false
	change, answer, err := ledger.Decide(v.Current, ledger.Related{Timeline: v.Timeline}, c, contract, v.Now)
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatalf("%v, %v", answer.Outcome, err)
	}
	return change
}
