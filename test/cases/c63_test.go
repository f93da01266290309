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

// SIGKILL at five points, of the worker and of ledgerd, and a new empty process each time. Without a recovery loop what may have been
// sent stays unknown, or in the queue of people where nothing can find it out; it is never granted again, and never sent again.
func TestC63(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		var tally counted
		t.Cleanup(func() { t.Logf("effects and requests at the target on %s:\n%s", e.store, tally.String()) })
		for _, tool := range []string{"card.charge", "mail.send"} {
			t.Run("ledgerd is killed, "+tool, func(t *testing.T) {
				f := fresh(t, e.store, nodeOptions{failpoints: "rpc.claim.after-commit=off"})
				for point := afterClaim; point <= afterComplete; point++ {
					t.Run(pointNames[point], func(t *testing.T) { killLedger(t, f, tool, point, &tally) })
				}
			})
		}
		for _, tool := range []string{"card.charge", "mail.send"} {
			t.Run("the worker is killed, "+tool, func(t *testing.T) {
				for point := afterClaim; point <= afterComplete; point++ {
					t.Run(pointNames[point], func(t *testing.T) {
						t.Parallel() // they mostly wait for the ends of leases
						killWorker(t, e, tool, point, &tally)
					})
				}
			})
		}
	})
}

// killWorker kills the worker process at the point.
func killWorker(t *testing.T, e *env, tool string, point int, tally *counted) {
	j := newJob(t, e, tool)
	j.errand.Lease = 2 * time.Second
	w := j.errand.start(t)
	words := w.hear(t, "claimed")
	operation, key := words[0], words[1]
	if point > afterClaim {
		w.goOn(t)
		j.wait(t, j.requested, "the request to the target")
	}
	if point > beforeAcceptance {
		j.release(j.request, faultproxy.Action{})
		j.wait(t, j.responded, "the target's answer")
	}
	if point > afterAcceptance {
		j.release(j.response, faultproxy.Action{})
		w.hear(t, "answered")
	}
	if point > afterAnswer {
		j.ledger.Pause(faultproxy.ServerToClient)
		w.goOn(t)
		eventually(t, "Complete has committed", func() bool { return e.row(t, operation)["state"] == number(uint64(pb.State_STATE_COMPLETED)) })
	}
	w.kill(t)
	lost := faultproxy.Action{Cut: &faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}}
	j.release(j.request, lost)
	j.release(j.response, lost)
	j.ledger.Resume(faultproxy.ServerToClient)

	effects := 0
	if point > beforeAcceptance {
		effects = 1
	}
	defer j.count(t, tally, "worker", pointNames[point], key, effects, effects)
	want, told := "UNKNOWN", "unknown"
	if point == afterComplete {
		want, told = "REPLAY", "done"
	} else if got := j.errand.start(t).finish(t); got != "in progress" && got != told {
		t.Errorf("a new worker within the lease ended with %q", got)
	}
	asks := e.node.dial(t, billing)
	eventually(t, "the lease is over", func() bool {
		got := outcome(asks.claim(t, j.claim(t)))
		if got != "IN_PROGRESS" && got != want {
			t.Fatalf("a Claim was answered %s, want %s", got, want)
		}
		return got == want
	})
	if got := j.errand.start(t).finish(t); !strings.HasPrefix(got, told) {
		t.Errorf("a new worker ended with %q, want %q", got, told)
	}
	custody, reason := pb.Custody_CUSTODY_AUTOMATION, pb.QueueReason_QUEUE_REASON_UNSPECIFIED
	if tool == "mail.send" && point != afterComplete {
		custody, reason = pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_NO_METHOD
	}
	state := pb.State_STATE_UNKNOWN
	if point == afterComplete {
		state = pb.State_STATE_COMPLETED
	}
	op := asks.view(t, operation)
	wantState(t, op, state, custody, reason)
	if op.GetAttempts() != 1 {
		t.Errorf("there were %d grants, want one", op.GetAttempts())
	}
}

// killLedger kills ledgerd at the point, by a failpoint where that is between its commit and its answer. The worker lives on and
// brings its work to an end with the new process.
func killLedger(t *testing.T, e *env, tool string, point int, tally *counted) {
	const idle = "rpc.claim.after-commit=off"
	order := map[int]string{afterClaim: "rpc.claim.after-commit=1*kill", afterComplete: "rpc.complete.after-commit=1*kill"}[point]
	if order != "" {
		e.node.failAt(t, order)
	}
	j := newJob(t, e, tool)
	w := j.errand.start(t)
	another := func(at int) {
		switch {
		case at != point:
		case order == "":
			e.node.restart(t)
		default:
			if state := e.node.waitEnd(t); !strings.Contains(state.String(), "killed") {
				t.Fatalf("ledgerd ended with %v", state)
			}
			e.node.failAt(t, idle)
		}
	}
	another(afterClaim)
	words := w.hear(t, "claimed")
	operation, key := words[0], words[1]
	w.goOn(t)
	j.wait(t, j.requested, "the request to the target")
	another(beforeAcceptance)
	j.release(j.request, faultproxy.Action{})
	j.wait(t, j.responded, "the target's answer")
	another(afterAcceptance)
	j.release(j.response, faultproxy.Action{})
	w.hear(t, "answered")
	another(afterAnswer)
	w.goOn(t)
	another(afterComplete)
	done := w.finish(t)

	defer j.count(t, tally, "ledgerd", pointNames[point], key, 1, 1)
	if !strings.HasPrefix(done, "done ") {
		t.Errorf("the worker ended with %q, want done", done)
	}
	if got := j.errand.start(t).finish(t); got != done {
		t.Errorf("a new worker ended with %q, want %q", got, done)
	}
	asks := e.node.dial(t, billing)
	wantOutcome(t, asks.claim(t, j.claim(t)), "REPLAY")
	wantState(t, asks.view(t, operation), pb.State_STATE_COMPLETED, pb.Custody_CUSTODY_AUTOMATION, 0)
	if n := len(e.history(t, operation)); n != 2 {
		t.Errorf("the operation has %d events, want the grant and the success", n)
	}
}

// job is one effect to be made by worker processes, with a proxy before the ledger, and one before the target that holds the first
// request and the first answer until they are released.
type job struct {
	errand               errand
	ft                   double
	ledger               *faultproxy.Proxy
	requested, responded chan struct{}
	request, response    *held
}

// held is what a hook waits for.
type held struct {
	once   sync.Once
	action chan faultproxy.Action
}

func newJob(t *testing.T, e *env, tool string) *job {
	t.Helper()
	j := &job{
		ft: startTarget(t, target.Payments), requested: make(chan struct{}), responded: make(chan struct{}),
		request: &held{action: make(chan faultproxy.Action, 1)}, response: &held{action: make(chan faultproxy.Action, 1)},
	}
	var err error
	if j.ledger, err = faultproxy.Start("tcp", e.node.grpcAddr, faultproxy.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.ledger.Close() })
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
		Ledger: sdkConfig(t, j.ledger.Addr().String(), billing), Target: "http://" + before.Addr().String(),
		Tool: tool, Task: unique(t), Decided: time.Now(),
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

// count judges the target's account at the end and writes it down.
func (j *job) count(t *testing.T, tally *counted, victim, point, key string, effects, sends int) {
	t.Helper()
	service := target.Payments
	if j.errand.Tool == "mail.send" {
		service = target.Messages
	}
	j.ft.wantAccount(t, service, key, effects, sends)
	log := j.ft.account(t)
	tally.add(fmt.Sprintf("%-8s killed  %-11s  %-36s  effects %d  requests %d",
		victim, j.errand.Tool, point, log.Effects(service, target.AnyKey), log.Sends(service, target.AnyKey)))
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
