// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/opsledger/opsledger/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parsed(t *testing.T, text string) *Set {
	t.Helper()
	set, err := Parse("contracts.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestEveryKeyReachesTheContract(t *testing.T) {
	set, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := ledger.Contract{Tool: "payments.charge", RequireIntentTime: true}
	want.Effect = ledger.Keyed
	want.LeaseDefault, want.LeaseMax, want.LeaseTotal = 20*time.Second, 50*time.Second, 80*time.Second
	want.SendWithin = 15 * time.Second
	want.MaxAttempts = 7
	want.AllowWhileUnknown = true
	want.MaxUnknown = 500
	want.Unique = []ledger.UniqueRule{
		{By: []string{"amount", "recipient"}, Within: 10 * time.Minute}, {By: []string{"recipient"}, Within: time.Minute},
	}
	want.Override = ledger.OverrideCaller
	want.StickyAnswers = true
	want.RejectCodes = []string{"bad_request", "card_declined", "expired_card"}
	want.Method = ledger.MethodProbe
	want.EffectWithin, want.KeyRetention = 2*time.Minute, 24*time.Hour
	want.Repeat = ledger.RepeatAllowed
	want.Verify, want.VerifyStated = []string{"amount", "recipient"}, true
	want.FirstCheck, want.MaxInterval, want.GiveUpAfter = time.Second, 5*time.Minute, 12*time.Hour
	want.CheckTimeout = 3 * time.Second
	want.CheckConcurrency, want.ChecksPerSecond = 3, 9
	want.Guide = "Search the dashboard for the order id."
	want.RetryWindow, want.RetainCompleted, want.RetainHistory, want.RetainTombstone = 48*time.Hour, 96*time.Hour, 200*time.Hour, 300*time.Hour
	want.Compensation = "payments.refund"
	want.RequireUnchanged, want.FreshFor, want.PerOriginal = true, 30*time.Second, 1 // if it undid others
	want.ApprovalExpires = 2 * time.Hour
	want.SecondPerson, want.ProposalExpires = true, 4*time.Hour
	want.Attributes = []string{"order_id"}
	want.ResultAttributes = []string{"etag"}
	want.Schemas = []string{"payments.charge.result/1"}
	want.PayloadLimit = 8 << 10
	want.Fields = map[string]ledger.RequestField{
		"amount":       {Type: "money", Currency: "currency", Category: "amount"},
		"currency":     {Category: "amount", Default: `"EUR"`},
		"recipient":    {Category: "recipient"},
		"/order/lines": {Type: "set", Default: `[1.5,"x",{"a":null}]`},
	}
	want.Ignored = []string{"/order/at", "trace_id"}
	got, declared := set.Contract("payments.charge")
	want.Version = got.Version
	if diff := cmp.Diff(want, got); diff != "" || !declared {
		t.Errorf("declared %v, contract (-want +got):\n%s", declared, diff)
	}
	if u, _ := set.Contract("payments.refund"); !u.RequireUnchanged || u.FreshFor != 20*time.Second || u.PerOriginal != 2 {
		t.Errorf("who undoes it has %+v", u)
	}
	if !set.Strict() {
		t.Error("strict is not on")
	}
	if diff := cmp.Diff([]ledger.Tool{"payments.charge", "payments.refund", "tickets.list"}, set.Tools()); diff != "" {
		t.Error(diff)
	}
}

func TestTheDesignsSampleIsGood(t *testing.T) {
	set, err := Load("testdata/design.yaml")
	if err != nil {
		t.Fatal(err)
	}
	charge, _ := set.Declared("payments.charge")
	mail, _ := set.Declared("mail.send")
	if charge.Effect != ledger.Keyed || charge.Probe.HTTP == nil || charge.Inspect.HTTP == nil || charge.Replay == nil || charge.Compensation != "payments.refund" ||
		charge.Fields["priority"].Default != `"normal"` || len(charge.Ignored) != 2 {
		t.Errorf("%+v", charge)
	}
	if mail.Effect != ledger.Unsafe || !mail.Irreversible || !mail.ApproveCorrections || mail.ApprovalExpires != time.Hour {
		t.Errorf("%+v", mail)
	}
}

func TestWhatIsLeftOutIsTheSafeDefault(t *testing.T) {
	set := parsed(t, "tools: {mail.send: {effect: unsafe}, tickets.list: {effect: read}}")
	want := ledger.DefaultContract("mail.send")
	got, declared := set.Contract("mail.send")
	want.Version = got.Version
	if diff := cmp.Diff(want, got); diff != "" || !declared {
		t.Errorf("declared %v, contract (-want +got):\n%s", declared, diff)
	}
	other, declared := set.Contract("mail.Send")
	if diff := cmp.Diff(ledger.DefaultContract("mail.Send"), other); diff != "" || declared {
		t.Errorf("an undeclared tool: declared %v\n%s", declared, diff)
	}
	if query, _ := set.Contract("tickets.list"); query.RequireIntentTime {
		t.Error("a query asks for intent_time")
	}
}

func TestWindowsThatAreLeftOutAdaptToThoseThatAreGiven(t *testing.T) {
	const second, minute, hour = time.Second, time.Minute, time.Hour
	leases := func(c ledger.Contract) []time.Duration {
		return []time.Duration{c.LeaseDefault, c.LeaseMax, c.LeaseTotal, c.SendWithin}
	}
	checks := func(c ledger.Contract) []time.Duration {
		return []time.Duration{c.FirstCheck, c.MaxInterval, c.GiveUpAfter}
	}
	retention := func(c ledger.Contract) []time.Duration {
		return []time.Duration{c.RetryWindow, c.RetainCompleted, c.RetainHistory, c.RetainTombstone}
	}
	for name, c := range map[string]struct {
		body string
		got  func(ledger.Contract) []time.Duration
		want []time.Duration
	}{
		"short default":     {"lease: {default: 5s}", leases, []time.Duration{5 * second, minute, 90 * second, 5 * second}},
		"long default":      {"lease: {default: 5m}", leases, []time.Duration{5 * minute, 5 * minute, 5 * minute, 30 * second}},
		"short max":         {"lease: {max: 10s}", leases, []time.Duration{10 * second, 10 * second, 90 * second, 10 * second}},
		"short total":       {"lease: {total: 20s}", leases, []time.Duration{20 * second, 20 * second, 20 * second, 20 * second}},
		"default and total": {"lease: {default: 20s, total: 40s}", leases, []time.Duration{20 * second, 40 * second, 40 * second, 20 * second}},
		"late first":        {"recovery: {checks: {first: 1h}}", checks, []time.Duration{hour, hour, 24 * hour}},
		"short interval":    {"recovery: {checks: {max_interval: 1s}}", checks, []time.Duration{second, second, 24 * hour}},
		"gives up soon":     {"recovery: {checks: {give_up_after: 2s}}", checks, []time.Duration{2 * second, 2 * second, 2 * second}},
		"long interval":     {"recovery: {checks: {max_interval: 48h}}", checks, []time.Duration{5 * second, 48 * hour, 48 * hour}},
		"long results":      {"retention: {completed: 20000h}", retention, []time.Duration{168 * hour, 20000 * hour, 20000 * hour, 20000 * hour}},
		"long history":      {"retention: {history: 20000h}", retention, []time.Duration{168 * hour, 720 * hour, 20000 * hour, 20000 * hour}},
		"short tombstone":   {"retention: {tombstone: 800h}", retention, []time.Duration{168 * hour, 720 * hour, 800 * hour, 800 * hour}},
		"long unique": {
			"request: {fields: {a: {category: a}}}, unique: {by: [a], within: 20000h}", retention,
			[]time.Duration{168 * hour, 720 * hour, 9600 * hour, 20000 * hour},
		},
		"ages unknown": {"require_intent_time: false", retention, []time.Duration{168 * hour, 720 * hour, 9600 * hour, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := parsed(t, "tools: {t: {effect: unsafe, "+c.body+"}}").Contract("t")
			if diff := cmp.Diff(c.want, c.got(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func ExampleParse() {
	_, err := Parse("contracts.yaml", []byte("tools:\n  mail.send:\n    effect: unsafe\n    send_within: 30\n"))
	fmt.Println(err)
	// Output: contracts.yaml:4: mail.send: send_within must be a number with its unit; write for example 30s, 10m or 24h
}

// Who undoes has one contract, and those that it undoes say what they want of it: the strictest holds, also where it has no contract of its own.
func TestWhatIsWantedOfWhoeverUndoes(t *testing.T) {
	set := parsed(t, `tools:
  a: {effect: unsafe, compensation: {tool: undo, require_unchanged: false, fresh_for: 20s, per_original: 3}}
  b: {effect: unsafe, recovery: {inspect: {grpc: {target: "b.test:1"}}}, compensation: {tool: undo, fresh_for: 10s, per_original: 5}}
  c: {effect: unsafe, compensation: {tool: other, require_unchanged: false, fresh_for: 5s}}
  other: {effect: unsafe}`)
	for tool, want := range map[ledger.Tool]undoing{
		"undo": {true, 10 * time.Second, 3}, "other": {false, 5 * time.Second, 1}, "a": {true, 30 * time.Second, 1},
	} {
		c, _ := set.Contract(tool)
		if got := (undoing{c.RequireUnchanged, c.FreshFor, c.PerOriginal}); got != want {
			t.Errorf("%s: %+v, want %+v", tool, got, want)
		}
	}
}
