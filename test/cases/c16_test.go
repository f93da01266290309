// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// roundsVariable makes the rounds fewer, for slow builds; the tests' names say how many there were.
const roundsVariable = "OPSLEDGER_TEST_ROUNDS"

func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv(roundsVariable)
	if text == "" {
		return 100
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s must be a whole number from 1", roundsVariable)
	}
	t.Logf("%s: %d rounds in place of 100", roundsVariable, n)
	return n
}

// crowds are how many callers ask at once, and every how many rounds of the usual number they do.
var crowds = []struct{ clients, less int }{{64, 1}, {512, 20}}

// One executor, whoever asks and wherever: the insert is the only arbiter, and losing it is an ordinary answer.
func TestC16(t *testing.T) {
	bodies := map[string]func(i int) string{
		"one body": func(int) string { return `{"amount":"10.00","to":"A"}` },
		// Callers i and i+1 sit on different nodes, so both bodies come through both.
		"two bodies": func(i int) string { return fmt.Sprintf(`{"amount":"10.0%d","to":"A"}`, i/2%2) },
	}
	each(t, func(t *testing.T, e *env) {
		nodes := e.nodes(t)
		for _, c := range crowds {
			rounds := max(1, rounds(t)/c.less)
			workers := crowd(t, nodes, c.clients)
			for _, name := range slices.Sorted(maps.Keys(bodies)) {
				t.Run(fmt.Sprintf("%s, %d clients, nodes %d, rounds %d", name, c.clients, len(nodes), rounds), func(t *testing.T) {
					race(t, workers, bodies[name], rounds)
				})
			}
		}
	})
}

// crowd connects workers, each by a connection of its own, to the nodes in turn. They are connected when it returns: what races are claims,
// not hundreds of handshakes, for which a server has its own bound.
func crowd(t *testing.T, nodes []*node, clients int) []*worker {
	t.Helper()
	workers := make([]*worker, clients)
	for i := range workers {
		workers[i] = nodes[i%len(nodes)].dialRetrying(t, billing)
		if _, err := workers[i].GetTool(within(t), &pb.GetToolRequest{Tool: "card.charge"}); err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
	}
	return workers
}

// race lets all workers claim one key at once, in each round another, and again when the winner has reported.
func race(t *testing.T, workers []*worker, body func(i int) string, rounds int) {
	clients := len(workers)
	different := 0 // callers whose body is not the first one's
	for i := range workers {
		if body(i) != body(0) {
			different++
		}
	}
	task, calls, sent := unique(t), int64(0), sends(workers)
	for round := range rounds {
		ask := func() []*pb.ClaimRequest {
			requests := make([]*pb.ClaimRequest, clients)
			for i := range requests {
				requests[i] = request("card.charge", task, fmt.Sprintf("round-%d", round), body(i))
			}
			return requests
		}
		requests := ask()
		first := together(t, workers, requests)
		want := map[string]int{"EXECUTE": 1, "IN_PROGRESS": clients - different - 1, "CONFLICT": different}
		if diff := cmp.Diff(nonzero(want), tally(first)); diff != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, diff)
		}
		resource := fmt.Sprintf("C-%d", round)
		winner := winnerOf(first)
		workers[winner].applied(t, completion(first[winner].answer.GetGranted().GetOperationId(), requests[winner].GetClaimId(), "charge", resource))
		second := together(t, workers, ask())
		want = map[string]int{"REPLAY": clients - different, "CONFLICT": different}
		if diff := cmp.Diff(nonzero(want), tally(second)); diff != "" {
			t.Fatalf("round %d, after the end (-want +got):\n%s", round, diff)
		}
		for i, o := range second {
			loser := first[i].name() == "CONFLICT"
			if loser != (o.err != nil) {
				t.Fatalf("round %d: caller %d was told %s, then %s", round, i, first[i].name(), o.name())
			}
			if got := o.answer.GetCompleted().GetResult().GetResource().GetId(); !loser && got != resource {
				t.Fatalf("round %d: caller %d got the resource %q, want %q", round, i, got, resource)
			}
		}
		calls += int64(2*clients + 1)
	}
	if got := sends(workers) - sent; got != calls {
		t.Errorf("%d calls were sent %d times; want no retry", calls, got)
	}
}

func nonzero(counts map[string]int) map[string]int {
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	return counts
}

// Many hot keys at once: batches hold the same key several times, and both processes race for each.
func TestC16HotKeys(t *testing.T) {
	const keys, callers, connections = 200, 64, 8
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			// SQLite's file takes two processes, too.
			e := fresh(t, store, nodeOptions{})
			workers := crowd(t, []*node{e.node, e.start(t, nodeOptions{})}, connections)
			task, ctx := unique(t), within(t)
			answers := make([]told, keys*callers)
			barrier := make(chan struct{})
			var ready, done sync.WaitGroup
			for i := range answers {
				ready.Add(1)
				done.Go(func() {
					r := request("card.charge", task, fmt.Sprintf("key-%d", i%keys), `{"amount":"10.00","to":"A"}`)
					r.WorkerId = fmt.Sprintf("caller/%d", i)
					ready.Done()
					<-barrier
					// A crowd may be told to come again: nothing was done then.
					for {
						answers[i].answer, answers[i].err = workers[i/keys%connections].Claim(ctx, r)
						if status.Code(answers[i].err) != codes.ResourceExhausted || comeAgain(ctx, answers[i].err) != nil {
							return
						}
					}
				})
			}
			ready.Wait()
			close(barrier)
			done.Wait()
			if diff := cmp.Diff(map[string]int{"EXECUTE": keys, "IN_PROGRESS": keys * (callers - 1)}, tally(answers)); diff != "" {
				t.Errorf("all answers (-want +got):\n%s", diff)
			}
			granted := map[string]int{}
			for _, o := range answers {
				if g := o.answer.GetGranted(); g != nil {
					granted[g.GetOperationId()]++
				}
			}
			if len(granted) != keys {
				t.Errorf("%d operations were granted, want each of %d once", len(granted), keys)
			}
		})
	}
}

// comeAgain waits as long as a refusal says, as a client does.
func comeAgain(ctx context.Context, err error) error {
	timer := time.NewTimer(detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func winnerOf(all []told) int {
	for i, o := range all {
		if o.answer.GetGranted() != nil {
			return i
		}
	}
	return -1
}

// sends adds up what the workers have sent, retries included.
func sends(workers []*worker) (sum int64) {
	for _, w := range workers {
		sum += w.sends.Load()
	}
	return sum
}
