// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
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

func TestEveryKeyThatIsServedReachesTheContract(t *testing.T) {
	set, err := ParseFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := ledger.DefaultContract("payments.charge")
	want.Effect = ledger.Keyed
	want.LeaseDefault, want.LeaseMax, want.LeaseTotal = 30*time.Second, time.Minute, 90*time.Second
	want.SendWithin = 30 * time.Second
	want.MaxAttempts = 7
	want.RequireIntentTime = false
	want.AllowWhileUnknown = true
	want.StickyAnswers = true
	want.RejectCodes = []string{"bad_request", "card_declined", "expired_card"}
	want.Method = ledger.MethodProbe
	want.EffectWithin, want.KeyRetention = 2*time.Minute, 24*time.Hour
	want.Repeat = ledger.RepeatAllowed
	want.Verify, want.VerifyStated = []string{"amount", "recipient"}, true
	want.FirstCheck, want.MaxInterval, want.GiveUpAfter = time.Second, 5*time.Minute, 12*time.Hour
	want.CheckTimeout = 3 * time.Second
	want.RetryWindow, want.RetainCompleted = 48*time.Hour, 96*time.Hour
	want.Attributes = []string{"order_id"}
	want.ResultAttributes = []string{"etag"}
	want.Schemas = []string{"payments.charge.result/1"}
	want.PayloadLimit = 8 << 10
	want.Categories = map[string]string{"amount": "amount", "recipient": "recipient"}
	got, declared := set.Contract("payments.charge")
	want.Version = got.Version
	if diff := cmp.Diff(want, got); diff != "" || !declared {
		t.Errorf("declared %v, contract (-want +got):\n%s", declared, diff)
	}
	if !set.Strict() {
		t.Error("strict is not on")
	}
	if diff := cmp.Diff([]ledger.Tool{"payments.charge", "tickets.list"}, set.Tools()); diff != "" {
		t.Error(diff)
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
	for name, c := range map[string]struct {
		lease string
		want  []time.Duration // default, max, total, send_within
	}{
		"short default": {"lease: {default: 5s}", []time.Duration{5 * time.Second, time.Minute, 90 * time.Second, 5 * time.Second}},
		"long default":  {"lease: {default: 5m}", []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 30 * time.Second}},
		"short max":     {"lease: {max: 10s}", []time.Duration{10 * time.Second, 10 * time.Second, 90 * time.Second, 10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := parsed(t, "tools: {t: {effect: unsafe, "+c.lease+"}}").Contract("t")
			if diff := cmp.Diff(c.want, []time.Duration{got.LeaseDefault, got.LeaseMax, got.LeaseTotal, got.SendWithin}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFaultsNameTheLineAndWhatToWrite(t *testing.T) {
	// Each body is the contract of a tool at lines 3 and following.
	for name, c := range map[string]struct{ body, want string }{
		"unknown key":           {"effect: unsafe\nefect: read", "4: unknown key in a tool's contract; write one of effect, lease"},
		"unknown key below":     {"effect: unsafe\nlease: {defualt: 3s}", "4: unknown key in lease; write one of default, max, total"},
		"key given twice":       {"effect: unsafe\nlease: {max: 60s, max: 90s}", "4: lease.max is given twice"},
		"bare number":           {"effect: unsafe\nsend_within: 30", "4: send_within must be a number with its unit; write for example 30s"},
		"bad unit":              {"effect: unsafe\nsend_within: 30sec", "4: send_within must be a number with one of the units ms, s, m, h"},
		"days":                  {"effect: unsafe\nretention: {completed: 30d}", "4: retention.completed must be a number with one of the units"},
		"negative":              {"effect: unsafe\nsend_within: -3s", "4: send_within must be whole milliseconds"},
		"below a millisecond":   {"effect: unsafe\nsend_within: 3us", "4: send_within must be whole milliseconds"},
		"longer than ten years": {"effect: unsafe\nretention: {completed: 99999h}", "4: retention.completed must be whole milliseconds"},
		"no effect":             {"max_attempts: 3", "3: effect is missing; write effect: unsafe unless"},
		"unknown effect":        {"effect: UNSAFE", "3: effect must be one of read, idempotent, keyed, unsafe"},
		"no starts":             {"effect: unsafe\nmax_attempts: 0", "4: max_attempts must be a whole number from 1 to 1000"},
		"text for a number":     {"effect: unsafe\nmax_attempts: \"3\"", "4: max_attempts must be a whole number"},
		"text for a boolean":    {"effect: unsafe\nrequire_intent_time: \"no\"", "4: require_intent_time must be true or false"},
		"size without a unit":   {"effect: unsafe\nreplay: {payload_limit: 16}", "4: replay.payload_limit must be a whole number with the unit B or KiB"},
		"size too large":        {"effect: unsafe\nreplay: {payload_limit: 65KiB}", "4: replay.payload_limit must be a whole number with the unit B or KiB, at most 64KiB"},
		"list that is a text":   {"effect: unsafe\nattributes: order_id", "4: attributes must be a list"},
		"entry with a space":    {"effect: unsafe\nattributes: [\"order id\"]", "4: each entry of attributes must be a text"},
		"entry twice":           {"effect: unsafe\nattributes: [a, a]", "4: attributes has an entry twice"},
		"alias":                 {"effect: &e unsafe\nlease: *e", "4: lease must be a mapping"},
		"category is reserved":  {"effect: unsafe\nrequest: {fields: {a: {category: relation}}}", `4: request.fields."a".category must be`},
		"category is missing":   {"effect: unsafe\nrequest: {fields: {a: {}}}", `4: request.fields."a".category is missing`},
		"field twice":           {"effect: unsafe\nrequest: {fields: {a: {category: x}, a: {category: y}}}", "4: request.fields has a field twice"},
		"code in both lists":    {"effect: unsafe\nanswers: {declined: [a], invalid: [a]}", "4: answers.declined and answers.invalid share a code"},
		"nothing sticks":        {"effect: unsafe\nanswers: {sticky: true}", "4: answers.sticky needs codes that stick"},
		"lease too short":       {"effect: unsafe\nlease: {default: 500ms}", "4: lease.default must be at least 1s"},
		"max below default":     {"effect: unsafe\nlease: {default: 30s, max: 20s}", "4: lease.max must be at least lease.default"},
		"total below max":       {"effect: unsafe\nlease: {max: 30s, total: 20s}", "4: lease.total must be at least lease.max"},
		"window beyond lease":   {"effect: unsafe\nlease: {default: 10s}\nsend_within: 11s", "5: send_within must be at most lease.default"},
		"effect shorter than a call": {
			"effect: unsafe\nlease: {default: 30s, max: 60s, total: 90s}\nrecovery: {effect_within: 89s}",
			"5: recovery.effect_within must be at least lease.total, because the contract allows a call to take that long",
		},
		"retention of keys of an unkeyed tool": {"effect: unsafe\nrecovery: {key_retention: 24h}", "4: recovery.key_retention is for targets that deduplicate by key"},
		"unsafe regrant":                       {"effect: unsafe\nrecovery: {method: regrant}", "4: recovery.method regrant sends again without a query"},
		"regrant without a bound":              {"effect: idempotent\nrecovery: {method: regrant}", "4: recovery.method regrant needs recovery.effect_within"},
		"keyed regrant without retention":      {"effect: keyed\nrecovery: {method: regrant, effect_within: 2m}", "4: recovery.method regrant needs recovery.key_retention"},
		"keyed retention too short": {
			"effect: keyed\nrecovery: {method: regrant, effect_within: 2m, key_retention: 150s}",
			"4: recovery.key_retention must be longer than send_within + effect_within",
		},
		"absence without a query":         {"effect: unsafe\nrecovery: {effect_within: 2m, repeat_when_absent: true}", "4: recovery.repeat_when_absent needs somebody who can say"},
		"absence without a bound":         {"effect: unsafe\nrecovery: {method: probe, verify: [], repeat_when_absent: true}", "4: recovery.repeat_when_absent needs recovery.effect_within"},
		"absence by default, no bound":    {"effect: idempotent\nrecovery: {method: probe, verify: []}", "4: a tool that is not unsafe is repeated when absent, which needs recovery.effect_within"},
		"keyed absence without retention": {"effect: keyed\nrecovery: {method: probe, verify: [], effect_within: 2m}", "4: a tool that is not unsafe is repeated when absent, which needs recovery.key_retention"},
		"probe without verify":            {"effect: unsafe\nrecovery: {method: probe}", "4: recovery.verify is missing"},
		"verify of an undeclared field":   {"effect: unsafe\nrecovery: {method: probe, verify: [amount]}", "4: each entry of recovery.verify must be a category that request.fields declares"},
		"checks out of order":             {"effect: unsafe\nrecovery: {checks: {first: 10s, max_interval: 5s}}", "4: recovery.checks.max_interval must be at least checks.first"},
		"gives up before it asks":         {"effect: unsafe\nrecovery: {checks: {max_interval: 1h, give_up_after: 30m}}", "4: recovery.checks.give_up_after must be at least checks.max_interval"},
		"check takes too long":            {"effect: unsafe\nrecovery: {checks: {timeout: 6m}}", "4: recovery.checks.timeout must be from 100ms to 5m"},
		"retries outlive results":         {"effect: unsafe\nretention: {retry_window: 800h}", "4: retention.completed must be at least retention.retry_window"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "tools:\n  t:\n    " + strings.ReplaceAll(c.body, "\n", "\n    ") + "\n"
			_, err := Parse("contracts.yaml", []byte(text))
			if err == nil {
				t.Fatal("accepted")
			}
			if want := "contracts.yaml:" + c.want; !strings.Contains(err.Error(), want) {
				t.Errorf("got  %s\nwant %s", err, want)
			}
		})
	}
}

func TestKeysOfLaterReleasesAreRefusedByName(t *testing.T) {
	for path, body := range map[string]string{
		"unique":                     "unique: {by: [amount]}",
		"max_unknown":                "max_unknown: 500",
		"irreversible":               "irreversible: true",
		"approval":                   "approval: {}",
		"compensation":               "compensation: {}",
		"resolve":                    "resolve: {}",
		"request.ignore":             "request: {ignore: [trace_id]}",
		`request.fields."f".type`:    "request: {fields: {f: {category: x, type: money}}}",
		`request.fields."f".default`: "request: {fields: {f: {category: x, default: 1}}}",
		"recovery.probe":             "recovery: {probe: {}}",
		"recovery.inspect":           "recovery: {inspect: {}}",
		"recovery.limits":            "recovery: {limits: {}}",
		"recovery.guide":             "recovery: {guide: look}",
		"replay.rule":                "replay: {rule: \"true\"}",
		"retention.history":          "retention: {history: 9600h}",
		"retention.tombstone":        "retention: {tombstone: 9600h}",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte("tools:\n  t:\n    effect: unsafe\n    "+body+"\n"))
			if want := "c.yaml:4: " + path + " is not served in this release; remove it"; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

func TestWholeFilesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "c.yaml: must be one valid YAML document"},
		"not a mapping":  {"[1]", "c.yaml:1: the file must be a mapping"},
		"no tools":       {"strict: true", "c.yaml:1: tools is missing"},
		"empty tools":    {"tools: {}", "c.yaml:1: tools must be a mapping of at least one tool"},
		"unknown key":    {"tools: {t: {effect: read}}\ntool: {}", "c.yaml:2: unknown key in the file"},
		"bad tool name":  {"tools: {1x: {effect: read}}", "c.yaml:1: a tool's name must be"},
		"tool twice":     {"tools:\n  t: {effect: read}\n  t: {effect: unsafe}", "c.yaml:3: the tool has two contracts"},
		"null contract":  {"tools:\n  t:\n", "c.yaml:2: a tool's contract must be a mapping"},
		"broken":         {"tools:\n  t: {effect: [", "must be one valid YAML document"},
		"two documents":  {"tools: {t: {effect: read}}\n---\ntools: {}\n", "must be one valid YAML document"},
		"larger than 4M": {"# " + strings.Repeat("x", maxFile), "c.yaml: must have at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			var fault *Error
			if !errors.As(err, &fault) {
				t.Errorf("no *Error in %v", err)
			}
		})
	}
}

func TestAllFaultsAreToldAtOnceAndNoneShowsAValue(t *testing.T) {
	const canary = "canary4711"
	text := "tools:\n  t:\n    effect: " + canary + "\n    send_within: " + canary + "\n    attributes: [\"" + canary + " x\"]\n    max_attempts: " + canary +
		"\n    while_unknown: " + canary + "\n    recovery: {method: " + canary + ", verify: [" + canary + "]}\n    replay: {payload_limit: " + canary + "}\n"
	_, err := Parse("c.yaml", []byte(text))
	if err == nil {
		t.Fatal("accepted")
	}
	if n := len(strings.Split(err.Error(), "\n")); n != 8 {
		t.Errorf("%d faults, want 8:\n%s", n, err)
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("shows a value: %s", err)
	}
}

func TestTheVersionIsThatOfTheDeclarationNotOfItsSpelling(t *testing.T) {
	version := func(body string) string {
		c, _ := parsed(t, "tools:\n"+body).Contract("t")
		return c.Version
	}
	base := version("  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [a, b], replay: {payload_limit: 1KiB}}")
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(base) {
		t.Fatalf("version %q", base)
	}
	same := version("  other: {effect: read}\n  t: # said otherwise\n    replay:\n      payload_limit: 1024B\n    attributes: ['b', \"a\"]\n    lease:\n        total: 120s\n        max: 2m\n        default: 1m\n    effect: keyed")
	if same != base {
		t.Errorf("the same declaration has the versions %s and %s", base, same)
	}
	seen := map[string]string{base: "base"}
	for name, body := range map[string]string{
		"another effect":    "  t: {effect: unsafe, lease: {default: 60s, max: 2m, total: 2m}, attributes: [a, b], replay: {payload_limit: 1KiB}}",
		"another lease":     "  t: {effect: keyed, lease: {default: 61s, max: 2m, total: 2m}, attributes: [a, b], replay: {payload_limit: 1KiB}}",
		"another attribute": "  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [a, c], replay: {payload_limit: 1KiB}}",
		"joined attributes": "  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [ab], replay: {payload_limit: 1KiB}}",
		"no attributes":     "  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, replay: {payload_limit: 1KiB}}",
		"empty attributes":  "  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [], replay: {payload_limit: 1KiB}}",
		"a category":        "  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [a, b], replay: {payload_limit: 1KiB}, request: {fields: {x: {category: y}}}}",
	} {
		v := version(body)
		if other, ok := seen[v]; ok {
			t.Errorf("%s has the version of %s", name, other)
		}
		seen[v] = name
	}
	two := parsed(t, "tools: {a: {effect: read}, b: {effect: read}}")
	a, _ := two.Contract("a")
	b, _ := two.Contract("b")
	if a.Version == b.Version {
		t.Error("two tools share a version")
	}
	// A released version must not move: records name it. This value changes only if the canonical form does.
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	charge, _ := parsed(t, string(data)).Contract("payments.charge")
	if got, want := charge.Version, "cc6d03f332cae171"; got != want {
		t.Errorf("version of testdata/full.yaml is %s, want %s", got, want)
	}
}

func TestFieldNamesMayHoldAnything(t *testing.T) {
	set := parsed(t, "tools: {t: {effect: unsafe, request: {fields: {\"e-mail to\": {category: recipient}, \"über\": {category: body}}}}}")
	c, _ := set.Contract("t")
	if diff := cmp.Diff(map[string]string{"e-mail to": "recipient", "über": "body"}, c.Categories); diff != "" {
		t.Error(diff)
	}
}

func ExampleParse() {
	_, err := Parse("contracts.yaml", []byte("tools:\n  mail.send:\n    effect: unsafe\n    send_within: 30\n"))
	fmt.Println(err)
	// Output: contracts.yaml:4: send_within must be a number with its unit; write for example 30s, 10m or 24h
}
