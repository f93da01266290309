// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/target"
)

// Recovery acts on nothing that it saw before: it has selected an operation whose lease is over, and is held, right before it takes the check or while the target
// answers. Meanwhile the worker completes it, or another node has it granted again. What recovery then says, that nothing is there, moves nothing.
func TestC20(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			for _, regranted := range []bool{false, true} {
				name := map[bool]string{false: "the worker completes", true: "granted again by another node"}[regranted]
				t.Run("held before it takes the check, "+name, func(t *testing.T) {
					t.Parallel()
					heldBeforeCheck(t, store, regranted)
				})
				t.Run("held while the target answers, "+name, func(t *testing.T) {
					t.Parallel()
					heldWhileAsking(t, store, regranted)
				})
			}
		})
	}
}

// selected is an operation whose lease is over, and who has it.
type selected struct {
	recovering
	w              *worker
	claim          *pb.ClaimRequest
	operation, key string
}

// lapse claims a charge for a second, of which the target will know nothing.
func lapse(t *testing.T, r recovering) selected {
	t.Helper()
	s := selected{recovering: r, w: r.node.dial(t, billing), claim: request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)}
	s.claim.Lease = durationpb.New(time.Second)
	g := s.w.grant(t, s.claim)
	s.operation, s.key = g.GetOperationId(), g.GetDownstreamKey()
	return s
}

// meanwhile is what happens while recovery is held. It returns how the operation then stands, and a function that brings it to its end.
func (s selected) meanwhile(t *testing.T, regranted bool) (stands snapshot, end func()) {
	t.Helper()
	if !regranted {
		s.w.applied(t, completion(s.operation, s.claim.GetClaimId(), "charge", "T-9"))
		return s.snapshot(t, s.operation), func() { s.wantCompleted(t, "T-9", 1) }
	}
	s.w.applied(t, &pb.CompleteRequest{
		OperationId: s.operation, ClaimId: s.claim.GetClaimId(), Outcome: notExecuted(pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT, 0),
	})
	other, second := s.another(t).dial(t, billing), again(s.claim)
	second.Lease = durationpb.New(4 * time.Second)
	other.grant(t, second)
	return s.snapshot(t, s.operation), func() {
		other.applied(t, completion(s.operation, second.GetClaimId(), "charge", "T-10"))
		s.wantCompleted(t, "T-10", 2)
	}
}

// another is a second node, where the store allows one.
func (s selected) another(t *testing.T) *node {
	t.Helper()
	if s.store == "sqlite" {
		return s.node
	}
	return s.start(t, nodeOptions{args: append(s.args, "--recovery", "off")})
}

// wantCompleted fails unless it completed so, after so many grants.
func (s selected) wantCompleted(t *testing.T, resource string, grants uint32) {
	t.Helper()
	replay := s.node.dial(t, billing).claim(t, again(s.claim))
	wantOutcome(t, replay, "REPLAY")
	op := replay.GetOperation()
	wantState(t, op, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	if got := replay.GetCompleted().GetResult().GetResource().GetId(); got != resource || op.GetAttempts() != grants || op.GetNeedsAttention() {
		t.Errorf("the replay has %q after %d grants, attention %v; want %q after %d", got, op.GetAttempts(), op.GetNeedsAttention(), resource, grants)
	}
}

// heldBeforeCheck holds the first compare-and-swap of a recovering process, which has read the operation and decided to ask about it.
func heldBeforeCheck(t *testing.T, store string, regranted bool) {
	r := newRecovering(t, store, nodeOptions{args: []string{"--recovery", "off"}})
	batch := map[string]selected{}
	for range 4 {
		s := lapse(t, r)
		batch[s.operation] = s
	}
	held := filepath.Join(t.TempDir(), "held")
	loop := r.start(t, nodeOptions{recovers: true, args: r.args, failpoints: "store.update.between-read-and-write=1*hold(" + held + ")"})
	// The others of its batch are dealt with meanwhile: each is asked about once, and nothing is there.
	eventually(t, "the others have been asked about", func() bool {
		for operation, s := range batch {
			if op := s.w.view(t, operation); op.GetChecks() == 1 && op.GetLastFinding() == pb.Finding_FINDING_NOT_FOUND {
				delete(batch, operation)
			}
		}
		return len(batch) == 1
	})
	for _, s := range batch {
		stands, end := s.meanwhile(t, regranted)
		if err := os.Remove(held); err != nil {
			t.Fatal(err)
		}
		eventually(t, "recovery has dealt with it", func() bool { return loop.metric(t, "ledger_recovery_leases") == 0 })
		s.wantUnchanged(t, s.operation, stands)
		if n := r.ft.account(t).Queries(target.Payments, s.key); n != 0 {
			t.Errorf("the target was asked about it %d times", n)
		}
		end()
	}
}

// heldWhileAsking holds the target's answer to the check.
func heldWhileAsking(t *testing.T, store string, regranted bool) {
	ft := startTarget(t, target.Payments)
	proxy, err := faultproxy.Start("tcp", strings.TrimPrefix(ft.URL(), "http://"), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	patient := strings.NewReplacer("URL", "http://"+proxy.Addr().String(), "timeout: 2s", fmt.Sprint("timeout: ", patience))
	r := recoveringAt(t, store, ft, patient.Replace(askedContracts), nodeOptions{})
	proxy.Pause(faultproxy.ServerToClient)
	s := lapse(t, r)
	eventually(t, "the target was asked", func() bool { return ft.account(t).Queries(target.Payments, s.key) == 1 })
	stands, end := s.meanwhile(t, regranted)
	proxy.Resume(faultproxy.ServerToClient)
	// What is settled need not be asked about any more: the question is cut off.
	came := map[bool]string{true: "not_found", false: "cut_off"}[regranted]
	eventually(t, "recovery has told what came of its question", func() bool {
		return r.node.metric(t, "ledger_evidence_queries_total", `ledger_evidence_result="`+came+`"`) == 1
	})
	// A finding that came too late is kept beside what is still open, as an observation, and is nothing beside what is final.
	if !regranted {
		s.wantUnchanged(t, s.operation, stands)
	} else {
		now := s.snapshot(t, s.operation)
		if got := changed(stands.Row, now.Row); strings.Join(got, " ") != "detail last_hash sequence update_time" {
			t.Errorf("a late finding has changed %v", got)
		}
		if n := len(now.History); n != len(stands.History)+1 {
			t.Errorf("a late finding has left %d events after %d", n, len(stands.History))
		}
	}
	end()
}
