// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

type schema map[string]any

func theSchema(t testing.TB) schema {
	t.Helper()
	var s schema
	if err := json.Unmarshal(Schema, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// at resolves a reference.
func (s schema) at(root schema) schema {
	for s["$ref"] != nil {
		s = root["$defs"].(map[string]any)[strings.TrimPrefix(s["$ref"].(string), "#/$defs/")].(map[string]any)
	}
	return s
}

func below(s schema, key string) schema {
	child, _ := s[key].(map[string]any)
	return child
}

// notes are keywords that judge nothing.
var notes = []string{"$schema", "$comment", "$defs", "title", "description", "default", "examples"}

// judge applies the keywords of draft 2020-12 that the schema uses, and says where a value breaks one. A keyword that it does not know
// panics: what an editor would judge must not be passed over here.
func judge(root, s schema, path string, v any) []string {
	var out []string
	bad := func(keyword string) { out = append(out, path+": "+keyword) }
	nested := func(s any, path string, v any) []string { return judge(root, s.(map[string]any), path, v) }
	object, isObject := v.(map[string]any)
	list, isList := v.([]any)
	text, isText := v.(string)
	number, isNumber := v.(int)
	for keyword, rule := range s {
		limit := func() int { return int(rule.(float64)) }
		switch keyword {
		case "$ref":
			out = append(out, judge(root, schema{"$ref": rule}.at(root), path, v)...)
		case "type":
			_, isBool := v.(bool)
			if !map[string]bool{"object": isObject, "array": isList, "string": isText, "integer": isNumber, "boolean": isBool}[rule.(string)] {
				bad(keyword)
			}
		case "const":
			if !reflect.DeepEqual(rule, v) {
				bad(keyword)
			}
		case "enum":
			if !slices.ContainsFunc(rule.([]any), func(word any) bool { return word == v }) {
				bad(keyword)
			}
		case "pattern":
			if isText && !regexp.MustCompile(rule.(string)).MatchString(text) {
				bad(keyword)
			}
		case "minLength", "maxLength":
			if n := utf8.RuneCountInString(text); isText && (keyword == "minLength" && n < limit() || keyword == "maxLength" && n > limit()) {
				bad(keyword)
			}
		case "minimum", "maximum":
			if isNumber && (keyword == "minimum" && number < limit() || keyword == "maximum" && number > limit()) {
				bad(keyword)
			}
		case "minItems", "maxItems":
			if isList && (keyword == "minItems" && len(list) < limit() || keyword == "maxItems" && len(list) > limit()) {
				bad(keyword)
			}
		case "minProperties", "maxProperties":
			if isObject && (keyword == "minProperties" && len(object) < limit() || keyword == "maxProperties" && len(object) > limit()) {
				bad(keyword)
			}
		case "uniqueItems":
			for i := range list {
				if slices.ContainsFunc(list[:i], func(other any) bool { return reflect.DeepEqual(other, list[i]) }) {
					bad(keyword)
				}
			}
		case "items":
			for i, entry := range list {
				out = append(out, nested(rule, fmt.Sprint(path, "/", i), entry)...)
			}
		case "required":
			for _, key := range rule.([]any) {
				if _, there := object[key.(string)]; isObject && !there {
					bad(keyword)
				}
			}
		case "dependentRequired":
			for key, needs := range rule.(map[string]any) {
				_, there := object[key]
				for _, need := range needs.([]any) {
					if _, too := object[need.(string)]; there && !too {
						bad(keyword)
					}
				}
			}
		case "propertyNames":
			for key := range object {
				out = append(out, nested(rule, path+"/"+key, key)...)
			}
		case "properties":
			for key, child := range rule.(map[string]any) {
				if value, there := object[key]; there {
					out = append(out, nested(child, path+"/"+key, value)...)
				}
			}
		case "additionalProperties":
			for key, value := range object {
				switch _, known := below(s, "properties")[key]; {
				case known:
				case rule == false:
					bad(keyword + " " + key)
				default:
					out = append(out, nested(rule, path+"/"+key, value)...)
				}
			}
		case "not":
			if len(nested(rule, path, v)) == 0 {
				bad(keyword)
			}
		case "anyOf", "oneOf":
			fit := 0
			for _, one := range rule.([]any) {
				if len(nested(one, path, v)) == 0 {
					fit++
				}
			}
			if fit == 0 || keyword == "oneOf" && fit != 1 {
				bad(keyword)
			}
		default:
			if !slices.Contains(notes, keyword) {
				panic("a keyword that the test does not judge: " + keyword)
			}
		}
	}
	return out
}

// schemaFaults of a YAML text; a text that no editor would take for a document is one.
func schemaFaults(t testing.TB, text string) []string {
	t.Helper()
	var v any
	if err := yaml.Load([]byte(text), &v); err != nil {
		return []string{"not YAML"}
	}
	root := theSchema(t)
	return judge(root, root, "", v)
}

func TestTheSchemaTakesWhatIsGood(t *testing.T) {
	for _, file := range []string{"testdata/full.yaml", "testdata/design.yaml", "../../cmd/ledgerd/devcontracts.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if faults := schemaFaults(t, string(data)); faults != nil {
			t.Errorf("%s: %v", file, faults)
		}
	}
	set, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range set.Tools() {
		c, _ := set.Declared(tool)
		printed, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if faults := schemaFaults(t, string(printed)); faults != nil {
			t.Errorf("%s as printed: %v", tool, faults)
		}
	}
}

func TestTheSchemaRefusesWhatIsOfABadForm(t *testing.T) {
	for name, c := range badContracts {
		if faults := schemaFaults(t, c.file()); (faults != nil) != c.form {
			t.Errorf("%s: the schema says %v, want a fault: %v", name, faults, c.form)
		}
	}
}

// place of an object in the schema, and how a document looks that has one there.
type schemaObject struct {
	path   string
	schema schema
	around func(inner string) string
}

// objects of the schema that have fixed keys, from the outside in.
func (s schema) objects(root schema, path string, around func(string) string) []schemaObject {
	s = s.at(root)
	var out []schemaObject
	for _, choice := range []string{"anyOf", "oneOf"} {
		options, _ := s[choice].([]any)
		for _, option := range options {
			out = append(out, schema(option.(map[string]any)).objects(root, path, around)...)
		}
	}
	if items := below(s, "items"); items != nil {
		return append(out, items.objects(root, path, func(inner string) string { return around("[" + inner + "]") })...)
	}
	if s["type"] != "object" {
		return out
	}
	if s["additionalProperties"] == false {
		out = append(out, schemaObject{path, s, around})
	}
	properties := maps.Clone(below(s, "properties"))
	if more := below(s, "additionalProperties"); more != nil && below(s, "propertyNames")["not"] == nil {
		if properties == nil {
			properties = schema{}
		}
		properties["name"] = map[string]any(more)
	}
	for key, child := range properties {
		here := strings.TrimPrefix(path+"."+key, ".")
		out = append(out, schema(child.(map[string]any)).objects(root, here, func(inner string) string {
			return around("{" + key + ": " + inner + "}")
		})...)
	}
	return out
}

var knownKeys = regexp.MustCompile(`unknown key zzz in [^;]*; write one of ([a-z_, ]+)`)

// TestTheSchemaAndTheParserKnowTheSameKeys asks the parser, at each object of the schema, what it knows there.
func TestTheSchemaAndTheParserKnowTheSameKeys(t *testing.T) {
	root := theSchema(t)
	objects := root.objects(root, "", func(inner string) string { return inner })
	seen := map[string]bool{}
	for _, o := range objects {
		seen[o.path] = true
		_, err := Parse("c.yaml", []byte(o.around("{zzz: 1}")))
		if err == nil {
			t.Errorf("%s: an unknown key is accepted", o.path)
			continue
		}
		var known []string
		if m := knownKeys.FindStringSubmatch(err.Error()); m != nil {
			known = strings.Split(strings.TrimSpace(m[1]), ", ")
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(below(o.schema, "properties"))), slices.Sorted(slices.Values(known))); diff != "" {
			t.Errorf("%q: (-schema +parser)\n%s\n%v", o.path, diff, err)
		}
	}
	for _, path := range []string{"", "tools.name", "tools.name.recovery.probe.http.result", "tools.name.recovery.inspect.grpc", "tools.name.unique", "tools.name.request.fields.name"} {
		if !seen[path] {
			t.Errorf("%q was not looked at", path)
		}
	}
	if len(objects) < 20 {
		t.Errorf("only %d objects", len(objects))
	}
}
