// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger"
)

// TestSearchPlans: what people look for when they are called is found by an index, also where it is a thousandth of what there is.
func TestSearchPlans(t *testing.T) {
	conn, run := planned(t)
	yes := true
	searches := map[string]struct {
		q     ledger.Search
		index string
	}{
		"the queue":           {ledger.Search{Custodies: []ledger.Custody{ledger.Queued}}, "operations_with_people"},
		"a person's":          {ledger.Search{Custodian: "ops-a"}, "operations_with_people"},
		"a reason":            {ledger.Search{QueueReasons: []ledger.QueueReason{ledger.NoMethod}}, "operations_with_people"},
		"attention":           {ledger.Search{NeedsAttention: &yes}, "operations_needing_attention"},
		"unknown of a tool":   {ledger.Search{States: []ledger.State{ledger.Unknown}, Tool: "tool-1"}, "unknown_by_tool"},
		"by a downstream key": {ledger.Search{DownstreamKey: strings.Repeat("0", 32)}, "operations_downstream_key"},
		"a task of a scope":   {ledger.Search{Scope: "scope-a", Task: "task-1"}, "operations_by_task"},
		"a scope":             {ledger.Search{Scope: "scope-a"}, "operations_by_create"},
	}
	for _, state := range []string{"young", "many open rows", "many open rows, analysed"} {
		switch state {
		case "many open rows":
			run(openRows(50_000))
			run("UPDATE operations SET custody = 2, queue_reason = 1 WHERE get_byte(key_hash, 0) = 0 AND get_byte(key_hash, 1) < 64 AND state = 5")
		case "many open rows, analysed":
			run("ANALYZE")
		}
		for what, c := range searches {
			for order := range searchKeys {
				plan := explain(t, conn, searchSQL(sourceOf(c.q), order), 0)
				if !strings.Contains(plan, c.index) || strings.Contains(plan, "Seq Scan") {
					t.Errorf("%s: %s in order %d does not use %s alone:\n%s", state, what, order, c.index, plan)
				}
			}
		}
	}
}

// TestTamperedEvent: what was changed in a history is left out, and told of.
func TestTamperedEvent(t *testing.T) {
	s, run := beside(t)
	k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: "k"}
	id := k.Hash().OperationID()
	for range 2 {
		err := s.Update(t.Context(), ledger.ReadSet{ID: id}, func(v ledger.View) (ledger.Change, error) {
			if v.Current == nil {
				return claimed(t, k, v), nil
			}
			next := v.Current.Clone()
			next.Sequence++
			next.UpdateTime = v.Now
			e := ledger.Event{OperationID: id, Sequence: next.Sequence, Version: next.Version, Time: v.Now, Kind: ledger.EventNote, ToState: next.State, Note: "n"}
			e.Seal(next.LastHash)
			next.LastHash = e.Hash
			return ledger.Change{Next: &next, Event: &e}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(n int, whole bool) {
		t.Helper()
		events, ok, err := s.History(t.Context(), id)
		if err != nil || len(events) != n || ok != whole {
			t.Errorf("%d events, whole %v, %v; want %d, %v", len(events), ok, err, n, whole)
		}
	}
	want(2, true)
	run(fmt.Sprintf("UPDATE events SET note = 'another' WHERE operation_id = '%s' AND sequence = 2", id))
	want(1, false)
	run(fmt.Sprintf("UPDATE events SET facts = 'no document', actor = 'x' WHERE operation_id = '%s' AND sequence = 1", id))
	want(0, false)
}

// TestSearchThatNoIndexNarrows: where it took too long once, the next one is told how to narrow it before anything is read.
func TestSearchThatNoIndexNarrows(t *testing.T) {
	s, run := beside(t)
	of := func(q ledger.Search) error {
		q.Visible.Every, q.Limit = true, 10
		_, err := s.Search(t.Context(), q)
		return err
	}
	broad, narrow := ledger.Search{Tool: "tool"}, ledger.Search{Tool: "tool", Scope: "scope"}
	if err := errors.Join(of(broad), of(narrow)); err != nil {
		t.Fatal(err)
	}
	k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: "k"}
	if err := s.Update(t.Context(), ledger.ReadSet{ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) { return claimed(t, k, v), nil }); err != nil {
		t.Fatal(err)
	}
	run("ALTER TABLE operations RENAME TO all_operations")
	run("CREATE VIEW operations AS SELECT o.* FROM all_operations AS o, pg_sleep(60)")
	if err := of(broad); !errors.Is(err, ledger.ErrValidation) {
		t.Fatalf("one that took too long: %v", err)
	}
	run("DROP VIEW operations")
	run("ALTER TABLE all_operations RENAME TO operations")
	var refused *ledger.Refusal
	if err := of(broad); !errors.As(err, &refused) || len(refused.Violations) != 1 || refused.Violations[0].Field != "scope" {
		t.Errorf("after one that took too long: %v", err)
	}
	if err := of(narrow); err != nil {
		t.Errorf("one that an index narrows: %v", err)
	}
}
