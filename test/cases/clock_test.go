// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// onOwnPostgres starts ledgerd processes that recover, on a PostgreSQL of the test's own.
func onOwnPostgres(t *testing.T, options pgtest.Options, contracts string, number int) (recovering, []*node) {
	t.Helper()
	server := pgtest.Own(t, options)
	e := &env{store: "postgres", own: server, database: server.Database(t)}
	e.dsn = postgresURL(server.Addr(), e.database)
	r := recovering{env: e, ft: startTarget(t, target.Payments)}
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(contracts, "URL", r.ft.URL())), 0o600); err != nil {
		t.Fatal(err)
	}
	r.args = []string{"--recovery", "on", "--contracts", path, "--probe-allow", "127.0.0.1"}
	var nodes []*node
	for range number {
		nodes = append(nodes, e.start(t, nodeOptions{args: r.args}))
	}
	e.node = nodes[0]
	return r, nodes
}

// crossing is an operation that is under way while the clock is set.
type crossing struct {
	claim   *pb.ClaimRequest
	service target.Service
	sent    bool
	key     string
	// settles is when it does at the earliest, by a clock that nobody sets; repeated, when somebody was told to execute it again.
	settles, repeated time.Time
}

// TestTheStoresClockIsSet moves the clock of PostgreSQL by ten minutes, both ways, under load and with operations under way whose effects land as late as they
// may: nobody is told to execute what has not really settled, and the target counts one effect for each.
func TestTheStoresClockIsSet(t *testing.T) {
	for name, c := range map[string]struct {
		sets      []time.Duration
		direction string
	}{
		"forward":                         {[]time.Duration{10 * time.Minute}, "forward"},
		"back, and set right again later": {[]time.Duration{-10 * time.Minute, 0}, "back"},
	} {
		t.Run(name, func(t *testing.T) {
			const within, late = 6 * time.Second, 5 * time.Second
			r, nodes := onOwnPostgres(t, pgtest.Options{Clock: true}, strings.ReplaceAll(askedContracts, "4s", within.String()), 2)
			stop := load(t, r, nodes)
			for _, service := range []target.Service{target.Payments, target.Tickets} {
				if err := r.ft.Server.SetKnobs(service, target.LateCommit(late).Times(1)); err != nil {
					t.Fatal(err)
				}
			}
			w := nodes[1].dial(t, billing)
			var all []*crossing
			for i, x := range []*crossing{{service: target.Payments, sent: true}, {service: target.Tickets, sent: true}, {service: target.Payments}, {service: target.Tickets}} {
				x.claim = request(toolOf(x.service), unique(t), fmt.Sprint(i), bodyOf(x.service))
				x.claim.IntentTime = intentBefore()
				asked := time.Now()
				g := w.grant(t, x.claim)
				x.key, x.settles = g.GetDownstreamKey(), asked.Add(g.GetSendWithin().AsDuration()+within)
				if x.sent {
					_ = r.send(t.Context(), x.service, x.key) // it takes effect late, and the worker has seen no answer
				}
				all = append(all, x)
			}
			for _, off := range c.sets {
				if err := r.own.SetClock(off); err != nil {
					t.Fatal(err)
				}
				for _, n := range nodes {
					eventually(t, "the jump is noticed", func() bool {
						return n.metric(t, "ledger_store_clock_jumps_total", `ledger_store_clock_direction="`+c.direction+`"`) >= 1
					})
				}
				resent, err := w.tryClaim(t, all[2].claim) // refused where it has settled meanwhile
				left := resent.GetGranted().GetSendWithin().AsDuration()
				if err == nil && time.Now().Add(left).After(all[2].settles.Add(-within+time.Second)) {
					t.Errorf("a grant that is shown again may be sent for %s", left)
				}
			}
			// Claims of the same keys come all the time, by both processes, until all have settled and were dealt with.
			last := slices.MaxFunc(all, func(a, b *crossing) int { return a.settles.Compare(b.settles) })
			askers, asked := []*worker{nodes[0].dial(t, billing), nodes[1].dial(t, billing)}, 0
			eventuallyAfter(t, max(time.Until(last.settles), 0), "all are completed", func() bool {
				x, asker := all[asked%len(all)], askers[asked/len(all)%len(askers)]
				asked++
				again := again(x.claim)
				if g := asker.claim(t, again).GetGranted(); g != nil {
					x.repeated = time.Now()
					id := r.send(t.Context(), x.service, x.key)
					w.applied(t, completion(g.GetOperationId(), again.GetClaimId(), kindOf(x.service), id))
				}
				return !slices.ContainsFunc(all, func(x *crossing) bool { return !r.completed(t, x.claim.GetKey()) })
			})
			t.Logf("claimed again %d times meanwhile", asked)
			stop()
			for _, x := range all {
				if !x.repeated.IsZero() && x.repeated.Before(x.settles) {
					t.Errorf("%s was granted again %s before it had settled", x.claim.GetKey().GetTool(), x.settles.Sub(x.repeated))
				}
				if x.sent == x.repeated.IsZero() {
					continue
				}
				t.Errorf("%s: sent %v, granted again %v", x.claim.GetKey().GetTool(), x.sent, !x.repeated.IsZero())
			}
			r.wantOneEffectEach(t)
		})
	}
}

// completed reports whether an operation is.
func (r recovering) completed(t *testing.T, k *pb.OperationKey) bool {
	t.Helper()
	return r.row(t, operationID(billing, k.GetTool(), k.GetTask(), k.GetKey()))["state"] == number(uint64(pb.State_STATE_COMPLETED))
}

// intentBefore is an intent that no clock of these tests takes for one of the future.
func intentBefore() *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-15 * time.Minute)) }

// intentAhead is an intent as late as a caller's clock may be: five minutes ahead, but for what passes until the ledger looks at it.
func intentAhead() *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(5*time.Minute - 500*time.Millisecond))
}

func toolOf(service target.Service) string {
	switch service {
	case target.Tickets:
		return "ticket.create"
	case target.Messages:
		return "mail.send"
	default:
		return "card.charge"
	}
}

// kindOf is what the contracts call what a service makes: recovery may have found it before its maker tells of it, and both have to mean the same.
func kindOf(service target.Service) string {
	switch service {
	case target.Tickets:
		return "ticket"
	case target.Messages:
		return "message"
	default:
		return "charge"
	}
}

func bodyOf(service target.Service) string {
	switch service {
	case target.Tickets:
		return `{"title":"disk full","queue":"ops"}`
	case target.Messages:
		return `{"to":"A","text":"hello"}`
	default:
		return `{"amount":"10.00","currency":"EUR","to":"A"}`
	}
}

// send makes the effect at the target, and returns what it is called there; empty: that was not seen.
func (r recovering) send(ctx context.Context, service target.Service, key string) string {
	switch service {
	case target.Tickets:
		made, _ := r.ft.CreateTicket(ctx, key, target.TicketRequest{Title: "disk full", Queue: "ops"})
		return made.ID
	case target.Messages:
		made, _ := r.ft.SendMessage(ctx, key, target.MessageRequest{To: "A", Body: "hello"})
		return made.ID
	default:
		made, _ := r.ft.Charge(ctx, key, target.ChargeRequest{Amount: "10.00", Currency: "EUR", To: "A"})
		return made.ID
	}
}

// wantOneEffectEach fails for a key with two effects at the target.
func (r recovering) wantOneEffectEach(t *testing.T) {
	t.Helper()
	log, total := r.ft.account(t), 0
	for _, service := range []target.Service{target.Payments, target.Tickets, target.Messages} {
		for _, key := range log.Keys(service) {
			total++
			if n := log.Effects(service, key); n > 1 {
				t.Errorf("%s: %d effects of one key, of %d requests", service, n, log.Sends(service, key))
			}
		}
	}
	t.Logf("%d keys at the target", total)
}

// load has workers make charges until stop is called.
func load(t *testing.T, r recovering, nodes []*node) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for i := range 4 {
		w := nodes[i%len(nodes)].dial(t, support)
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				claim := request("card.charge", fmt.Sprintf("load-%d", i), fmt.Sprint(n), bodyOf(target.Payments))
				claim.WorkerId, claim.IntentTime = w.id, intentBefore()
				answer, err := w.Claim(ctx, claim)
				if err != nil || answer.GetGranted() == nil {
					if ctx.Err() == nil {
						t.Errorf("a claim of a new key: %v, %v", answer, err)
					}
					return
				}
				g := answer.GetGranted()
				id := r.send(ctx, target.Payments, g.GetDownstreamKey())
				if _, err := w.Complete(ctx, completion(g.GetOperationId(), claim.GetClaimId(), kindOf(target.Payments), id)); err != nil && ctx.Err() == nil {
					t.Errorf("Complete: %v", err)
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
		t.Logf("%d charges meanwhile", done)
	}
}
