// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "../../docs/contracts.md"

func docs(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var example = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestThePagesExamplesAreGood(t *testing.T) {
	blocks := example.FindAllStringSubmatch(docs(t), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d examples", len(blocks))
	}
	keys := map[string]bool{}
	for _, block := range blocks {
		set, err := Parse("example.yaml", []byte(block[1]))
		if err != nil {
			t.Fatalf("%s\n%v", block[1], err)
		}
		for _, tool := range set.Tools() {
			c, _ := set.Declared(tool)
			keysOf(c.effective, "", keys)
			for _, field := range c.effective.sub("request").sub("fields").values {
				keysOf(field.(*object), "request.fields.amount", keys) // whatever its name
			}
		}
		if faults := schemaFaults(t, block[1]); faults != nil {
			t.Errorf("%s\n%v", block[1], faults)
		}
	}
	for path := range described(t) {
		leaf := strings.NewReplacer("NAME", "amount").Replace(path)
		if !keys[leaf] && path != "strict" {
			t.Errorf("no example has %s", path)
		}
	}
}

func keysOf(o *object, path string, keys map[string]bool) {
	for key, value := range o.values {
		here := strings.TrimPrefix(path+"."+key, ".")
		keys[here] = true
		if below, ok := value.(*object); ok {
			keysOf(below, here, keys)
		}
		if list, ok := value.([]*object); ok {
			for _, below := range list {
				keysOf(below, here, keys)
			}
		}
	}
}

// described are the schema's keys and what it says of each.
func described(t testing.TB) map[string]string {
	root := theSchema(t)
	out := map[string]string{}
	for _, o := range root.objects(root, "", func(inner string) string { return inner }) {
		path := strings.TrimPrefix(strings.TrimPrefix(o.path, "tools.name"), ".")
		path = strings.Replace(path, "fields.name", "fields.NAME", 1)
		for key, child := range below(o.schema, "properties") {
			if o.path == "" && key == "tools" {
				continue
			}
			out[strings.TrimPrefix(path+"."+key, ".")] = fmt.Sprint(child.(map[string]any)["description"])
		}
	}
	return out
}

var row = regexp.MustCompile("(?m)^\\| `([A-Za-z_.]+)` \\| (.*) \\|$")

func TestThePageSaysOfEachKeyWhatTheSchemaSays(t *testing.T) {
	_, table, _ := strings.Cut(docs(t), "## Each key")
	table, _, _ = strings.Cut(table, "\n## ")
	got := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		got[m[1]] = m[2]
	}
	if diff := cmp.Diff(described(t), got); diff != "" {
		t.Errorf("(-schema +page)\n%s", diff)
	}
	if slices.Contains(slices.Collect(maps.Values(got)), "") {
		t.Error("a key is not described")
	}
}
