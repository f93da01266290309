// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/pgtest"
)

const (
	// mostWithBacklog is what a process may have resident, in bytes.
	mostWithBacklog = 200 << 20
	// The limits of the first tool's contract.
	atOnce, perSecond = 4, 20
	// others are the second tool's operations, all of which must be settled soon: those after they are due.
	others    = 50
	soon      = 5 * time.Second
	leaseOver = 2 * time.Second
	// claimers make the backlog.
	claimers = 64
)

// backlogContracts: the first target answers slowly. Nothing else is compared than that something is there.
const backlogContracts = `tools:
  slow.make:
    effect: keyed
    lease: {default: 2s, max: 2s, total: 2s}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 60s
      probe:
        http:
          url: "TARGET/slow/{downstream_key}"
          found: "status == 200"
          not_found: "status == 404"
          result: {id: "body.id"}
      verify: []
      checks: {first: 1s, timeout: 10s}
      limits: {concurrency: 4, per_second: 20}
  quick.make:
    effect: keyed
    lease: {default: 2s, max: 2s, total: 2s}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 60s
      probe:
        http:
          url: "TARGET/quick/{downstream_key}"
          found: "status == 200"
          not_found: "status == 404"
          result: {id: "body.id"}
      verify: []
      checks: {first: 1s, timeout: 10s}
      limits: {concurrency: 8, per_second: 100}
`

// asked is a target that counts queries.
type asked struct {
	mu           sync.Mutex
	running      int
	most         int
	began        []time.Time
	answersAfter time.Duration
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.running++
	a.most = max(a.most, a.running)
	a.began = append(a.began, time.Now())
	a.mu.Unlock()
	pause(r.Context(), a.answersAfter)
	a.mu.Lock()
	a.running-- // before the answer is out: who has it may ask again
	a.mu.Unlock()
	_, _ = w.Write([]byte(`{"id":"T-1"}`))
}

// seen is how many queries there were, how many at a time at most, and within a second at most.
func (a *asked) seen() (all, most, inASecond int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := 0
	for i, at := range a.began {
		for at.Sub(a.began[from]) >= time.Second {
			from++
		}
		inASecond = max(inASecond, i-from+1)
	}
	return len(a.began), a.most, inASecond
}

// backlog is how long one is, and how it is looked at. More comes after that was measured, for the memory alone.
type backlog struct {
	stuck, more int
	rounds      int
	round       time.Duration
	rate        int
}

var backlogs = map[string]backlog{
	"reduced": {stuck: 3000, rounds: 3, round: 2 * time.Second, rate: 60},
	"full":    {stuck: 100_000, more: 900_000, rounds: 7, round: 6 * time.Second, rate: 60},
}

func TestBacklog(t *testing.T) {
	size := os.Getenv("OPSLEDGER_TEST_FLOOD")
	if size == "" {
		size = "reduced"
	}
	b, ok := backlogs[size]
	if !ok {
		t.Fatal("OPSLEDGER_TEST_FLOOD must be full, or not be set")
	}
	t.Logf("%s: %+v", size, b)
	slow, quick := &asked{answersAfter: 150 * time.Millisecond}, &asked{}
	targets := http.NewServeMux()
	targets.Handle("/slow/", slow)
	targets.Handle("/quick/", quick)
	target := httptest.NewServer(targets)
	t.Cleanup(target.Close)
	h := newHouse(t)
	h.write(t, "contracts.yaml", []byte(strings.ReplaceAll(backlogContracts, "TARGET", target.URL)))
	build(t, h)
	server := pgtest.Get(t)
	dsn := server.DSN(server.Database(t))
	var nodes [2]*ledgerd
	var clients [2]pb.LedgerServiceClient
	for i := range nodes {
		nodes[i] = startLedgerd(t, h, dsn, "--contracts", h.path("contracts.yaml"), "--probe-allow", "127.0.0.1", "--store-durability", "as-it-is")
		clients[i] = pb.NewLedgerServiceClient(dial(t, nodes[i].grpc, h.files("good")))
		behave(t, clients[i], b.round/2, b.rate)
	}
	var calm, burdened []time.Duration
	for i := range b.rounds {
		calm = append(calm, behave(t, clients[i%2], b.round, b.rate))
	}

	took := time.Now()
	stuck(t, clients[:], "slow.make", b.stuck)
	t.Logf("%d operations were left by their workers in %v", b.stuck, time.Since(took).Round(time.Millisecond))
	pause(t.Context(), leaseOver) // the last ones are due, too
	due := time.Now().Add(leaseOver)
	ids := stuck(t, clients[:], "quick.make", others)
	eventually(t, "the second tool's operations are settled", func() bool { return settled(t, clients[0], ids) })
	if late := time.Since(due).Round(time.Millisecond); late > soon {
		t.Errorf("the second tool's last operation was settled %v after they were due, want %v at most", late, soon)
	} else {
		t.Logf("the second tool's last operation was settled %v after they were due", late)
	}
	if all, most, _ := quick.seen(); all != others {
		t.Errorf("the second tool's target was asked %d times, at most %d at a time, for %d operations", all, most, others)
	}
	before, _, _ := slow.seen()
	began := time.Now()
	for i := range b.rounds {
		burdened = append(burdened, behave(t, clients[i%2], b.round, b.rate))
	}
	lasted := time.Since(began).Seconds()
	all, most, inASecond := slow.seen()
	t.Logf("the first target was asked %d times, %d at a time, %d within a second at most; %.1f a second while claims went on",
		all, most, inASecond, float64(all-before)/lasted)
	// A query that is late on its way comes together with those behind it.
	if overall := float64(perSecond)*time.Since(took).Seconds() + atOnce; most > atOnce || inASecond > perSecond+atOnce || float64(all) > overall {
		t.Errorf("its contract allows %d at a time, %d within a second, and %.0f in all this time", atOnce, perSecond, overall)
	}
	if rate := float64(all-before) / lasted; rate < perSecond/2 {
		t.Errorf("only %.1f a second are asked about, of %d that may be", rate, perSecond)
	}
	judge(t, "the backlog", 1.5, calm, burdened)
	if b.more > 0 {
		stuck(t, clients[:], "slow.make", b.more)
		pause(t.Context(), 10*leaseOver)
	}
	for i, n := range nodes {
		if most := n.memory(t, "VmHWM"); most > mostWithBacklog {
			t.Errorf("process %d had %d MiB resident, at most %d may be", i, most>>20, mostWithBacklog>>20)
		} else {
			t.Logf("process %d had at most %d MiB resident", i, most>>20)
		}
	}
}

// stuck makes operations whose workers are not heard of again.
func stuck(t *testing.T, clients []pb.LedgerServiceClient, tool string, n int) []string {
	t.Helper()
	ids := make([]string, n)
	failures := make([]error, claimers)
	var group sync.WaitGroup
	for c := range claimers {
		group.Go(func() {
			for i := c; i < n; i += claimers {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				claimed, err := clients[c%len(clients)].Claim(ctx, &pb.ClaimRequest{
					Key: &pb.OperationKey{Tool: tool, Task: uuid.NewString(), Key: "key"}, ClaimId: uuid.NewString(), WorkerId: "worker",
					RequestJson: []byte(`{"title":"t"}`), IntentTime: timestamppb.Now(),
				})
				cancel()
				if err != nil || claimed.GetGranted() == nil {
					failures[c] = fmt.Errorf("claim: %v, %w", claimed, err)
					return
				}
				ids[i] = claimed.GetGranted().GetOperationId()
			}
		})
	}
	group.Wait()
	if i := slices.IndexFunc(failures, func(err error) bool { return err != nil }); i >= 0 {
		t.Fatal(failures[i])
	}
	return ids
}

// settled: all of them are COMPLETED.
func settled(t *testing.T, client pb.LedgerServiceClient, ids []string) bool {
	t.Helper()
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		found, err := client.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: id}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if found.GetCompleted() == nil {
			return false
		}
	}
	return true
}
