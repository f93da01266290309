// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
)

// lossyWorker calls through a proxy that can lose answers. Its connection is up: what follows is about calls, not handshakes.
func lossyWorker(t *testing.T, n *node, principal string, options ...grpc.DialOption) (*worker, *faultproxy.Proxy) {
	t.Helper()
	proxy, err := faultproxy.Start("tcp", n.grpcAddr, faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	w := connect(t, proxy.Addr().String(), leafOf(t, principal), options...)
	if _, err := w.GetTool(within(t), &pb.GetToolRequest{Tool: "card.charge"}); err != nil {
		t.Fatal(err)
	}
	return w, proxy
}

// loseAnswer sends a call, holds back whatever the server says, and cuts the connection when the call's effect stands in the database.
func loseAnswer(t *testing.T, proxy *faultproxy.Proxy, committed func() bool, call func() error) error {
	t.Helper()
	proxy.Pause(faultproxy.ServerToClient)
	told := make(chan error, 1)
	go func() { told <- call() }()
	eventually(t, "the call has committed", committed)
	if proxy.CutNow(faultproxy.RST) == 0 {
		t.Error("there was no connection to cut")
	}
	proxy.Resume(faultproxy.ServerToClient)
	return <-told
}

// loseClaim sends a Claim whose answer is lost, and returns the operation.
func loseClaim(t *testing.T, e *env, w *worker, proxy *faultproxy.Proxy, r *pb.ClaimRequest) string {
	t.Helper()
	id := operationID(billing, r.GetKey().GetTool(), r.GetKey().GetTask(), r.GetKey().GetKey())
	err := loseAnswer(t, proxy, func() bool { return e.row(t, id) != nil }, func() error {
		_, err := w.tryClaim(t, r)
		return err
	})
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("the lost Claim ended with %v, want Unavailable", err)
	}
	return id
}

// copyOf is the same Claim once more, as a transport sends it again.
func copyOf(r *pb.ClaimRequest) *pb.ClaimRequest { return proto.Clone(r).(*pb.ClaimRequest) }

// The Claim committed and its answer was lost: whoever drew the claim_id gets the same grant, what is left of it, and nobody else does.
func TestC22(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		t.Run("the answer is lost", func(t *testing.T) { claimAnswerLost(t, e) })

		t.Run("the transport sends it again by itself", func(t *testing.T) {
			w, proxy := lossyWorker(t, e.node, billing, grpc.WithDefaultServiceConfig(retryPolicy))
			r := request("card.charge", unique(t), "K", storedBody)
			id := operationID(billing, "card.charge", r.GetKey().GetTask(), "K")
			sent := w.sends.Load()
			var answer *pb.ClaimResponse
			err := loseAnswer(t, proxy, func() bool { return e.row(t, id) != nil }, func() (err error) {
				answer, err = w.tryClaim(t, r)
				return err
			})
			if g := answer.GetGranted(); err != nil || !g.GetResent() || w.sends.Load()-sent != 2 {
				t.Errorf("after %d sends: %v, %v; want the grant, resent, at the second", w.sends.Load()-sent, answer, err)
			}
			if got := len(e.history(t, id)); got != 1 {
				t.Errorf("%d events, want one grant", got)
			}
		})

		t.Run("sent again after the send window", func(t *testing.T) {
			w := e.node.dial(t, billing)
			r := request("file.upload", unique(t), "K", `{"name":"log.txt"}`)
			sent := time.Now()
			g := w.grant(t, r)
			was := e.snapshot(t, g.GetOperationId())
			var last *pb.ClaimResponse
			eventually(t, "the send window is over", func() bool {
				last = w.claim(t, copyOf(r))
				again := last.GetGranted()
				if again != nil && (!again.GetResent() || again.GetEpoch() != g.GetEpoch() || again.GetSendWithin().AsDuration() > time.Second) {
					t.Fatalf("the copy is not the same grant: %v", again)
				}
				return again == nil
			})
			if took := time.Since(sent); took < time.Second {
				t.Errorf("the send window of 1s was over after %v", took)
			}
			wantOutcome(t, last, "IN_PROGRESS")
			if got := last.GetInProgress().GetReason(); got != pb.WaitReason_WAIT_REASON_LEASE_HELD {
				t.Errorf("it waits for %v, want LEASE_HELD", got)
			}
			e.wantUnchanged(t, g.GetOperationId(), was)
		})

		t.Run("sent again after the lease", func(t *testing.T) {
			w := e.node.dial(t, billing)
			r := request("card.charge", unique(t), "K", storedBody)
			g := w.grant(t, r)
			e.age(t, g.GetOperationId(), time.Hour)
			for range 2 {
				wantOutcome(t, w.claim(t, copyOf(r)), "UNKNOWN")
			}
			if row := e.row(t, g.GetOperationId()); row["attempts"] != "1" || row["grant_epoch"] != epoch(g) {
				t.Errorf("attempts %s, epoch %s; want the one grant", row["attempts"], row["grant_epoch"])
			}
		})

		t.Run("sent again while a person has it", func(t *testing.T) {
			w := e.node.dial(t, billing)
			r := request("card.charge", unique(t), "K", storedBody)
			g := w.grant(t, r)
			// Taking over has no call yet: this is what it leaves on the row.
			e.exec(t, "UPDATE operations SET custody = 3, custodian = $1 WHERE id = $2", operator, e.id(t, g.GetOperationId()))
			was := e.snapshot(t, g.GetOperationId())
			answer := w.claim(t, copyOf(r))
			wantOutcome(t, answer, "UNKNOWN")
			if got := answer.GetUnknown().GetReason(); got != pb.WaitReason_WAIT_REASON_HELD_BY_OPERATOR {
				t.Errorf("it waits for %v, want HELD_BY_OPERATOR", got)
			}
			e.wantUnchanged(t, g.GetOperationId(), was)
		})

		t.Run("a delayed copy after not executed never gets a second epoch", func(t *testing.T) { delayedCopy(t, e) })
	})
}

func claimAnswerLost(t *testing.T, e *env) {
	w, proxy := lossyWorker(t, e.node, billing)
	a1 := request("card.charge", unique(t), "K", storedBody)
	id := loseClaim(t, e, w, proxy, a1)
	was := e.snapshot(t, id)

	answer := w.claim(t, copyOf(a1))
	g := answer.GetGranted()
	if g == nil || !g.GetResent() || g.GetOperationId() != id || epoch(g) != was.Row["grant_epoch"] || g.GetDownstreamKey() != was.downstreamKey() {
		t.Fatalf("a1 again: %v; want the grant of the row", answer)
	}
	if left := g.GetLease().AsDuration(); left <= 0 || left >= 30*time.Second || g.GetSendWithin().AsDuration() > left {
		t.Errorf("a1 again: lease %v, send within %v; want what is left of 30s", left, g.GetSendWithin().AsDuration())
	}
	if got := answer.GetOperation().GetAttempts(); got != 1 {
		t.Errorf("%d attempts are counted, want 1", got)
	}
	for _, other := range []struct {
		name string
		ask  func() *pb.ClaimRequest
	}{
		{"another worker, a2", func() *pb.ClaimRequest { r := again(a1); r.WorkerId = "worker/other"; return r }},
		{"the same worker name alone", func() *pb.ClaimRequest { r := again(a1); r.WorkerId = a1.GetWorkerId(); return r }},
		{"the claim_id under another worker name", func() *pb.ClaimRequest { r := copyOf(a1); r.WorkerId = "worker/other"; return r }},
	} {
		answer := e.node.dial(t, billing).claim(t, other.ask())
		if outcome(answer) != "IN_PROGRESS" || answer.GetInProgress().GetReason() != pb.WaitReason_WAIT_REASON_LEASE_HELD {
			t.Errorf("%s: %v; want in progress, LEASE_HELD", other.name, answer)
		}
	}
	// Not extended, no second attempt, and nothing that the others asked: the row and its one event are what they were.
	e.wantUnchanged(t, id, was)

	// Another principal that shows a1 has a key of its own.
	if other := e.node.dial(t, support).grant(t, copyOf(a1)); other.GetOperationId() == id {
		t.Error("another principal got the operation")
	}
	w.applied(t, completion(id, a1.GetClaimId(), "charge", "C-1"))
	was = e.snapshot(t, id)
	after := w.claim(t, copyOf(a1))
	wantOutcome(t, after, "REPLAY")
	if got := after.GetCompleted().GetResult().GetResource().GetId(); got != "C-1" || !after.GetReplayed() {
		t.Errorf("a1 after Complete: resource %q, replayed %t", got, after.GetReplayed())
	}
	e.wantUnchanged(t, id, was)
}

func delayedCopy(t *testing.T, e *env) {
	w := e.node.dial(t, billing)
	a1 := request("card.charge", unique(t), "K", storedBody)
	first := w.grant(t, a1)
	id := first.GetOperationId()
	w.applied(t, &pb.CompleteRequest{OperationId: id, ClaimId: a1.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{
		NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT},
	}})
	stale := func(when string) {
		was := e.snapshot(t, id)
		_, err := w.tryClaim(t, copyOf(a1))
		if err == nil {
			t.Errorf("%s: the copy was answered", when)
		}
		wantRefusal(t, err, codes.Aborted, pb.ErrorReason_ERROR_REASON_STALE_GRANT)
		e.wantUnchanged(t, id, was)
	}
	stale("after not executed")
	a2 := again(a1)
	a2.ClaimId = uuid.NewString()
	second := w.grant(t, a2)
	if second.GetEpoch() != first.GetEpoch()+1 {
		t.Errorf("epoch %d follows %d", second.GetEpoch(), first.GetEpoch())
	}
	stale("while a2 executes")
	w.applied(t, completion(id, a2.GetClaimId(), "charge", "C-2"))
	wantOutcome(t, w.claim(t, copyOf(a1)), "REPLAY")
	var granted []string
	for _, event := range e.history(t, id) {
		if event["command_id"] == a1.GetClaimId() || event["command_id"] == a2.GetClaimId() {
			granted = append(granted, event["command"])
		}
	}
	if slices.Sort(granted); len(granted) != 4 {
		t.Errorf("the history has %v; want two grants, a not executed and a completion", granted)
	}
	if diff := cmp.Diff("2", e.row(t, id)["attempts"]); diff != "" {
		t.Errorf("attempts: %s", diff)
	}
}
