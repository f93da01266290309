// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// One executor, whoever asks and wherever: the insert is the only arbiter, and losing it is an ordinary answer.
func TestC16(t *testing.T) {
	const clients = 64
	each(t, func(t *testing.T, e *env) {
		nodes, rounds := e.nodes(t), rounds(t)
		workers := make([]*worker, clients)
		for i := range workers {
			workers[i] = nodes[i%len(nodes)].dialRetrying(t, billing)
		}
		// Callers i and i+1 sit on different nodes, so both bodies come through both.
		bodies := map[string]func(i int) string{
			"one body":   func(int) string { return `{"amount":"10.00","to":"A"}` },
			"two bodies": func(i int) string { return fmt.Sprintf(`{"amount":"10.0%d","to":"A"}`, i/2%2) },
		}
		want := map[string]map[string]int{
			"one body":   {"EXECUTE": 1, "IN_PROGRESS": clients - 1},
			"two bodies": {"EXECUTE": 1, "IN_PROGRESS": clients/2 - 1, "CONFLICT": clients / 2},
		}
		replays := map[string]map[string]int{
			"one body":   {"REPLAY": clients},
			"two bodies": {"REPLAY": clients / 2, "CONFLICT": clients / 2},
		}
		for _, name := range []string{"one body", "two bodies"} {
			t.Run(fmt.Sprintf("%s, %d clients, nodes %d, rounds %d", name, clients, len(nodes), rounds), func(t *testing.T) {
				task, calls := unique(t), int64(0)
				sent := sends(workers)
				for round := range rounds {
					ask := func() []*pb.ClaimRequest {
						requests := make([]*pb.ClaimRequest, clients)
						for i := range requests {
							requests[i] = request("card.charge", task, fmt.Sprintf("round-%d", round), bodies[name](i))
						}
						return requests
					}
					requests := ask()
					first := together(t, workers, requests)
					if diff := cmp.Diff(want[name], tally(first)); diff != "" {
						t.Fatalf("round %d (-want +got):\n%s", round, diff)
					}
					resource := fmt.Sprintf("C-%d", round)
					winner := winnerOf(first)
					workers[winner].applied(t, completion(first[winner].answer.GetGranted().GetOperationId(), requests[winner].GetClaimId(), "charge", resource))
					second := together(t, workers, ask())
					if diff := cmp.Diff(replays[name], tally(second)); diff != "" {
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
					calls += 2*clients + 1
				}
				if got := sends(workers) - sent; got != calls {
					t.Errorf("%d calls were sent %d times; want no retry", calls, got)
				}
			})
		}
	})
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
