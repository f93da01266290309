// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// The load of C59, and what the target bears. A target with a pace of its own would be asked slower; the limit is on what is under way.
const (
	c59Throttled  = 1000
	c59Other      = 50
	c59Limit      = 4
	c59RetryAfter = 2 * time.Second
	c59Outage     = 5 * time.Second
)

const c59Contracts = `tools:
  TOOL:
    effect: unsafe
    lease: {default: 1s, max: 2s, total: 2s}
    send_within: 1s
    recovery:
      method: probe
      effect_within: 2s
      probe:
        http:
          url: "URL/things?key={downstream_key}"
          found: "status == 200 && size(body.data) == 1"
          not_found: "status == 200 && size(body.data) == 0"
          result: {id: "body.data[0].id", type: "'thing'"}
      verify: []
      checks: {first: 1s, max_interval: 5s, give_up_after: 1h, timeout: 5s}
      limits: {concurrency: 4, per_second: 200}
`

// crowded is a target that notes when it is asked, and how often at a time.
type crowded struct {
	mu        sync.Mutex
	now, most int
	begun     []time.Time
	refused   []time.Time     // when it has answered 429
	known     map[string]bool // keys about which it has answered
	throttles bool
}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	at := time.Now()
	c.now++
	c.most = max(c.most, c.now)
	c.begun = append(c.begun, at)
	throttled := c.throttles && at.Sub(c.begun[0]) < c59Outage
	c.mu.Unlock()
	timer := time.NewTimer(5 * time.Millisecond) // what a query takes; else nothing would ever be asked at a time
	<-timer.C
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	if throttled {
		c.refused = append(c.refused, time.Now())
		w.Header().Set("Retry-After", fmt.Sprint(int(c59RetryAfter.Seconds())))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	c.known[r.URL.Query().Get("key")] = true
	_, _ = io.WriteString(w, `{"data":[{"id":"thing-1"}]}`)
}

func (c *crowded) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known)
}

// C59: after an outage a thousand operations wait for a target that throttles, and fifty for another one. Two processes recover, one where a
// file is the store: that is for one host, and a second process would only wait for the first one's writes.
func TestC59(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			a, b := &crowded{known: map[string]bool{}, throttles: true}, &crowded{known: map[string]bool{}}
			contracts := "tools:\n"
			for tool, target := range map[string]*crowded{"a.send": a, "b.send": b} {
				served := httptest.NewServer(target)
				t.Cleanup(served.Close)
				one := strings.NewReplacer("tools:\n", "", "TOOL", tool, "URL", served.URL).Replace(c59Contracts)
				contracts += one
			}
			r := recoveringAt(t, store, double{}, contracts, nodeOptions{args: []string{"--recovery", "off"}})
			workers := make(chan int)
			var group sync.WaitGroup
			for range 8 { // whose workers then die
				w := r.node.dial(t, billing)
				group.Go(func() {
					for i := range workers {
						tool := "a.send"
						if i < c59Other {
							tool = "b.send"
						}
						if _, err := w.tryClaim(t, request(tool, fmt.Sprint("task-", i), "K", `{}`)); err != nil {
							t.Errorf("a claim failed: %v", err)
						}
					}
				})
			}
			for i := range c59Throttled + c59Other {
				workers <- i
			}
			close(workers)
			group.Wait()
			const waiting = `SELECT count(*) AS n FROM operations WHERE state = 2 AND next_check_time > `
			now := map[string]string{"postgres": "now()", "sqlite": "unixepoch('subsec') * 1000000"}[store]
			eventually(t, "all leases are over", func() bool { return r.rows(t, waiting+now)[0]["n"] == "0" })

			loops := []*node{r.start(t, nodeOptions{recovers: true, args: r.args})}
			if store != "sqlite" {
				loops = append(loops, r.start(t, nodeOptions{recovers: true, args: r.args}))
			}
			eventually(t, "the other target is asked about all", func() bool { return b.answered() == c59Other })
			b.mu.Lock()
			took := b.begun[len(b.begun)-1].Sub(b.begun[0])
			b.mu.Unlock()
			if took > 2*time.Second {
				t.Errorf("the other target's operations took %v, want less than 2s", took)
			}
			began := time.Now()
			for n := 0; n < c59Throttled; n = a.answered() {
				if time.Since(began) > 3*patience {
					t.Fatalf("after %v, %d of %d operations were found out", time.Since(began), n, c59Throttled)
				}
				pause := time.NewTimer(50 * time.Millisecond)
				<-pause.C
			}
			a.judge(t)
			for _, target := range []*crowded{a, b} {
				if target.most > c59Limit {
					t.Errorf("it was asked %d questions at a time, want at most %d", target.most, c59Limit)
				}
			}
			eventually(t, "all are completed", func() bool {
				return r.rows(t, `SELECT count(*) AS n FROM operations WHERE state <> 3`)[0]["n"] == "0"
			})
			refused := 0.0
			for _, n := range loops {
				refused += n.metric(t, "ledger_evidence_queries_total", `ledger_evidence_result="throttled"`)
			}
			t.Logf("%d queries of the throttling target, %d refused, at most %d at a time; the other one's took %v", len(a.begun), len(a.refused), a.most, took)
			if int(refused) != len(a.refused) {
				t.Errorf("the loops count %v refusals, the target %d", refused, len(a.refused))
			}
		})
	}
}

// judge looks at when the throttling target was asked. While it wants to be left alone nothing begins but what had its turn before.
func (c *crowded) judge(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.refused) < 2 {
		t.Fatalf("it has refused %d questions", len(c.refused))
	}
	const underWay = 500 * time.Millisecond // a turn that was had before, on a slow machine
	for from := c.refused[0]; ; {
		early := 0
		for _, at := range c.begun {
			since := at.Sub(from)
			if since <= 0 || since >= c59RetryAfter {
				continue
			}
			if early++; since > underWay {
				t.Errorf("it was asked %v after it wanted to be left alone for %v", since, c59RetryAfter)
			}
		}
		if early >= c59Limit {
			t.Errorf("it was asked %d times while it wanted to be left alone; want fewer than may be under way", early)
		}
		next := from
		for _, at := range c.refused {
			if at.Sub(from) >= c59RetryAfter {
				next = at
				break
			}
		}
		if next == from {
			break
		}
		from = next
	}
	// The first retries after the outage are not all at once.
	buckets := map[int64]int{}
	retries := 0
	last := c.refused[len(c.refused)-1]
	for _, at := range c.begun {
		if at.After(last) && retries < 20 {
			retries++
			if buckets[at.UnixMilli()/10]++; buckets[at.UnixMilli()/10] > c59Limit {
				t.Errorf("of the first %d retries more than %d began in the same 10 ms", retries, c59Limit)
			}
		}
	}
}
