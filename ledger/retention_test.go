// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

const day = 24 * time.Hour

// TestAgeing: to the second, each window from settlement; and what is unsettled, or contradicted, is left alone at any age.
func TestAgeing(t *testing.T) {
	c := ledger.DefaultContract("t")
	c.RetryWindow, c.RetainCompleted, c.RetainHistory, c.RetainTombstone = day, 2*day, 3*day, 4*day
	c.Unique = []ledger.UniqueRule{{By: []string{"amount"}, Within: 50 * time.Hour}}
	kept := c
	kept.RequireIntentTime = false
	short := c
	short.RetryWindow, short.RetainCompleted, short.RetainHistory, short.RetainTombstone = time.Minute, time.Minute, time.Minute, time.Minute
	made := shelfBegins
	op := func(s ledger.State, finalAfter time.Duration) ledger.AgedOperation {
		return ledger.AgedOperation{State: s, Custody: ledger.Automation, CreateTime: made, FinalTime: made.Add(finalAfter)}
	}
	received, doubted, queued, held := op(ledger.Received, 0), op(ledger.Received, 0), op(ledger.Received, 0), op(ledger.Received, 0)
	doubted.MayHaveApplied, queued.Custody, held.Custody = true, ledger.Queued, ledger.Operator
	contradicted := op(ledger.Failed, 0)
	contradicted.NeedsAttention = true
	for name, tt := range map[string]struct {
		contract ledger.Contract
		op       ledger.AgedOperation
		at       time.Duration // since it was made
		want     ledger.Ageing
	}{
		"nobody wants it any more":         {c, received, day, ledger.AgeingExpire},
		"somebody may come back":           {c, received, day - time.Second, ledger.AgeingNothing},
		"in doubt":                         {c, doubted, 1000 * day, ledger.AgeingNothing},
		"queued":                           {c, queued, 1000 * day, ledger.AgeingNothing},
		"a person has it":                  {c, held, 1000 * day, ledger.AgeingNothing},
		"it runs":                          {c, op(ledger.Processing, 0), 1000 * day, ledger.AgeingNothing},
		"unknown":                          {c, op(ledger.Unknown, 0), 1000 * day, ledger.AgeingNothing},
		"contradicted":                     {c, contradicted, 1000 * day, ledger.AgeingNothing},
		"failed, in its window":            {c, op(ledger.Failed, time.Hour), 49*time.Hour - time.Second, ledger.AgeingNothing},
		"failed, past it":                  {c, op(ledger.Failed, time.Hour), 49 * time.Hour, ledger.AgeingRetire},
		"completed, in its slot's window":  {c, op(ledger.Completed, time.Hour), 51*time.Hour - time.Second, ledger.AgeingNothing},
		"completed, past it":               {c, op(ledger.Completed, time.Hour), 51 * time.Hour, ledger.AgeingRetire},
		"retired, with its history":        {c, op(ledger.Retired, time.Hour), 73*time.Hour - time.Second, ledger.AgeingNothing},
		"retired, past its history":        {c, op(ledger.Retired, time.Hour), 73 * time.Hour, ledger.AgeingForgetHistory},
		"its key is remembered":            {c, op(ledger.Retired, time.Hour), 97*time.Hour - time.Second, ledger.AgeingForgetHistory},
		"its key may go":                   {c, op(ledger.Retired, time.Hour), 97 * time.Hour, ledger.AgeingForgetKey},
		"its key may never go":             {kept, op(ledger.Retired, time.Hour), 1000 * day, ledger.AgeingForgetHistory},
		"a window of a minute, not yet":    {short, op(ledger.Retired, 0), time.Hour - time.Second, ledger.AgeingForgetHistory},
		"a window of a minute, an hour on": {short, op(ledger.Retired, 0), time.Hour, ledger.AgeingForgetKey},
	} {
		t.Run(name, func(t *testing.T) {
			at := made.Add(tt.at)
			got, again := ledger.AgedPage{Now: at}.Ageing(&tt.op, tt.contract)
			if got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got == ledger.AgeingNothing && !again.After(at) {
				t.Errorf("nothing is to be done, and it is looked at again %v later", again.Sub(at))
			}
			if before, _ := (ledger.AgedPage{Now: again.Add(-time.Second)}).Ageing(&tt.op, tt.contract); again.After(at) && before != got {
				t.Errorf("a second before it is looked at again it is %d, not %d", before, got)
			}
			if old := made.Add(tt.contract.Youngest()); tt.want != ledger.AgeingNothing && made.Add(tt.at).Before(old) {
				t.Errorf("nobody would have looked at it: only from %v on", old)
			}
		})
	}
}

// forgetful is the store's double, which has forgotten something of tools.
type forgetful struct {
	*memoryStore
	until map[ledger.Tool]time.Time
	asked int
}

func (f *forgetful) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	return f.memoryStore.Update(ctx, reads, func(v ledger.View) (ledger.Change, error) {
		if reads.Forgotten != "" {
			f.asked++
			v.Forgotten = f.until[reads.Forgotten]
		}
		return decide(v)
	})
}

// remembering is a ledger over it.
type remembering struct {
	served
	store     *forgetful
	contracts declared
}

func newRemembering() remembering {
	r := remembering{store: &forgetful{memoryStore: &memoryStore{shelf: newShelf()}, until: map[ledger.Tool]time.Time{}}, contracts: declared{}}
	r.served = served{ledger.New(r.store, r.contracts)}
	return r
}

func (r remembering) claim(key, id string, more func(*ledger.Claim)) (ledger.OperationID, error) {
	c := ledger.Claim{
		Key: ledger.Key{Scope: "team", Tool: "t", Task: "task", Key: key}, ClaimID: claimID(id), WorkerID: "w", Actor: scriptWorker,
		ToolAllowed: true, IntentTime: r.store.shelf.clock, Fingerprint: scriptFingerprint("r"),
	}
	if more != nil {
		more(&c)
	}
	op := c.Key.Hash().OperationID()
	_, err := r.apply(op, c)
	return op, err
}

// completed claims and completes.
func (r remembering) completed(t *testing.T, key string, more func(*ledger.Claim)) ledger.OperationID {
	t.Helper()
	id, err := r.claim(key, key, more)
	if err == nil {
		_, err = r.apply(id, ledger.Complete{ClaimID: claimID(key), Actor: scriptWorker, Succeeded: chargeResult("ch_1")})
	}
	if err != nil || r.store.shelf.ops[id].State != ledger.Completed {
		t.Fatalf("%s: %v", key, err)
	}
	return id
}

// TestKeyTooOld: to the second, an absent key is refused that may have been used and forgotten, by the window of the contract in force or by what was
// forgotten in truth.
func TestKeyTooOld(t *testing.T) {
	const skew = 5 * time.Minute
	begin := shelfBegins
	for name, tt := range map[string]struct {
		change    func(*ledger.Contract)
		intent    time.Duration // before now; 0: none is given
		forgotten time.Duration // before now; 0: nothing was
		refused   bool
		asks      bool
	}{
		"as old as what may be forgotten now":           {nil, 100*time.Hour - skew, 0, true, true},
		"a second younger":                              {nil, 100*time.Hour - skew - time.Second, 0, false, true},
		"within the hour in which nothing is":           {nil, time.Hour - skew - time.Second, 0, false, false},
		"an hour old":                                   {nil, time.Hour - skew, 0, false, true},
		"forgotten by a shorter window":                 {nil, 50*time.Hour - skew, 50 * time.Hour, true, true},
		"younger than what was":                         {nil, 50*time.Hour - skew - time.Second, 50 * time.Hour, false, true},
		"no intent, and none is asked for":              {func(c *ledger.Contract) { c.RequireIntentTime = false }, 0, 0, false, true},
		"no intent, and keys were forgotten":            {func(c *ledger.Contract) { c.RequireIntentTime = false }, 0, 1000 * time.Hour, true, true},
		"no intent":                                     {nil, 0, 0, true, true},
		"of any age, where none is asked for":           {func(c *ledger.Contract) { c.RequireIntentTime = false }, 9000 * time.Hour, 0, false, true},
		"of any age, where a query is all":              {func(c *ledger.Contract) { c.Effect = ledger.Read }, 9000 * time.Hour, 8000 * time.Hour, false, false},
		"a window of a minute, an hour ago":             {func(c *ledger.Contract) { c.RetainTombstone = time.Minute }, time.Hour - skew, 0, true, true},
		"a window of a minute, a second less than that": {func(c *ledger.Contract) { c.RetainTombstone = time.Minute }, time.Hour - skew - time.Second, 0, false, false},
		"a query whose caller says that it is none":     {func(c *ledger.Contract) { c.Effect = ledger.Read }, 9000 * time.Hour, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemembering()
			c := ledger.DefaultContract("t")
			c.RetainTombstone = 100 * time.Hour
			if tt.change != nil {
				tt.change(&c)
			}
			r.contracts["t"] = c
			if tt.forgotten > 0 {
				r.store.until["t"] = begin.Add(-tt.forgotten)
			}
			_, err := r.claim("k", "c1", func(c *ledger.Claim) {
				c.IntentTime = begin.Add(-tt.intent)
				if tt.intent == 0 {
					c.IntentTime = time.Time{}
				}
				if name == "a query whose caller says that it is none" {
					c.EffectHint = ledger.Unsafe
				}
			})
			if tt.refused != errors.Is(err, ledger.ErrKeyTooOld) || !tt.refused && err != nil {
				t.Errorf("got %v, refused: want %t", err, tt.refused)
			}
			if (r.store.asked > 0) != tt.asks {
				t.Errorf("what was forgotten was asked %d times", r.store.asked)
			}
		})
	}
}

func (r remembering) undo(c *ledger.Claim, original ledger.OperationID) {
	c.Key.Tool, c.Compensates = "undo", original
}

func newUndoing(perOriginal int) remembering {
	r := newRemembering()
	undo := ledger.DefaultContract("undo")
	undo.RequireUnchanged, undo.PerOriginal = false, perOriginal
	r.contracts["undo"] = undo
	return r
}

// TestOriginalsAreNotRetired: as long as a compensation of one is not settled, or is contradicted.
func TestOriginalsAreNotRetired(t *testing.T) {
	r := newUndoing(1)
	original := r.completed(t, "charge", nil)
	r.store.shelf.advance(time.Hour)
	undo, err := r.claim("refund", "r1", func(c *ledger.Claim) { r.undo(c, original) })
	if err != nil || r.store.shelf.ops[undo].State != ledger.Processing {
		t.Fatal("the refund was not granted", err)
	}
	retire := func(want ledger.State) {
		t.Helper()
		if _, err := r.apply(original, ledger.Retire{Actor: scriptLoop}); err != nil || r.store.shelf.ops[original].State != want {
			t.Errorf("the original is %v (%v), want %v", r.store.shelf.ops[original].State, err, want)
		}
	}
	r.store.shelf.advance(1000 * day)
	retire(ledger.Completed)
	if _, err := r.apply(undo, ledger.Complete{ClaimID: claimID("r1"), Actor: scriptWorker, Rejected: &ledger.Failure{Kind: ledger.Declined}, SentExactlyOnce: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.apply(undo, ledger.Complete{ClaimID: claimID("r1"), Actor: scriptWorker, Succeeded: chargeResult("re_1")}); err != nil || !r.store.shelf.ops[undo].NeedsAttention {
		t.Fatal("the refund is not contradicted", err)
	}
	retire(ledger.Completed)
	if _, err := r.apply(undo, ledger.Note{CommandID: "n1", Actor: ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-a"}, Text: "looked", AcknowledgeThrough: r.store.shelf.ops[undo].Sequence}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.claim("refund-2", "r0", func(c *ledger.Claim) { r.undo(c, original) }); !errors.Is(err, ledger.ErrDuplicateIntent) {
		t.Errorf("a refund beside one that may have had its effect, as a person knows: %v", err)
	}
	retire(ledger.Retired)
	if _, err := r.claim("refund-2", "r2", func(c *ledger.Claim) { r.undo(c, original) }); !errors.Is(err, ledger.ErrOriginalHasNoEffect) {
		t.Errorf("a refund of what is retired: %v", err)
	}
}

// TestForgottenCompensationsCount: what an original's row names, and is not there any more, may have had an effect.
func TestForgottenCompensationsCount(t *testing.T) {
	r := newUndoing(1)
	original := r.completed(t, "charge", nil)
	r.store.shelf.advance(time.Hour)
	undo := r.completed(t, "refund", func(c *ledger.Claim) { r.undo(c, original) })
	delete(r.store.shelf.ops, undo)
	if _, err := r.claim("refund-2", "r2", func(c *ledger.Claim) { r.undo(c, original) }); !errors.Is(err, ledger.ErrDuplicateIntent) {
		t.Errorf("a second refund: %v", err)
	}
	_, err := r.claim("refund", "r3", func(c *ledger.Claim) { r.undo(c, original) })
	if !errors.Is(err, ledger.ErrKeyTooOld) || r.store.shelf.ops[undo].State != 0 {
		t.Errorf("the forgotten refund again, as if it had been decided now: %v", err)
	}
}

// TestFailedCompensations: one that has failed makes room for another one, also when it is retired; one that something spoke against does not, whoever has acknowledged
// that and whatever is forgotten of it, unless a person has searched since, and says that what was seen is something else.
func TestFailedCompensations(t *testing.T) {
	person := ledger.Actor{Kind: ledger.ActorPerson, Name: "ops-a"}
	found := ledger.Reconcile{CommandID: "e1", Actor: scriptProbe, Evidence: ledger.Evidence{Finding: ledger.FoundResource, Result: chargeResult("re_1")}}
	rejected := ledger.Complete{ClaimID: claimID("refund"), Actor: scriptWorker, Rejected: &ledger.Failure{Kind: ledger.Declined}, SentExactlyOnce: true}
	stranger := ledger.Complete{ClaimID: claimID("nobody"), Actor: scriptWorker, Succeeded: chargeResult("re_1")}
	for name, tt := range map[string]struct {
		before, after []ledger.Command // the rejection
		takes         bool             // a person takes it over instead, and says that it never happened
		counts        bool
		outcome       ledger.State
	}{
		"it was rejected":                                 {outcome: ledger.Failed},
		"something was found since":                       {after: []ledger.Command{found}, counts: true, outcome: ledger.Unknown},
		"a success was reported since":                    {after: []ledger.Command{stranger}, counts: true, outcome: ledger.Unknown},
		"a stranger had reported a success":               {before: []ledger.Command{stranger}, counts: true, outcome: ledger.Unknown},
		"a person searched who had acknowledged that":     {before: []ledger.Command{stranger, ledger.Note{}}, takes: true, outcome: ledger.Failed},
		"a person searched who had not acknowledged that": {before: []ledger.Command{stranger}, takes: true, outcome: ledger.Failed},
		"a person searched, and then something was found": {after: []ledger.Command{found}, takes: true, counts: true, outcome: ledger.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			r := newUndoing(1)
			original := r.completed(t, "charge", nil)
			r.store.shelf.advance(time.Hour)
			undo, err := r.claim("refund", "refund", func(c *ledger.Claim) { r.undo(c, original) })
			if err != nil {
				t.Fatal(err)
			}
			do := func(cmd ledger.Command) {
				t.Helper()
				if _, ok := cmd.(ledger.Note); ok {
					cmd = ledger.Note{CommandID: ledger.CommandID("n" + string(rune('0'+r.store.shelf.ops[undo].Sequence))), Actor: person, Text: "looked", AcknowledgeThrough: r.store.shelf.ops[undo].Sequence}
				}
				if _, err := r.apply(undo, cmd); err != nil {
					t.Fatalf("%T: %v", cmd, err)
				}
			}
			for _, cmd := range tt.before {
				do(cmd)
			}
			if tt.takes {
				r.store.shelf.advance(time.Hour)
				do(ledger.TakeOver{CommandID: "t1", Actor: person, ExpectedVersion: r.store.shelf.ops[undo].Version, Reason: "on call"})
				do(ledger.Resolve{CommandID: "r1", Actor: person, ExpectedVersion: r.store.shelf.ops[undo].Version, Resolution: ledger.Resolution{
					NeverHappenedEnd: &ledger.Failure{Kind: ledger.Abandoned}, Note: "not there", SearchTime: r.store.shelf.clock, DespiteFound: true,
				}})
			} else {
				do(rejected)
			}
			for _, cmd := range tt.after {
				do(cmd)
			}
			do(ledger.Note{})
			if op := r.store.shelf.ops[undo]; op.State != ledger.Failed || op.NeedsAttention {
				t.Fatalf("it is %v, needs attention: %t", op.State, op.NeedsAttention)
			}
			second := func(when string) {
				t.Helper()
				_, err := r.claim("refund-2", "r2", func(c *ledger.Claim) { r.undo(c, original) })
				if tt.counts != errors.Is(err, ledger.ErrDuplicateIntent) || !tt.counts && err != nil {
					t.Errorf("%s, a second refund: %v", when, err)
				}
			}
			if tt.counts {
				second("once that was acknowledged")
			}
			r.store.shelf.advance(1000 * day)
			do(ledger.Retire{Actor: scriptLoop})
			if op := r.store.shelf.ops[undo]; op.State != ledger.Retired {
				t.Fatalf("it is %v", op.State)
			}
			var refused *ledger.Refusal
			if _, err := r.claim("refund", "r3", func(c *ledger.Claim) { r.undo(c, original) }); !errors.As(err, &refused) || refused.Err != ledger.ErrKeyRetired || refused.Outcome != tt.outcome {
				t.Errorf("its key is told %v, want %v", refused, tt.outcome)
			}
			other := func(c *ledger.Claim) { r.undo(c, original); c.Fingerprint = scriptFingerprint("another") }
			if _, err := r.claim("refund", "r4", other); !errors.As(err, &refused) || refused.Err != ledger.ErrKeyRetired || refused.Outcome != 0 {
				t.Errorf("another request under its key is told %v", refused)
			}
			second("once it is retired")
		})
	}
}

// TestForgottenRelations: what an operation refers to may be forgotten before it. Its own key replays, and it may go on where its guards have held before; a new
// key can't name what is not there.
func TestForgottenRelations(t *testing.T) {
	r := newRemembering()
	first := r.completed(t, "first", nil)
	uses := func(c *ledger.Claim) { c.DependsOn = []ledger.OperationID{first} }
	done := r.completed(t, "done", uses)
	freed, err := r.claim("freed", "f1", uses)
	if err == nil {
		_, err = r.apply(freed, ledger.Complete{ClaimID: claimID("f1"), Actor: scriptWorker, NotExecuted: &ledger.NotExecuted{Kind: ledger.NeverSent}})
	}
	if err != nil {
		t.Fatal(err)
	}
	delete(r.store.shelf.ops, first)
	if _, err := r.claim("done", "d2", uses); err != nil || r.store.shelf.ops[done].State != ledger.Completed {
		t.Errorf("a replay: %v", err)
	}
	if _, err := r.claim("freed", "f2", uses); err != nil || r.store.shelf.ops[freed].State != ledger.Processing {
		t.Errorf("it goes on: %v", err)
	}
	if _, err := r.claim("new", "n1", uses); !errors.Is(err, ledger.ErrValidation) {
		t.Errorf("a new key: %v", err)
	}
}

// oldest is a store with one retired operation, whose clock the test sets.
type oldest struct {
	ledger.AgedStore
	now time.Time
	op  ledger.AgedOperation
}

func (o *oldest) Aged(context.Context, ledger.AgedQuery) (ledger.AgedPage, error) {
	return ledger.AgedPage{Now: o.now, Operations: []ledger.AgedOperation{o.op}}, nil
}

// TestAgeingAfterAJump: where the store's clock was set forward, a window ends when as much time has really passed.
func TestAgeingAfterAJump(t *testing.T) {
	var elapsed time.Duration
	l := ledger.New(&memoryStore{shelf: newShelf()}, declared{})
	l.Watching(ledger.NewClock(func() time.Duration { return elapsed }, nil))
	store := &oldest{now: shelfBegins, op: ledger.AgedOperation{State: ledger.Retired, CreateTime: shelfBegins, FinalTime: shelfBegins}}
	c := ledger.DefaultContract("t")
	c.RetainHistory, c.RetainTombstone = 40*time.Hour, 40*time.Hour
	for _, step := range []struct {
		elapsed, shown time.Duration
		want           ledger.Ageing
	}{
		{0, 0, ledger.AgeingNothing},
		{time.Hour, time.Hour, ledger.AgeingNothing},
		{2 * time.Hour, 100 * time.Hour, ledger.AgeingNothing}, // set forward by 98 hours
		{39 * time.Hour, 137 * time.Hour, ledger.AgeingNothing},
		{41 * time.Hour, 139 * time.Hour, ledger.AgeingForgetKey},
	} {
		elapsed, store.now = step.elapsed, shelfBegins.Add(step.shown)
		page, err := l.Aged(t.Context(), store, ledger.AgedQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := page.Ageing(&page.Operations[0], c); got != step.want {
			t.Errorf("after %v, with %v on the clock: got %d, want %d", step.elapsed, step.shown, got, step.want)
		}
	}
}
