// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// losses are how a store loses its last commits: from begins on, until what it returns is called.
var losses = map[string]func(t *testing.T, c *cluster) (lose func()){
	"an asynchronous standby takes over": func(t *testing.T, c *cluster) func() {
		c.fallBehind(t)
		return func() { c.failOver(t) }
	},
	// Nobody who has seen more is left; the timeline tells.
	"a backup is restored on a timeline of its own": func(t *testing.T, c *cluster) func() {
		backup := c.own.Backup(t)
		return func() {
			c.stopped(t, func() { c.restore(t, backup, pgtest.NewTimeline) })
		}
	},
	// The server can't be told from the original, and those who know what was committed run on.
	"a backup takes the server's place": func(t *testing.T, c *cluster) func() {
		backup := c.own.Backup(t)
		return func() { c.restore(t, backup, pgtest.SameTimeline) }
	},
	// Nothing tells but a person.
	"a backup takes the server's place, and a person says so": func(t *testing.T, c *cluster) func() {
		backup, taken := c.own.Backup(t), time.Now()
		return func() {
			c.stopped(t, func() {
				c.restore(t, backup, pgtest.SameTimeline)
				c.ledgerd(t, "restored", "--lost-since", taken.Add(-time.Minute).Format(time.RFC3339))
			})
		}
	},
}

// fallBehind lets the standby have what was committed by now, and no more.
func (c *cluster) fallBehind(t *testing.T) {
	t.Helper()
	if err := c.standby.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.standby.PauseReceiving(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// restore kills the primary and lets a backup of it take its place.
func (c *cluster) restore(t *testing.T, backup *pgtest.Backup, how pgtest.Recovery) {
	t.Helper()
	if err := c.own.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.moveTo(backup.Restore(t, how))
}

// stopped does something while no ledgerd runs.
func (c *cluster) stopped(t *testing.T, do func()) {
	t.Helper()
	for _, n := range c.nodes {
		n.kill(t)
	}
	do()
	for _, n := range c.nodes {
		n.run(t)
	}
}

// ledgerd runs a command on the store.
func (c *cluster) ledgerd(t *testing.T, command ...string) {
	t.Helper()
	cmd := exec.Command(c.node.binary, append(command, "--store", c.dsn)...)
	cmd.Env = c.node.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ledgerd %s: %v: %s", command[0], err, out)
	}
}

// lost is one intent of which the ledger has lost everything.
type lost struct {
	service target.Service
	claim   *pb.ClaimRequest
	grant   *pb.Grant
	// id is what the target made.
	id string
}

// granted begins an effect, and makes it where it is sent.
func (c *cluster) granted(t *testing.T, w *worker, service target.Service, sent bool) *lost {
	t.Helper()
	return c.grantedTo(t, w, service, request(toolOf(service), unique(t), "K", bodyOf(service)), sent)
}

func (c *cluster) grantedTo(t *testing.T, w *worker, service target.Service, claim *pb.ClaimRequest, sent bool) *lost {
	t.Helper()
	l := &lost{service: service, claim: claim, grant: w.grant(t, claim)}
	if sent {
		l.id = c.send(t.Context(), service, l.grant.GetDownstreamKey())
	}
	return l
}

// success is what its first holder reports.
func (l *lost) success() *pb.CompleteRequest {
	return completion(l.grant.GetOperationId(), l.claim.GetClaimId(), kindOf(l.service), l.id)
}

// replacedBody is another request of the same intent: it would make something else.
func replacedBody(service target.Service) string {
	return strings.NewReplacer("disk", "tape", "10.00", "20.00", "hello", "good-bye").Replace(bodyOf(service))
}

// until sends a call while the store can't be reached.
func until[A any](t *testing.T, call func() (A, error)) (answer A) {
	t.Helper()
	eventually(t, "the store can be reached", func() bool {
		var err error
		if answer, err = call(); err != nil && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	return answer
}

// fates of intents of one service, of whose last grant the store knows nothing any more.
type fates struct {
	completed, sent, unsent *lost
	// replaced was sent, and the same intent comes with another request.
	replaced *lost
	// returned was given back by its first holder, which the store knows; the second one's grant is lost.
	returned *lost
}

func (f fates) all() []*lost { return []*lost{f.completed, f.sent, f.unsent, f.replaced, f.returned} }

// repeat is the Claim that somebody sends who knows nothing of the first one.
func (f fates) repeat(l *lost) *pb.ClaimRequest {
	if l == f.replaced {
		return sameKey(l.claim, replacedBody(l.service))
	}
	return again(l.claim)
}

// TestCommitsAreLost: no key whose grant was lost is granted again before its absence at the target is proven, and what its holder tells afterwards is kept, but
// is not the outcome of a request that it does not know. What can be asked is found; what can't waits for a person.
func TestCommitsAreLost(t *testing.T) {
	asked, services := []target.Service{target.Payments, target.Tickets}, []target.Service{target.Payments, target.Tickets, target.Messages}
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, askedContracts, false)
			workers := c.dials(t, billing, 2)
			told, found, settled := c.granted(t, workers[0], target.Tickets, true), c.granted(t, workers[1], target.Tickets, true), c.granted(t, workers[0], target.Payments, true)
			workers[0].applied(t, settled.success())
			all := map[target.Service]*fates{}
			for _, service := range services {
				all[service] = &fates{returned: c.granted(t, workers[0], service, false)}
				workers[0].giveBack(t, all[service].returned)
			}

			lose := loss(t, c)
			last := uint64(0) // epoch of all that are lost
			for i, service := range services {
				w, f := workers[i%2], all[service]
				f.completed, f.sent, f.unsent, f.replaced = c.granted(t, w, service, true), c.granted(t, w, service, true), c.granted(t, w, service, false), c.granted(t, w, service, true)
				w.applied(t, f.completed.success())
				f.returned = c.grantedTo(t, w, service, again(f.returned.claim), true)
				for _, l := range f.all() {
					last = max(last, l.grant.GetEpoch())
				}
			}
			lose()

			workers = c.dials(t, billing, 2)
			eventually(t, "what is not there can't be reported on", func() bool {
				_, err := workers[0].Complete(within(t), all[target.Payments].sent.success())
				if status.Code(err) == codes.Unavailable {
					return false // the process is on its way to the other server
				}
				wantRefusal(t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
				return true
			})
			for i, service := range services {
				for _, l := range all[service].all() {
					claim := all[service].repeat(l)
					wantOutcome(t, until(t, func() (*pb.ClaimResponse, error) { return workers[i%2].tryClaim(t, claim) }), "UNKNOWN")
				}
			}
			for i, service := range services {
				all[service].wantObserved(t, workers[(i+1)%2])
			}
			workers[0].applied(t, told.success())
			for _, l := range all[target.Messages].all() {
				wantState(t, workers[0].view(t, l.grant.GetOperationId()), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_QUARANTINE)
			}
			for _, service := range asked {
				c.wantRecovered(t, workers[1], all[service], last)
			}
			c.settles(t, found.grant.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			wantOutcome(t, workers[1].claim(t, again(settled.claim)), "REPLAY")
			for _, w := range workers { // what is decided from now on is granted as ever
				eventually(t, "a key of after the loss is granted", func() bool {
					claim := request("card.charge", unique(t), "K", bodyOf(target.Payments))
					claim.IntentTime = intentAhead()
					return w.claim(t, claim).GetGranted().GetEpoch() > last
				})
			}
			c.wantOneEffectEach(t)
			c.wantChains(t)
		})
	}
}

// giveBack reports that nothing was sent.
func (w *worker) giveBack(t *testing.T, l *lost) {
	t.Helper()
	w.applied(t, &pb.CompleteRequest{OperationId: l.grant.GetOperationId(), ClaimId: l.claim.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{
		NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT},
	}})
}

// wantObserved lets the first holders tell of their successes, and fails unless these are kept and no more.
func (f fates) wantObserved(t *testing.T, w *worker) {
	t.Helper()
	for _, l := range []*lost{f.sent, f.replaced, f.returned} {
		if answer := w.complete(t, l.success()); answer.GetDisposition() != pb.Disposition_DISPOSITION_OBSERVED {
			t.Errorf("a success by a grant that was lost: %v", answer)
		}
	}
	// Nobody can be asked of messages before these are looked at.
	if op := w.view(t, f.sent.grant.GetOperationId()); f.sent.service == target.Messages && !op.GetNeedsAttention() {
		t.Errorf("a success needs nobody's attention: %v", op)
	}
	if op := w.view(t, f.replaced.grant.GetOperationId()); !op.GetNeedsAttention() || op.GetState() == pb.State_STATE_COMPLETED {
		t.Errorf("another request than the one that is there was made: %v", op)
	}
	_, err := w.tryClaim(t, again(f.replaced.claim))
	wantConflict(t, err)
}

// wantRecovered fails unless the target was asked, and what is not there is made by a grant of a later epoch than all that were lost.
func (c *cluster) wantRecovered(t *testing.T, w *worker, f *fates, last uint64) {
	t.Helper()
	for _, l := range []*lost{f.completed, f.sent, f.returned} {
		c.settles(t, l.grant.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
		if op := w.claim(t, again(l.claim)).GetCompleted(); op.GetResult().GetResource().GetId() != l.id {
			t.Errorf("the replay is %v, want %s", op, l.id)
		}
	}
	c.settles(t, f.replaced.grant.GetOperationId(), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH)
	c.settles(t, f.unsent.grant.GetOperationId(), pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_AUTOMATION, 0)
	repeat := c.grantedTo(t, w, f.unsent.service, again(f.unsent.claim), true)
	if repeat.grant.GetEpoch() <= last {
		t.Errorf("epoch %d was granted after %d", repeat.grant.GetEpoch(), last)
	}
	w.applied(t, repeat.success())
	c.ft.wantAccount(t, repeat.service, repeat.grant.GetDownstreamKey(), 1, 1)
}

// TestTheNextServersClockIsBehind: the server that takes over has a clock that is ten minutes behind, and is set right later. What was decided on before the loss
// is not taken for what was decided after it: it is known from who saw the clock before, and else from the last commit that arrived.
func TestTheNextServersClockIsBehind(t *testing.T) {
	for name, stops := range map[string]bool{"who saw the clock runs on": false, "nobody saw the clock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClusterBy(t, pgtest.Options{Durable: true, Clock: true}, askedContracts, false)
			if err := c.standby.SetClock(-10 * time.Minute); err != nil {
				t.Fatal(err)
			}
			workers := c.dials(t, billing, 2)
			workers[0].applied(t, c.granted(t, workers[0], target.Payments, true).success())
			c.fallBehind(t)
			var all []*lost
			for i, service := range []target.Service{target.Tickets, target.Messages} {
				all = append(all, c.granted(t, workers[i], service, true))
			}
			if stops {
				c.stopped(t, func() { c.failOver(t) })
			} else {
				c.failOver(t)
			}
			eventually(t, "a timeline has begun", func() bool { return len(c.rows(t, "SELECT number FROM timelines")) == 2 })
			if err := c.own.SetClock(0); err != nil {
				t.Fatal(err)
			}
			workers = c.dials(t, billing, 2)
			for i, l := range all {
				wantOutcome(t, until(t, func() (*pb.ClaimResponse, error) { return workers[1-i].tryClaim(t, again(l.claim)) }), "UNKNOWN")
			}
			c.settles(t, all[0].grant.GetOperationId(), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			wantState(t, workers[0].view(t, all[1].grant.GetOperationId()), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_QUARANTINE)
			c.wantOneEffectEach(t)
		})
	}
}

// TestAWorkersSuccessSurvivesTheLossOfItsGrant: a worker process has made its effect when the ledger loses the grant. It sends nothing more, and the ledger gets to know.
func TestAWorkersSuccessSurvivesTheLossOfItsGrant(t *testing.T) {
	patient := strings.NewReplacer("default: 2s, max: 4s, total: 4s", "default: 30s, max: 60s, total: 60s", "effect_within: 4s", "effect_within: 60s")
	c := newCluster(t, patient.Replace(askedContracts), false)
	c.fallBehind(t)
	type running struct {
		errand         errand
		process        *workerProcess
		operation, key string
	}
	var all []*running
	for i, tool := range []string{"card.charge", "mail.send"} {
		r := &running{errand: errand{
			Ledger: sdkConfig(t, c.nodes[i].grpcAddr, billing), Target: c.ft.URL(), Tool: tool, Task: unique(t), Decided: time.Now(), Lease: 20 * time.Second,
		}}
		r.process = r.errand.start(t)
		said := r.process.hear(t, "claimed")
		r.operation, r.key = said[0], said[1]
		r.process.goOn(t)
		r.process.hear(t, "answered")
		all = append(all, r)
	}
	c.failOver(t)
	for _, r := range all {
		r.process.goOn(t)
		said := r.process.finish(t)
		made := c.ft.account(t).Created(serviceOf(r.errand.Tool), r.key)
		if len(made) != 1 {
			t.Fatalf("%s: the target made %v", r.errand.Tool, made)
		}
		told := 0
		for _, e := range c.node.person(t, operator).look(t, r.operation).GetHistory() {
			if e.GetKind() == pb.EventKind_EVENT_KIND_OBSERVED {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%s: %d observations, want that of the worker, which said %q", r.errand.Tool, told, said)
		}
		want := "unknown"
		if r.errand.Tool == "card.charge" {
			c.settles(t, r.operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
			want = "done " + made[0]
		} else if op := c.node.dial(t, billing).view(t, r.operation); !op.GetNeedsAttention() {
			t.Errorf("nobody is told to look at %v", op)
		}
		if got := r.errand.start(t).finish(t); got != want {
			t.Errorf("%s: the next worker ended with %q, want %q", r.errand.Tool, got, want)
		}
		c.ft.wantAccount(t, serviceOf(r.errand.Tool), r.key, 1, 1)
	}
}

// TestAFalseDeclarationActsTwice: who declares that a failover loses nothing, though it does, gets a second effect where the target does not see that it is one.
// As long as a ledgerd runs that knows of a commit which was lost, it holds all the same.
func TestAFalseDeclarationActsTwice(t *testing.T) {
	for name, knows := range map[string]bool{"nobody knows better": false, "who runs on knows better": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, askedContracts, false, "--failover", "lossless")
			workers := c.dials(t, billing, 2)
			c.fallBehind(t)
			var all []*lost
			for _, service := range []target.Service{target.Tickets, target.Messages, target.Payments} {
				for _, w := range workers { // so that each of the processes knows
					all = append(all, c.granted(t, w, service, true))
				}
			}
			if knows {
				c.failOver(t)
			} else {
				c.stopped(t, func() { c.failOver(t) })
			}
			w := c.node.dial(t, billing)
			for _, l := range all {
				g := until(t, func() (*pb.ClaimResponse, error) { return w.tryClaim(t, again(l.claim)) }).GetGranted()
				if (g != nil) == knows {
					t.Errorf("%s: granted again: %v", l.claim.GetKey().GetTool(), g != nil)
				}
				want := 1
				if g != nil {
					_ = c.send(t.Context(), l.service, g.GetDownstreamKey())
					if l.service != target.Payments { // that one knows the key
						want = 2
					}
				}
				if n := c.ft.account(t).Effects(l.service, l.grant.GetDownstreamKey()); n != want {
					t.Errorf("%s: %d effects, want %d", l.claim.GetKey().GetTool(), n, want)
				}
			}
		})
	}
}
