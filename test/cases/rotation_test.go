// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// The secrets are rotated twice, with the commands that an operator has, while two servers go on claiming: a retry of whatever age is the
// same request, and what was made for a subject under one secret is found under the other.
func TestSecretsRotate(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			ring := filepath.Join(t.TempDir(), "secrets.yaml")
			e := newStore(t, store)
			keys := func(args ...string) string {
				t.Helper()
				out, err := e.keys(t, ring, args...)
				if err != nil {
					t.Fatalf("ledgerd keys %v: %v", args, err)
				}
				return strings.TrimSpace(out)
			}
			first := keys("add")
			options := nodeOptions{args: []string{"--secrets", ring, "--reload-interval", "100ms"}}
			e.node = e.start(t, options)
			nodes := []*node{e.node, e.start(t, options)}
			reloads := 0.0
			everywhere := func() {
				t.Helper()
				reloads++
				for _, n := range nodes {
					eventually(t, "the ring is reloaded", func() bool {
						return n.metric(t, "ledger_reloads_total", `kind="secrets"`, `result="applied"`) >= reloads
					})
				}
			}
			primary := func(id string) {
				t.Helper()
				for _, n := range nodes {
					if n.metric(t, "ledger_fingerprint_secret_primary", `id="`+id+`"`) != 1 {
						t.Errorf("%s is not the primary of the server at %s", id, n.grpcAddr)
					}
				}
			}

			all := newTraffic(t, nodes)
			people := newSubject(t, nodes)
			people.unknownUnder(first)
			made := []string{first}
			for range 2 {
				all.more()
				id := keys("add")
				everywhere()
				all.more()
				primary(made[len(made)-1])
				keys("use", id)
				everywhere()
				primary(id)
				all.more()
				people.blocked()
				people.unknownUnder(id)
				people.listed()
				made = append(made, id)
			}
			all.end()

			slices.Sort(made)
			var have []string
			for _, row := range e.rows(t, "SELECT DISTINCT fingerprint_secret AS s FROM operations ORDER BY s") {
				have = append(have, row["s"])
			}
			slices.Sort(have)
			if !slices.Equal(made, have) {
				t.Errorf("records were made with %v, want %v", have, made)
			}
			for _, id := range made {
				if out, err := e.keys(t, ring, "remove", id); err == nil {
					t.Errorf("%s was removed: %s", id, out)
				}
			}
		})
	}
}

// keys runs ledgerd keys on a ring and the environment's store.
func (e *env) keys(t *testing.T, ring string, args ...string) (string, error) {
	t.Helper()
	binary, err := plainBinary()
	if err != nil {
		t.Fatal(err)
	}
	args = append(append([]string{"keys"}, args...), "--secrets", ring)
	if len(args) > 1 && args[1] == "remove" {
		args = append(args, "--store", e.dsn)
	}
	cmd := exec.CommandContext(within(t), binary, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return string(out), err
}

// traffic claims new keys, and old ones again, on each of the servers.
type traffic struct {
	t       *testing.T
	workers []*worker
	claimed atomic.Int64
	stop    chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex
	known []*pb.ClaimRequest
}

func newTraffic(t *testing.T, nodes []*node) *traffic {
	a := &traffic{t: t, stop: make(chan struct{})}
	for i := range 4 {
		w := nodes[i%len(nodes)].dial(t, billing)
		a.workers = append(a.workers, w)
		a.running.Go(func() {
			for {
				select {
				case <-a.stop:
					return
				default:
					a.claim(w)
				}
			}
		})
	}
	t.Cleanup(a.end)
	return a
}

// claim makes a new operation, and asks for one of those that there are.
func (a *traffic) claim(w *worker) {
	r := request("card.charge", unique(a.t), "K", `{"amount":1,"to":"somebody"}`)
	answer, err := w.tryClaim(a.t, r)
	if err != nil || outcome(answer) != "EXECUTE" {
		a.t.Errorf("a new key: %v, %v", answer, err)
		return
	}
	a.mu.Lock()
	a.known = append(a.known, r)
	old := a.known[rand.IntN(len(a.known))]
	a.mu.Unlock()
	a.retry(w, old)
	a.claimed.Add(1)
}

// retry claims a key again by a new claim_id, as it was and with another amount.
func (a *traffic) retry(w *worker, old *pb.ClaimRequest) {
	answer, err := w.tryClaim(a.t, again(old))
	if err != nil || outcome(answer) != "IN_PROGRESS" && outcome(answer) != "UNKNOWN" { // the machine may take longer than a lease
		a.t.Errorf("a retry: %v, %v", answer, err)
	}
	_, err = w.tryClaim(a.t, sameKey(old, `{"amount":2,"to":"somebody"}`))
	wantConflict(a.t, err, "amount")
}

// more waits until each worker had the time for some claims.
func (a *traffic) more() {
	a.t.Helper()
	enough := a.claimed.Load() + int64(5*len(a.workers))
	eventually(a.t, "claims go on", func() bool { return a.claimed.Load() >= enough || a.t.Failed() })
}

// end ends the traffic, and asks for every key once more on each server.
func (a *traffic) end() {
	select {
	case <-a.stop:
		return
	default:
		close(a.stop)
	}
	a.running.Wait()
	if a.t.Failed() {
		return
	}
	for i, old := range a.known {
		a.retry(a.workers[i%len(a.workers)], old)
	}
}

// subject is an end user, and what became of the operations for it.
type subject struct {
	t       *testing.T
	workers []*worker
	name    string
	ids     []string
	tasks   []string
}

func newSubject(t *testing.T, nodes []*node) *subject {
	s := &subject{t: t, name: unique(t)}
	for _, n := range nodes {
		s.workers = append(s.workers, n.dial(t, support))
	}
	return s
}

func (s *subject) request(task, key string) *pb.ClaimRequest {
	r := request("card.charge", task, key, `{"amount":1}`)
	r.Key.Subject = s.name
	return r
}

// unknownUnder leaves an operation UNKNOWN in a task of its own, made while this secret is the primary.
func (s *subject) unknownUnder(secret string) {
	s.t.Helper()
	task := fmt.Sprintf("%s:%s", unique(s.t), secret)
	r := s.request(task, "K")
	id := s.workers[0].grant(s.t, r).GetOperationId()
	s.workers[0].markUnknown(s.t, id, r.GetClaimId())
	s.ids, s.tasks = append(s.ids, id), append(s.tasks, task)
}

// blocked claims other keys in the tasks of unknown operations, most of them made under an earlier secret.
func (s *subject) blocked() {
	s.t.Helper()
	for _, task := range s.tasks {
		for i, w := range s.workers {
			answer := w.claim(s.t, s.request(task, fmt.Sprint("other-", i)))
			wantOutcome(s.t, answer, "BLOCKED")
			// Another subject's is no sibling, and neither is that of nobody.
			stranger := s.request(task, unique(s.t))
			stranger.Key.Subject = unique(s.t)
			r := w.grant(s.t, stranger)
			w.applied(s.t, completion(r.GetOperationId(), stranger.GetClaimId(), "charge", "C"))
		}
	}
}

// listed lists the subject's operations on each server: all of them, whatever they were made with, and nobody else's.
func (s *subject) listed() {
	s.t.Helper()
	want := slices.Sorted(slices.Values(s.ids))
	for _, w := range s.workers {
		page, err := w.ListOperations(within(s.t), &pb.ListOperationsRequest{Subject: s.name})
		if err != nil {
			s.t.Fatal(err)
		}
		var got []string
		for _, op := range page.GetOperations() {
			got = append(got, op.GetId())
		}
		if slices.Sort(got); !slices.Equal(want, got) {
			s.t.Errorf("listed %v, want %v", got, want)
		}
		for _, id := range s.ids {
			byID := &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: id}, Subject: s.name}
			if _, err := w.Lookup(within(s.t), byID); err != nil {
				s.t.Errorf("lookup: %v", err)
			}
			byID.Subject = unique(s.t)
			_, err := w.Lookup(within(s.t), byID)
			wantRefusal(s.t, err, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND)
		}
	}
}
