// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// declared is where a file declares the fields of requests, and ignores paths.
type declared struct {
	fields  map[string]section
	ignored map[string]int // the entry
}

// request reads what the fields of requests mean. Whether the declarations can be used, and go together, package fingerprint judges. What it has
// once accepted it accepts in later releases: a stored contract is judged, too.
func request(s section, c *ledger.Contract) {
	r := s.sub("request", []string{"fields", "ignore"})
	d := declared{fields: map[string]section{}, ignored: map[string]int{}}
	d.readFields(r, c)
	d.readIgnored(r, c)
	_, err := fingerprint.RulesOf(*c)
	for _, fault := range parts(err) {
		var broken *fingerprint.FieldError
		switch {
		case !errors.As(fault, &broken):
			s.fault(r.node, "request: %s", fault)
		case broken.Ignored:
			i := d.ignored[broken.Path]
			s.fault(r.fields["ignore"].Content[i], "entry %d of request.ignore %s", i+1, broken.Rule)
		case broken.Part == "":
			s.fault(d.fields[broken.Path].node, "%s %s", d.fields[broken.Path].at, broken.Rule)
		default:
			f := d.fields[broken.Path]
			s.fault(f.where(broken.Part), "%s %s", f.path(broken.Part), broken.Rule)
		}
	}
}

// parts takes a joined error apart.
func parts(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &joined):
		return joined.Unwrap()
	}
	return []error{err}
}

func (d declared) readFields(r section, c *ledger.Contract) {
	node := r.fields["fields"]
	if node == nil {
		return
	}
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
		r.fault(node, "request.fields must be a mapping of fields to what they are; write fields: {amount: {category: amount}}")
		return
	}
	said := r.said.sub("fields")
	c.Fields = make(map[string]ledger.RequestField, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, body := node.Content[i], node.Content[i+1]
		path := onePath(name.Value)
		_, twice := c.Fields[path]
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" || name.Value == "" || len(name.Value) > maxFieldName:
			r.fault(name, "request.fields must be named by texts of at most %d bytes; put the name in quotes", maxFieldName)
			continue
		case twice:
			r.fault(name, "request.fields has a field twice; keep one of the two")
			continue
		}
		// Messages name the field: names are the owner's schema, not a request's content. In quotes, as they may hold anything.
		f := r.section(body, fmt.Sprintf("request.fields.%q", name.Value), said.sub(path), []string{"type", "currency", "category", keyDefault})
		c.Fields[path], d.fields[path] = f.requestField(), f
	}
}

func (f section) requestField() ledger.RequestField {
	field := ledger.RequestField{Currency: onePath(f.word("currency")), Category: f.word("category"), Default: f.json(keyDefault)}
	if f.has("type") {
		var names []string
		for _, t := range fingerprint.Types() {
			names = append(names, string(t))
		}
		field.Type = names[f.choice("type", names...)]
		f.said.set("type", field.Type) // it has no usual value
	}
	if field.Currency != "" {
		f.said.set("currency", field.Currency)
	}
	if field.Category == fingerprint.CategoryOther {
		f.fault(f.where("category"), "%s must not be other, which is for fields without a category; write another word", f.path("category"))
	}
	return field
}

func (d declared) readIgnored(r section, c *ledger.Contract) {
	node := r.fields["ignore"]
	if node == nil {
		return
	}
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		r.fault(node, "request.ignore must be a list of at least one field; write for example [trace_id]")
		return
	}
	for i, entry := range node.Content {
		path := onePath(entry.Value)
		_, twice := d.ignored[path]
		switch {
		case entry.Kind != yaml.ScalarNode || entry.ShortTag() != "!!str" || len(entry.Value) > maxFieldName:
			r.fault(entry, "each entry of request.ignore must be a text of at most %d bytes, the name or path of a field; put it in quotes", maxFieldName)
		case twice:
			r.fault(entry, "request.ignore has an entry twice; keep one of the two")
		default:
			c.Ignored = append(c.Ignored, path)
			d.ignored[path] = i
		}
	}
	slices.Sort(c.Ignored) // their order says nothing
	r.said.set("ignore", c.Ignored)
}

// onePath is a path in one of its spellings: a bare name, where it is one. What is no path stays, and is a fault.
func onePath(text string) string {
	pointer, ok := fingerprint.Pointer(text)
	if !ok {
		return text
	}
	if name := pointer[1:]; !strings.Contains(name, "/") && name != "" {
		return name
	}
	return pointer
}

// shownBy are the members of an observation in which the fields of a category lie, and the currencies of its money.
func shownBy(c *ledger.Contract, category string) []string {
	names := map[string]bool{}
	for path, f := range c.Fields {
		if f.Category != category {
			continue
		}
		names[topmost(path)] = true
		if f.Currency != "" {
			names[topmost(f.Currency)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// topmost is the name of the request's own member that a path leads through.
func topmost(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
}

// word reads a text whose form is judged elsewhere.
func (s section) word(key string) string {
	node := s.fields[key]
	if node == nil {
		return ""
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" || node.Value == "" || len(node.Value) > maxFieldName {
		s.fault(node, "%s must be a text of at most %d bytes; put it in quotes, or remove it", s.path(key), maxFieldName)
		return ""
	}
	s.said.set(key, node.Value)
	return node.Value
}

// json reads any value as the canonical JSON text of it.
func (s section) json(key string) string {
	node := s.fields[key]
	if node == nil {
		return ""
	}
	text, ok := jsonOf([]byte(`{"":`), node)
	if ok {
		var err error
		text, err = fingerprint.Text(append(text, '}'), fingerprint.Rules{})
		ok = err == nil
	}
	if !ok {
		s.fault(node, "%s must be a value that JSON can write: a text in quotes, a number as JSON writes it, true, false, null, a list, or a mapping of texts", s.path(key))
		return ""
	}
	value := string(text[len(`{"":`) : len(text)-1])
	s.said.set(key, anyJSON(value))
	return value
}

// jsonOf appends a node as JSON; false if it can't be written so.
func jsonOf(b []byte, node *yaml.Node) (_ []byte, ok bool) {
	switch node.Kind {
	case yaml.ScalarNode:
		return jsonScalar(b, node)
	case yaml.SequenceNode:
		b = append(b, '[')
		for i, e := range node.Content {
			if i > 0 {
				b = append(b, ',')
			}
			if b, ok = jsonOf(b, e); !ok {
				return b, false
			}
		}
		return append(b, ']'), true
	case yaml.MappingNode:
		b = append(b, '{')
		for i := 0; i+1 < len(node.Content); i += 2 {
			if i > 0 {
				b = append(b, ',')
			}
			name := node.Content[i]
			if name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" {
				return b, false
			}
			if b, ok = jsonOf(append(quoted(b, name.Value), ':'), node.Content[i+1]); !ok {
				return b, false
			}
		}
		return append(b, '}'), true
	default:
		return b, false
	}
}

func jsonScalar(b []byte, node *yaml.Node) ([]byte, bool) {
	switch node.ShortTag() {
	case "!!null":
		return append(b, "null"...), true
	case "!!bool":
		return strconv.AppendBool(b, strings.EqualFold(node.Value, "true")), true
	case "!!int", "!!float":
		number := jsontext.Value(node.Value)
		return append(b, number...), number.IsValid() && number.Kind() == '0'
	case "!!str", "!!timestamp": // a time without quotes is meant as it is written
		return quoted(b, node.Value), true
	default:
		return b, false
	}
}
