// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// newOldSite is a site whose clock only the test moves. The tool "old" has windows of one day, two, three and four.
func newOldSite(t *testing.T) *site {
	t.Helper()
	s := &site{contracts: declared{}}
	c := ledger.DefaultContract("old")
	c.Version, c.EffectWithin = "v1", time.Minute
	c.RetryWindow, c.RetainCompleted, c.RetainHistory, c.RetainTombstone = 24*time.Hour, 48*time.Hour, 72*time.Hour, 96*time.Hour
	s.contracts["old"] = c
	begin := time.Now().Truncate(time.Second)
	s.path = filepath.Join(t.TempDir(), "ledger.db")
	var err error
	s.store, err = sqlite.Open(t.Context(), s.path, sqlite.Options{
		Now: func(time.Time) time.Time { return begin.Add(time.Duration(s.ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.store.Close() })
	if err := s.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	if s.ring, err = fingerprint.NewRing("k1", secret); err != nil {
		t.Fatal(err)
	}
	s.Ledger = ledger.New(s.store, s.contracts)
	return s
}

func (s *site) sweeper(t *testing.T, o SweepOptions) *Sweeper {
	t.Helper()
	o.Youngest = func() time.Duration { return s.contracts["old"].Youngest() }
	w, err := NewSweeper(s.Ledger, s.store, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func wantSwept(t *testing.T, w *Sweeper, want Swept) {
	t.Helper()
	got, err := w.RunOnce(t.Context())
	if got.Looked = 0; err != nil || got != want {
		t.Errorf("it swept %+v, %v, want %+v", got, err, want)
	}
}

// report sends a worker's word on the grant that an operation has.
func (s *site) report(t *testing.T, id ledger.OperationID, make func(ledger.ClaimID) ledger.Command) {
	t.Helper()
	claim := s.op(t, id).Grant.ClaimID
	if _, err := s.Do(t.Context(), id, string(claim), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return make(claim), nil }); err != nil {
		t.Fatal(err)
	}
}

func completes(claim ledger.ClaimID) ledger.Command {
	return ledger.Complete{ClaimID: claim, Succeeded: &ledger.Result{Resource: ledger.ResourceRef{ID: "r1"}}}
}

func neverSent(claim ledger.ClaimID) ledger.Command {
	return ledger.Complete{ClaimID: claim, NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent}}
}

func unknown(claim ledger.ClaimID) ledger.Command { return ledger.MarkUnknown{ClaimID: claim} }

// TestSweepToTheSecond: each window ends when it ends, counted from settlement, and not a second before.
func TestSweepToTheSecond(t *testing.T) {
	s := newOldSite(t)
	id := s.granted(t, "old")
	s.advance(time.Hour)
	s.report(t, id, completes)
	claimed := s.op(t, id).CreateTime
	w := s.sweeper(t, SweepOptions{})
	for _, step := range []struct {
		to   time.Duration // since settlement
		want Swept
	}{
		{48*time.Hour - time.Second, Swept{}},
		{48 * time.Hour, Swept{Retired: 1}},
		{72*time.Hour - time.Second, Swept{}},
		{72 * time.Hour, Swept{Histories: 1}},
		{96*time.Hour - time.Second, Swept{}},
		{96 * time.Hour, Swept{Keys: 1}},
		{1000 * time.Hour, Swept{}},
	} {
		s.ahead.Store(int64(time.Hour + step.to))
		w.quiet = newQuiet() // this process's own clock stands still
		wantSwept(t, w, step.want)
		wantSwept(t, s.sweeper(t, SweepOptions{}), Swept{})
		if _, _, err := s.store.Get(t.Context(), id); (step.to >= 96*time.Hour) != errors.Is(err, ledger.ErrOperationNotFound) {
			t.Errorf("after %v: %v", step.to, err)
		}
	}
	again := ledger.Claim{
		Key:     ledger.Key{Scope: "s", Tool: "old", Task: "1", Key: "k"},
		ClaimID: ledger.ClaimID(uuid.NewString()), WorkerID: "w", ToolAllowed: true, IntentTime: claimed.Add(5 * time.Minute),
	}
	request, err := fingerprint.NewRequest(s.ring, again, s.contracts["old"], []byte(`{"amount":5}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), again, request); !errors.Is(err, ledger.ErrKeyTooOld) {
		t.Errorf("a claim of the key that was forgotten: %v", err)
	}
	longer := s.contracts["old"]
	longer.RetainTombstone = 10000 * time.Hour
	s.contracts["old"] = longer
	if _, err := s.Claim(t.Context(), again, request); !errors.Is(err, ledger.ErrKeyTooOld) {
		t.Errorf("a claim of it under a contract that would have kept it: %v", err)
	}
}

// TestSweepLeavesWhatIsUnsettled, at any age; but what nobody sent and nobody wants expires.
func TestSweepLeavesWhatIsUnsettled(t *testing.T) {
	s := newOldSite(t)
	person := ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-a"}
	takeOver := func(id ledger.OperationID) {
		command := ledger.CommandID(uuid.NewString())
		if _, err := s.Do(t.Context(), id, string(command), func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.TakeOver{CommandID: command, Actor: person, ExpectedVersion: op.Version, Reason: "r"}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	left := map[string]ledger.OperationID{
		"PROCESSING": s.granted(t, "old"), "UNKNOWN": s.granted(t, "old"), "held": s.granted(t, "old"), "RECEIVED and held": s.granted(t, "old"),
		"contradicted": s.granted(t, "old"),
	}
	s.report(t, left["UNKNOWN"], unknown)
	s.report(t, left["held"], unknown)
	takeOver(left["held"])
	s.report(t, left["RECEIVED and held"], neverSent)
	takeOver(left["RECEIVED and held"])
	s.report(t, left["contradicted"], func(claim ledger.ClaimID) ledger.Command {
		return ledger.Complete{ClaimID: claim, Rejected: &ledger.Failure{Kind: ledger.Declined}, SentExactlyOnce: true}
	})
	s.report(t, left["contradicted"], completes)
	expires := s.granted(t, "old")
	s.report(t, expires, neverSent)
	was := map[string]ledger.Operation{}
	for name, id := range left {
		was[name] = s.op(t, id)
	}
	s.advance(24*time.Hour - time.Second)
	wantSwept(t, s.sweeper(t, SweepOptions{}), Swept{})
	s.advance(time.Second)
	wantSwept(t, s.sweeper(t, SweepOptions{}), Swept{Expired: 1})
	if op := s.op(t, expires); op.State != ledger.Failed || op.Failure.Kind != ledger.Expired {
		t.Errorf("what nobody wants is %v: %+v", op.State, op.Failure)
	}
	s.advance(10 * 365 * 24 * time.Hour)
	wantSwept(t, s.sweeper(t, SweepOptions{}), Swept{Retired: 1})
	wantSwept(t, s.sweeper(t, SweepOptions{}), Swept{Keys: 1})
	for name, id := range left {
		if op := s.op(t, id); op.Sequence != was[name].Sequence || op.State != was[name].State {
			t.Errorf("%s: it was %v with %d events, and is %v with %d", name, was[name].State, was[name].Sequence, op.State, op.Sequence)
		}
	}
}

// TestSweepersAtOnce: two of them, with small pages, and each operation is dealt with once.
func TestSweepersAtOnce(t *testing.T) {
	const many = 60
	s := newOldSite(t)
	for range many {
		s.report(t, s.granted(t, "old"), completes)
	}
	both := func(want Swept) {
		t.Helper()
		var group sync.WaitGroup
		var mu sync.Mutex
		var sum Swept
		for range 2 {
			w := s.sweeper(t, SweepOptions{Batch: 7})
			group.Go(func() {
				swept, err := w.RunOnce(context.WithoutCancel(t.Context()))
				mu.Lock()
				defer mu.Unlock()
				sum.Retired, sum.Histories, sum.Keys, sum.Failed = sum.Retired+swept.Retired, sum.Histories+swept.Histories, sum.Keys+swept.Keys, sum.Failed+swept.Failed
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if sum != want {
			t.Errorf("both swept %+v, want %+v", sum, want)
		}
	}
	s.advance(48 * time.Hour)
	both(Swept{Retired: many})
	s.advance(24 * time.Hour)
	both(Swept{Histories: many})
	s.advance(24 * time.Hour)
	both(Swept{Keys: many})
}

// counting counts the operations that are read.
type counting struct {
	ledger.AgedStore
	read int
}

func (c *counting) Aged(ctx context.Context, q ledger.AgedQuery) (ledger.AgedPage, error) {
	page, err := c.AgedStore.Aged(ctx, q)
	c.read += len(page.Operations)
	return page, err
}

// TestSweepPassesWhatIsQuiet: where nothing is to do for long, the next passes read nothing; what has been too young is looked at each time.
func TestSweepPassesWhatIsQuiet(t *testing.T) {
	s := newOldSite(t)
	const many = 50
	for range many {
		s.report(t, s.granted(t, "old"), completes)
	}
	s.advance(24 * time.Hour)
	store := &counting{AgedStore: s.store}
	w, err := NewSweeper(s.Ledger, store, SweepOptions{Batch: 8, Youngest: func() time.Duration { return 24 * time.Hour }})
	if err != nil {
		t.Fatal(err)
	}
	for pass, want := range []int{many, many % 8, many % 8} {
		store.read = 0
		wantSwept(t, w, Swept{})
		if store.read != want {
			t.Errorf("pass %d reads %d operations, want %d", pass, store.read, want)
		}
	}
	w.quiet.purge(time.Now().Add(longestQuiet + time.Second))
	if len(w.quiet.stretches) != 0 {
		t.Errorf("%d stretches are remembered longer than they are believed", len(w.quiet.stretches))
	}
	store.read = 0
	wantSwept(t, w, Swept{})
	if store.read != many {
		t.Errorf("when it is over, %d operations are read, want %d", store.read, many)
	}
}

// failing can't forget, and can't read after some pages.
type failing struct {
	ledger.AgedStore
	pages int
}

func (f *failing) Aged(ctx context.Context, q ledger.AgedQuery) (ledger.AgedPage, error) {
	if f.pages--; f.pages < 0 {
		return ledger.AgedPage{}, fmt.Errorf("%w: down", ledger.ErrStoreUnavailable)
	}
	return f.AgedStore.Aged(ctx, q)
}

// TestSweepGoesOnAfterAFailure: what was done stays done, and the next pass does the rest.
func TestSweepGoesOnAfterAFailure(t *testing.T) {
	s := newOldSite(t)
	for range 20 {
		s.report(t, s.granted(t, "old"), completes)
	}
	s.advance(48 * time.Hour)
	store := &failing{s.store, 2}
	w, err := NewSweeper(s.Ledger, store, SweepOptions{Batch: 5, Youngest: func() time.Duration { return 24 * time.Hour }})
	if err != nil {
		t.Fatal(err)
	}
	if swept, err := w.RunOnce(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) || swept.Retired != 10 {
		t.Errorf("it swept %+v: %v", swept, err)
	}
	store.pages = 100
	wantSwept(t, w, Swept{Retired: 10})
}

// TestSweepPassesWhatIsDamaged: it is counted, and everything else is dealt with.
func TestSweepPassesWhatIsDamaged(t *testing.T) {
	s := newOldSite(t)
	for i := range 3 {
		id := s.granted(t, "old")
		s.report(t, id, completes)
		if i == 1 {
			s.damage(t, id)
		}
	}
	s.advance(48 * time.Hour)
	wantSwept(t, s.sweeper(t, SweepOptions{Batch: 2}), Swept{Retired: 2, Failed: 1})
}
