// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
)

// journey is a call of Do to which one thing happens on its way, and the next call.
type journey struct {
	ledger    *clienttest.Ledger
	happening string
	point     string
	fails     bool // Execute gets no answer

	once   sync.Once
	met    atomic.Bool
	leave  context.CancelFunc
	passed atomic.Int64 // of the process's clock, beyond what has passed
	sends  atomic.Int32
}

var happenings = []string{"the caller goes", "the process is suspended", "the ledger's clock jumps", "the ledger goes down"}

// points are in the order in which they come.
var points = []string{
	"Claim arrived", "Claim decided", "preparing", "Start arrived", "Start decided", "executing", "sent", "report arrived", "report decided",
}

// at is called at each point.
func (j *journey) at(point string) {
	if point != j.point {
		return
	}
	j.once.Do(func() {
		j.met.Store(true)
		switch j.happening {
		case "the caller goes":
			j.leave()
		case "the process is suspended":
			j.passed.Store(int64(time.Hour))
		case "the ledger's clock jumps":
			j.ledger.Advance(time.Hour)
		case "the ledger goes down":
			j.ledger.Stop()
		}
	})
}

func method(m clienttest.Method) string {
	if m == clienttest.Complete || m == clienttest.MarkUnknown {
		return "report"
	}
	return string(m)
}

func (j *journey) effect() client.Effect[request, charge] {
	e := charging(func(_ context.Context, c client.Call) (charge, error) {
		j.at("executing")
		if err := c.Sending(); err != nil {
			return charge{}, client.NotSent(err)
		}
		j.sends.Add(1)
		j.at("sent")
		if j.fails {
			return charge{}, errors.New("reset")
		}
		return charge{"C-1"}, nil
	})
	e.Prepare = func(_ context.Context, _ client.Call, r request) (request, error) {
		j.at("preparing")
		return r, nil
	}
	e.Wait = client.NoWait
	return e
}

// TestAnywhere lets one thing happen at each point of a call. An error means that nothing was sent; what was suspended across its send window
// sends nothing; and together with the next call, when everything has come back and the lease is over, nothing is sent twice.
func TestAnywhere(t *testing.T) {
	for _, happening := range happenings {
		for _, point := range points {
			for _, end := range []string{"answered", "not answered"} {
				t.Run(strings.ReplaceAll(happening+"/"+point+"/"+end, " ", "-"), func(t *testing.T) {
					t.Parallel()
					j := &journey{happening: happening, point: point, fails: end == "not answered"}
					var o client.Options
					switch {
					case happening == "the ledger goes down" && strings.HasPrefix(point, "report"):
						o.ReportTimeout = 2 * time.Second // it arrives
					case happening == "the ledger goes down":
						o.ReportTimeout = 50 * time.Millisecond // it does not
					}
					j.ledger = clienttest.New(t, clienttest.Options{
						Contracts: contracts(), Client: o,
						Arrived: func(m clienttest.Method) { j.at(method(m) + " arrived") },
						Decided: func(m clienttest.Method) { j.at(method(m) + " decided") },
					})
					began, c := time.Now(), j.ledger.Client()
					client.SetClock(c, func() time.Duration { return time.Since(began) + time.Duration(j.passed.Load()) })
					ctx, cancel := context.WithCancel(bounded(t))
					defer cancel()
					j.leave = cancel
					intent := intended(t)

					got := told(client.Do(ctx, c, j.effect(), intent, ten))
					sends := j.sends.Load()
					if !j.met.Load() || sends > 1 || sends == 1 && strings.HasPrefix(got, "error") {
						t.Errorf("told %q after %d sends", got, sends)
					}
					// A reservation that the ledger still has is started anew.
					over := slices.Index(points, point) < slices.Index(points, "sent") && point != "preparing"
					if happening == "the process is suspended" && over && sends > 0 {
						t.Errorf("told %q, and it has sent after its window", got)
					}

					j.ledger.Restart()
					j.ledger.Advance(time.Hour)
					j.fails = false
					next := told(client.Do(bounded(t), j.ledger.Client(), j.effect(), intent, ten))
					if n := j.sends.Load(); n > 1 || n == 0 && strings.HasPrefix(next, "done") {
						t.Errorf("told %q, then %q after %d sends", got, next, n)
					}
				})
			}
		}
	}
}
