// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// badContract is a contract of tool t, at lines 3 and following of its file, and the beginning of what is said about it. form: an
// editor with the schema says so, too.
type badContract struct {
	body string
	want string
	form bool
}

func (c badContract) file() string {
	return "tools:\n  t:\n    " + strings.ReplaceAll(c.body, "\n", "\n    ") + "\n"
}

// asked is a keyed tool whose target is asked over HTTP; the test puts one key in the place of another.
func asked(old, replacement string) string {
	const body = `effect: keyed
request: {fields: {amount: {category: amount}, currency: {category: amount}}}
attributes: [order_id]
recovery:
  method: probe
  key_retention: 24h
  effect_within: 2m
  verify: [amount]
  probe:
    http:
      url: "https://a.test/v1?key={downstream_key}"
      headers: {authorization: "${file:/run/token}"}
      found: "status == 200 && size(body.data) == 1"
      not_found: "status == 200 && size(body.data) == 0"
      observed: {amount: "body.data[0].amount", currency: "body.data[0].currency"}
      result: {id: "body.data[0].id"}`
	if !strings.Contains(body, old) {
		panic("asked: nothing to put in the place of")
	}
	return strings.Replace(body, old, replacement, 1)
}

var badContracts = map[string]badContract{
	"unknown key":           {"effect: unsafe\nefect: read", "4: t: unknown key efect in a tool's contract; write one of effect, ", true},
	"unknown key below":     {"effect: unsafe\nlease: {defualt: 3s}", "4: t: unknown key defualt in lease; write one of default, max, total", true},
	"unknown key, no name":  {"effect: unsafe\nlease: {\"a secret, perhaps\": 3s}", "4: t: unknown key in lease; write one of", true},
	"key given twice":       {"effect: unsafe\nlease: {max: 60s, max: 90s}", "4: t: lease.max is given twice", true},
	"bare number":           {"effect: unsafe\nsend_within: 30", "4: t: send_within must be a number with its unit; write for example 30s", true},
	"bad unit":              {"effect: unsafe\nsend_within: 30sec", "4: t: send_within must be a number with one of the units ms, s, m, h", true},
	"days":                  {"effect: unsafe\nretention: {completed: 30d}", "4: t: retention.completed must be a number with one of the units", true},
	"negative":              {"effect: unsafe\nsend_within: -3s", "4: t: send_within must be a number with one of the units", true},
	"below a millisecond":   {"effect: unsafe\nsend_within: 3us", "4: t: send_within must be a number with one of the units", true},
	"parts of milliseconds": {"effect: unsafe\nsend_within: 3.5ms", "4: t: send_within must be whole milliseconds", false},
	"longer than ten years": {"effect: unsafe\nretention: {completed: 99999h}", "4: t: retention.completed must be whole milliseconds", false},
	"no effect":             {"max_attempts: 3", "3: t: effect is missing; write effect: unsafe unless", true},
	"unknown effect":        {"effect: UNSAFE", "3: t: effect must be one of read, idempotent, keyed, unsafe", true},
	"list for a word":       {"effect: [unsafe]", "3: t: effect must be one of", true},
	"no starts":             {"effect: unsafe\nmax_attempts: 0", "4: t: max_attempts must be a whole number from 1 to 1000", true},
	"too many starts":       {"effect: unsafe\nmax_attempts: 1001", "4: t: max_attempts must be a whole number from 1 to 1000", true},
	"text for a number":     {"effect: unsafe\nmax_attempts: \"3\"", "4: t: max_attempts must be a whole number", true},
	"text for a boolean":    {"effect: unsafe\nrequire_intent_time: \"no\"", "4: t: require_intent_time must be true or false", true},
	"size without a unit":   {"effect: unsafe\nreplay: {payload_limit: 16}", "4: t: replay.payload_limit must be a whole number with the unit B or KiB", true},
	"size too large":        {"effect: unsafe\nreplay: {payload_limit: 65KiB}", "4: t: replay.payload_limit must be a whole number with the unit B or KiB, at most 64KiB", false},
	"size in two spellings": {"effect: unsafe\nreplay: {payload_limit: 016KiB}", "4: t: replay.payload_limit must be a whole number", true},
	"list that is a text":   {"effect: unsafe\nattributes: order_id", "4: t: attributes must be a list", true},
	"entry with a space":    {"effect: unsafe\nattributes: [\"order id\"]", "4: t: each entry of attributes must be a text", true},
	"entry that is a list":  {"effect: unsafe\nattributes: [[a]]", "4: t: each entry of attributes must be a text", true},
	"entry twice":           {"effect: unsafe\nattributes: [a, a]", "4: t: attributes has an entry twice", true},
	"empty value":           {"effect: unsafe\nsend_within:", "4: t: send_within is empty; write a value, or remove the key", true},
	"null":                  {"effect: unsafe\nattributes: null", "4: t: attributes is empty; write a value, or remove the key", true},
	"empty section":         {"effect: unsafe\nlease: {}", "4: t: lease must be a mapping with default, max, total", true},
	"section that is a word": {
		"effect: unsafe\nrecovery: operator", "4: t: recovery must be a mapping with method, ", true,
	},
	"text that is blank":   {"effect: unsafe\nrecovery: {guide: \" \"}", "4: t: recovery.guide must be a text", true},
	"text with an escape":  {"effect: unsafe\nrecovery: {guide: \"look \\e[2J here\"}", "4: t: recovery.guide must be a text", false},
	"category is reserved": {"effect: unsafe\nrequest: {fields: {a: {category: relation}}}", `4: t: request.fields."a".category must not be relation`, true},
	"field twice":          {"effect: unsafe\nrequest: {fields: {a: {category: x}, a: {category: y}}}", "4: t: request.fields has a field twice", true},
	"code in both lists":   {"effect: unsafe\nanswers: {declined: [a], invalid: [a]}", "4: t: answers.declined and answers.invalid share a code", false},
	"nothing sticks":       {"effect: unsafe\nanswers: {sticky: true}", "4: t: answers.sticky needs codes that stick", false},

	"lease too short":     {"effect: unsafe\nlease: {default: 500ms}", "4: t: lease.default must be at least 1s", false},
	"max below default":   {"effect: unsafe\nlease: {default: 30s, max: 20s}", "4: t: lease.max must be at least lease.default", false},
	"total below max":     {"effect: unsafe\nlease: {max: 30s, total: 20s}", "4: t: lease.total must be at least lease.max", false},
	"window beyond lease": {"effect: unsafe\nlease: {default: 10s}\nsend_within: 11s", "5: t: send_within must be at most lease.default", false},

	"effect shorter than a call": {
		"effect: unsafe\nlease: {default: 30s, max: 60s, total: 90s}\nrecovery: {effect_within: 89s}",
		"5: t: recovery.effect_within must be at least lease.total, because the contract allows a call to take that long", false,
	},
	"effect shorter than the default call": {"effect: unsafe\nrecovery: {effect_within: 89s}", "4: t: recovery.effect_within must be at least lease.total", false},

	"retention of keys that nobody uses":  {"effect: unsafe\nrecovery: {key_retention: 24h}", "4: t: recovery.key_retention is for targets that deduplicate by key, or are asked by it", false},
	"a read that is probed":               {"effect: read\nrecovery: {method: probe, probe: external, verify: []}", "4: t: recovery.method is for tools with an effect", false},
	"a read that is sent again":           {"effect: read\nrecovery: {method: regrant}", "4: t: recovery.method is for tools with an effect", false},
	"unsafe regrant":                      {"effect: unsafe\nrecovery: {method: regrant}", "4: t: recovery.method regrant sends again without a query", false},
	"regrant without a bound":             {"effect: idempotent\nrecovery: {method: regrant}", "4: t: recovery.method regrant needs recovery.effect_within", false},
	"regrant that asks":                   {"effect: idempotent\nrecovery: {method: regrant, effect_within: 2m, probe: external}", "4: t: recovery.probe is not used by method regrant", false},
	"regrant when absent":                 {"effect: idempotent\nrecovery: {method: regrant, effect_within: 2m, repeat_when_absent: true}", "4: t: recovery.repeat_when_absent is for a target that is asked", false},
	"keyed regrant without retention":     {"effect: keyed\nrecovery: {method: regrant, effect_within: 2m}", "4: t: recovery.method regrant needs recovery.key_retention", false},
	"no key left for a regrant":           {"effect: keyed\nrecovery: {method: regrant, effect_within: 2m, key_retention: 180s}", "4: t: recovery.key_retention must be longer than lease.default + send_within + effect_within", false},
	"no key left for a check":             {"effect: keyed\nrecovery: {method: probe, probe: external, verify: [], effect_within: 2m, key_retention: 160s}", "4: t: recovery.key_retention must be longer than send_within + effect_within + checks.timeout", false},
	"no answer of an unsafe tool's check": {"effect: unsafe\nrecovery: {method: probe, probe: external, verify: [], effect_within: 2m, key_retention: 160s, repeat_when_absent: true}", "4: t: recovery.key_retention must be longer than send_within + effect_within + checks.timeout", false},
	"absence without a query":             {"effect: unsafe\nrecovery: {effect_within: 2m, repeat_when_absent: true}", "4: t: recovery.repeat_when_absent needs somebody who can say", false},
	"absence without a bound":             {"effect: unsafe\nrecovery: {method: probe, probe: external, verify: [], repeat_when_absent: true}", "4: t: recovery.repeat_when_absent needs recovery.effect_within", false},
	"absence by default, no bound":        {"effect: idempotent\nrecovery: {method: probe, probe: external, verify: []}", "4: t: a tool that is not unsafe is repeated when absent, which needs recovery.effect_within", false},
	"keyed absence without retention":     {"effect: keyed\nrecovery: {method: probe, probe: external, verify: [], effect_within: 2m}", "4: t: a tool that is not unsafe is repeated when absent, which needs recovery.key_retention", false},
	"nobody is asked":                     {"effect: unsafe\nrecovery: {method: probe, verify: []}", "4: t: recovery.probe is missing: how is the target asked?", false},
	"a probe and no method":               {"effect: unsafe\nrecovery: {probe: external, verify: []}", "4: t: recovery.method is missing, so that people settle", false},
	"probe without verify":                {"effect: unsafe\nrecovery: {method: probe, probe: external}", "4: t: recovery.verify is missing", false},
	"verify of an undeclared field":       {"effect: unsafe\nrecovery: {method: probe, probe: external, verify: [amount]}", "4: t: each entry of recovery.verify must be a category that request.fields declares", false},
	"checks out of order":                 {"effect: unsafe\nrecovery: {checks: {first: 10s, max_interval: 5s}}", "4: t: recovery.checks.max_interval must be at least checks.first", false},
	"gives up before it asks":             {"effect: unsafe\nrecovery: {checks: {max_interval: 1h, give_up_after: 30m}}", "4: t: recovery.checks.give_up_after must be at least checks.max_interval", false},
	"gives up before it can know":         {"effect: unsafe\nrecovery: {method: probe, probe: external, verify: [], effect_within: 2h, checks: {give_up_after: 2h}}", "4: t: recovery.checks.give_up_after must be at least send_within + effect_within", false},
	"check takes too long":                {"effect: unsafe\nrecovery: {checks: {timeout: 6m}}", "4: t: recovery.checks.timeout must be from 100ms to 5m", false},
	"too many at once":                    {"effect: unsafe\nrecovery: {limits: {concurrency: 257}}", "4: t: recovery.limits.concurrency must be a whole number from 1 to 256", true},

	"retries sooner than calls end": {"effect: unsafe\nretention: {retry_window: 60s}", "4: t: retention.retry_window must be at least lease.total", false},
	"retries outlive results":       {"effect: unsafe\nretention: {retry_window: 800h}", "4: t: retention.completed must be at least retention.retry_window", false},
	"results outlive events":        {"effect: unsafe\nretention: {completed: 800h, history: 700h}", "4: t: retention.history must be at least retention.completed", false},
	"retries outlive keys":          {"effect: unsafe\nretention: {tombstone: 100h, history: 90h, completed: 80h}", "4: t: retention.completed must be at least retention.retry_window", false},
	"events outlive their key":      {"effect: unsafe\nretention: {history: 9601h, tombstone: 9600h}", "4: t: retention.tombstone must be at least retention.history", false},
	"keys forgotten, ages unknown":  {"effect: unsafe\nrequire_intent_time: false\nretention: {tombstone: 9600h}", "5: t: retention.tombstone has no effect without require_intent_time", false},
	"look-alikes outlive keys": {
		"effect: unsafe\nrequest: {fields: {a: {category: a}}}\nunique: {by: [a], within: 9601h}\nretention: {tombstone: 9600h}",
		"6: t: retention.tombstone must be at least unique.within", false,
	},

	"unique by nothing":     {"effect: unsafe\nunique: {by: [], within: 1m}", "4: t: unique.by must name at least one category", true},
	"unique by an unknown":  {"effect: unsafe\nunique: {by: [amount], within: 1m}", "4: t: each entry of unique.by must be a category that request.fields declares", false},
	"unique for how long":   {"effect: unsafe\nrequest: {fields: {a: {category: a}}}\nunique: {by: [a]}", "5: t: unique.within is missing", true},
	"no rules":              {"effect: unsafe\nunique: []", "4: t: unique must be a rule or a list of 1 to 8", true},
	"one rule twice":        {"effect: unsafe\nrequest: {fields: {a: {category: a}}}\nunique: [{by: [a], within: 1m}, {by: [a], within: 2m}]", "5: t: unique has two rules by the same categories", false},
	"two words on override": {"effect: unsafe\nrequest: {fields: {a: {category: a}, b: {category: b}}}\nunique: [{by: [a], within: 1m}, {by: [b], within: 2m, override: caller}]", "5: t: unique.override must be the same in every rule", false},
	"a unique read":         {"effect: read\nrequest: {fields: {a: {category: a}}}\nunique: {by: [a], within: 1m}", "5: t: unique is for tools with an effect", false},
	"unknowns of a read":    {"effect: read\nmax_unknown: 5", "4: t: max_unknown is for tools with an effect", false},
	"an irreversible read":  {"effect: read\nirreversible: true", "4: t: irreversible is for tools with an effect", false},

	"compensation without a tool":    {"effect: unsafe\ncompensation: {per_original: 2}", "4: t: compensation.tool is missing", true},
	"compensation by a bad name":     {"effect: unsafe\ncompensation: {tool: 1x}", "4: t: compensation.tool must be a letter", true},
	"compensation by itself":         {"effect: unsafe\ncompensation: {tool: t}", "4: t: compensation.tool must be another tool", false},
	"compensation of no return":      {"effect: unsafe\nirreversible: true\ncompensation: {tool: u}", "5: t: compensation is for what can be undone", false},
	"compensation that can't look":   {"effect: unsafe\ncompensation: {tool: u}", "4: t: compensation.require_unchanged needs recovery.inspect", false},
	"compensation that looks away":   {"effect: unsafe\ncompensation: {tool: u, require_unchanged: false, fresh_for: 100ms}", "4: t: compensation.fresh_for must be at least 1s", false},
	"compensation of a read":         {"effect: read\ncompensation: {tool: u, require_unchanged: false}", "4: t: compensation is for tools with an effect", false},
	"unapproved, and for ever":       {"effect: unsafe\nirreversible: true\napproval: {corrections: false}", "5: t: approval.corrections must be true for an irreversible tool", false},
	"probe that is a word":           {"effect: unsafe\nrecovery: {method: probe, verify: [], probe: htpp}", "4: t: recovery.probe must be a mapping with http or grpc, or the word external", true},
	"probe in two ways":              {asked("    http:", "    grpc: {target: \"a.test:1\"}\n    http:"), "12: t: recovery.probe must have one of http and grpc", true},
	"probe of no service":            {"effect: unsafe\nrecovery: {method: probe, verify: [], probe: {grpc: {target: \"https://a.test\"}}}", "4: t: recovery.probe.grpc.target must be the address of an EvidenceService", true},
	"probe of no port":               {"effect: unsafe\nrecovery: {method: probe, verify: [], probe: {grpc: {target: \"a.test:70000\"}}}", "4: t: recovery.probe.grpc.target must be the address", false},
	"probe without not_found":        {asked("not_found:", "not_accepted:"), "13: t: recovery.probe.http.not_found is missing", true},
	"probe without a URL":            {asked("url:", "rejected: \"body.no\"\n      #"), "13: t: recovery.probe.http.url is missing", true},
	"found, and no name for it":      {asked("result: {id: \"body.data[0].id\"}", "rejected: \"body.no\""), "15: t: recovery.probe.http.result is missing", true},
	"a name without id":              {asked("id:", "uri:"), "18: t: recovery.probe.http.result.id is missing", true},
	"a name for nothing":             {asked("found: \"status == 200 && size(body.data) == 1\"", ""), "17: t: recovery.probe.http.observed says what the resource that is found shows", true},
	"a category that can't be equal": {asked(", currency: \"body.data[0].currency\"", ""), "10: t: recovery.verify asks for a category of which recovery.probe.http.observed lacks 1", false},
	"not CEL":                        {asked("size(body.data) == 1", "size(body.data) = 1"), "15: t: recovery.probe.http.found, at line 1, column 34 of the expression: is not a CEL expression", false},
	"unknown name":                   {asked("size(body.data) == 1", "size(boddy.data) == 1"), "15: t: recovery.probe.http.found, at line 1, column 23 of the expression: can't be evaluated: undeclared reference to 'boddy' (did you mean 'body'?); it may use status, headers, body,", false},
	"unknown function":               {asked("size(body.data) == 1", "length(body.data) == 1"), "15: t: recovery.probe.http.found, at line 1, column 24 of the expression: can't be evaluated: undeclared reference to 'length'", false},
	"unknown attribute of op":        {asked("size(body.data) == 1", "op.scope == 'x'"), "15: t: recovery.probe.http.found, at line 1, column 18 of the expression: can't be evaluated: undeclared reference to 'op'", false},
	"number where truth is meant":    {asked("status == 200 && size(body.data) == 1", "status"), "15: t: recovery.probe.http.found, at line 1, column 1 of the expression: must give true or false, and gives int", false},
	"text compared with a number":    {asked("status == 200 && size(body.data) == 1", "status == 'ok'"), "15: t: recovery.probe.http.found, at line 1, column 8 of the expression: can't be evaluated: found no matching overload for '_==_' applied to '(int, string)'", false},
	"truth without a look":           {asked("status == 200 && size(body.data) == 0", "true"), "16: t: recovery.probe.http.not_found, at line 1, column 1 of the expression: must look at the answer", false},
	"loops within loops":             {asked("size(body.data) == 1", "body.a.all(x, x.all(y, y == 1))"), "15: t: recovery.probe.http.found, at line 1, column 37 of the expression: can't be evaluated: comprehension exceeds nesting limit", false},
	"bad pattern":                    {asked("size(body.data) == 1", "body.a.matches('[')"), "15: t: recovery.probe.http.found, at line 1, column 33 of the expression: can't be evaluated: invalid matches argument", false},
	"an expression of several lines": {asked("found: \"status == 200 && size(body.data) == 1\"", "found: |\n        status == 200\n          && boddy.ok"), "17: t: recovery.probe.http.found, at line 2, column 6 of the expression: can't be evaluated", false},
	"an expression that is empty":    {asked("not_found: \"status == 200 && size(body.data) == 0\"", "not_found: \"\""), "16: t: recovery.probe.http.not_found must be a text", true},
	"an expression without end":      {asked("size(body.data) == 1", strings.Repeat("body.a || ", 200)+"body.a"), "15: t: recovery.probe.http.found must be a text (in quotes if need be) of at most 2000 bytes", true},
	"a secret written out":           {asked("${file:/run/token}", "Bearer eyJhbGciOi"), "14: t: recovery.probe.http.headers must say where a value is, not the value", true},
	"a secret of ledgerd's own":      {asked("${file:/run/token}", "${env:LEDGERD_STORE}"), "14: t: recovery.probe.http.headers must say where a value is", true},
	"a header of the connection":     {asked("authorization:", "host:"), "14: t: recovery.probe.http.headers must be named in lower case, and not one of", true},
	"a header in capitals":           {asked("authorization:", "Authorization:"), "14: t: recovery.probe.http.headers must be named in lower case", true},
	"a header twice":                 {asked("\"${file:/run/token}\"", "\"${file:/a}\", authorization: \"${file:/b}\""), "14: t: recovery.probe.http.headers has a header twice", true},
	"a secret sent in clear":         {asked("https://a.test", "http://a.test"), "13: t: recovery.probe.http.url must begin with https://, or be on this host", false},
	"a URL of another host":          {asked("https://a.test/v1?key={downstream_key}", "https://{downstream_key}/v1"), "13: t: recovery.probe.http.url must begin with https:// or http://, a fixed host", true},
	"a URL about nothing":            {asked("?key={downstream_key}", ""), "13: t: recovery.probe.http.url must be filled in by what it asks about", false},
	"a URL with an unknown place":    {asked("{downstream_key}", "{key}"), "13: t: recovery.probe.http.url must be filled in by {downstream_key}", false},
	"a URL with an undeclared name":  {asked("{downstream_key}", "{attributes.other}"), "13: t: recovery.probe.http.url must be filled in by {downstream_key}", false},

	"inspect about no resource":   {"effect: unsafe\nrecovery: {inspect: {http: {url: \"https://a.test/{downstream_key}\", version: body.v}}}", "4: t: recovery.inspect.http.url must be filled in by what it asks about; write for example {resource.id}", false},
	"inspect without a version":   {"effect: unsafe\nrecovery: {inspect: {http: {url: \"https://a.test/{resource.id}\"}}}", "4: t: recovery.inspect.http.version is missing", true},
	"replay by an unknown caller": {"effect: unsafe\nreplay: {rule: \"caller.name == op.scope\"}", "4: t: replay.rule, at line 1, column 1 of the expression: can't be evaluated: undeclared reference to 'caller'", false},
	"replay by a word":            {"effect: unsafe\nreplay: {rule: \"caller.scope\"}", "4: t: replay.rule, at line 1, column 1 of the expression: must give true or false, and gives string", false},
}

func TestFaultsNameTheLineTheToolAndWhatToWrite(t *testing.T) {
	for name, c := range badContracts {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("contracts.yaml", []byte(c.file()))
			if err == nil {
				t.Fatal("accepted")
			}
			if want := "contracts.yaml:" + c.want; !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got  %s\nwant %s", err, want)
			}
		})
	}
}

func TestWhatIsAskedIsGood(t *testing.T) {
	for _, body := range []string{
		asked("effect", "effect"),
		asked("${file:/run/token}", "${env:TOKEN}"),
		asked("https://a.test", "http://127.0.0.1:8080"),
		asked("{authorization: \"${file:/run/token}\"}", "{accept: application/json}"),
		asked("{downstream_key}", "{attributes.order_id}"),
		asked("method: probe", "method: operator"), // while the owner wants people to look
	} {
		if _, err := Parse("contracts.yaml", []byte(badContract{body: body}.file())); err != nil {
			t.Errorf("%s\n%v", body, err)
		}
	}
}

func TestWholeFilesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "c.yaml:1: must be one valid YAML document"},
		"not a mapping":  {"[1]", "c.yaml:1: the file must be a mapping"},
		"no tools":       {"strict: true", "c.yaml:1: tools is missing"},
		"empty tools":    {"tools: {}", "c.yaml:1: tools must be a mapping of at least one tool"},
		"unknown key":    {"tools: {t: {effect: read}}\ntool: {}", "c.yaml:2: unknown key tool in the file"},
		"bad tool name":  {"tools: {1x: {effect: read}}", "c.yaml:1: a tool's name must be"},
		"tool twice":     {"tools:\n  t: {effect: read}\n  t: {effect: unsafe}", "c.yaml:3: t: the tool has two contracts, the other one at c.yaml:2; keep one of the two"},
		"null contract":  {"tools:\n  t:\n", "c.yaml:2: t: a tool's contract must be a mapping"},
		"broken":         {"tools:\n  t: {effect: [", "must be one valid YAML document"},
		"two documents":  {"tools: {t: {effect: read}}\n---\ntools: {}\n", "must be one valid YAML document"},
		"larger than 4M": {"# " + strings.Repeat("x", maxFile), "c.yaml: must have at most"},
		"an alias":       {"tools:\n  t: &t {effect: read}\n  u: *t", "c.yaml:3: must not refer to another place by *"},
		"an anchor":      {"tools:\n  t: {effect: &e read}", "c.yaml:2: must not name a place by &"},
		"a merge":        {"tools:\n  t: &t {effect: read}\n  u:\n    <<: *t\n", "c.yaml:2: must not name a place by &"},
		"a tag":          {"tools:\n  t: {effect: !!str read}", "c.yaml:2: must not tag a value by !"},
		"a tag of theirs": {
			"tools:\n  t: !exec {effect: read}", "c.yaml:2: must not tag a value by !",
		},
		"compensation by nobody, strict": {
			"strict: true\ntools:\n  t: {effect: unsafe, compensation: {tool: u, require_unchanged: false}}",
			"c.yaml:3: t: compensation.tool has no contract in this set, and strict refuses tools without one",
		},
		"compensation by a read": {
			"tools:\n  t: {effect: unsafe, compensation: {tool: u, require_unchanged: false}}\n  u: {effect: read}",
			"c.yaml:2: t: compensation.tool must have an effect of its own",
		},
		"compensation that nobody looks at": {
			"tools:\n  t: {effect: unsafe, recovery: {inspect: {grpc: {target: \"a.test:1\"}}}, compensation: {tool: u}}\n" +
				"  u: {effect: unsafe, recovery: {method: probe, probe: external, effect_within: 2m, verify: []}}",
			"c.yaml:2: t: compensation.tool leaves its questions to somebody else",
		},
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

func TestWhatIsAllowedAndLooksLikeAMistakeIsAWarning(t *testing.T) {
	for text, want := range map[string][]string{
		"tools:\n  t: {effect: unsafe, compensation: {tool: u, require_unchanged: false}}": {
			"contracts.yaml:2: t: compensation.tool has no contract in this set, so that it is unsafe and settled by people; declare it, or correct the name",
		},
		"tools:\n  t: {effect: unsafe, compensation: {tool: u, require_unchanged: false}}\n  u: {effect: unsafe}":                                                              nil,
		"tools:\n  t:\n    effect: unsafe\n    replay: {rule: \"caller.scope == op.scope\"}\n    recovery: {method: probe, probe: {grpc: {target: \"a.test:1\"}}, verify: []}": nil,
		"tools: {t: {effect: read}}": nil,
	} {
		var got []string
		for _, w := range parsed(t, text).Warnings() {
			got = append(got, w.Error())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
	}
}

func TestAllFaultsAreToldAtOnceInTheirOrderAndNoneShowsAValue(t *testing.T) {
	const canary = "canary4711"
	text := "tools:\n  t:\n    effect: " + canary + "\n    send_within: " + canary + "\n    attributes: [\"" + canary + " x\"]\n    max_attempts: " + canary +
		"\n    while_unknown: " + canary + "\n    recovery:\n      method: " + canary + "\n      verify: [" + canary + "]\n      guide: {" + canary + ": 1}\n      probe:\n        http:\n          url: https://" +
		canary + ".test\n          not_found: \"'" + canary + "' + body == 1 '\"\n          found: \"status == '" + canary + " " + canary + "'\"\n      inspect: {http: {url: \"https://a.test/{resource.id}\", version: \"'" + canary + "'\", headers: {authorization: " + canary + "}}}" +
		"\n    replay: {payload_limit: " + canary + "}\n    compensation: {tool: \"" + canary + " \"}\n"
	_, err := Parse("c.yaml", []byte(text))
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if n := len(lines); n != 16 {
		t.Errorf("%d faults, want 16:\n%s", n, err)
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("shows a value: %s", err)
	}
	last := 0
	for _, fault := range err.(interface{ Unwrap() []error }).Unwrap() {
		line := fault.(*Error).Line
		if line < last || line < 3 {
			t.Errorf("line %d after line %d", line, last)
		}
		last = line
	}
}

func TestWindowsAreJudgedOnceTheFormIsGood(t *testing.T) {
	// What could not be read is not judged by the default that stands in for it.
	_, err := Parse("c.yaml", []byte("tools: {t: {effect: idempotant, recovery: {method: regrant, effect_within: 2m}}}"))
	if err == nil || strings.Contains(err.Error(), "unsafe tool") || !strings.Contains(err.Error(), "effect must be one of") {
		t.Errorf("%v", err)
	}
}
