// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// walk is a random run of calls of Do for few intents, by many processes at once, at a ledger that fails, forgets and fails over meanwhile.
type walk struct {
	ledger  *clienttest.Ledger
	noticed bool // all that it forgets

	mu      sync.Mutex
	rand    *rand.Rand
	passed  time.Duration        // that the ledger's clock was advanced
	decided map[string]time.Time // each step, when it was first wanted
	effects map[string]int       // of each key, that took place at the target
	wrong   []string
}

func (w *walk) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(n)
}

func (w *walk) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *walk) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.Advance(d)
	w.passed += d
}

func (w *walk) intent() client.Intent {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := client.Intent{Task: "task", Step: fmt.Sprint(w.rand.IntN(12))}
	if w.decided[i.Step].IsZero() {
		w.decided[i.Step] = time.Now().Add(w.passed)
	}
	if i.Time = w.decided[i.Step]; i.Step > "5" {
		i.Subject = "somebody"
	}
	return i
}

// happens is called at each point at which something can go wrong.
func (w *walk) happens() {
	switch w.draw(12) {
	case 0:
		w.ledger.Remember()
	case 1:
		if w.noticed || w.draw(2) == 0 {
			w.ledger.Forget()
		} else {
			w.ledger.ForgetUnnoticed()
		}
		w.advance(time.Duration(w.draw(600)) * time.Second) // what is decided more than five minutes later is not quarantined
	case 2:
		w.advance(time.Duration(w.draw(40)) * time.Second)
	case 3:
		methods := []clienttest.Method{clienttest.Claim, clienttest.Start, clienttest.Complete, clienttest.MarkUnknown}
		faults := []clienttest.Fault{
			clienttest.Unavailable, clienttest.LostRequest, clienttest.LostResponse, clienttest.ForgetBefore, clienttest.ForgetAfter,
		}
		w.ledger.Inject(methods[w.draw(len(methods))], faults[w.draw(len(faults))])
	}
}

// one is one call of Do.
type one struct {
	*walk
	claimID  string          // of the last claim that was sent
	used     map[string]bool // claim ids that were executed under
	sends    int
	effects  int
	returned string
}

// claimed notes what the calls of one Do claim with.
func claimed(ctx context.Context, method string, req, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	if r, ok := req.(*opsledgerv1.ClaimRequest); ok {
		ctx.Value(oneKey{}).(*one).claimID = r.GetClaimId()
	}
	return invoke(ctx, method, req, answer, c, o...)
}

type oneKey struct{}

func (o *one) execute(_ context.Context, c client.Call) (charge, error) {
	if o.used[o.claimID] {
		o.fault("a grant was executed twice")
	}
	o.used[o.claimID] = true
	o.returned = ""
	o.happens()
	if err := c.Sending(); err != nil {
		return charge{}, client.NotSent(err)
	}
	o.sends++
	end := o.draw(6)
	if end > 2 {
		o.effects++
		o.mu.Lock()
		o.walk.effects[c.Key]++
		o.mu.Unlock()
	}
	o.happens()
	switch end {
	case 0:
		return charge{}, client.RefusedBeforeAcceptance(errors.New("429"), 0)
	case 1:
		return charge{}, client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
	case 2, 3:
		return charge{}, errors.New("reset")
	default:
		o.returned = "C-" + o.claimID
		return charge{o.returned}, nil
	}
}

// do makes the call, and compares what it is told with what has happened.
func (w *walk) do(ctx context.Context, l *client.Ledger, intent client.Intent) {
	o := &one{walk: w, used: map[string]bool{}}
	e := charging(o.execute)
	e.Tool, e.Wait = "mail.send", client.NoWait
	if w.draw(2) == 0 {
		e.Prepare = func(_ context.Context, _ client.Call, r request) (request, error) {
			w.happens()
			return r, nil
		}
	}
	out, err := client.Do(context.WithValue(ctx, oneKey{}, o), l, e, intent, ten)
	if err != nil {
		if o.sends > 0 {
			w.fault("an error after %d sends: %v", o.sends, err)
		}
		return
	}
	if o.effects > 1 {
		w.fault("%d effects of one call", o.effects)
	}
	if value, ok := out.Returned(); ok != (o.returned != "") || value.ID != o.returned {
		w.fault("returned %q, and was told %v %q", o.returned, ok, value.ID)
	}
	client.Match(out,
		func(d client.Done[charge]) bool {
			if !d.Replayed && o.returned == "" {
				w.fault("done without a value of its own")
			}
			return true
		},
		func(r client.Rejection) bool {
			if !r.Replayed && o.effects > 0 {
				w.fault("rejected with an effect")
			}
			return true
		},
		func(u client.Unknown) bool {
			switch sent := o.sends > 0; {
			case sent && u.Recorded && u.Reason == client.ReasonUnknown && u.Disposition == opsledgerv1.Disposition_DISPOSITION_UNSPECIFIED && u.Wait == nil:
				w.fault("it is not said what the ledger has made of the report")
			case !u.Recorded && u.Cause == nil:
				w.fault("not recorded, for no reason")
			case !u.Recorded && strings.Contains(u.Cause.Error(), "NotFound"):
				w.fault("lost although the ledger was there: %v", u.Cause)
			}
			return true
		})
}

// TestRandomLosses: at most one execution under a grant, and one effect in a call, whatever the ledger loses; where it notices each time, one
// effect of each key at a target that can't tell a repeat. What a call is told is what has happened.
func TestRandomLosses(t *testing.T) {
	unsafe := clienttest.Contract("mail.send", ledger.Unsafe)
	unsafe.AllowWhileUnknown = true
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &walk{rand: rand.New(rand.NewPCG(seed, 0)), effects: map[string]int{}, decided: map[string]time.Time{}, noticed: seed%2 == 0}
			w.ledger = clienttest.New(t, clienttest.Options{
				Contracts: []ledger.Contract{unsafe}, Listen: "127.0.0.1:0",
				Arrived: func(clienttest.Method) { w.happens() },
			})
			connection, err := grpc.NewClient(w.ledger.Addr(),
				grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(claimed), grpc.WithDisableRetry())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close() }()
			ctx := bounded(t)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 5 {
						w.do(ctx, client.New(connection, client.Options{CallTimeout: 300 * time.Millisecond, ReportTimeout: 5 * time.Second}), w.intent())
					}
				})
			}
			all.Wait()
			for _, wrong := range w.wrong {
				t.Error(wrong)
			}
			for key, n := range w.effects {
				if n > 1 && w.noticed {
					t.Errorf("%d effects of %s", n, key)
				}
			}
		})
	}
}
