// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

type request struct {
	Amount string `json:"amount"`
}

type charge struct {
	ID string `json:"id"`
}

// quick are limits for tests in which the ledger does not answer.
var quick = client.Options{CallTimeout: 500 * time.Millisecond, ReportTimeout: 2 * time.Second}

var ten = request{"10.00"}

func intended(t *testing.T) client.Intent {
	return client.Intent{Task: "task-" + strings.ReplaceAll(t.Name(), " ", "_"), Step: "charge", Time: time.Now()}
}

// charging is an effect of a keyed tool.
func charging(execute func(context.Context, client.Call) (charge, error)) client.Effect[request, charge] {
	return client.Effect[request, charge]{
		Tool: "card.charge",
		Execute: func(ctx context.Context, c client.Call, _ request) (charge, error) {
			return execute(ctx, c)
		},
		Resource: func(c charge) *opsledgerv1.ResourceRef { return &opsledgerv1.ResourceRef{Type: "charge", Id: c.ID} },
		Schema:   "charge/1",
	}
}

func charged(context.Context, client.Call) (charge, error) { return charge{"C-1"}, nil }

func never(t *testing.T) func(context.Context, client.Call) (charge, error) {
	return func(context.Context, client.Call) (charge, error) {
		t.Error("executed")
		return charge{}, client.NotSent(nil)
	}
}

// contracts of the tools in these tests; mail.send has none.
func contracts() []ledger.Contract {
	keyed, read := clienttest.Contract("card.charge", ledger.Keyed), clienttest.Contract("card.get", ledger.Read)
	keyed.Schemas, keyed.Attributes = []string{"charge/1"}, []string{"job_id", "tool_call_id"}
	return []ledger.Contract{keyed, read}
}

// told is an outcome, or error, in a few words.
func told[Res any](out client.Outcome[Res], err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return client.Match(out,
		func(d client.Done[Res]) string {
			return fmt.Sprintf("done %v%s%s", d.Value, word(d.Replayed, " replayed"), word(d.WithoutLedger, " without the ledger"))
		},
		func(r client.Rejection) string {
			return "rejected " + r.Failure.GetCode() + word(r.Replayed, " replayed") + word(r.WithoutLedger, " without the ledger")
		},
		func(u client.Unknown) string {
			wait := strings.TrimPrefix(u.Wait.GetReason().String(), "WAIT_REASON_")
			return u.Reason.String() + word(u.Wait != nil, " "+wait) + word(u.WithoutLedger, " without the ledger") +
				word(!u.Recorded, " not recorded") + word(u.OperationID == "", " unnamed")
		})
}

func word(is bool, w string) string {
	if is {
		return w
	}
	return ""
}

// operationOf is the id in an outcome that is unknown.
func operationOf[Res any](out client.Outcome[Res]) string {
	return client.Match(out, func(d client.Done[Res]) string { return d.Operation.GetId() },
		func(r client.Rejection) string { return r.Operation.GetId() }, func(u client.Unknown) string { return u.OperationID })
}

// bounded is a context for a whole test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestLedgerTroubles: what a call is told, and what the next one is, when the ledger fails at each point.
func TestLedgerTroubles(t *testing.T) {
	const down = "error: nothing was sent: claim: rpc error: code = Unavailable desc = the ledger for tests is down"
	for name, tt := range map[string]struct {
		method   clienttest.Method
		faults   []clienttest.Fault
		want     string
		runs     int32
		next     string // told a second call, after the ledger came back and the lease ended
		nextRuns int32
	}{
		"claim refused":                  {clienttest.Claim, []clienttest.Fault{clienttest.Unavailable}, down, 0, "done {C-1}", 1},
		"claim stored, the ledger dies":  {clienttest.Claim, []clienttest.Fault{clienttest.CrashAfterCommit}, down, 0, "unknown CHECK_SCHEDULED", 0},
		"claim lost":                     {clienttest.Claim, []clienttest.Fault{clienttest.LostRequest}, "done {C-1}", 1, "done {C-1} replayed", 0},
		"the claim's answer is lost":     {clienttest.Claim, []clienttest.Fault{clienttest.LostResponse}, "done {C-1}", 1, "done {C-1} replayed", 0},
		"report refused once":            {clienttest.Complete, []clienttest.Fault{clienttest.Unavailable}, "done {C-1}", 1, "done {C-1} replayed", 0},
		"the report's answer is lost":    {clienttest.Complete, []clienttest.Fault{clienttest.LostResponse}, "done {C-1}", 1, "done {C-1} replayed", 0},
		"report lost, the ledger dies":   {clienttest.Complete, []clienttest.Fault{clienttest.CrashBeforeCommit}, "unknown not recorded", 1, "unknown CHECK_SCHEDULED", 0},
		"report stored, the ledger dies": {clienttest.Complete, []clienttest.Fault{clienttest.CrashAfterCommit}, "unknown not recorded", 1, "done {C-1} replayed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := clienttest.New(t, clienttest.Options{Contracts: contracts(), Client: quick})
			l.Inject(tt.method, tt.faults...)
			var runs atomic.Int32
			e := charging(func(context.Context, client.Call) (charge, error) {
				runs.Add(1)
				return charge{"C-1"}, nil
			})
			intent := intended(t)
			if got := told(client.Do(bounded(t), l.Client(), e, intent, ten)); got != tt.want || runs.Load() != tt.runs {
				t.Fatalf("told %q after %d executions, want %q after %d", got, runs.Load(), tt.want, tt.runs)
			}
			runs.Store(0)
			l.Restart()
			l.Advance(time.Minute)
			if got := told(client.Do(bounded(t), l.Client(), e, intent, ten)); got != tt.next || runs.Load() != tt.nextRuns {
				t.Errorf("then told %q after %d executions, want %q after %d", got, runs.Load(), tt.next, tt.nextRuns)
			}
		})
	}
}

// TestT8: the answer to Claim takes three seconds. The window counts from before the claim was sent, not from the receipt.
func TestT8(t *testing.T) {
	for name, tt := range map[string]struct {
		window time.Duration
		want   string
	}{
		"the window is over on the way": {3 * time.Second, "error: nothing was sent: the send window of the grant is over"},
		"a part of it is left":          {5 * time.Second, "done {C-1}"},
	} {
		t.Run(name, func(t *testing.T) {
			var passed atomic.Int64
			keyed := contracts()[0]
			keyed.SendWithin = tt.window
			l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{keyed}, Decided: func(m clienttest.Method) {
				if m == clienttest.Claim {
					passed.Add(int64(3 * time.Second))
				}
			}})
			c := l.Client()
			client.SetClock(c, func() time.Duration { return time.Duration(passed.Load()) })
			got := told(client.Do(bounded(t), c, charging(func(_ context.Context, call client.Call) (charge, error) {
				passed.Add(int64(1999 * time.Millisecond))
				if !call.MaySend() {
					t.Error("the window was over too early")
				}
				passed.Add(int64(time.Millisecond))
				if err := call.Sending(); !errors.Is(err, client.ErrWindowOver) {
					t.Errorf("it would have sent after its window: %v", err)
				}
				return charge{"C-1"}, nil
			}), intended(t), ten))
			if got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
		})
	}
}

// TestC03: ids of tool calls are minted anew on each model turn. The key is the intent's: one effect, then replays.
func TestC03(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	effects := map[string]int{}
	do := func(step, toolCall string) string {
		e := charging(func(_ context.Context, c client.Call) (charge, error) {
			effects[c.Key]++
			return charge{step}, nil
		})
		e.Attributes = func(request) map[string]string { return map[string]string{"tool_call_id": toolCall} }
		return told(client.Do(bounded(t), l.Client(), e, client.Intent{Task: "r-1", Step: step}, ten)) // rebuilt each time
	}
	for _, turn := range []struct{ step, toolCall, want string }{
		{"charge", "call_1", "done {charge}"},
		{"charge", "call_3", "done {charge} replayed"},
		{"notify", "call_4", "done {notify}"},
		{"charge", "call_5", "done {charge} replayed"},
	} {
		if got := do(turn.step, turn.toolCall); got != turn.want {
			t.Errorf("%s by %s was told %q, want %q", turn.step, turn.toolCall, got, turn.want)
		}
	}
	if len(effects) != 2 {
		t.Errorf("%d keys had effects, want one for each step", len(effects))
	}
	for _, n := range effects {
		if n != 1 {
			t.Errorf("a key had %d effects", n)
		}
	}
}

// TestC44: numbers beyond those of a double reach the ledger's digest as they are.
func TestC44(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: contracts()})
	e := client.Effect[json.RawMessage, charge]{
		Tool:    "card.charge",
		Execute: func(context.Context, client.Call, json.RawMessage) (charge, error) { return charge{"C-1"}, nil },
	}
	intent := intended(t)
	for _, r := range []struct{ body, want string }{
		{`{"id":9007199254740993,"amount":1.10}`, "done {C-1}"},
		{`{"amount":1.1,"id":9007199254740993}`, "done {} replayed"},
		{`{"id":9007199254740992,"amount":1.10}`, "error: nothing was sent: FINGERPRINT_CONFLICT: other"},
	} {
		if got := told(client.Do(bounded(t), l.Client(), e, intent, json.RawMessage(r.body))); got != r.want {
			t.Errorf("%s was told %q, want %q", r.body, got, r.want)
		}
	}
	type typed struct {
		ID     int64       `json:"id"`
		Amount json.Number `json:"amount"`
	}
	if got := told(client.Do(bounded(t), l.Client(), client.Effect[typed, charge]{
		Tool:    "card.charge",
		Execute: func(context.Context, client.Call, typed) (charge, error) { return charge{}, errors.New("executed") },
	}, intent, typed{9007199254740993, "1.10"})); got != "done {} replayed" {
		t.Errorf("the same as a Go value was told %q", got)
	}
}
