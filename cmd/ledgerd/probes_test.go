// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/recovery"
)

const pagedContracts = `
tools:
  tickets.create:
    effect: keyed
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 2m
      probe:
        http:
          url: "%s/tickets?key={downstream_key}"
          headers: {authorization: "Bearer ${env:TICKETS_TOKEN}"}
          found: "status == 200 && body.ids.exists(id, id == 'T-1')"
          not_found: "status == 200 && !body.ids.exists(id, id == 'T-1')"
          result: {id: "body.ids[0]"}
          next: "has(body.next) ? body.next : ''"
      verify: []
`

// A list of two pages is read to its end, with the same headers; a longer one says nothing of what is not on it.
func TestASecondPageIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		pages []string
		asked int
		want  ledger.Finding
	}{
		"one page":              {[]string{`{"ids":[]}`}, 1, ledger.NotFound},
		"on the second":         {[]string{`{"ids":[],"next":"?page=2"}`, `{"ids":["T-1"]}`}, 2, ledger.FoundResource},
		"on neither":            {[]string{`{"ids":[],"next":"?page=2"}`, `{"ids":[]}`}, 2, ledger.NotFound},
		"on both":               {[]string{`{"ids":["T-1"],"next":"?page=2"}`, `{"ids":["T-1"]}`}, 2, ledger.AmbiguousThere},
		"a third one":           {[]string{`{"ids":[],"next":"?page=2"}`, `{"ids":[],"next":"?page=3"}`}, 2, ledger.Indeterminate},
		"the second is nowhere": {[]string{`{"ids":[],"next":"https://elsewhere.test/2"}`}, 1, ledger.Indeterminate},
		"on the first, and the second is no answer": {[]string{`{"ids":["T-1"],"next":"?page=2"}`}, 2, ledger.AmbiguousThere},
		"on the first, and the second is nowhere":   {[]string{`{"ids":["T-1"],"next":"https://elsewhere.test/2"}`}, 1, ledger.AmbiguousThere},
		"the second is no answer":                   {[]string{`{"ids":[],"next":"?page=2"}`}, 2, ledger.Indeterminate},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked++; asked > len(c.pages) {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				if r.Header.Get("Authorization") != "Bearer canary" || r.URL.Path != "/tickets" || (r.URL.Query().Get("page") == "2") != (asked == 2) {
					t.Error("it was asked for something else")
				}
				_, _ = w.Write([]byte(c.pages[asked-1]))
			}))
			defer target.Close()
			set, err := contract.Parse("c.yaml", fmt.Appendf(nil, pagedContracts, target.URL))
			if err != nil {
				t.Fatal(err)
			}
			declared, _ := set.Declared("tickets.create")
			places, err := recovery.ParseAllowed("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			asker := recovery.NewAsker(recovery.AskerOptions{Allowed: places, Env: func(string) string { return "canary" }})
			key := ledger.Key{Scope: "s", Tool: "tickets.create", Task: "t", Key: "k"}
			verdict := httpProbe{declared.Probe.HTTP, asker}.Ask(t.Context(), &ledger.Operation{ID: key.Hash().OperationID(), KeyHash: key.Hash()})
			if verdict.Evidence.Finding != c.want || asked != c.asked {
				t.Errorf("asked %d times, it says %v, want %d times and %v", asked, verdict.Evidence.Finding, c.asked, c.want)
			}
		})
	}
}
