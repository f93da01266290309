// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const triedContracts = `
tools:
  tickets.create:
    effect: keyed
    attributes: [queue]
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 2m
      probe:
        http:
          url: "URL/{attributes.queue}/tickets?key={downstream_key}"
          found: "status == 200 && body.id == 'canary'"
          pending: "body.state == 'open'"
          not_found: "status == 404"
          result: {id: "body.id"}
      verify: []
`

// The owner of a contract tries its query out: the answer is judged and never shown.
func TestProbeCheck(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch key := r.URL.Query().Get("key"); {
		case r.URL.Path != "/ops/tickets":
			t.Errorf("it was asked for %s", r.URL.Path)
		case key == "throttled":
			w.WriteHeader(http.StatusTooManyRequests)
		case key == "absent":
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"id":"","state":""}`))
		default:
			w.Header().Set("X-Secret", "canary")
			_, _ = w.Write([]byte(`{"id":"canary","state":"` + key + `"}`))
		}
	}))
	t.Cleanup(target.Close)
	contracts := written(t, "contracts.yaml", strings.ReplaceAll(triedContracts, "URL", target.URL))
	check := func(key string, more ...string) (string, error) {
		return output(t, nil, append([]string{"probe", "check", "tickets.create", "--contracts", contracts, "--downstream-key", key}, more...)...)
	}
	good := []string{"--attribute", "queue=ops", "--probe-allow", "127.0.0.1"}
	for key, want := range map[string]string{
		"closed":    "status     200\npending    false\nfound      true\nnot_found  false\nverdict    FOUND\n",
		"open":      "status     200\npending    true\nfound      true\nnot_found  false\nverdict    PENDING\n",
		"absent":    "status     404\npending    false\nfound      false\nnot_found  true\nverdict    NOT_FOUND\n",
		"throttled": "status     429\npending    no value\nfound      false\nnot_found  false\nverdict    INDETERMINATE (THROTTLED)\n",
	} {
		out, err := check(key, good...)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	for name, c := range map[string]struct {
		code int
		args []string
	}{
		"an address that is not allowed": {1, []string{"--attribute", "queue=ops"}},
		"without the attribute":          {2, []string{"--probe-allow", "127.0.0.1"}},
		"with a list that is none":       {2, []string{"--probe-allow", "!", "--attribute", "queue=ops"}},
		"with a second tool":             {2, append([]string{"another"}, good...)},
	} {
		out, err := check("closed", c.args...)
		if exitCode(err) != c.code || out != "" || strings.Contains(err.Error(), target.URL) {
			t.Errorf("%s: exit code %d, want %d: %v\n%s", name, exitCode(err), c.code, err, out)
		}
	}
	if _, err := output(t, nil, "probe", "check", "another", "--contracts", contracts, "--downstream-key", "k"); exitCode(err) != 2 {
		t.Errorf("a tool without a contract: %v", err)
	}
}

const triedList = `
tools:
  tickets.create:
    effect: keyed
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 2m
      probe:
        http:
          url: "URL/{downstream_key}"
          found: "status == 200 && size(body.data) == 1"
          not_found: "status == 200 && size(body.data) == 0"
          next: "body.next"
          result: {id: "body.data[0].id"}
      verify: []
`

// What recovery would not take for absent or done is not shown as that, and why is said.
func TestProbeCheckOfAList(t *testing.T) {
	answers := map[string]string{
		"empty": `{"data":[],"next":""}`, "emptyhead": `{"data":[],"next":"/canary"}`, "unsaid": `{"data":[]}`, "elsewhere": `{"data":[],"next":"http://canary.test/"}`,
		"one": `{"data":[{"id":"canary"}],"next":null}`, "onehead": `{"data":[{"id":"canary"}],"next":"/canary"}`, "unnamed": `{"data":[{"name":"canary"}],"next":""}`,
	}
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(answers[strings.TrimPrefix(r.URL.Path, "/")]))
	}))
	t.Cleanup(target.Close)
	contracts := written(t, "contracts.yaml", strings.ReplaceAll(triedList, "URL", target.URL))
	const (
		absent  = "status     200\nfound      false\nnot_found  true\n"
		there   = "status     200\nfound      true\nnot_found  false\n"
		more    = "next       a further page, which is not asked for\n"
		unnamed = "next       its next page is not named, or lies on another server\n"
		nothing = "verdict    INDETERMINATE (NOT_UNDERSTOOD)\n"
	)
	for key, want := range map[string]string{
		"empty": absent + "verdict    NOT_FOUND\n", "emptyhead": absent + more + nothing, "unsaid": absent + unnamed + nothing, "elsewhere": absent + unnamed + nothing,
		"one": there + "verdict    FOUND\n", "onehead": there + more + "verdict    AMBIGUOUS\n",
		"unnamed": there + "result.id  no value\nverdict    AMBIGUOUS\n",
	} {
		out, err := output(t, nil, "probe", "check", "tickets.create", "--contracts", contracts, "--downstream-key", key, "--probe-allow", "127.0.0.1")
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
}
