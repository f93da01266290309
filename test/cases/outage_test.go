// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// outageRounds is how often the database is stopped in each way, after so many successes each.
const outageRounds, outageLoad = 2, 25

// TestTheDatabaseGoesAwayUnderLoad stops PostgreSQL in three ways, under load by workers of two ledgerd processes that recover. What anybody was told is in
// the tables afterwards, the target counts no key twice, every chain holds, and in the end each operation is final or with a person.
func TestTheDatabaseGoesAwayUnderLoad(t *testing.T) {
	r, nodes := onOwnPostgres(t, pgtest.Options{Durable: true}, askedContracts, 2)
	if err := r.ft.Server.SetKnobs(target.Tickets, target.AcceptReset().Times(20)); err != nil { // some outcomes are unknown all the same
		t.Fatal(err)
	}
	o := &outage{recovering: r, t: t}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for i := range 8 {
		w := nodes[i%len(nodes)].dialRetrying(t, billing)
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				o.work(ctx, w, i, n)
			}
		})
	}
	ways := []struct {
		name string
		stop func(context.Context) error
	}{
		{"fast", func(ctx context.Context) error { return r.own.Restart(ctx, pgtest.Fast) }},
		{"immediate", func(ctx context.Context) error { return r.own.Restart(ctx, pgtest.Immediate) }},
		{"SIGKILL", r.own.Crash},
	}
	for range outageRounds {
		for _, way := range ways {
			before := o.completed.Load()
			eventually(t, "there is load", func() bool { return o.completed.Load() >= before+outageLoad })
			if err := way.stop(t.Context()); err != nil {
				t.Fatal(way.name, ": ", err)
			}
		}
	}
	before := o.completed.Load()
	eventually(t, "they work again", func() bool { return o.completed.Load() >= before+outageLoad })
	cancel()
	group.Wait()

	o.wantJournal()
	o.finish(nodes)
	o.wantJournal() // and nothing of it changes any more
	r.wantOneEffectEach(t)
	t.Logf("%d claims, %d grants told, %d successes told, %d calls failed", o.claims.Load(), len(o.grants), len(o.successes), o.failed.Load())
}

// outage is what workers have been told, while the database goes away.
type outage struct {
	recovering
	t *testing.T
	// ahead lets workers decide as late as their clocks may: behind a failover's watermark lies what they decided before.
	ahead atomic.Bool
	// loses says that grants are lost: what their holders report is kept, and not applied.
	loses bool

	claims, completed, failed atomic.Int64
	mu                        sync.Mutex
	asked                     []*pb.ClaimRequest
	grants                    map[string]*pb.Grant // by operation
	successes                 map[string]string    // the resource, by operation
}

// work makes one effect; a worker that can't reach the ledger sends the same call again for a while, and then gives up.
func (o *outage) work(ctx context.Context, w *worker, i, n int) {
	service := []target.Service{target.Payments, target.Tickets, target.Messages, target.Payments}[n%4]
	claim := request(toolOf(service), fmt.Sprintf("worker-%d:%d", i, n), "K", bodyOf(service))
	claim.WorkerId = w.id
	if o.ahead.Load() {
		claim.IntentTime = intentAhead()
	}
	o.claims.Add(1)
	o.mu.Lock()
	o.asked = append(o.asked, claim)
	o.mu.Unlock()
	var g *pb.Grant
	asked := time.Now()
	o.persist(ctx, func(ctx context.Context) error {
		asked = time.Now()
		answer, err := w.Claim(ctx, claim)
		g = answer.GetGranted()
		return err
	})
	if g == nil {
		return
	}
	o.mu.Lock()
	if o.grants == nil {
		o.grants, o.successes = map[string]*pb.Grant{}, map[string]string{}
	}
	o.grants[g.GetOperationId()] = g
	o.mu.Unlock()
	if n%16 == 15 || time.Since(asked) > g.GetSendWithin().AsDuration() {
		return // it dies before it sends
	}
	id := o.send(ctx, service, g.GetDownstreamKey())
	if id == "" || n%16 == 7 {
		return // it has seen no answer, or dies before it tells
	}
	done := completion(g.GetOperationId(), claim.GetClaimId(), kindOf(service), id)
	told := o.persist(ctx, func(ctx context.Context) error {
		answer, err := w.Complete(ctx, done)
		if err == nil && answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED && !(o.loses && answer.GetDisposition() == pb.Disposition_DISPOSITION_OBSERVED) {
			o.t.Errorf("a success by the holder was not applied: %v", answer)
		}
		return err
	})
	if told {
		o.completed.Add(1)
		o.mu.Lock()
		o.successes[g.GetOperationId()] = id
		o.mu.Unlock()
	}
}

// persist sends a call until it is answered, for 10 s.
func (o *outage) persist(ctx context.Context, call func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for call(ctx) != nil {
		o.failed.Add(1)
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// finish lets recovery do its work, and workers execute again what is proven to be absent, until nothing is left to do.
func (o *outage) finish(nodes []*node) {
	w := nodes[0].dial(o.t, billing)
	claims := map[string]*pb.ClaimRequest{}
	for _, c := range o.asked {
		claims[operationID(billing, c.GetKey().GetTool(), c.GetKey().GetTask(), c.GetKey().GetKey())] = c
	}
	// A worker that died holds its lease to the end. Nobody renews; the longest is that of messages, which have no contract; the last was granted before now.
	lease := ledger.DefaultContract("mail.send").LeaseDefault
	eventuallyAfter(o.t, lease, "everything is final or with a person", func() bool {
		open := o.rows(o.t, `SELECT id::text AS id, state, tool FROM operations WHERE state NOT IN (3, 4) AND custody = 1`)
		for _, row := range open {
			if row["state"] != number(uint64(pb.State_STATE_RECEIVED)) {
				continue
			}
			claim := again(claims[row["id"]])
			if g := w.claim(o.t, claim).GetGranted(); g != nil {
				service := serviceOf(row["tool"])
				w.applied(o.t, completion(row["id"], claim.GetClaimId(), kindOf(service), o.send(o.t.Context(), service, g.GetDownstreamKey())))
			}
		}
		return len(open) == 0
	})
}

// wantJournal fails unless all that was told is there, and every chain holds.
func (o *outage) wantJournal() {
	o.t.Helper()
	rows := map[string]columns{}
	for _, row := range o.rows(o.t, `SELECT o.id::text AS id, o.state, o.grant_epoch, o.sequence, o.last_hash, convert_from(o.result, 'UTF8') AS result,
		(SELECT count(*) FROM events AS e WHERE e.operation_id = o.id) AS events FROM operations AS o`) {
		rows[row["id"]] = row
	}
	for id, g := range o.grants {
		row, ok := rows[id]
		if !ok {
			o.t.Errorf("a grant was told and is not there")
			continue
		}
		if epoch := number(g.GetEpoch()); len(row["grant_epoch"]) < len(epoch) || len(row["grant_epoch"]) == len(epoch) && row["grant_epoch"] < epoch {
			o.t.Errorf("epoch %s was told, and %s is there", epoch, row["grant_epoch"])
		}
	}
	for id, resource := range o.successes {
		if row := rows[id]; row["state"] != number(uint64(pb.State_STATE_COMPLETED)) || !strings.Contains(row["result"], resource) {
			o.t.Errorf("a success was told, and the row has state %s", row["state"])
		}
	}
	o.wantChains(o.t)
}

// wantChains fails unless the history of each operation holds.
func (e *env) wantChains(t *testing.T) {
	t.Helper()
	store, err := postgres.Open(t.Context(), e.own.DSN(e.database), postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	for _, row := range e.rows(t, "SELECT id::text AS id, state FROM operations") {
		var own ledger.OperationID
		if _, err := hex.Decode(own[:], []byte(strings.ReplaceAll(row["id"], "-", ""))); err != nil {
			t.Fatal(err)
		}
		op, _, err := store.Get(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		events, err := store.Events(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		if err := ledger.VerifyChain(events, op.LastHash); err != nil || uint64(len(events)) != op.Sequence {
			t.Errorf("the history of %d events, in state %s: %v", len(events), row["state"], err)
		}
	}
}
