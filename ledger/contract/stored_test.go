// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// leaf is one scalar of a document, and the mapping that its key belongs to.
type leaf struct {
	path  string
	value *yaml.Node
}

// leaves of a document, without the keys.
func leaves(node *yaml.Node, path string) []leaf {
	switch node.Kind {
	case yaml.ScalarNode:
		return []leaf{{path, node}}
	case yaml.MappingNode:
		var out []leaf
		for i := 0; i+1 < len(node.Content); i += 2 {
			out = append(out, leaves(node.Content[i+1], path+"/"+node.Content[i].Value)...)
		}
		return out
	default:
		var out []leaf
		for i, child := range node.Content {
			out = append(out, leaves(child, path+"/"+strconv.Itoa(i))...)
		}
		return out
	}
}

func full(t interface{ Fatal(...any) }) *yaml.Node {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		t.Fatal(err)
	}
	return document.Content[0]
}

func written(t interface{ Fatal(...any) }, root *yaml.Node) string {
	text, err := yaml.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// changed is another value of the same kind.
func changed(value string) string {
	n, err := strconv.Atoi(value)
	d, notDuration := time.ParseDuration(value)
	size, isSize := strings.CutSuffix(value, "KiB")
	other := map[string]string{
		"true": "false", "false": "true", "keyed": "idempotent", "read": "unsafe", "allow": "block", "probe": "operator", "caller": "approval",
		"application/json": "text/plain", "amount": "recipient", "recipient": "amount", "payments.refund": "payments.other",
	}[value]
	switch {
	case other != "":
		return other
	case err == nil:
		return strconv.Itoa(n + 1)
	case notDuration == nil:
		return (d + time.Second).String()
	case isSize:
		return size + "1B"
	case strings.Contains(value, "=="):
		return value + " "
	case strings.HasPrefix(value, "http"):
		return value + "&x=1"
	case strings.Contains(value, "${"):
		return strings.Replace(value, "}", "2}", 1)
	case strings.Contains(value, "body") || strings.HasPrefix(value, "'"):
		return "string(" + value + ")"
	case strings.HasSuffix(value, ":7443"):
		return value[:len(value)-1] + "4"
	default:
		return value + "2"
	}
}

func TestEachChangeOfAValueIsAnotherVersion(t *testing.T) {
	before, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root := full(t)
	tried := 0
	for _, l := range leaves(root, "") {
		old := *l.value
		l.value.Value = changed(old.Value)
		// A category and the lists that name it change together, or not at all; the same for what only goes together.
		after, err := Parse("c.yaml", []byte(written(t, root)))
		*l.value = old
		if err != nil || strings.HasPrefix(l.path, "/strict") {
			continue
		}
		tried++
		tool := ledger.Tool(strings.Split(l.path, "/")[2])
		a, _ := before.Contract(tool)
		b, _ := after.Contract(tool)
		if a.Version == b.Version {
			t.Errorf("%s has no part in the version", l.path)
		}
	}
	if tried < 50 {
		t.Errorf("only %d of the changes were good", tried)
	}
}

func TestEachKeyTakenAwayIsAnotherVersion(t *testing.T) {
	before, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := before.Contract("payments.charge")
	root := full(t)
	tried := 0
	var walk func(node *yaml.Node, path string)
	walk = func(node *yaml.Node, path string) {
		if node.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			here := path + "/" + node.Content[i].Value
			walk(node.Content[i+1], here)
			whole := node.Content
			node.Content = slices.Concat(whole[:i], whole[i+2:])
			after, err := Parse("c.yaml", []byte(written(t, root)))
			node.Content = whole
			if err != nil {
				continue
			}
			tried++
			got, _ := after.Contract("payments.charge")
			usual := slices.Contains([]string{"irreversible", "require_intent_time", "require_unchanged"}, node.Content[i].Value)
			if (got.Version == want.Version) != usual {
				t.Errorf("without %s the version is the same: %v, want %v", here, got.Version == want.Version, usual)
			}
		}
	}
	walk(root.Content[3].Content[1], "")
	if tried < 40 {
		t.Errorf("only %d were good without", tried)
	}
}

func TestSpellingOutWhatHoldsAnywayIsTheSameVersion(t *testing.T) {
	for _, body := range []string{
		"effect: unsafe", "effect: read", "effect: keyed", "effect: idempotent\nirreversible: true",
		"effect: unsafe\nrequire_intent_time: false", "effect: unsafe\nlease: {total: 40s}", "effect: unsafe\nrecovery: {verify: []}",
		"effect: unsafe\nrecovery: {checks: {give_up_after: 3s}}",
		"effect: keyed\nrecovery: {method: probe, probe: external, verify: [], repeat_when_absent: false}",
		"effect: unsafe\nrecovery: {repeat_when_absent: false}",
		`effect: unsafe
attributes: ["null", "1e3", "true", "~", "0x1", "2026-01-01", "no", "a:", "#b", "*c", "'d", "{e"]
recovery: {guide: "look: here\n  # there\n\nthere"}`,
	} {
		short, _ := parsed(t, badContract{body: body}.file()).Declared("t")
		text, err := short.YAML()
		if err != nil {
			t.Fatal(err)
		}
		long, _ := parsed(t, string(text)).Declared("t")
		kept, err := Decode(Encode(short))
		if diff := cmp.Diff(short.Contract, kept.Contract); diff != "" || err != nil {
			t.Errorf("%s, stored: %v\n%s", body, err, diff)
		}
		if diff := cmp.Diff(short.Contract, long.Contract); diff != "" || !bytes.Contains(text, []byte("send_within:")) {
			t.Errorf("%s\n%s\n%s", body, text, diff)
		}
	}
}

// TestAVersionDoesNotMove holds the form by which records name what they were judged by: it changes in no release.
func TestAVersionDoesNotMove(t *testing.T) {
	short, _ := parsed(t, "tools: {t: {effect: keyed, lease: {default: 60s, max: 2m}, attributes: [b, a]}}").Declared("t")
	const stored = `{"contract":{"approval":{"corrections":true,"expires":"1h"},"attributes":["a","b"],"effect":"keyed",` +
		`"lease":{"default":"1m","max":"2m","total":"2m"},"max_attempts":5,` +
		`"recovery":{"checks":{"first":"5s","give_up_after":"24h","max_interval":"10m","timeout":"10s"},"limits":{"concurrency":4,"per_second":5}},` +
		`"replay":{"payload_limit":"16KiB"},"require_intent_time":true,"resolve":{"proposal_expires":"8h"},` +
		`"retention":{"completed":"720h","history":"9600h","retry_window":"168h","tombstone":"9600h"},"send_within":"30s"},"spec":1,"tool":"t"}`
	if got := string(Encode(short)); got != stored {
		t.Errorf("the stored form is\n%s\nwant\n%s", got, stored)
	}
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(short.Version) || short.Version != "0cca8f9a4979a9ae" {
		t.Errorf("the version is %s", short.Version)
	}
}

func TestTheVersionIsThatOfTheDeclarationNotOfItsSpelling(t *testing.T) {
	base, _ := parsed(t, "tools:\n  t: {effect: keyed, lease: {default: 60s, max: 2m, total: 2m}, attributes: [a, b], replay: {payload_limit: 1KiB}}").Contract("t")
	same, _ := parsed(t, "tools:\n  other: {effect: read}\n  t: # said otherwise\n    replay:\n      payload_limit: 1024B\n    attributes: ['b', \"a\"]\n    lease:\n        total: 120s\n        max: 2m\n        default: 1m\n    effect: keyed").Contract("t")
	if diff := cmp.Diff(base, same); diff != "" {
		t.Error(diff)
	}
	const rules = "tools: {t: {effect: keyed, request: {fields: {a: {category: a}, b: {category: b}}}, unique: [%s]}}"
	one, _ := parsed(t, fmt.Sprintf(rules, "{by: [a], within: 1m}, {by: [b], within: 2m}")).Contract("t")
	other, _ := parsed(t, fmt.Sprintf(rules, "{by: [b], within: 120s}, {within: 60s, by: [a]}")).Contract("t")
	if diff := cmp.Diff(one, other); diff != "" {
		t.Errorf("rules in another order: %s", diff)
	}
	two := parsed(t, "tools: {a: {effect: read}, b: {effect: read}}")
	a, _ := two.Contract("a")
	b, _ := two.Contract("b")
	if a.Version == b.Version {
		t.Error("two tools share a version")
	}
}

// shape is what of a contract can be compared.
func shape(c Contract) any {
	type query struct {
		Address []part
		Headers []Header
		Says    []bool
	}
	var q query
	var p Probe
	if c.Probe != nil {
		p = *c.Probe
		if h := p.HTTP; h != nil {
			q = query{Address: h.address.parts, Headers: h.headers}
			for _, says := range h.says {
				q.Says = append(q.Says, says != nil)
			}
			q.Says = append(q.Says, h.created != nil, h.id != nil, h.kind != nil, h.uri != nil, h.version != nil, h.code != nil)
			for range h.observed {
				q.Says = append(q.Says, true)
			}
		}
		p.HTTP = nil
	}
	return []any{c.Contract, p, q, c.Inspect != nil, c.Replay != nil}
}

// TestWhatIsStoredIsWhatWasDeclared: for any declaration, in any order of its keys.
func TestWhatIsStoredIsWhatWasDeclared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := full(t)
		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			vary(t, root)
		}
		text := written(t, root)
		set, err := Parse("c.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		shuffle(t, root)
		again, err := Parse("c.yaml", []byte(written(t, root)))
		if err != nil {
			t.Fatalf("good, and not in another order: %v\n%s", err, text)
		}
		for _, tool := range set.Tools() {
			c, _ := set.Declared(tool)
			d, err := Decode(Encode(c))
			if err != nil {
				t.Fatalf("%v\n%s", err, Encode(c))
			}
			other, _ := again.Declared(tool)
			printed, err := c.YAML()
			if err != nil {
				t.Fatal(err)
			}
			spelled, err := Parse("printed.yaml", printed)
			if err != nil {
				t.Fatalf("%v\n%s", err, printed)
			}
			e, _ := spelled.Declared(tool)
			for how, got := range map[string]Contract{"stored": d, "in another order": other, "printed": e} {
				if diff := cmp.Diff(shape(c), shape(got), cmp.AllowUnexported(part{})); diff != "" || !bytes.Equal(Encode(c), Encode(got)) {
					t.Fatalf("%s, it is another one: %s\n%s\n%s", how, diff, Encode(c), Encode(got))
				}
			}
		}
	})
}

// vary changes a value or takes a key away, if the declaration stays good.
func vary(t *rapid.T, root *yaml.Node) {
	var undo func()
	if all := leaves(root, ""); rapid.Bool().Draw(t, "value") {
		value := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")].value
		old := value.Value
		value.Value, undo = changed(old), func() { value.Value = old }
	} else {
		all := mappings(root)
		node := all[rapid.IntRange(0, len(all)-1).Draw(t, "where")]
		old := node.Content
		i := 2 * rapid.IntRange(0, len(old)/2-1).Draw(t, "which")
		node.Content, undo = slices.Concat(old[:i], old[i+2:]), func() { node.Content = old }
	}
	if _, err := Parse("c.yaml", []byte(written(t, root))); err != nil {
		undo()
	}
}

func mappings(node *yaml.Node) []*yaml.Node {
	var out []*yaml.Node
	if node.Kind == yaml.MappingNode && len(node.Content) > 0 {
		out = append(out, node)
	}
	for _, child := range node.Content {
		out = append(out, mappings(child)...)
	}
	return out
}

func shuffle(t *rapid.T, node *yaml.Node) {
	for _, child := range node.Content {
		shuffle(t, child)
	}
	if node.Kind != yaml.MappingNode {
		return
	}
	pairs := map[int][]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		pairs[i] = node.Content[i : i+2]
	}
	var out []*yaml.Node
	for _, i := range rapid.Permutation(slices.Sorted(maps.Keys(pairs))).Draw(t, "order") {
		out = append(out, pairs[i]...)
	}
	node.Content = out
}

func TestWhatIsNoStoredContractIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":           {"", "stored contract: is not one JSON object"},
		"YAML":              {"spec: 1", "is not one JSON object"},
		"two":               {"{} {}", "is not one JSON object"},
		"a list":            {"[]", "must be a mapping"},
		"a name twice":      {`{"spec":1,"spec":1}`, "is not one JSON object"},
		"a later form":      {`{"spec":2,"tool":"t","contract":{"effect":"read"}}`, "spec must be 1"},
		"no form":           {`{"tool":"t","contract":{"effect":"read"}}`, "spec must be 1"},
		"no tool":           {`{"spec":1,"contract":{"effect":"read"}}`, "tool must be"},
		"no contract":       {`{"spec":1,"tool":"t"}`, "contract is missing"},
		"a key of tomorrow": {`{"spec":1,"tool":"t","contract":{"effect":"read","colour":"red"}}`, "unknown key colour"},
		"a broken value":    {`{"spec":1,"tool":"t","contract":{"effect":"read","send_within":30}}`, "send_within must be"},
		"deep":              {strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), "is not one JSON object"},
	} {
		if _, err := Decode([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestAVersionIsThatOfTheBytesThatAreStored(t *testing.T) {
	a, err := Decode([]byte(`{"contract":{"effect":"read"},"spec":1,"tool":"t"}`))
	b, err2 := Decode([]byte(`{"spec":1,"tool":"t","contract":{"effect":"read"}}`))
	if err != nil || err2 != nil || a.Version == b.Version || a.Version == "" {
		t.Errorf("%v, %v: %s and %s", err, err2, a.Version, b.Version)
	}
}

func TestWhatWasGoodWhenItWasStoredIsNotJudgedAgain(t *testing.T) {
	// A release that asks for more than the one that read the file still judges old records by their own version.
	c, err := Decode([]byte(`{"contract":{"effect":"unsafe","lease":{"default":"30s","max":"20s"}},"spec":1,"tool":"t"}`))
	if err != nil || c.LeaseMax != 20*time.Second || c.Tool != "t" {
		t.Errorf("%v, lease.max %s", err, c.LeaseMax)
	}
}
