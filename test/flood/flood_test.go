// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// mostMemory is what ledgerd may have resident, in bytes.
const mostMemory = 512 << 20

// plan is how large a flood is, and how long it is looked at.
type plan struct {
	sizes  sizes
	rounds int           // without and with the flood, each
	round  time.Duration // of each
	rate   int           // operations of the well-behaved client per second: a claim and its report
}

var plans = map[string]plan{
	"reduced": {
		sizes:  sizes{Idle: 300, Handshakes: 30, Streams: 5, Opens: 130, Headers: 2, Messages: 1, Resets: 2, PerSecond: 200, Requests: 3},
		rounds: 4, round: 1500 * time.Millisecond, rate: 60,
	},
	"full": {
		sizes:  sizes{Idle: 2000, Handshakes: 300, Streams: 20, Opens: 50, Headers: 4, Messages: 2, Resets: 4, PerSecond: 250, Requests: 4},
		rounds: 7, round: 6 * time.Second, rate: 60,
	},
}

func TestFlooding(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("memory is read from /proc: ", err)
	}
	size := os.Getenv("OPSLEDGER_TEST_FLOOD")
	if size == "" {
		size = "reduced"
	}
	p, ok := plans[size]
	if !ok {
		t.Fatal("OPSLEDGER_TEST_FLOOD must be full, or not be set")
	}
	t.Logf("%s: %+v", size, p)
	h := newHouse(t)
	build(t, h)
	// The flood has one address and one name, and is let in: what is shown is what it does inside.
	server := startLedgerd(t, h, "sqlite:"+filepath.Join(inMemory(t), "ledger.db"),
		"--max-connections", "8192", "--max-connections-per-address", "4096", "--max-connections-per-principal", "4096")
	attack := startFlood(t, h, orders{Addr: server.grpc, Files: h.files("flood"), Sizes: p.sizes})
	client := pb.NewLedgerServiceClient(dial(t, server.grpc, h.files("good")))
	behave(t, client, p.round/2, p.rate) // so that caches, pages and connections are there
	largeMessagesAreRefused(t, pb.NewLedgerServiceClient(dial(t, server.grpc, h.files("flood"))))
	before := server.gauge(t, "go_goroutines")

	// Rounds alternate, and their medians are compared: what else the machine does meets both kinds alike.
	var calm, flooded []time.Duration
	counts := map[string]int{}
	for range p.rounds {
		busy := server.processor(t)
		calm = append(calm, behave(t, client, p.round, p.rate))
		calmly := server.processor(t) - busy
		attack.rise(t)
		busy = server.processor(t)
		flooded = append(flooded, behave(t, client, p.round, p.rate))
		t.Logf("p99 %v (processor %v), with the flood %v (processor %v); %d MiB resident",
			calm[len(calm)-1], calmly, flooded[len(flooded)-1], server.processor(t)-busy, server.memory(t, "VmRSS")>>20)
		for what, n := range attack.fall(t) {
			counts[what] += n
		}
		eventually(t, "what the flood held is given back", func() bool { return server.gauge(t, "go_goroutines") < before+20 })
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%7d %s", counts[what], what)
	}
	for _, what := range []string{
		"idle connections", "handshakes begun", "streams opened", "large headers ended by the server", "large messages", "resets",
		"requests: ResourceExhausted",
	} {
		if counts[what] == 0 {
			t.Errorf("the flood had no %s", what)
		}
	}
	if n := counts["large headers sent"]; n > 0 {
		t.Errorf("%d times all of 16 MB of headers was taken", n)
	}
	if most := server.memory(t, "VmHWM"); most > mostMemory {
		t.Errorf("ledgerd had %d MiB resident, at most %d may be", most>>20, mostMemory>>20)
	} else {
		t.Logf("ledgerd had at most %d MiB resident", most>>20)
	}
	judge(t, "the flood", 2, calm, flooded)
	behave(t, pb.NewLedgerServiceClient(dial(t, server.grpc, h.files("flood"))), time.Second, 5) // within its limit
}

// largeMessagesAreRefused, packed or not.
func largeMessagesAreRefused(t *testing.T, client pb.LedgerServiceClient) {
	t.Helper()
	for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := client.Claim(ctx, &pb.ClaimRequest{RequestJson: make([]byte, largeMessage)}, options...)
		cancel()
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message of 16 MB: %v", err)
		}
	}
}

// schedulers is by how much a percentile may differ for reasons of the machine's scheduler alone: flood, ledgerd and client share it.
const schedulers = 10 * time.Millisecond

// judge compares the medians of rounds without and with something, which may be so many times the others. Where the calm rounds alone differ by more
// than what is judged, the machine is too busy to tell, and that is said.
func judge(t *testing.T, what string, most float64, calm, burdened []time.Duration) {
	t.Helper()
	slices.Sort(calm)
	slices.Sort(burdened)
	without, with := calm[len(calm)/2], burdened[len(burdened)/2]
	verdict := fmt.Sprintf("median p99 %v without %s (%v to %v), %v with it (%v to %v): %.2f times",
		without, what, calm[0], calm[len(calm)-1], with, burdened[0], burdened[len(burdened)-1], float64(with)/float64(without))
	switch {
	case float64(with) <= max(most*float64(without), float64(without+schedulers)):
		t.Log(verdict)
	case float64(calm[len(calm)-1]) > most*float64(calm[0]):
		t.Log("the machine is too busy to tell: " + verdict)
	default:
		t.Error(verdict)
	}
}

// behave claims and completes operations at a constant rate, whatever the answers take, and returns the 99th percentile of what one call
// took: of a claim from when it was due. Every call must succeed.
func behave(t *testing.T, client pb.LedgerServiceClient, d time.Duration, rate int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d+patience)
	defer cancel()
	n := int(d.Seconds() * float64(rate))
	took := make([]time.Duration, 2*n)
	failures := make([]error, n)
	var group sync.WaitGroup
	begin := time.Now()
	for i := range n {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		pause(ctx, time.Until(due))
		group.Go(func() {
			req := &pb.ClaimRequest{
				Key: &pb.OperationKey{Tool: "tickets.create", Task: uuid.NewString(), Key: "key"}, ClaimId: uuid.NewString(), WorkerId: "worker",
				RequestJson: []byte(`{"title":"t"}`), IntentTime: timestamppb.Now(),
			}
			claimed, err := client.Claim(ctx, req)
			took[2*i] = time.Since(due)
			if err != nil || claimed.GetGranted() == nil {
				failures[i] = fmt.Errorf("claim: %v, %w", claimed, err)
				return
			}
			sent := time.Now()
			_, failures[i] = client.Complete(ctx, &pb.CompleteRequest{
				OperationId: claimed.GetGranted().GetOperationId(), ClaimId: req.GetClaimId(), SentExactlyOnce: true,
				Outcome: &pb.CompleteRequest_Succeeded{Succeeded: &pb.Result{Resource: &pb.ResourceRef{Id: "T-1"}}},
			})
			took[2*i+1] = time.Since(sent)
		})
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			t.Fatalf("a well-behaved client was refused: %v", err)
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
