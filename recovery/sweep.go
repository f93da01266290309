// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/ledger"
)

// SweepOptions of a sweeper. The zero value is useful.
type SweepOptions struct {
	Log   *slog.Logger
	Meter metric.Meter
	// Youngest is how old an operation of any tool is at least before its age may matter; nil: that of a tool without a contract.
	Youngest func() time.Duration
	// Interval is the pause between two passes over all that is old, give or take a fifth; 0: ten minutes.
	Interval time.Duration
	// Batch is how many operations are read, and forgotten, at a time; 0: 256.
	Batch int
}

const (
	usualSweep = 10 * time.Minute
	// sweepers are commands at a time: so many share a round trip and a commit.
	sweepers = 8
	// restAtLeast is the pause after a batch, which otherwise is as long as the batch was: a sweep takes at most half of what one connection can.
	restAtLeast = 10 * time.Millisecond
)

// Sweeper is retention: it expires, retires and forgets what is old enough for that, by the contracts in force. Run and RunOnce are called one at a time.
type Sweeper struct {
	ledger   *ledger.Ledger
	store    ledger.AgedStore
	youngest func() time.Duration
	log      *slog.Logger
	metrics  *sweepMetrics
	interval time.Duration
	batch    int

	mu    sync.Mutex // held while it runs; guards what follows
	quiet *quiet
}

// Swept is what came of one pass.
type Swept struct {
	// Looked is how many operations were looked at.
	Looked                            int
	Expired, Retired, Histories, Keys int
	// Failed is how many could not be dealt with.
	Failed int
}

// NewSweeper makes a sweeper on a ledger and its store.
func NewSweeper(l *ledger.Ledger, store ledger.AgedStore, o SweepOptions) (*Sweeper, error) {
	m, err := newSweepMetrics(o.Meter)
	if err != nil {
		return nil, err
	}
	s := &Sweeper{ledger: l, store: store, youngest: o.Youngest, log: o.Log, metrics: m, interval: o.Interval, batch: o.Batch, quiet: newQuiet()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.youngest == nil {
		s.youngest = ledger.DefaultContract("").Youngest
	}
	if s.interval <= 0 {
		s.interval = usualSweep
	}
	if s.batch <= 0 {
		s.batch = usualBatch
	}
	return s, nil
}

// Run sweeps until ctx ends. What it has begun then comes to its end.
func (s *Sweeper) Run(ctx context.Context) {
	wait := rand.N(usualInterval) // instances that start at once
	for failures := 0; sleep(ctx, wait); {
		swept, err := s.RunOnce(ctx)
		wait = s.interval - s.interval/5 + rand.N(2*s.interval/5+1)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			s.log.Warn("retention could not read or forget what is old", "reason", reason(err))
			wait = min(wait, usualInterval<<min(failures, 5))
		default:
			failures = 0
			s.metrics.passed()
			if swept != (Swept{Looked: swept.Looked}) {
				s.log.Info("retention has swept", "looked_at", swept.Looked, "expired", swept.Expired, "retired", swept.Retired,
					"histories_forgotten", swept.Histories, "keys_forgotten", swept.Keys, "failed", swept.Failed)
			}
		}
	}
}

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// RunOnce passes once over all that is old, but for stretches in which nothing can be to do yet. With an error it was cut short.
func (s *Sweeper) RunOnce(ctx context.Context) (Swept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet.purge(time.Now())
	var all Swept
	q := ledger.AgedQuery{Age: s.youngest(), Limit: s.batch}
	for {
		q.After = s.quiet.pass(q.After, time.Now())
		began := time.Now()
		page, err := s.ledger.Aged(ctx, s.store, q)
		if err != nil {
			return all, err
		}
		again, err := s.sweep(ctx, page, &all)
		if err != nil || page.End == "" {
			return all, err
		}
		if len(page.Operations) < s.batch { // what follows has been too young; it grows older
			again = page.Now
		}
		s.quiet.add(q.After, page.End, time.Now(), again.Sub(page.Now))
		q.After = page.End
		if !sleep(ctx, max(restAtLeast, time.Since(began))) {
			return all, ctx.Err()
		}
	}
}

// sweep deals with one page, and says when something in it may be to do next.
func (s *Sweeper) sweep(ctx context.Context, page ledger.AgedPage, all *Swept) (again time.Time, err error) {
	var commands []ledger.AgedOperation
	histories, keys := map[string][]ledger.Tombstone{}, map[string][]ledger.Tombstone{}
	again = page.Now.Add(longestQuiet)
	for i := range page.Operations {
		op := &page.Operations[i]
		all.Looked++
		c, _ := s.ledger.Contract(op.Tool)
		what, next := page.Ageing(op, c)
		if next.Before(again) {
			again = next
		}
		stone, label := ledger.Tombstone{ID: op.ID, FinalTime: op.FinalTime}, toolLabel(s.ledger, op.Tool)
		switch what {
		case ledger.AgeingExpire, ledger.AgeingRetire:
			commands = append(commands, *op)
		case ledger.AgeingForgetHistory:
			histories[label] = append(histories[label], stone)
		case ledger.AgeingForgetKey:
			keys[label] = append(keys[label], stone)
		}
	}
	if err := s.command(ctx, commands, all); err != nil {
		return again, err
	}
	for label, stones := range histories {
		n, err := s.store.ForgetHistories(ctx, stones)
		if err != nil {
			return again, err
		}
		all.Histories += n
		s.metrics.did(label, "history_forgotten", n)
	}
	for label, stones := range keys {
		n, err := s.store.ForgetKeys(ctx, stones)
		if err != nil {
			return again, err
		}
		all.Keys += n
		s.metrics.did(label, "key_forgotten", n)
	}
	return again, nil
}

// command expires and retires, some at a time, and each sweeper in an order of its own: two that have come to the same page then share it, where they would lose races
// for each operation in turn. An operation that can't be dealt with delays no other one; a store that is away ends the pass.
func (s *Sweeper) command(ctx context.Context, ops []ledger.AgedOperation, all *Swept) error {
	rand.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	var group sync.WaitGroup
	var next, expired, retired, failed atomic.Int64
	var away atomic.Bool
	for range min(sweepers, len(ops)) {
		group.Go(func() {
			for !away.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(ops) {
					return
				}
				switch state, err := s.one(ctx, &ops[i]); {
				case errors.Is(err, ledger.ErrOperationNotFound): // another one was faster
				case errors.Is(err, ledger.ErrStoreUnavailable) && !errors.Is(err, ledger.ErrDamaged):
					away.Store(true)
				case err != nil:
					failed.Add(1)
					s.log.Warn("an old operation could not be expired or retired", attrTool, string(ops[i].Tool), attrOperation, ops[i].ID.String(), "reason", reason(err))
				case state == ledger.Retired:
					retired.Add(1)
				case state == ledger.Failed && ops[i].State == ledger.Received:
					expired.Add(1)
				}
			}
		})
	}
	group.Wait()
	all.Expired, all.Retired, all.Failed = all.Expired+int(expired.Load()), all.Retired+int(retired.Load()), all.Failed+int(failed.Load())
	if away.Load() {
		return ledger.ErrStoreUnavailable
	}
	return ctx.Err()
}

// one expires or retires an operation, if the ledger decides so, and returns its state if that has moved.
func (s *Sweeper) one(ctx context.Context, op *ledger.AgedOperation) (state ledger.State, err error) {
	defer func() {
		if recover() != nil {
			err = errPanicked
		}
	}()
	var was uint64
	answer, err := s.ledger.Do(ctx, op.ID, "", func(now *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
		was = now.Sequence
		if now.State == ledger.Received {
			return ledger.Expire{Actor: loop}, nil
		}
		return ledger.Retire{Actor: loop}, nil
	})
	if err != nil || answer.Operation.Sequence == was {
		return 0, err
	}
	label := toolLabel(s.ledger, op.Tool)
	switch state = answer.Operation.State; state {
	case ledger.Retired:
		s.metrics.did(label, "retired", 1)
	case ledger.Failed:
		s.metrics.did(label, "expired", 1)
	}
	return state, nil
}
