// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

const paged = "not_found: \"status == 200 && size(body.data) == 0\"\n      next: \"has(body.next) ? body.next : ''\""

// A list goes on where it says, on the server that was asked.
func TestWhereTheNextPageIs(t *testing.T) {
	q := probing(t, `not_found: "status == 200 && size(body.data) == 0"`, paged)
	const asked = "https://payments.test:8443/v1/charges?key=k"
	for name, c := range map[string]struct {
		status     int
		body, want string
		fails      bool
	}{
		"no more":                   {200, `{"data":[]}`, "", false},
		"no more, by an empty text": {200, `{"next":""}`, "", false},
		"no more, by null":          {200, `{"next":null}`, "", false},
		"an address":                {200, `{"next":"https://payments.test:8443/v1/charges?key=k&page=2"}`, "https://payments.test:8443/v1/charges?key=k&page=2", false},
		"parameters alone":          {200, `{"next":"?key=k&page=2"}`, "https://payments.test:8443/v1/charges?key=k&page=2", false},
		"a path":                    {200, `{"next":"/v1/more/2#x"}`, "https://payments.test:8443/v1/more/2", false},
		"another host":              {200, `{"next":"https://elsewhere.test/v1"}`, "", true},
		"another host, no scheme":   {200, `{"next":"//elsewhere.test/v1"}`, "", true},
		"another port":              {200, `{"next":"https://payments.test/v1"}`, "", true},
		"another scheme":            {200, `{"next":"http://payments.test:8443/v1"}`, "", true},
		"a user":                    {200, `{"next":"https://u:p@payments.test:8443/v1"}`, "", true},
		"no text":                   {200, `{"next":7}`, "", true},
		"no JSON":                   {200, `{`, "", true},
		"no answer":                 {503, `{"next":"?page=2"}`, "", false},
	} {
		got, err := q.Next(asked, Answer{Status: c.status, Body: []byte(c.body)}, someOperation())
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if next, err := fullContract(t).Probe.HTTP.Next(asked, Answer{Status: 200, Body: []byte(`{"next":"?page=2"}`)}, someOperation()); next != "" || err != nil {
		t.Errorf("a contract that names no page: %q, %v", next, err)
	}
}

// Two pages say what one list would say that has both.
func TestWhatTwoPagesSay(t *testing.T) {
	found := func(id string) Verdict {
		return Verdict{Evidence: ledger.Evidence{Finding: ledger.FoundResource, Result: &ledger.Result{Resource: ledger.ResourceRef{ID: id}}}, Observed: []byte(id)}
	}
	says := func(f ledger.Finding, ids ...string) Verdict {
		v := Verdict{Evidence: ledger.Evidence{Finding: f}}
		for _, id := range ids {
			v.Evidence.Candidates = append(v.Evidence.Candidates, ledger.ResourceRef{ID: id})
		}
		return v
	}
	throttled := indeterminate(ledger.QueryThrottled, Answer{})
	unread := indeterminate(ledger.QueryNotUnderstood, Answer{})
	for name, c := range map[string]struct {
		first, second Verdict
		more          bool
		want          Verdict
	}{
		"on neither":                       {says(ledger.NotFound), says(ledger.NotFound), false, says(ledger.NotFound)},
		"on neither, and there is more":    {says(ledger.NotFound), says(ledger.NotFound), true, unread},
		"on the first":                     {found("a"), says(ledger.NotFound), false, found("a")},
		"on the first, and there is more":  {found("a"), says(ledger.NotFound), true, says(ledger.AmbiguousThere, "a")},
		"on the second":                    {says(ledger.NotFound), found("b"), false, found("b")},
		"on the second, and there is more": {says(ledger.NotAccepted), found("b"), true, says(ledger.AmbiguousThere, "b")},
		"on both":                          {found("a"), found("b"), false, says(ledger.AmbiguousThere, "a", "b")},
		"on both, and there is more":       {found("a"), found("b"), true, says(ledger.AmbiguousThere, "a", "b")},
		"found, and several":               {found("a"), says(ledger.AmbiguousThere, "b"), false, says(ledger.AmbiguousThere, "a", "b")},
		"found, and refused":               {found("a"), says(ledger.RejectedThere), false, says(ledger.AmbiguousThere, "a")},
		"found, and under way":             {found("a"), says(ledger.PendingThere), false, says(ledger.PendingThere)},
		"refused on the second":            {says(ledger.NotFound), says(ledger.RejectedThere), true, says(ledger.RejectedThere)},
		"found, and the rest is not had":   {found("a"), throttled, false, says(ledger.AmbiguousThere, "a")},
		"nothing, and the rest is not had": {says(ledger.NotFound), throttled, false, throttled},
	} {
		if diff := cmp.Diff(c.want, c.first.With(c.second, c.more)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	final := Verdict{Evidence: ledger.Evidence{Finding: ledger.NotAccepted, Final: true}}
	for _, v := range []Verdict{says(ledger.PendingThere), says(ledger.RejectedThere), says(ledger.AmbiguousThere), final, throttled} {
		if v.Open() {
			t.Errorf("%v waits for a second page", v.Evidence.Finding)
		}
	}
}
