// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// The outcome of a COMMIT is not seen. ledgerd runs the same statement again and answers what the row says; where that fails, too, it
// says UNAVAILABLE, and whoever sends the call again gets the same truth.
func TestC41(t *testing.T) {
	each(t, func(t *testing.T, shared *env) {
		e, fault := losesCommits(t, shared.store)
		ft := startTarget(t, target.Payments)
		for _, f := range []commitFault{committedOnce, committedTwice, neverArrived, brokenBefore} {
			t.Run(f.name, func(t *testing.T) {
				t.Run("Claim, then Complete", func(t *testing.T) {
					claim := request("card.charge", unique(t), "K", `{"amount":"10.00"}`)
					operation := operationID(billing, claim.GetKey().GetTool(), claim.GetKey().GetTask(), claim.GetKey().GetKey())
					about := command{principal: billing, operation: operation}
					var granted *pb.ClaimResponse
					ambiguous(t, e, fault(t, f, "create"), f, about, func(ctx context.Context, w *worker) (err error) {
						claim.WorkerId = "worker/1" // the process is the same when it sends again
						granted, err = w.Claim(ctx, claim)
						return err
					})
					g := granted.GetGranted()
					if g == nil || g.GetOperationId() != operation || g.GetEpoch()&(1<<32-1) != 1 {
						t.Fatalf("the Claim was answered %v, want the first grant", granted)
					}
					wantOutcome(t, e.node.dial(t, billing).claim(t, again(claim)), "IN_PROGRESS")

					charge, err := ft.Charge(within(t), g.GetDownstreamKey(), target.ChargeRequest{Amount: "10.00", Currency: "EUR"})
					if err != nil {
						t.Fatal(err)
					}
					var completed *pb.CompleteResponse
					ambiguous(t, e, fault(t, f, "update"), f, about, func(ctx context.Context, w *worker) (err error) {
						completed, err = w.Complete(ctx, completion(operation, claim.GetClaimId(), "charge", charge.ID))
						return err
					})
					if got := moved(completed.GetDisposition(), completed.GetOperation()); got != "DISPOSITION_APPLIED STATE_COMPLETED 2" {
						t.Errorf("Complete was answered %q", got)
					}
					replay := e.node.dial(t, billing).claim(t, again(claim))
					wantOutcome(t, replay, "REPLAY")
					if got := replay.GetCompleted().GetResult().GetResource().GetId(); got != charge.ID {
						t.Errorf("the replay has the charge %q, want %q", got, charge.ID)
					}
					ft.wantAccount(t, target.Payments, g.GetDownstreamKey(), 1, 1)
				})
				t.Run("the recovery lease", func(t *testing.T) {
					operation, claimID := claimed(t, e)
					e.node.dial(t, billing).markUnknown(t, operation, claimID)
					e.age(t, operation, time.Minute)
					begin := &pb.BeginCheckRequest{OperationId: operation, CommandId: uuid.NewString()}
					var check *pb.BeginCheckResponse
					ambiguous(t, e, fault(t, f, "update"), f, command{principal: reconciler, operation: operation}, func(ctx context.Context, w *worker) (err error) {
						check, err = w.BeginCheck(ctx, begin)
						return err
					})
					if n := check.GetCheckNumber(); n&(1<<16-1) != 1 {
						t.Errorf("the check has the number %d, want the first", n)
					}
					other, err := e.node.dial(t, reconciler).BeginCheck(within(t), &pb.BeginCheckRequest{OperationId: operation, CommandId: uuid.NewString()})
					if err != nil || other.GetCheckNumber() != 0 {
						t.Errorf("a second check was answered %v, %v; want not taken", other, err)
					}
				})
			})
		}
	})
}

// commitFault is what happens around COMMIT.
type commitFault struct {
	name string
	// times is how often in a row; 2: the second try is cut, too.
	times int
	// lost: the COMMIT did not arrive, so nothing was written. early: it was not even sent.
	lost, early bool
}

var (
	committedOnce  = commitFault{name: "committed, and the answer is cut off", times: 1}
	committedTwice = commitFault{name: "twice in a row", times: 2}
	neverArrived   = commitFault{name: "the COMMIT never arrives", times: 1, lost: true}
	brokenBefore   = commitFault{name: "the connection breaks before the COMMIT", times: 1, lost: true, early: true}
)

// ambiguous sends a call whose COMMIT suffers from the fault, and once more where ledgerd can't see what came of it. Either way it has
// happened once, and the last answer is that of call.
func ambiguous(t *testing.T, e *env, fired func(*testing.T), f commitFault, about command, call func(context.Context, *worker) error) {
	t.Helper()
	was := about.stands(t, e)
	err := call(within(t), e.node.dial(t, about.principal))
	fired(t)
	if f.times == 2 {
		wantRefusal(t, err, codes.Unavailable, pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)
		err = call(within(t), e.node.dial(t, about.principal))
	}
	if err != nil {
		t.Fatalf("the call was answered %v", err)
	}
	want := standing{was.sequence + 1, was.version + 1, was.events + 1}
	if got := about.stands(t, e); got != want {
		t.Errorf("the operation has come to %+v, want %+v", got, want)
	}
}

// losesCommits makes an environment whose COMMITs can be lost, and a function that orders it for the next one that creates or updates
// a row. What that returns fails the test if the fault has not happened.
func losesCommits(t *testing.T, store string) (*env, func(*testing.T, commitFault, string) func(*testing.T)) {
	if store == "sqlite" {
		return losesOwnCommits(t)
	}
	e := newStore(t, store)
	proxy, err := faultproxy.Start("tcp", pgtest.Get(t).Addr(), faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	e.node = e.start(t, nodeOptions{store: postgresURL(proxy.Addr().String(), e.database)})
	return e, func(t *testing.T, f commitFault, _ string) func(*testing.T) {
		bound, sent := faultproxy.PgxStatement("COMMIT")
		rule := faultproxy.Rule{
			Point: sent, Times: f.times,
			Cut: faultproxy.Cut{
				What: faultproxy.DropAnswer, How: faultproxy.RST,
				Await: faultproxy.PostgresMessage(faultproxy.ServerToClient, 'C', "commit"),
			},
		}
		if f.lost {
			rule.Point, rule.Incomplete, rule.Cut = bound, true, faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}
		}
		if f.early {
			rule.Point, _ = faultproxy.PgxStatement("BEGIN") // of a write: what it says and its COMMIT come behind
		}
		trap := proxy.Arm(rule)
		return func(t *testing.T) {
			t.Helper()
			if err := trap.Wait(within(t)); err != nil {
				t.Fatal(err)
			}
			if n := trap.Cuts(); n != f.times {
				t.Errorf("%d commits were cut, want %d", n, f.times)
			}
		}
	}
}

// losesOwnCommits is losesCommits without a connection to cut: the store says "executed, then failed" of itself. Behind the hits that
// the fault accounts for, the point ends the process: that a further write does so proves that they have happened.
func losesOwnCommits(t *testing.T) (*env, func(*testing.T, commitFault, string) func(*testing.T)) {
	const idle = "store.create.after-commit=off"
	e := fresh(t, "sqlite", nodeOptions{failpoints: idle})
	return e, func(t *testing.T, f commitFault, kind string) func(*testing.T) {
		order := "store." + kind + ".after-commit=2*error->kill"
		switch {
		case f.early:
			order = "store.update.between-read-and-write=1*error->1*off->kill"
		case f.lost:
			order = "store." + kind + ".before-commit=1*error->1*off->kill"
		case f.times == 1:
			order = "store." + kind + ".after-commit=1*error->1*off->kill"
		}
		e.node.failAt(t, order)
		return func(t *testing.T) {
			t.Helper()
			w, claim := e.node.dial(t, billing), request("card.charge", unique(t), "K", `{"amount":"1.00"}`)
			answer, err := w.tryClaim(t, claim)
			if kind == "update" && err == nil {
				_, err = w.Complete(within(t), completion(answer.GetOperation().GetId(), claim.GetClaimId(), "charge", "C-1"))
			}
			if err == nil {
				t.Fatal("the fault has not happened as often as it should")
			}
			if state := e.node.waitEnd(t); !strings.Contains(state.String(), "killed") {
				t.Fatalf("ledgerd ended with %v", state)
			}
			e.node.failAt(t, idle)
		}
	}
}
