// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func fullContract(t testing.TB) Contract {
	t.Helper()
	set, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, ok := set.Declared("payments.charge")
	if !ok {
		t.Fatal("payments.charge is not declared")
	}
	return c
}

// probing is a tool whose target is asked by other expressions.
func probing(t testing.TB, old, replacement string) *Query {
	t.Helper()
	set, err := Parse("c.yaml", []byte(badContract{body: asked(old, replacement)}.file()))
	if err != nil {
		t.Fatal(err)
	}
	c, _ := set.Declared("t")
	return c.Probe.HTTP
}

func someOperation() *ledger.Operation {
	key := ledger.Key{Scope: "s", Tool: "payments.charge", Task: "order-7", Key: "k"}
	return &ledger.Operation{
		ID: key.Hash().OperationID(), KeyHash: key.Hash(), Scope: "s", Principal: "spiffe://ledger.test/agent/a", Tool: key.Tool, Task: key.Task,
		TargetAttributes: map[string]string{"order_id": "o/7 ?"},
		CreateTime:       time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), FirstStart: time.Date(2026, 11, 29, 12, 0, 1, 0, time.UTC),
		Grant: ledger.Grant{Epoch: 1<<32 + 1, Time: time.Date(2026, 11, 29, 12, 0, 2, 0, time.UTC)},
	}
}

func TestAnAnswerIsWhatTheExpressionsSay(t *testing.T) {
	q := fullContract(t).Probe.HTTP
	charge := func(state string) string {
		return `{"data":[{"id":"ch_1","uri":"https://p/ch_1","revision":3,"state":"` + state + `","amount":"10.00","to":"acct","created":"2026-11-29T12:00:03Z"}]}`
	}
	found := ledger.Evidence{
		Finding: ledger.FoundResource, CreateTime: time.Date(2026, 11, 29, 12, 0, 3, 0, time.UTC),
		Result: &ledger.Result{Resource: ledger.ResourceRef{ID: "ch_1", Type: "charge", URI: "https://p/ch_1", Version: "3"}, Code: "done"},
	}
	for name, c := range map[string]struct {
		status   int
		body     string
		want     ledger.Evidence
		observed string
	}{
		"found":                           {200, charge("done"), found, `{"amount":"10.00","recipient":"acct"}`},
		"pending, though it is found":     {200, charge("processing"), ledger.Evidence{Finding: ledger.PendingThere}, ""},
		"found and rejected":              {200, charge("declined"), ledger.Evidence{Finding: ledger.AmbiguousThere, Candidates: []ledger.ResourceRef{found.Result.Resource}}, ""},
		"nothing there":                   {200, `{"data":[]}`, ledger.Evidence{Finding: ledger.NotFound}, ""},
		"not taken so far":                {404, `gone fishing`, ledger.Evidence{Finding: ledger.NotAccepted}, ""},
		"not taken, and never":            {410, ``, ledger.Evidence{Finding: ledger.NotAccepted, Final: true}, ""},
		"none of them":                    {204, ``, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"no JSON":                         {200, `<html>`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"two values":                      {200, `{"data":[]} {"data":[1]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"a name twice":                    {200, `{"data":[],"data":[1]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"another shape":                   {200, `{"data":7}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"null":                            {200, `{"data":null}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"throttled, whatever it says":     {429, `{"data":[]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryThrottled}, ""},
		"unavailable":                     {503, `{"data":[]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryUnavailable}, ""},
		"not let in":                      {401, `{"data":[]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotAuthorized}, ""},
		"forbidden":                       {403, `{"data":[]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotAuthorized}, ""},
		"no status":                       {0, `{"data":[]}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryUnavailable}, ""},
		"a body beyond its bound":         {200, `{"data":[]}` + strings.Repeat(" ", MaxBody), ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"a body nested beyond its bound":  {200, `{"data":[],"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, ledger.Evidence{Finding: ledger.Indeterminate, Cause: ledger.QueryNotUnderstood}, ""},
		"several":                         {200, `{"data":[{"state":"a"},{"state":"b"}]}`, ledger.Evidence{Finding: ledger.AmbiguousThere}, ""},
		"several, the first is declined":  {200, `{"data":[{"state":"declined"},{"state":"b"}]}`, ledger.Evidence{Finding: ledger.AmbiguousThere}, ""},
		"found, its state can't be told":  {200, `{"data":[{"id":"ch_1"}]}`, ledger.Evidence{Finding: ledger.AmbiguousThere, Candidates: []ledger.ResourceRef{{ID: "ch_1", Type: "charge"}}}, ""},
		"found, and nobody can name it":   {200, `{"data":[{"state":"x"}]}`, ledger.Evidence{Finding: ledger.AmbiguousThere}, ""},
		"found, without what is compared": {200, `{"data":[{"id":7,"state":"done","to":null}]}`, ledger.Evidence{Finding: ledger.FoundResource, Missing: []string{"created"}, Result: &ledger.Result{Resource: ledger.ResourceRef{ID: "7", Type: "charge"}, Code: "done"}}, `{"recipient":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := q.Judge(Answer{Status: c.status, Body: []byte(c.body)}, someOperation())
			if diff := cmp.Diff(Verdict{Evidence: c.want, Observed: []byte(c.observed)}, got, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestOneWordForAllThatAreSaid goes through every combination of what the seven expressions can say, against rules that are written
// another way than the function.
func TestOneWordForAllThatAreSaid(t *testing.T) {
	words := []word{silent, no, yes, broken}
	counted := 0
	var said [len(findings)]word
	var each func(i int)
	each = func(i int) {
		if i < len(said) {
			for _, said[i] = range words {
				each(i + 1)
			}
			return
		}
		counted++
		kind, final := weigh(said)
		maybe := func(i int) bool { return said[i] == yes || said[i] == broken }
		is := func(i int) bool { return said[i] == yes }
		// What each word needs, and must not hide.
		switch kind {
		case ledger.PendingThere:
			if !is(saysPending) {
				t.Fatalf("%v: pending, and nothing says so", said)
			}
		case ledger.FoundResource:
			if !is(saysFound) || maybe(saysPending) || maybe(saysRejected) || maybe(saysAmbiguous) {
				t.Fatalf("%v: found, and it may be something else", said)
			}
		case ledger.RejectedThere:
			if !is(saysRejected) || maybe(saysFound) || maybe(saysAmbiguous) || maybe(saysPending) {
				t.Fatalf("%v: rejected, and it may be something else", said)
			}
		case ledger.NotFound, ledger.NotAccepted:
			if maybe(saysFound) || maybe(saysAmbiguous) || is(saysPending) || is(saysRejected) {
				t.Fatalf("%v: nothing there, and it may be", said)
			}
			if said[saysFound] != no && (maybe(saysPending) || maybe(saysRejected)) {
				t.Fatalf("%v: nothing there, and nobody looked", said)
			}
			if final && (is(saysNotAccepted) || !is(saysNotAcceptedFinal)) || kind == ledger.NotFound && !is(saysNotFound) {
				t.Fatalf("%v: more is concluded than is said", said)
			}
		case ledger.Indeterminate:
			if is(saysPending) || is(saysFound) || is(saysAmbiguous) {
				t.Fatalf("%v: something was seen, and would be forgotten", said)
			}
			if clear := said[saysFound] == no && said[saysAmbiguous] != broken && said[saysRejected] != yes; clear && is(saysNotFound) {
				t.Fatalf("%v: nothing there, and nobody would believe it", said)
			}
		case ledger.AmbiguousThere:
			if !is(saysAmbiguous) && !is(saysFound) {
				t.Fatalf("%v: several, and nothing says so", said)
			}
		}
	}
	each(0)
	if counted != 1<<14 {
		t.Errorf("%d combinations", counted)
	}
}

func TestNumbersOfAnAnswerStayThemselves(t *testing.T) {
	q := probing(t, `"status == 200 && size(body.data) == 1"`, `"status == 200"`)
	for number, want := range map[string]string{
		"0":                    "0",
		"-0":                   "0",
		"9007199254740993":     "9007199254740993",
		"-9223372036854775808": "-9223372036854775808",
		"18446744073709551615": "18446744073709551615",
		"10.10":                "10.1",
		"1.0":                  "1",
		"100e-2":               "1",
		"1E3":                  "1000",
		"0.1":                  "0.1",
		"123456789012.34":      "1.2345678901234e+11",
		// What no double holds is left out, so that a person looks, instead of an equal that is none.
		"18446744073709551616":   "",
		"0.12345678901234567890": "",
		"1e400":                  "",
		"9007199254740993.1":     "",
	} {
		body := `{"data":[{"id":"x","amount":` + number + `,"currency":"EUR"}]}`
		want := strings.Replace(`{"amount":`+want+`,"currency":"EUR"}`, `"amount":,`, "", 1)
		if got := q.Judge(Answer{Status: 200, Body: []byte(body)}, someOperation()); string(got.Observed) != want {
			t.Errorf("%s: observed %s, want %s", number, got.Observed, want)
		}
	}
}

func TestNumbersAreComparedAsNumbers(t *testing.T) {
	for expression, body := range map[string]string{
		"body.n == 1":                         `{"n":1.0}`,
		"body.n < 2.5":                        `{"n":2}`,
		"body.n == 9007199254740993":          `{"n":9007199254740993}`,
		"body.n != 9007199254740992":          `{"n":9007199254740993}`,
		"body.list.exists(x, x.id == 'b')":    `{"list":[{"id":"a"},{"id":"b"}]}`,
		"!has(body.missing)":                  `{}`,
		"headers['etag'] == 'v1'":             `{}`,
		"body.at == string(op.epoch)":         `{"at":"4294967297"}`,
		"body.key == op.downstream_key":       `{"key":"` + someOperation().KeyHash.DownstreamKey() + `"}`,
		"body.o == op.attributes.order_id":    `{"o":"o/7 ?"}`,
		"body.o == op.attributes['order_id']": `{"o":"o/7 ?"}`,
		"timestamp(body.t) > op.first_grant_time && op.last_grant_time > op.first_grant_time": `{"t":"2026-11-29T12:00:01.5Z"}`,
		"body.x == op.tool + op.task + op.operation_id":                                       `{"x":"payments.chargeorder-7` + someOperation().ID.String() + `"}`,
	} {
		q := probing(t, `"status == 200 && size(body.data) == 0"`, `"`+expression+`"`)
		got := q.Judge(Answer{Status: 201, Header: http.Header{"Etag": {"v1"}}, Body: []byte(body)}, someOperation())
		if got.Evidence.Finding != ledger.NotFound {
			t.Errorf("%s of %s: %s", expression, body, got.Evidence.Finding)
		}
	}
}

func TestAnEvaluationIsBounded(t *testing.T) {
	q := probing(t, `"status == 200 && size(body.data) == 0"`, `"body.x.all(x, x.matches('(a+)+b') || true) && status == 200"`)
	body := `{"data":[],"x":["` + strings.Repeat("a", 1000) + `"` + strings.Repeat(`,"`+strings.Repeat("a", 1000)+`"`, 900) + `]}`
	if got := q.Judge(Answer{Status: 200, Body: []byte(body)}, someOperation()); got.Evidence.Finding != ledger.Indeterminate {
		t.Errorf("%s after all that", got.Evidence.Finding)
	}
	if got := q.Judge(Answer{Status: 200, Body: []byte(`{"data":[],"x":["a"]}`)}, someOperation()); got.Evidence.Finding != ledger.NotFound {
		t.Errorf("%s of a small one", got.Evidence.Finding)
	}
}

func TestWhatIsKeptOfAnAnswerIsBounded(t *testing.T) {
	q := probing(t, `"status == 200 && size(body.data) == 1"`, `"status == 200"`)
	answer := func(id, currency string) Verdict {
		return q.Judge(Answer{Status: 200, Body: []byte(`{"data":[{"id":"` + id + `","amount":1,"currency":"` + currency + `"}]}`)}, someOperation())
	}
	if got := answer(strings.Repeat("x", longestResource), "EUR"); got.Evidence.Finding != ledger.FoundResource {
		t.Errorf("the longest name is %s", got.Evidence.Finding)
	}
	if got := answer(strings.Repeat("x", longestResource+1), "EUR"); got.Evidence.Finding != ledger.AmbiguousThere {
		t.Errorf("a longer one is %s", got.Evidence.Finding)
	}
	// The field is left out, and so is missing where it is asked for.
	if got := answer("x", strings.Repeat("x", maxObserved)); string(got.Observed) != `{"amount":1}` {
		t.Errorf("%d bytes are observed", len(got.Observed))
	}
}

func TestManyJudgeAtOnce(t *testing.T) {
	q := fullContract(t).Probe.HTTP
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				if got := q.Judge(Answer{Status: 200, Body: []byte(`{"data":[]}`)}, someOperation()); got.Evidence.Finding != ledger.NotFound {
					t.Errorf("%s", got.Evidence.Finding)
				}
			}
		})
	}
	wait.Wait()
}

func TestTheTargetSaysWhenToAskAgain(t *testing.T) {
	q := fullContract(t).Probe.HTTP
	for name, c := range map[string]struct {
		retryAfter, date string
		want             time.Duration
	}{
		"in seconds":         {"120", "", 2 * time.Minute},
		"by its own clock":   {"Sun, 29 Nov 2026 12:01:00 GMT", "Sun, 29 Nov 2026 12:00:00 GMT", time.Minute},
		"without its clock":  {"Sun, 29 Nov 2026 12:01:00 GMT", "", 0},
		"in the past":        {"Sun, 29 Nov 2026 12:00:00 GMT", "Sun, 29 Nov 2026 12:01:00 GMT", 0},
		"in a year":          {"31536000", "", 365 * 24 * time.Hour},
		"beyond all numbers": {"99999999999999999999", "", 0},
		"below zero":         {"-5", "", 0},
		"not at all":         {"", "", 0},
	} {
		a := Answer{Status: 503, Header: http.Header{}}
		a.Header.Set("Retry-After", c.retryAfter)
		a.Header.Set("Date", c.date)
		if got := q.Judge(a, someOperation()).Evidence.RetryAfter; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestAQuestionGoesWhereTheContractSays(t *testing.T) {
	c := fullContract(t)
	op := someOperation()
	url, err := c.Probe.HTTP.URL(op)
	if want := "https://payments.internal/v1/charges/o%2F7%20%3F?key=" + op.KeyHash.DownstreamKey(); err != nil || url != want {
		t.Errorf("%s, %v, want %s", url, err, want)
	}
	want := []Header{
		{Name: "accept", Text: "application/json"},
		{Name: "authorization", Text: "Bearer ", File: "/run/secrets/payments-status"},
		{Name: "x-tenant", Env: "PAYMENTS_TENANT"},
	}
	if diff := cmp.Diff(want, c.Probe.HTTP.Headers()); diff != "" {
		t.Error(diff)
	}
	for _, value := range []string{"", ".", ".."} {
		op.TargetAttributes["order_id"] = value
		if url, err := c.Probe.HTTP.URL(op); err == nil {
			t.Errorf("%q: asks %s", value, url)
		}
	}
	op.TargetAttributes["order_id"] = strings.Repeat("x", maxAddress)
	if _, err := c.Probe.HTTP.URL(op); err == nil {
		t.Error("asks at an address beyond its bound")
	}
}

func TestAResourceIsAsItWasLeft(t *testing.T) {
	look := fullContract(t).Inspect.HTTP
	left := ledger.ResourceRef{ID: "ch/1", Type: "charge", Version: "3"}
	if url, err := look.URL(someOperation(), left); err != nil || url != "https://payments.internal/v1/charges/ch%2F1" {
		t.Errorf("%s, %v", url, err)
	}
	for name, c := range map[string]struct {
		status  int
		body    string
		left    string
		want    ledger.Inspection
		version string
	}{
		"unchanged":        {200, `{"revision":3}`, "3", ledger.InspectUnchanged, "3"},
		"changed":          {200, `{"revision":4}`, "3", ledger.InspectChanged, "4"},
		"gone":             {404, ``, "3", ledger.InspectGone, ""},
		"no version there": {200, `{}`, "3", ledger.InspectNoVersion, ""},
		"no version here":  {200, `{"revision":3}`, "", ledger.InspectNoVersion, "3"},
		"no answer":        {502, `{"revision":3}`, "3", ledger.InspectIndeterminate, ""},
		"not understood":   {302, ``, "3", ledger.InspectIndeterminate, ""},
		"throttled":        {429, `{"revision":3}`, "3", ledger.InspectIndeterminate, ""},
	} {
		left.Version = c.left
		got, current := look.Judge(Answer{Status: c.status, Body: []byte(c.body)}, someOperation(), left)
		if want := (ledger.ResourceRef{ID: "ch/1", Type: "charge", Version: c.version}); got != c.want || current != want {
			t.Errorf("%s: %d %+v, want %d %+v", name, got, current, c.want, want)
		}
	}
}

func TestAResourceOfWhichItCantBeToldWhetherItIsGoneIsLookedAtAgain(t *testing.T) {
	c, _ := parsed(t, "tools: {t: {effect: unsafe, recovery: {inspect: {http: {url: \"https://a.test/{resource.id}\", version: \"string(body.v)\", gone: \"body.deleted\"}}}}}").Declared("t")
	left := ledger.ResourceRef{ID: "x", Version: "1"}
	for body, want := range map[string]ledger.Inspection{
		`{"v":1,"deleted":false}`: ledger.InspectUnchanged, `{"v":1,"deleted":true}`: ledger.InspectGone,
		`{"v":1}`: ledger.InspectIndeterminate, `{"v":1,"deleted":"no"}`: ledger.InspectIndeterminate,
	} {
		if got, _ := c.Inspect.HTTP.Judge(Answer{Status: 200, Body: []byte(body)}, someOperation(), left); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
}

func TestWhoMaySeeAResult(t *testing.T) {
	rule := func(text string) *Rule {
		c, _ := parsed(t, "tools: {t: {effect: unsafe, replay: {rule: \""+text+"\"}}}").Declared("t")
		return c.Replay
	}
	op := someOperation()
	caller := Caller{Principal: "spiffe://ledger.test/agent/b", Scope: "s", Subject: "u"}
	for text, want := range map[string]bool{
		"caller.scope == op.scope":                                     true,
		"caller.principal == op.principal":                             false,
		"caller.subject == 'u' && op.resource.type == ''":              true,
		"op.attributes.order_id == 'o/7 ?'":                            true,
		"op.attributes.missing == ''":                                  false, // no value, no word
		"op.task.startsWith('order-') && op.tool == 'payments.charge'": true,
	} {
		if got := rule(text).Allows(caller, op); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	op.Result = &ledger.Result{Resource: ledger.ResourceRef{Type: "charge", ID: "ch_1", URI: "https://p/ch_1"}}
	if !rule("op.resource.id == 'ch_1' && op.resource.type == 'charge' && op.resource.uri.endsWith('ch_1')").Allows(caller, op) {
		t.Error("the resource is not known to the rule")
	}
}
