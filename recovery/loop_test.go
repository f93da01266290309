// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// patience bounds every wait of these tests; nothing waits so long when all is well.
const patience = 30 * time.Second

// firstCheck is the number of an operation's first check, in the first life of a store.
const firstCheck = 1<<16 + 1

// declared are the contracts in force.
type declared map[ledger.Tool]ledger.Contract

func (d declared) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	c, ok := d[tool]
	if !ok {
		return ledger.DefaultContract(tool), false
	}
	return c, true
}

// asking is what the target of every declared probe says.
type asking func(ctx context.Context, op *ledger.Operation) Verdict

func (a asking) Probe(tool ledger.Tool) Probe {
	if tool == "external" {
		return nil
	}
	return a
}

func (a asking) Inspector(ledger.Tool) Inspector { return nil }

func (a asking) Ask(ctx context.Context, op *ledger.Operation) Verdict { return a(ctx, op) }

// site is a ledger on a real store, whose clock is moved.
type site struct {
	*ledger.Ledger
	store     *sqlite.Store
	contracts declared
	ring      *fingerprint.Ring
	path      string
	ahead     atomic.Int64
	claims    int
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{contracts: declared{}, path: filepath.Join(t.TempDir(), "ledger.db")}
	keyed := func(tool ledger.Tool, method ledger.Method) {
		c := ledger.DefaultContract(tool)
		c.Version, c.Effect, c.Method = "v1", ledger.Keyed, method
		c.EffectWithin, c.KeyRetention, c.VerifyStated, c.Verify = 2*time.Minute, 24*time.Hour, true, []string{"amount"}
		c.Fields = map[string]ledger.RequestField{"amount": {Type: "decimal", Category: "amount"}}
		c.ChecksPerSecond = 1000
		s.contracts[tool] = c
	}
	keyed("charge", ledger.MethodProbe)
	keyed("refund", ledger.MethodProbe)
	keyed("external", ledger.MethodProbe)
	keyed("again", ledger.MethodRegrant)
	var err error
	s.store, err = sqlite.Open(t.Context(), s.path, sqlite.Options{
		Now: func(host time.Time) time.Time { return host.Add(time.Duration(s.ahead.Load())) },
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

func (s *site) advance(d time.Duration) { s.ahead.Add(int64(d)) }

func (s *site) loop(t *testing.T, ask asking, o Options) *Loop {
	t.Helper()
	l, err := New(s.Ledger, s.store, ask, s.ring, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// granted makes an operation that asks for the amount 5; its worker is not heard of again.
func (s *site) granted(t *testing.T, tool ledger.Tool) ledger.OperationID {
	t.Helper()
	s.claims++
	claim := ledger.Claim{
		Key:     ledger.Key{Scope: "s", Tool: tool, Task: ledger.Task(fmt.Sprint(s.claims)), Key: "k"},
		ClaimID: ledger.ClaimID(uuid.NewString()), WorkerID: "w", Actor: ledger.Actor{Kind: ledger.ActorWorker, Name: "w"}, ToolAllowed: true,
		IntentTime: time.Now().Add(time.Duration(s.ahead.Load())),
	}
	c, _ := s.contracts.Contract(tool)
	request, err := fingerprint.NewRequest(s.ring, claim, c, []byte(`{"amount":5}`))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Claim(t.Context(), claim, request)
	if err != nil || answer.Outcome != ledger.OutcomeGranted {
		t.Fatalf("the claim was answered %v, %v", answer.Outcome, err)
	}
	return answer.Operation.ID
}

func (s *site) op(t *testing.T, id ledger.OperationID) ledger.Operation {
	t.Helper()
	op, _, err := s.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func (s *site) wants(t *testing.T, id ledger.OperationID, state ledger.State, custody ledger.Custody, reason ledger.QueueReason) {
	t.Helper()
	if op := s.op(t, id); op.State != state || op.Custody != custody || op.QueueReason != reason {
		t.Errorf("the operation is %v, %v, %v; want %v, %v, %v", op.State, op.Custody, op.QueueReason, state, custody, reason)
	}
}

func once(t *testing.T, l *Loop) []Done {
	t.Helper()
	done, err := l.RunOnce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func found(observed string, missing ...string) Verdict {
	return Verdict{Evidence: ledger.Evidence{
		Finding: ledger.FoundResource, Result: &ledger.Result{Resource: ledger.ResourceRef{Type: "charge", ID: "c1"}}, Missing: missing,
	}, Observed: []byte(observed)}
}

func says(f ledger.Finding) Verdict { return Verdict{Evidence: ledger.Evidence{Finding: f}} }

func silent(cause ledger.IndeterminateCause) Verdict {
	return Verdict{Evidence: ledger.Evidence{Finding: ledger.Indeterminate, Cause: cause}}
}

func TestWhatATargetSaysBecomesOfTheOperation(t *testing.T) {
	for name, tt := range map[string]struct {
		verdict Verdict
		state   ledger.State
		custody ledger.Custody
		reason  ledger.QueueReason
	}{
		"found and equal":             {found(`{"amount":"5.0"}`), ledger.Completed, ledger.Automation, 0},
		"another amount":              {found(`{"amount":500}`), ledger.Unknown, ledger.Queued, ledger.EvidenceMismatch},
		"nothing is shown":            {found(``), ledger.Unknown, ledger.Queued, ledger.EvidenceIncomplete},
		"no amount is shown":          {found(`{}`), ledger.Unknown, ledger.Queued, ledger.EvidenceIncomplete},
		"what is shown is no request": {found(`{"amount":"5,0"}`), ledger.Unknown, ledger.Queued, ledger.EvidenceIncomplete},
		"equal, but made at no time":  {found(`{"amount":5}`, "created"), ledger.Unknown, ledger.Queued, ledger.EvidenceIncomplete},
		"not found, and settled":      {says(ledger.NotFound), ledger.Received, ledger.Automation, 0},
		"pending":                     {says(ledger.PendingThere), ledger.Unknown, ledger.Automation, 0},
		"several":                     {says(ledger.AmbiguousThere), ledger.Unknown, ledger.Queued, ledger.AmbiguousEvidence},
		"the target is down":          {silent(ledger.QueryUnavailable), ledger.Unknown, ledger.Automation, 0},
		"the query is not understood": {silent(ledger.QueryNotUnderstood), ledger.Unknown, ledger.Automation, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			id := s.granted(t, "charge")
			var asked *ledger.Operation
			l := s.loop(t, func(_ context.Context, op *ledger.Operation) Verdict { asked = op; return tt.verdict }, Options{})
			if done := once(t, l); len(done) != 0 {
				t.Errorf("while the lease is alive: %+v", done)
			}
			s.advance(time.Hour) // long past its lease and its settle time
			done := once(t, l)
			if len(done) != 1 || done[0].ID != id || done[0].Check != firstCheck || done[0].Finding != tt.verdict.Evidence.Finding || done[0].Err != nil {
				t.Fatalf("it did %+v", done)
			}
			if asked.ID != id || asked.State != ledger.Unknown {
				t.Errorf("the target was asked about %v, %v", asked.ID, asked.State)
			}
			s.wants(t, id, tt.state, tt.custody, tt.reason)
			if done[0].State != tt.state {
				t.Errorf("it says %v", done[0].State)
			}
			op := s.op(t, id)
			if waits := tt.state == ledger.Unknown && tt.custody == ledger.Automation; waits != op.NextCheckTime.After(op.UpdateTime) {
				t.Errorf("the next check is at %v, after %v", op.NextCheckTime, op.UpdateTime)
			}
			events, err := s.Events(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if last := events[len(events)-1]; last.ActorKind != ledger.ActorRecovery || last.Facts["source"] != "probe" {
				t.Errorf("the last event is by %v, with %v", last.ActorKind, last.Facts)
			}
			if done := once(t, l); len(done) != 0 {
				t.Errorf("at once again: %+v", done)
			}
		})
	}
}

func TestWhatNobodyIsAskedAbout(t *testing.T) {
	s := newSite(t)
	people, again, external := s.granted(t, "undeclared"), s.granted(t, "again"), s.granted(t, "external")
	l := s.loop(t, func(context.Context, *ledger.Operation) Verdict { t.Error("a target was asked"); return Verdict{} }, Options{})
	s.advance(time.Hour)
	if done := once(t, l); len(done) != 2 {
		t.Errorf("it did %+v", done)
	}
	s.wants(t, people, ledger.Unknown, ledger.Queued, ledger.NoMethod)
	s.wants(t, again, ledger.Received, ledger.Automation, 0)
	s.wants(t, external, ledger.Processing, ledger.Automation, 0) // whoever asks takes it
}

// TestWhatOthersNeverAskAboutReachesPeople: as long as a target may be asked in vain somebody else has time; nobody is told before, and everybody's queue has it then.
func TestWhatOthersNeverAskAboutReachesPeople(t *testing.T) {
	s := newSite(t)
	give := s.contracts["external"].GiveUpAfter
	dead, asked := s.granted(t, "external"), s.granted(t, "external")
	asker := ledger.Actor{Kind: ledger.ActorReconciler, Name: "asker"}
	check := func(id ledger.OperationID) uint64 {
		t.Helper()
		command := ledger.CommandID(uuid.NewString())
		answer, err := s.Do(t.Context(), id, string(command), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
			return ledger.BeginCheck{CommandID: command, Actor: asker}, nil
		})
		if err != nil || answer.CheckNumber == 0 {
			t.Fatalf("%+v, %v", answer, err)
		}
		return answer.CheckNumber
	}
	l := s.loop(t, func(context.Context, *ledger.Operation) Verdict { t.Error("a target was asked"); return Verdict{} }, Options{})
	s.advance(give - time.Minute)
	number := check(asked)
	command := ledger.CommandID(uuid.NewString())
	if _, err := s.Do(t.Context(), asked, string(command), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Reconcile{CommandID: command, Actor: asker, CheckNumber: number, Evidence: ledger.Evidence{Finding: ledger.PendingThere}}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if done := once(t, l); len(done) != 0 {
		t.Fatalf("before its time it did %+v", done)
	}
	s.advance(10 * time.Minute)
	if done := once(t, l); len(done) != 1 {
		t.Errorf("it did %+v", done)
	}
	s.wants(t, dead, ledger.Unknown, ledger.Queued, ledger.GaveUp)
	s.wants(t, asked, ledger.Unknown, ledger.Automation, 0)

	vain := s.granted(t, "external") // who asks never says what came of it
	for range int(give/s.contracts["external"].MaxInterval) + 2 {
		s.advance(s.contracts["external"].MaxInterval + time.Minute)
		if s.op(t, vain).Custody == ledger.Queued {
			break
		}
		command := ledger.CommandID(uuid.NewString())
		if _, err := s.Do(t.Context(), vain, string(command), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
			return ledger.BeginCheck{CommandID: command, Actor: asker}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.wants(t, vain, ledger.Unknown, ledger.Queued, ledger.GaveUp)
}

// together lets several loops read what is due before any goes on.
type together struct {
	Store
	all *sync.WaitGroup
}

func (b together) Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error) {
	page, err := b.Store.Due(ctx, q)
	b.all.Done()
	b.all.Wait()
	return page, err
}

func TestTwoLoopsAskOnce(t *testing.T) {
	s := newSite(t)
	const many = 20
	for range many {
		s.granted(t, "charge")
	}
	s.advance(time.Hour)
	var mu sync.Mutex
	asked := map[ledger.OperationID]int{}
	ask := asking(func(_ context.Context, op *ledger.Operation) Verdict {
		mu.Lock()
		defer mu.Unlock()
		asked[op.ID]++
		return found(`{"amount":5}`)
	})
	var barrier, group sync.WaitGroup
	barrier.Add(2)
	var left atomic.Int64
	for range 2 {
		l := s.loop(t, ask, Options{})
		l.store = together{s.store, &barrier}
		group.Go(func() {
			done, err := l.RunOnce(t.Context())
			if err != nil || len(done) != many {
				t.Errorf("a loop did %d, %v", len(done), err)
			}
			for _, d := range done {
				if d.Left {
					left.Add(1)
				}
			}
		})
	}
	group.Wait()
	for id, n := range asked {
		if n != 1 {
			t.Errorf("the target was asked %d times about one operation", n)
		}
		s.wants(t, id, ledger.Completed, ledger.Automation, 0)
	}
	if len(asked) != many || left.Load() != many {
		t.Errorf("of %d operations %d were asked about, and %d left to the other loop", many, len(asked), left.Load())
	}
}

func TestAPoisonousOperationDelaysOnlyItself(t *testing.T) {
	s := newSite(t)
	poison := s.granted(t, "charge")
	s.advance(time.Second)
	good := s.granted(t, "charge")
	asked := 0
	l := s.loop(t, func(_ context.Context, op *ledger.Operation) Verdict {
		if op.ID == poison {
			asked++
			panic("canary")
		}
		return found(`{"amount":5}`)
	}, Options{Workers: 1})
	s.advance(time.Hour)
	done := once(t, l)
	if len(done) != 2 || !errors.Is(done[0].Err, errPanicked) || done[1].Err != nil {
		t.Fatalf("it did %+v", done)
	}
	s.wants(t, good, ledger.Completed, ledger.Automation, 0)
	s.wants(t, poison, ledger.Unknown, ledger.Automation, 0)
	s.advance(time.Minute) // its check's lease is over: it is due, and first
	if done := once(t, l); len(done) != 0 || asked != 1 {
		t.Errorf("at once again: %+v, asked %d times", done, asked)
	}
	l.putOff.forget(poison)
	if done := once(t, l); len(done) != 1 || asked != 2 || done[0].Check != firstCheck+1 {
		t.Errorf("later: %+v, asked %d times", done, asked)
	}
}

// A person takes it over while the target is asked (C61): what it says is kept, and moves nothing.
func TestAPersonIsFaster(t *testing.T) {
	s := newSite(t)
	id := s.granted(t, "charge")
	s.advance(time.Hour)
	person := ledger.Actor{Kind: ledger.ActorPerson, Name: "p"}
	l := s.loop(t, func(ctx context.Context, op *ledger.Operation) Verdict {
		_, err := s.Do(ctx, id, "", func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
			return ledger.TakeOver{Actor: person, ExpectedVersion: op.Version, Reason: "mine"}, nil
		})
		if err != nil {
			t.Error(err)
		}
		return says(ledger.NotFound)
	}, Options{})
	if done := once(t, l); len(done) != 1 || done[0].Err != nil {
		t.Fatalf("it did %+v", done)
	}
	s.wants(t, id, ledger.Unknown, ledger.Operator, 0)
	events, err := s.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1]; last.Kind != ledger.EventObserved || last.Facts["finding"] != "NOT_FOUND" {
		t.Errorf("the last event is %v with %v", last.Kind, last.Facts)
	}
	s.advance(24 * time.Hour)
	if done := once(t, l); len(done) != 0 {
		t.Errorf("while the person has it: %+v", done)
	}
}

// A tool whose target hangs has as many workers as its contract says; another one's operations are not kept from theirs.
func TestASlowTargetHoldsUpNobodyElse(t *testing.T) {
	s := newSite(t)
	c := s.contracts["charge"]
	c.CheckConcurrency = 3
	s.contracts["charge"] = c
	for range 9 {
		s.granted(t, "charge")
	}
	s.advance(time.Second)
	quick := s.granted(t, "refund")
	s.advance(time.Hour)
	release, answered := make(chan struct{}), make(chan struct{})
	var now, most atomic.Int64
	l := s.loop(t, func(_ context.Context, op *ledger.Operation) Verdict {
		if op.Tool == "refund" {
			close(answered)
			return found(`{"amount":5}`)
		}
		most.Store(max(most.Load(), now.Add(1)))
		<-release
		now.Add(-1)
		return silent(ledger.QueryNotUnderstood)
	}, Options{})
	ended := make(chan []Done, 1)
	go func() {
		done, _ := l.RunOnce(t.Context())
		ended <- done
	}()
	wait(t, answered, "the other tool's turn")
	close(release)
	if done := <-ended; len(done) != 10 {
		t.Errorf("it did %d of 10", len(done))
	}
	s.wants(t, quick, ledger.Completed, ledger.Automation, 0)
	if most.Load() > 3 {
		t.Errorf("the target was asked %d questions at a time, want at most 3", most.Load())
	}
}

// When it is to stop, a loop begins nothing more, and lets what it has begun come to its end; unless that is cut off.
func TestStopping(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		t.Run(fmt.Sprint("cut off: ", cutOff), func(t *testing.T) {
			s := newSite(t)
			c := s.contracts["charge"]
			c.CheckConcurrency = 1
			s.contracts["charge"] = c
			first := s.granted(t, "charge")
			s.advance(time.Second)
			second := s.granted(t, "charge")
			s.advance(time.Hour)
			asked, release := make(chan struct{}), make(chan struct{})
			l := s.loop(t, func(ctx context.Context, op *ledger.Operation) Verdict {
				close(asked) // a second time it panics
				select {
				case <-release:
					return found(`{"amount":5}`)
				case <-ctx.Done():
					return silent(ledger.QueryUnavailable)
				}
			}, Options{})
			ctx, stop := context.WithCancel(t.Context())
			cut, cutNow := context.WithCancel(t.Context())
			defer cutNow()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				l.Run(ctx, cut)
			}()
			wait(t, asked, "the first question")
			stop()
			if cutOff {
				cutNow()
			} else {
				close(release)
			}
			wait(t, ended, "the end")
			if cutOff {
				s.wants(t, first, ledger.Unknown, ledger.Automation, 0)
			} else {
				s.wants(t, first, ledger.Completed, ledger.Automation, 0)
			}
			s.wants(t, second, ledger.Processing, ledger.Automation, 0)
		})
	}
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("%s has not come", what)
	}
}

// dueStore says what is due, page by page.
type dueStore struct {
	due   []ledger.DuePosition
	tools map[ledger.OperationID]ledger.Tool
	scan  int // how many a page looks at
}

func (d *dueStore) add(tool ledger.Tool) ledger.OperationID {
	n := len(d.due) + 1
	id := ledger.OperationID{byte(n >> 8), byte(n)}
	d.due = append(d.due, ledger.DuePosition{Time: time.Unix(int64(n), 0), ID: id})
	d.tools[id] = tool
	return id
}

func (d *dueStore) Due(_ context.Context, q ledger.DueQuery) (page ledger.DuePage, err error) {
	looked := 0
	for _, p := range d.due {
		if !before(q.After, p) {
			continue
		}
		if len(page.Due) == q.Limit || looked == d.scan {
			return page, nil
		}
		looked++
		page.End = p
		if !slices.Contains(q.Without, d.tools[p.ID]) {
			page.Due = append(page.Due, p)
		}
	}
	page.End = ledger.DuePosition{}
	return page, nil
}

// A backlog hides nothing: each look begins with what has waited longest, and passes by the tools of which enough waits, as far as a page looks; the
// next look goes on there.
func TestALongBacklogHidesNothing(t *testing.T) {
	for scan, want := range map[int]int{1000: 1, 100: 2, 20: 7} {
		s := newSite(t)
		l := s.loop(t, nil, Options{Batch: 2})
		backlog := &dueStore{tools: l.tools, scan: scan}
		l.store = struct {
			ledger.GateStore
			*dueStore
		}{s.store, backlog}
		for range 500 {
			backlog.add("charge")
		}
		last := backlog.add("refund")
		looks := 0
		for found := false; !found && looks < 20; looks++ {
			if err := l.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, found = l.held[last]
		}
		if looks != want {
			t.Errorf("the last of 501 was found after %d looks, want %d", looks, want)
		}
		if n := len(l.queue.tools["charge"].waiting); n != 2 {
			t.Errorf("%d of the backlog wait, want no more than 2", n)
		}
	}
}

// What somebody else asks about is passed by, too, until the loop is to ask itself.
func TestWhatOthersAskAboutHidesNothing(t *testing.T) {
	s := newSite(t)
	l := s.loop(t, nil, Options{Batch: 2})
	backlog := &dueStore{tools: l.tools, scan: 1000}
	l.store = struct {
		ledger.GateStore
		*dueStore
	}{s.store, backlog}
	first := backlog.add("external")
	for range 20 {
		backlog.add("external")
	}
	last := backlog.add("refund")
	if err := l.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, found := l.held[last]; !found || len(l.held) != 1 {
		t.Errorf("%d are held, the last one: %t", len(l.held), found)
	}
	l.probes = everything{}
	if err := l.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, found := l.held[first]; !found {
		t.Error("what the loop is to ask about now is not found")
	}
}

// everything is asked by this loop.
type everything struct{ ask asking }

func (e everything) Probe(ledger.Tool) Probe         { return e.ask }
func (e everything) Inspector(ledger.Tool) Inspector { return nil }
