// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// TestInvariants lets workers, the recovery loop, reconcilers and people do to one operation what they like, in any order and at any time,
// against a target that delays, loses, doubles and rejects requests within the bounds that its contract states, and over failovers. After
// every step each invariant is judged, I12 by the target's own account.
//
// Every run uses the same seed, which it prints; -rapid.seed and -rapid.checks look further. I11 needs more than one process and is the
// stores' to show; I10 is judged by TestCompensationNeedsItsOriginal.
func TestInvariants(t *testing.T) {
	steadyRapid(t, 6000)
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		steps := 10 + below(t, "steps", 51)
		for range steps {
			r.act()
		}
		r.finish()
	})
}

// steadyRapid makes a property repeatable and bounded, unless flags say otherwise. Nothing is written into the tree.
func steadyRapid(t *testing.T, checks int) {
	given := flagsGiven()
	if testing.Short() {
		checks /= 10
	}
	for name, value := range map[string]string{"rapid.checks": fmt.Sprint(checks), "rapid.seed": "20260701", "rapid.nofailfile": "true"} {
		f := flag.Lookup(name)
		if given[name] {
			continue
		}
		before := f.Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set(name, before) })
	}
	t.Logf("-rapid.seed=%s -rapid.checks=%s", flag.Lookup("rapid.seed").Value, flag.Lookup("rapid.checks").Value)
}

// below draws uniformly from 0 to n-1: rapid's own ranges prefer small numbers, and histories would stay shallow.
func below(t *rapid.T, label string, n int) int { return uniform.Draw(t, label) % n }

func oneOf[T any](t *rapid.T, label string, from []T) T { return from[below(t, label, len(from))] }

var (
	coin    = rapid.Bool()
	uniform = rapid.Custom(func(t *rapid.T) int {
		n := 0
		for range 10 {
			n <<= 1
			if coin.Draw(t, "") {
				n |= 1
			}
		}
		return n
	})
)

// flagsGiven on the command line, before any test sets one.
var flagsGiven = sync.OnceValue(func() map[string]bool {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
})

// run is one random history of one operation.
type run struct {
	t         *rapid.T
	sys       system
	contracts declared
	c         ledger.Contract
	key       ledger.Key
	id        ledger.OperationID
	subject   []byte
	target    *modelTarget
	truth     time.Duration // the longest that a request really takes to land and be seen
	attempts  []*attempt
	checks    []*modelCheck
	sent      []ledger.Command // with an id: any of them may arrive again, late
	views     []modelView
	names     int
	judge     judge
	marked    bool
	told      bool // the ledger was told of an effect: from then on the status query may lag, and say not found
	moves     int  // what was really done: an action that finds nothing to do is drawn again
	shelf     *shelf
}

// modelCheck is one instance of the loop with a check under way.
type modelCheck struct {
	number uint64
	began  time.Time
	asked  *ledger.Evidence
}

// modelView is what a person saw at the target after reading the operation at a time, which the store's clock showed.
type modelView struct {
	at      time.Time
	shown   time.Time
	effects []landing
}

const (
	modelTool = ledger.Tool("payments.charge")
	minute    = time.Minute
)

func newRun(t *rapid.T) *run {
	r := &run{t: t, key: ledger.Key{Scope: "team", Tool: modelTool, Task: "task-1", Key: "charge-1"}, contracts: declared{}}
	r.id = r.key.Hash().OperationID()
	c := ledger.DefaultContract(modelTool)
	c.Effect = oneOf(t, "effect", []ledger.Effect{
		ledger.Read, ledger.Idempotent, ledger.Idempotent, ledger.Keyed, ledger.Keyed, ledger.Keyed, ledger.Unsafe, ledger.Unsafe, ledger.Unsafe,
	})
	c.Method = oneOf(t, "method", []ledger.Method{ledger.MethodProbe, ledger.MethodProbe, ledger.MethodRegrant, ledger.MethodRegrant, ledger.MethodOperator})
	r.truth = oneOf(t, "truth", []time.Duration{10 * time.Second, minute, 2 * minute})
	c.EffectWithin = oneOf(t, "effect_within", []time.Duration{r.truth, r.truth, r.truth, 2 * r.truth, 0, r.truth / 10})
	c.KeyRetention = oneOf(t, "key_retention", []time.Duration{10 * minute, 10 * minute, 24 * time.Hour, 0})
	c.SendWithin = oneOf(t, "send_within", []time.Duration{30 * time.Second, 10 * time.Second, time.Hour})
	c.LeaseTotal = oneOf(t, "lease_total", []time.Duration{90 * time.Second, time.Hour})
	c.MaxAttempts = oneOf(t, "max_attempts", []uint32{5, 5, 2, 1})
	c.Repeat = oneOf(t, "repeat", []ledger.Repeat{ledger.RepeatDefault, ledger.RepeatAllowed, ledger.RepeatAllowed, ledger.RepeatForbidden})
	c.GiveUpAfter = oneOf(t, "give_up_after", []time.Duration{24 * time.Hour, 5 * minute})
	c.StickyAnswers = below(t, "sticky", 4) == 0
	c.RejectCodes = []string{"card_declined"}
	c.VerifyStated = below(t, "verify", 6) > 0
	c.SecondPerson = below(t, "second_person", 4) == 0
	c.RetryWindow, c.RetainCompleted = time.Hour, 2*time.Hour
	r.contract(c)
	if below(t, "subject", 5) == 0 {
		r.subject = []byte("0123456789abcdef")
	}
	r.target = &modelTarget{class: c.Effect, retention: c.KeyRetention, sticky: c.StickyAnswers}
	if below(t, "service", 2) == 1 {
		s := newLedgerSystem(r.contracts)
		r.sys, r.shelf = s, s.shelf
	} else {
		s := decideSystem{shelf: newShelf(), contracts: r.contracts}
		r.sys, r.shelf = s, s.shelf
	}
	r.judge = newJudge(r)
	r.judge.untrue = c.EffectWithin > 0 && c.EffectWithin < r.truth
	return r
}

// contract declares a version of the contract.
func (r *run) contract(c ledger.Contract) {
	r.names++
	c.Version = fmt.Sprintf("%016x", r.names)
	r.c, r.contracts[modelTool] = c, c
}

type action struct {
	weight int
	name   string
	do     func(*run)
}

// actions by their weight.
var actions = []action{
	{10, "advance", (*run).advance},
	{8, "claim", (*run).claim},
	{3, "claim again", (*run).claimAgain},
	{3, "start", (*run).start},
	{8, "send", (*run).send},
	{10, "report", (*run).report},
	{3, "renew", (*run).renew},
	{1, "cancel", (*run).cancel},
	{1, "stranger", (*run).stranger},
	{1, "conflict", (*run).conflict},
	{7, "begin check", (*run).beginCheck},
	{7, "ask", (*run).ask},
	{7, "answer", (*run).answer},
	{2, "evidence", (*run).evidence},
	{3, "regrant", (*run).regrant},
	{1, "housekeeping", (*run).housekeeping},
	{1, "take over", (*run).takeOver},
	{4, "look", (*run).look},
	{5, "resolve", (*run).resolve},
	{2, "second person", (*run).secondPerson},
	{2, "hand back", (*run).handBack},
	{1, "check now", (*run).checkNow},
	{1, "note", (*run).note},
	{1, "correct the contract", (*run).correct},
	{3, "late copy", (*run).lateCopy},
	{1, "mark", (*run).mark},
	{1, "fail over", (*run).failOver},
}

var deck = func() (deck []int) {
	for i := range actions {
		for range actions[i].weight {
			deck = append(deck, i)
		}
	}
	return deck
}()

func (r *run) act() {
	before := r.moves
	for range 4 {
		i := oneOf(r.t, "action", deck)
		if fitting := r.fitting(); len(fitting) > 0 && below(r.t, "fitting", 3) > 0 {
			name := oneOf(r.t, "action", fitting)
			i = slices.IndexFunc(actions, func(a action) bool { return a.name == name })
		}
		r.t.Logf("%s %s", r.sys.now().Format("15:04:05"), actions[i].name)
		if actions[i].do(r); r.moves > before {
			return
		}
	}
}

// fitting names what would move the operation on: without a preference for it, histories stay shallow.
func (r *run) fitting() []string {
	op, _ := r.sys.read(r.id)
	switch {
	case op == nil:
		return []string{"claim"}
	case op.State.Final():
		return []string{"advance", "report", "late copy", "answer", "evidence"}
	case op.Detail.Kept != nil && op.Timeline == 1:
		return []string{"mark", "fail over", "fail over", "hand back", "advance"}
	case op.Detail.Kept != nil:
		return []string{"advance", "answer", "evidence", "resolve", "take over", "hand back", "claim"}
	case op.Custody == ledger.Operator:
		return []string{"advance", "report", "look", "resolve", "second person", "hand back"}
	case op.Custody == ledger.Queued:
		return []string{"advance", "report", "take over", "check now", "look"}
	case op.Reserved(r.sys.now()):
		return []string{"start", "report", "claim"}
	case op.State == ledger.Received:
		return []string{"advance", "claim", "claim", "report"}
	case op.State == ledger.Processing && op.LeaseAlive(r.sys.now()):
		return []string{"advance", "send", "send", "report", "renew"}
	default:
		return []string{"advance", "begin check", "ask", "answer", "regrant", "report"}
	}
}

// often is true about as often as not: what mostly follows, follows at once.
func (r *run) often() bool { return below(r.t, "at once", 2) == 1 }

// finish lets everything land, and judges the end.
func (r *run) finish() {
	r.pass(24 * time.Hour)
	r.judge.atTheEnd()
}

func (r *run) pass(d time.Duration) {
	r.moves++
	r.sys.advance(d)
	order := r.target.deliver(r.sys.now())
	r.judge.i12Landed(order)
}

func (r *run) advance() {
	r.pass(oneOf(r.t, "for", []time.Duration{
		time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, 30 * time.Second, minute, 2 * minute, 5 * minute, 16 * minute,
		3 * time.Hour,
	}))
}

// do sends a command, now and then twice, and judges what came of it.
func (r *run) do(cmd ledger.Command) (ledger.Answer, error) {
	answer, err := r.once(cmd)
	if idOf(cmd) != "" {
		r.sent = append(r.sent, cmd)
	}
	if below(r.t, "twice", 5) == 0 {
		before, history := r.sys.read(r.id)
		_, _ = r.once(cmd)
		after, events := r.sys.read(r.id)
		r.judge.i8(cmd, before, after, events[len(history):])
	}
	return answer, err
}

func (r *run) once(cmd ledger.Command) (ledger.Answer, error) {
	r.moves++
	before, history := r.sys.read(r.id)
	now, contract := r.sys.now(), r.c
	answer, err := r.sys.apply(r.id, cmd)
	after, events := r.sys.read(r.id)
	r.t.Logf("  %T: %s%v %v", cmd, answer.Outcome, answer.Disposition, err)
	if e, ok := cmd.(ledger.Reconcile); ok && err == nil {
		r.told = r.told || e.Evidence.Finding == ledger.FoundResource || e.Evidence.Finding == ledger.AmbiguousThere
	}
	r.judge.step(step{
		cmd: cmd, now: now, set: r.shelf.set, contract: contract, before: before, after: after, events: events, fresh: events[len(history):], answer: answer, err: err,
	})
	return answer, err
}

func (r *run) mark() {
	r.sys.mark()
	r.marked = true
}

// failOver may lose everything since the mark, but at most once what was never marked: a store that forgets all is no store.
func (r *run) failOver() {
	lossless := below(r.t, "lossless", 3) == 0
	r.sys.failOver(lossless || !r.marked)
	r.told = r.told && (lossless || !r.marked)
	r.judge.lost = r.judge.lost || !lossless && r.marked
}
