// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/target"
)

// The points at which a process is killed.
const (
	afterClaim = iota + 1
	beforeAcceptance
	afterAcceptance
	afterAnswer
	afterComplete // committed, and not answered
)

var pointNames = map[int]string{
	afterClaim: "1 after Claim", beforeAcceptance: "2 before the target accepts", afterAcceptance: "3 after the target accepts",
	afterAnswer: "4 after the target's answer", afterComplete: "5 after Complete, before its answer",
}

// SIGKILL at five points: of the worker, of ledgerd, and of both, over each store, with a tool that deduplicates and can be asked, and one that can do neither. A new
// empty process each time, and recovery on. The target's own account is the judge.
func TestC63(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			var tally counted
			t.Cleanup(func() { t.Logf("effects and requests at the target on %s:\n%s", store, tally.String()) })
			shared := newRecovering(t, store, nodeOptions{})
			points := func(t *testing.T, parallel bool, run func(t *testing.T, tool string, point int)) {
				for _, tool := range []string{"card.charge", "mail.send"} {
					for point := afterClaim; point <= afterComplete; point++ {
						t.Run(tool+", "+pointNames[point], func(t *testing.T) {
							if parallel {
								t.Parallel() // they mostly wait for the ends of leases and for settle times
							}
							run(t, tool, point)
						})
					}
				}
			}
			t.Run("ledgerd is killed", func(t *testing.T) {
				// The workers live on: their windows have room for the start of another ledgerd.
				r := newRecoveringBy(t, store, strings.ReplaceAll(askedContracts, "4s", "30s"), nodeOptions{failpoints: noFailpoint})
				points(t, false, func(t *testing.T, tool string, point int) { killLedger(t, r, tool, point, &tally) })
			})
			t.Run("the worker is killed", func(t *testing.T) {
				points(t, true, func(t *testing.T, tool string, point int) {
					c := crash{job: newJob(t, shared, tool), victim: "worker", point: point}
					c.killWorker(t)
					c.judge(t, &tally)
				})
			})
			t.Run("both are killed", func(t *testing.T) {
				points(t, true, func(t *testing.T, tool string, point int) {
					r := newRecovering(t, store, nodeOptions{failpoints: noFailpoint})
					c := crash{job: newJob(t, r, tool), victim: "both", point: point}
					c.killBoth(t)
					c.judge(t, &tally)
				})
			})
		})
	}
}

// noFailpoint starts the build with failpoints, and orders nothing.
const noFailpoint = "rpc.claim.after-commit=off"

// crash is one effect whose worker is killed at a point.
type crash struct {
	*job
	victim string
	point  int

	operation, key string
	// due is when the lease was over and, where the target can be asked, what was sent could take effect no more.
	lease, due time.Time
}

// killWorker kills the worker process at the point.
func (c *crash) killWorker(t *testing.T) {
	w := c.errand.start(t)
	w.hear(t, "claimed")
	c.take(t, w, c.point)
	if c.point == afterComplete {
		c.proxy.Pause(faultproxy.ServerToClient)
		w.goOn(t)
		eventually(t, "Complete has committed", func() bool {
			return c.row(t, c.operationID())["state"] == number(uint64(pb.State_STATE_COMPLETED))
		})
	}
	w.kill(t)
	c.note(t)
	c.cutOff()
	c.proxy.Resume(faultproxy.ServerToClient)
}

// killBoth kills ledgerd at the point, between its commit and its answer where it makes one there, and the worker with it.
func (c *crash) killBoth(t *testing.T) {
	dies := func() {
		if state := c.node.waitEnd(t); !strings.Contains(state.String(), "killed") {
			t.Fatalf("ledgerd ended with %v", state)
		}
	}
	if order := orders[c.point]; order != "" {
		c.node.failAt(t, order)
	}
	w := c.errand.start(t)
	if c.point == afterClaim {
		dies()
	} else {
		w.hear(t, "claimed")
		c.take(t, w, c.point)
		if c.point == afterComplete {
			w.goOn(t)
			dies()
		}
	}
	c.node.kill(t)
	w.kill(t)
	c.note(t)
	c.cutOff()
	c.node.failAt(t, noFailpoint)
}

// orders are the failpoints of the points at which ledgerd has committed something that it has not answered yet.
var orders = map[int]string{afterClaim: "rpc.claim.after-commit=1*kill", afterComplete: "rpc.complete.after-commit=1*kill"}

// take brings a worker that has its grant to the point, and no further.
func (j *job) take(t *testing.T, w *workerProcess, point int) {
	t.Helper()
	for at := beforeAcceptance; at <= point; at++ {
		j.step(t, w, at)
	}
}

// step brings a worker from the point before to this one.
func (j *job) step(t *testing.T, w *workerProcess, point int) {
	t.Helper()
	switch point {
	case beforeAcceptance:
		w.goOn(t)
		j.wait(t, j.requested, "the request to the target")
	case afterAcceptance:
		j.release(j.request, faultproxy.Action{})
		j.wait(t, j.responded, "the target's answer")
	case afterAnswer:
		j.release(j.response, faultproxy.Action{})
		w.hear(t, "answered")
	}
}

// note reads from the store what the dead have left behind.
func (c *crash) note(t *testing.T) {
	t.Helper()
	s := snapshot{Row: c.row(t, c.operationID())}
	if s.Row == nil {
		t.Fatal("the claim has left no row")
	}
	c.operation, c.key = c.operationID(), s.downstreamKey()
	if c.point == afterComplete {
		return
	}
	c.lease = s.Row.instant(t, "grant_lease_until")
	c.due = c.lease
	if c.errand.Tool == "card.charge" {
		c.due = s.Row.instant(t, "grant_send_until").Add(askedEffectWithin)
	}
}

// soon is how long after the end of the lease and of the settle time everything has come to its end.
const soon = 10 * time.Second

// judge sees the operation to its end, with empty processes and recovery alone: terminal, or with a person.
func (c *crash) judge(t *testing.T, tally *counted) {
	t.Helper()
	effects := 0
	if c.point > beforeAcceptance || c.errand.Tool == "card.charge" {
		effects = 1
	}
	defer c.count(t, tally, c.victim, pointNames[c.point], c.key, effects, effects)
	if c.point == afterComplete {
		c.settles(t, c.operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
		c.replays(t, 1)
		return
	}
	// Whoever comes next, within the lease or behind it, is told to execute by nothing but evidence.
	if got := c.errand.start(t).finish(t); got != "unknown" && (c.point <= beforeAcceptance || !strings.HasPrefix(got, "done ")) {
		t.Errorf("a new worker ended with %q", got)
	}
	var op *pb.Operation
	switch {
	case c.errand.Tool == "mail.send":
		op = c.settles(t, c.operation, pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_NO_METHOD)
		if got := c.errand.start(t).finish(t); got != "unknown" {
			t.Errorf("a new worker ended with %q", got)
		}
		if op.GetAttempts() != 1 {
			t.Errorf("there were %d grants, want one", op.GetAttempts())
		}
	case c.point <= beforeAcceptance:
		op = c.settles(t, c.operation, pb.State_STATE_RECEIVED, pb.Custody_CUSTODY_AUTOMATION, 0)
		if at := op.GetUpdateTime().AsTime(); at.Before(c.due) {
			t.Errorf("absence was believed %v before the settle time", c.due.Sub(at))
		}
		w := c.errand.start(t)
		w.hear(t, "claimed")
		w.goOn(t)
		w.hear(t, "answered")
		w.goOn(t)
		if got := w.finish(t); !strings.HasPrefix(got, "done ") {
			t.Errorf("the repeat ended with %q", got)
		}
		c.wantAskedBeforeSent(t)
		op = c.replays(t, 2)
	default:
		c.settles(t, c.operation, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
		op = c.replays(t, 1)
	}
	if took := op.GetUpdateTime().AsTime().Sub(later(c.lease, c.due)); took > soon {
		t.Errorf("it ended %v after the lease and the settle time, want at most %v", took, soon)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// replays fails unless a new process, and a Claim, are told of the one charge or message there is, after so many grants.
func (c *crash) replays(t *testing.T, grants uint32) *pb.Operation {
	t.Helper()
	service := serviceOf(c.errand.Tool)
	made := c.ft.account(t).Created(service, c.key)
	if got := c.errand.start(t).finish(t); len(made) != 1 || got != "done "+made[0] {
		t.Errorf("a new worker ended with %q, the target has %v", got, made)
	}
	asks := c.node.dial(t, billing)
	wantOutcome(t, asks.claim(t, c.claim(t)), "REPLAY")
	op := asks.view(t, c.operation)
	wantState(t, op, pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	if op.GetAttempts() != grants {
		t.Errorf("there were %d grants, want %d", op.GetAttempts(), grants)
	}
	return op
}

// wantAskedBeforeSent fails unless the target was asked, after the settle time, before the one request that reached it.
func (c *crash) wantAskedBeforeSent(t *testing.T) {
	t.Helper()
	var asked time.Time
	for _, e := range c.ft.account(t).Entries {
		switch {
		case e.Key != c.key:
		case e.Kind == target.Query:
			asked = e.Time
		case e.Kind == target.Send && asked.Before(c.due):
			t.Errorf("it was sent when the target had last been asked at %v; the settle time is %v", asked, c.due)
		}
	}
}

// killLedger kills ledgerd at the point, by a failpoint where that is between its commit and its answer. The worker lives on and
// brings its work to an end with the new process.
func killLedger(t *testing.T, r recovering, tool string, point int, tally *counted) {
	order := orders[point]
	if order != "" {
		r.node.failAt(t, order)
	}
	j := newJob(t, r, tool)
	j.errand.Lease = 20 * time.Second
	w := j.errand.start(t)
	another := func(at int) {
		switch {
		case at != point:
		case order == "":
			r.node.restart(t)
		default:
			if state := r.node.waitEnd(t); !strings.Contains(state.String(), "killed") {
				t.Fatalf("ledgerd ended with %v", state)
			}
			r.node.failAt(t, noFailpoint)
		}
	}
	another(afterClaim)
	key := w.hear(t, "claimed")[1]
	for at := beforeAcceptance; at <= afterAnswer; at++ {
		j.step(t, w, at)
		another(at)
	}
	w.goOn(t)
	another(afterComplete)
	done := w.finish(t)

	defer j.count(t, tally, "ledgerd", pointNames[point], key, 1, 1)
	if !strings.HasPrefix(done, "done ") {
		t.Errorf("the worker ended with %q, want done", done)
	}
	c := crash{job: j, operation: j.operationID(), key: key}
	c.replays(t, 1)
	if n := len(r.history(t, j.operationID())); n != 2 {
		t.Errorf("the operation has %d events, want the grant and the success", n)
	}
}

// job is one effect to be made by worker processes, with a proxy before the ledger, and one before the target that holds the first
// request and the first answer until they are released.
type job struct {
	recovering
	errand               errand
	proxy                *faultproxy.Proxy // before ledgerd
	requested, responded chan struct{}
	request, response    *held
}

// held is what a hook waits for.
type held struct {
	once   sync.Once
	action chan faultproxy.Action
}

func newJob(t *testing.T, r recovering, tool string) *job {
	t.Helper()
	j := &job{
		recovering: r, requested: make(chan struct{}), responded: make(chan struct{}),
		request: &held{action: make(chan faultproxy.Action, 1)}, response: &held{action: make(chan faultproxy.Action, 1)},
	}
	var err error
	if j.proxy, err = faultproxy.Start("tcp", r.node.grpcAddr, faultproxy.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.proxy.Close() })
	hook := func(reached chan struct{}, h *held) func(int, []byte) faultproxy.Action {
		var once sync.Once
		return func(int, []byte) faultproxy.Action {
			once.Do(func() { close(reached) })
			return <-h.action // at once and empty, when it has been released
		}
	}
	before, err := faultproxy.Start("tcp", strings.TrimPrefix(j.ft.URL(), "http://"), faultproxy.Options{
		OnClientData: hook(j.requested, j.request), OnServerData: hook(j.responded, j.response),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.release(j.request, faultproxy.Action{})
		j.release(j.response, faultproxy.Action{})
		_ = before.Close()
	})
	j.errand = errand{
		Ledger: sdkConfig(t, j.proxy.Addr().String(), billing), Target: "http://" + before.Addr().String(),
		Tool: tool, Task: unique(t), Decided: time.Now(), Lease: 2 * time.Second,
	}
	return j
}

// release lets a held chunk meet its end; what comes after it passes.
func (j *job) release(h *held, action faultproxy.Action) {
	h.once.Do(func() {
		h.action <- action
		close(h.action)
	})
}

// cutOff ends what is held of a worker that has gone, and holds nothing of those that come.
func (j *job) cutOff() {
	for reached, h := range map[chan struct{}]*held{j.requested: j.request, j.responded: j.response} {
		select {
		case <-reached:
			j.release(h, faultproxy.Action{Cut: &faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}})
		default:
			j.release(h, faultproxy.Action{})
		}
	}
}

func (j *job) wait(t *testing.T, reached chan struct{}, what string) {
	t.Helper()
	select {
	case <-reached:
	case <-within(t).Done():
		t.Fatalf("%s has not come", what)
	}
}

// claim is the worker's Claim, by a new claim_id.
func (j *job) claim(t *testing.T) *pb.ClaimRequest {
	t.Helper()
	body, err := json.Marshal(effectRequest)
	if err != nil {
		t.Fatal(err)
	}
	return request(j.errand.Tool, j.errand.Task, j.errand.intent().Key(), string(body))
}

// operationID is the operation's.
func (j *job) operationID() string {
	return operationID(billing, j.errand.Tool, j.errand.Task, j.errand.intent().Key())
}

// serviceOf is the target's service that a tool acts on.
func serviceOf(tool string) target.Service {
	switch tool {
	case "mail.send":
		return target.Messages
	case "ticket.create":
		return target.Tickets
	default:
		return target.Payments
	}
}

// count judges the target's account at the end and writes it down.
func (j *job) count(t *testing.T, tally *counted, victim, point, key string, effects, sends int) {
	t.Helper()
	service, log := serviceOf(j.errand.Tool), j.ft.account(t)
	j.ft.wantAccount(t, service, key, effects, sends)
	tally.add(fmt.Sprintf("| %-8s killed  %-11s  %-36s  effects %d  requests %d",
		victim, j.errand.Tool, point, log.Effects(service, key), log.Sends(service, key)))
}

// counted is what was counted, for whoever reads the test's output.
type counted struct {
	mu    sync.Mutex
	lines []string
}

func (t *counted) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
}

func (t *counted) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.lines)
	return strings.Join(t.lines, "\n")
}
