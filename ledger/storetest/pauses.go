// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsledger/opsledger/ledger"
)

func toolCommand(id string, kind ledger.CommandKind, tool ledger.Tool) ledger.ToolCommand {
	return ledger.ToolCommand{CommandID: ledger.CommandID(id), Kind: kind, Tool: tool, Actor: "ops-a", Reason: "why " + id}
}

func mustCommand(t *testing.T, s ledger.OperatorStore, c ledger.ToolCommand) ledger.ToolCommand {
	t.Helper()
	kept, err := s.CommandTool(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func wantPauses(t *testing.T, s ledger.OperatorStore, want ...ledger.ToolCommand) {
	t.Helper()
	got, err := s.Pauses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("paused (-want +got):\n%s", diff)
	}
}

func testToolCommands(t *testing.T, d Data) {
	clock := newSteps()
	s, other := people(t, d.Open(t, Options{Now: clock.at})), people(t, d.Open(t, Options{Now: clock.at}))
	wantPauses(t, s)
	pause := toolCommand("p1", ledger.KindPauseTool, "charge")
	pause.Reason = "line\nand \x00 é"
	kept := mustCommand(t, s, pause)
	if !kept.Time.Equal(clock.now) {
		t.Errorf("kept at %v, want %v", kept.Time, clock.now)
	}
	pause.Time = clock.now
	if diff := gocmp.Diff(pause, kept); diff != "" {
		t.Error(diff)
	}
	wantPauses(t, other, pause)

	clock.now = clock.now.Add(time.Second)
	again := pause
	again.Actor = "ops-b" // whoever sends it again
	if diff := gocmp.Diff(pause, mustCommand(t, other, again)); diff != "" {
		t.Errorf("sent again (-want +got):\n%s", diff)
	}
	for what, change := range map[string]func(*ledger.ToolCommand){
		"another kind":   func(c *ledger.ToolCommand) { c.Kind = ledger.KindResumeTool },
		"another tool":   func(c *ledger.ToolCommand) { c.Tool = "Charge" },
		"another reason": func(c *ledger.ToolCommand) { c.Reason += "." },
	} {
		c := pause
		change(&c)
		if _, err := s.CommandTool(t.Context(), c); !errors.Is(err, ledger.ErrCommandReused) {
			t.Errorf("%s: got %v, want ErrCommandReused", what, err)
		}
	}
	wantPauses(t, s, pause)

	all := mustCommand(t, s, toolCommand("p2", ledger.KindPauseTool, ledger.AllTools))
	clock.now = clock.now.Add(time.Second)
	later := mustCommand(t, s, toolCommand("p3", ledger.KindPauseTool, "charge"))
	wantPauses(t, s, all, later)
	mustCommand(t, other, toolCommand("r1", ledger.KindResumeTool, "charge"))
	mustCommand(t, other, toolCommand("r2", ledger.KindResumeTool, "never paused"))
	wantPauses(t, s, all)
	// A pause that comes late, after the resumption, was done before: it does nothing again.
	mustCommand(t, s, pause)
	wantPauses(t, s, all)
	mustCommand(t, s, toolCommand("r3", ledger.KindResumeTool, ledger.AllTools))
	wantPauses(t, s)

	check := toolCommand("c1", ledger.KindCheckNow, "charge")
	check.Due = 7
	check = mustCommand(t, s, check)
	wantPauses(t, s)
	for _, c := range []ledger.ToolCommand{check, later, pause} {
		got, err := other.ToolCommand(t.Context(), c.CommandID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(&c, got); diff != "" {
			t.Error(diff)
		}
	}
	if got, err := s.ToolCommand(t.Context(), "none"); err != nil || got != nil {
		t.Errorf("what was never kept: %v, %v", got, err)
	}

	t.Run("at once", func(t *testing.T) {
		atOnce(t, 24, func(i int) error {
			_, err := []ledger.OperatorStore{s, other}[i%2].CommandTool(t.Context(), toolCommand(fmt.Sprint("at once ", i/2), ledger.KindPauseTool, ledger.Tool(fmt.Sprint("tool-", i/4))))
			return err
		})
		pauses, err := s.Pauses(t.Context())
		if err != nil || len(pauses) != 6 {
			t.Errorf("%d tools are paused, want 6: %v", len(pauses), err)
		}
	})
}

func testToolCommandFaults(t *testing.T, d Data) {
	for _, apply := range []bool{false, true} {
		var faults atomic.Int64
		s := people(t, d.Open(t, Options{CommitFault: func() (bool, error) {
			if faults.Add(-1) >= 0 {
				return apply, errFault
			}
			return true, nil
		}}))
		c := toolCommand(fmt.Sprint("applied ", apply), ledger.KindPauseTool, "charge")
		faults.Store(1)
		if _, err := s.CommandTool(t.Context(), c); err != nil && !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Fatal(err)
		}
		kept := mustCommand(t, s, c) // sent again, it finds out
		wantPauses(t, s, kept)
	}
}

// testPauses: a grant is written only while its tool is not paused, whatever was seen of it before, and by whom.
func testPauses(t *testing.T, d Data) {
	s, other := d.Open(t, Options{}), d.Open(t, Options{})
	for i := range 4 { // a store that guesses has seen by now that most keys are new
		mustClaim(t, s, testKey("before "+string(rune('a'+i))), "c")
	}
	// granting claims as the core does: a grant unless the tool is paused.
	granting := func(k ledger.Key, last *ledger.View) func(ledger.View) (ledger.Change, error) {
		return seeing(last, func(v ledger.View) (ledger.Change, error) {
			if v.Paused.Has(k.Tool) {
				return ledger.Change{}, nil
			}
			c, err := create(k, "c")(v)
			c.UnlessPaused = c.Next != nil
			return c, err
		})
	}
	starting := func(k ledger.Key, last *ledger.View) func(ledger.View) (ledger.Change, error) {
		return seeing(last, func(v ledger.View) (ledger.Change, error) {
			if v.Paused.Has(k.Tool) {
				return ledger.Change{}, nil
			}
			c, err := change(note("started"), unchanged)(v)
			c.UnlessPaused = true
			return c, err
		})
	}
	n := 0
	for _, paused := range []ledger.Tool{"tickets.create", ledger.AllTools} {
		n++
		var last ledger.View
		k := testKey(fmt.Sprint("granted before ", n))
		mustUpdate(t, s, claiming(k, "c"), granting(k, &last))
		if events := mustVerify(t, s, k.Hash().OperationID()); len(events) != 1 || len(last.Paused) > 0 {
			t.Fatalf("%d events, paused %v: want a grant", len(events), last.Paused)
		}
		mustCommand(t, people(t, other), toolCommand(fmt.Sprint("pause ", n), ledger.KindPauseTool, paused))

		late := testKey(fmt.Sprint("claimed after ", n)) // on a guess of a moment ago, where the store makes one
		mustUpdate(t, s, claiming(late, "c"), granting(late, &last))
		if _, _, err := s.Get(t.Context(), late.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) || !last.Paused.Has(late.Tool) {
			t.Errorf("%q paused: a claim was granted: %v, decided while %v was paused", paused, err, last.Paused)
		}
		mustUpdate(t, s, ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: "c"}, starting(k, &last))
		if events := mustVerify(t, s, k.Hash().OperationID()); len(events) != 1 {
			t.Errorf("%q paused: a start was written", paused)
		}
		mustUpdate(t, s, ledger.ReadSet{ID: k.Hash().OperationID(), CommandID: "c"}, change(note("a report goes on"), unchanged))
		of := testKey(fmt.Sprint("of another tool ", n))
		of.Tool = "charge"
		mustUpdate(t, s, claiming(of, "c"), granting(of, &last))
		if _, _, err := s.Get(t.Context(), of.Hash().OperationID()); (err == nil) == (paused == ledger.AllTools) {
			t.Errorf("%q paused: a claim of another tool: %v", paused, err)
		}
		mustCommand(t, people(t, other), toolCommand(fmt.Sprint("resume ", n), ledger.KindResumeTool, paused))
		mustUpdate(t, s, claiming(late, "c"), granting(late, &last))
		if _, _, err := s.Get(t.Context(), late.Hash().OperationID()); err != nil {
			t.Errorf("%q resumed: a claim was not granted: %v", paused, err)
		}
	}

	t.Run("between read and write", func(t *testing.T) {
		for i, reads := range []func(ledger.Key) ledger.ReadSet{
			func(k ledger.Key) ledger.ReadSet { return claiming(k, "c") },                           // guessed, where that can be
			func(k ledger.Key) ledger.ReadSet { return ledger.ReadSet{ID: k.Hash().OperationID()} }, // read
		} {
			k := testKey(fmt.Sprint("between ", i))
			decisions := 0
			var last ledger.View
			mustUpdate(t, s, reads(k), func(v ledger.View) (ledger.Change, error) {
				if decisions++; decisions == 1 {
					mustCommand(t, people(t, other), toolCommand(fmt.Sprint("between ", i), ledger.KindPauseTool, k.Tool))
				}
				return granting(k, &last)(v)
			})
			if _, _, err := s.Get(t.Context(), k.Hash().OperationID()); !errors.Is(err, ledger.ErrOperationNotFound) || decisions < 2 {
				t.Errorf("a grant overtook a pause: %v after %d decisions", err, decisions)
			}
			mustCommand(t, people(t, other), toolCommand(fmt.Sprint("over ", i), ledger.KindResumeTool, k.Tool))
		}
	})
}
