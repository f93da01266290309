// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestNoGrantIsToldWithoutItsStandby: while the synchronous standby is cut off, nobody is told of a grant or a success, also where somebody ends a commit's wait,
// to which the server then says that it is done. When the standby is back, who sends the same call again gets what was decided, and nothing was decided twice.
func TestNoGrantIsToldWithoutItsStandby(t *testing.T) {
	c := newCluster(t, contractsText, true)
	workers := c.dials(t, billing, 8)
	held := request("card.charge", unique(t), "K", `{"amount":1}`)
	g := workers[0].grant(t, held)
	done := completion(g.GetOperationId(), held.GetClaimId(), "charge", "C-1")
	claims := []*pb.ClaimRequest{}
	for range workers {
		claims = append(claims, request("card.charge", unique(t), "K", `{"amount":1}`))
	}
	if err := c.standby.PauseReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
	completed := make(chan error, 1)
	go func() {
		_, err := workers[0].Complete(within(t), done)
		completed <- err
	}()
	answers := make(chan []told, 1)
	go func() { answers <- together(t, workers, claims) }()
	eventually(t, "the wait of a commit was ended", func() bool {
		return c.rows(t, "SELECT count(pg_cancel_backend(pid)) AS n FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0]["n"] != "0"
	})
	for _, o := range <-answers {
		if o.answer != nil {
			t.Errorf("a Claim was answered %s", o.name())
		}
		wantRefusal(t, o.err, codes.Unavailable, pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)
	}
	wantRefusal(t, <-completed, codes.Unavailable, pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)
	eventually(t, "no commit is under way", func() bool { return c.backends(t, "state <> 'idle'") == "0" })
	var stored []bool
	for _, claim := range claims {
		stored = append(stored, c.row(t, operationID(billing, "card.charge", claim.GetKey().GetTask(), "K")) != nil)
	}
	if err := c.standby.ResumeReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, w := range workers {
		answer := w.claim(t, claims[i])
		if got := answer.GetGranted(); got == nil || got.GetResent() != stored[i] {
			t.Errorf("the same Claim, of which the primary had %v, was answered %v", stored[i], answer)
		}
		wantOutcome(t, w.claim(t, again(claims[i])), "IN_PROGRESS")
	}
	workers[0].applied(t, done)
	c.failOver(t)
	for _, claim := range append(claims, held) {
		want := 1
		if claim == held {
			want = 2
		}
		if n := len(c.history(t, operationID(billing, "card.charge", claim.GetKey().GetTask(), "K"))); n != want {
			t.Errorf("the standby has %d events of an operation, want %d", n, want)
		}
	}
}

// TestASynchronousStandbyTakesOverUnderLoad: what anybody was told before the primary was killed is there, and what goes on afterwards makes no second effect.
func TestASynchronousStandbyTakesOverUnderLoad(t *testing.T) {
	c := newCluster(t, askedContracts, true)
	c.nodes = append(c.nodes, c.start(t, nodeOptions{store: c.byList(), args: c.args}))
	o := &outage{recovering: c.recovering, t: t}
	o.loaded(c, 4*outageLoad, func() { c.failOver(t) })()
	o.wantJournal()
	o.ahead.Store(true)
	o.loaded(c, outageLoad, func() {})()
	o.finish(c.nodes)
	o.wantJournal()
	o.wantOneEffectEach(t)
	t.Logf("%d claims, %d grants told, %d successes told, %d calls failed", o.claims.Load(), len(o.grants), len(o.successes), o.failed.Load())
}

// loaded lets workers of all processes make so many effects, and begin others until what comes next has been done. What it returns waits for them.
func (o *outage) loaded(c *cluster, upTo int64, next func()) (wait func()) {
	o.t.Helper()
	var stop atomic.Bool
	var group sync.WaitGroup
	for i, w := range c.dials(o.t, billing, 9) {
		first := len(o.asked) // no key of an earlier one
		group.Go(func() {
			for n := first; !stop.Load(); n++ {
				o.work(o.t.Context(), w, i, n)
			}
		})
	}
	before := o.completed.Load()
	eventually(o.t, "there is load", func() bool { return o.completed.Load() >= before+upTo })
	next()
	stop.Store(true)
	return group.Wait
}

// TestAnAsynchronousStandbyTakesOverUnderLoad: it lacks the last commits. Whatever anybody had asked for comes again, at once and over all processes, while
// the first ones still send and report: no target has two effects of one key, and in the end each is final or with a person.
func TestAnAsynchronousStandbyTakesOverUnderLoad(t *testing.T) {
	c := newCluster(t, askedContracts, false)
	c.nodes = append(c.nodes, c.start(t, nodeOptions{store: c.byList(), args: c.args}))
	o := &outage{recovering: c.recovering, t: t, loses: true}
	wait := o.loaded(c, 2*outageLoad, func() {
		c.fallBehind(t)
		before := o.completed.Load()
		eventually(t, "there is what the standby lacks", func() bool { return o.completed.Load() >= before+2*outageLoad })
		c.failOver(t)
	})
	o.mu.Lock()
	asked := slices.Clone(o.asked)
	o.mu.Unlock()
	var lost atomic.Int64
	var group sync.WaitGroup
	workers := c.dials(t, billing, 9)
	for i, w := range workers {
		group.Go(func() {
			for n := i; n < len(asked); n += len(workers) {
				claim := again(asked[n])
				claim.WorkerId = w.id
				var answer *pb.ClaimResponse
				o.persist(t.Context(), func(ctx context.Context) (err error) {
					answer, err = w.Claim(ctx, claim)
					return err
				})
				if answer.GetUnknown() != nil && answer.GetOperation().GetAttempts() == 0 {
					lost.Add(1)
				}
				if g := answer.GetGranted(); g != nil { // the target counts
					_ = o.send(t.Context(), serviceOf(claim.GetKey().GetTool()), g.GetDownstreamKey())
				}
			}
		})
	}
	group.Wait()
	wait()
	if lost.Load() == 0 {
		t.Error("nothing was lost")
	}
	o.finish(c.nodes)
	o.wantOneEffectEach(t)
	o.wantChains(t)
	t.Logf("%d claims, %d grants told, %d keys not known any more, %d calls failed", o.claims.Load(), len(o.grants), lost.Load(), o.failed.Load())
}

// TestADeclaredSwitchOverIsNoLoss: with a synchronous standby, whoever declares so goes on as if nothing had been. Keys that were decided before are granted, and
// what is unsettled is as it was, to the last byte.
func TestADeclaredSwitchOverIsNoLoss(t *testing.T) {
	c := newCluster(t, contractsText, true, "--failover", "lossless")
	workers := c.dials(t, billing, 2)
	running, kept := request("card.charge", unique(t), "K", `{"amount":1}`), map[string]snapshot{}
	g := workers[0].grant(t, running)
	kept[g.GetOperationId()] = c.snapshot(t, g.GetOperationId())
	parked := workers[1].mail(t, unique(t))
	kept[parked] = c.snapshot(t, parked)
	c.failOver(t)
	for i, w := range workers {
		claim := request("card.charge", unique(t), "K", `{"amount":1}`)
		claim.IntentTime = intentBefore()
		answer := until(t, func() (*pb.ClaimResponse, error) { return w.tryClaim(t, claim) })
		if answer.GetGranted() == nil {
			t.Errorf("a key that was decided before was answered %s by process %d", outcome(answer), i)
		}
	}
	for operation, was := range kept {
		c.wantUnchanged(t, operation, was)
	}
	if again := workers[1].claim(t, running).GetGranted(); !again.GetResent() || again.GetEpoch() != g.GetEpoch() {
		t.Errorf("its holder is told %v", again)
	}
	workers[0].applied(t, completion(g.GetOperationId(), running.GetClaimId(), "charge", "C-1"))
	if got := c.rows(t, "SELECT cause FROM timelines ORDER BY number, begin_time"); len(got) != 2 || got[1]["cause"] != "switched" {
		t.Errorf("it is remembered as %v", got)
	}
}
