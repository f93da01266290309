// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// maxFile bounds what is read before anything is known about it, in bytes.
	maxFile = 4 << 20
	// maxPayload is the largest payload_limit, in bytes: a result is a small answer, not a document store.
	maxPayload = 64 << 10
	maxStarts  = 1000
	maxFields  = 256
)

var (
	toolForm     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`)
	categoryForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	wordForm     = regexp.MustCompile(`^[!-~]{1,128}$`)
)

const (
	wordRule     = "a text (in quotes if need be) of 1 to 128 printable ASCII characters without space"
	categoryRule = "a to z, 0 to 9 and _, beginning with a letter, 32 at most"
)

// reserved categories have a meaning of their own: relations to other operations, and undeclared fields.
var reserved = []string{"relation", "other"}

// ParseFile reads and checks a file. The error joins every fault found, each an *Error, or is the operating system's.
func ParseFile(path string) (*Set, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read contracts: %w", err)
	}
	return Parse(path, data)
}

// Parse checks contracts; file is the name that errors show. The error joins every fault found, each an *Error.
func Parse(file string, data []byte) (*Set, error) {
	r := &reader{file: file}
	set := r.set(data)
	if len(r.faults) > 0 {
		return nil, errors.Join(r.faults...)
	}
	return set, nil
}

func (r *reader) set(data []byte) *Set {
	if len(data) > maxFile {
		r.fault(nil, "must have at most %d bytes", maxFile)
		return nil
	}
	// The document is walked as nodes: the decoder's own errors quote values, and its types hide what was written.
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		at := &yaml.Node{}
		var load *yaml.LoadError
		if errors.As(err, &load) {
			at.Line = load.Mark.Line
		}
		r.fault(at, "must be one valid YAML document that begins with tools:")
		return nil
	}
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	top := r.section(root, "the file", &declaration{}, []string{"tools", "strict"})
	set := &Set{tools: map[ledger.Tool]ledger.Contract{}}
	set.strict, _ = top.boolean("strict")
	tools := top.fields["tools"]
	switch {
	case root.Kind != yaml.MappingNode: // has been told
		return nil
	case tools == nil:
		r.fault(root, "tools is missing; write tools: {name: {effect: unsafe}}")
		return nil
	case tools.Kind != yaml.MappingNode || len(tools.Content) == 0:
		r.fault(tools, "tools must be a mapping of at least one tool's name to its contract; write tools: {name: {effect: unsafe}}")
		return nil
	}
	for i := 0; i+1 < len(tools.Content); i += 2 {
		name, body := tools.Content[i], tools.Content[i+1]
		tool := ledger.Tool(name.Value)
		_, twice := set.tools[tool]
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" || !toolForm.MatchString(name.Value):
			r.fault(name, "a tool's name must be a letter and then up to 127 letters, digits, '_', '.', '-'")
		case twice:
			r.fault(name, "the tool has two contracts; keep one of the two")
		default:
			set.tools[tool] = r.tool(tool, body)
		}
	}
	return set
}

func (r *reader) tool(tool ledger.Tool, node *yaml.Node) ledger.Contract {
	c := ledger.DefaultContract(tool)
	var said declaration
	s := r.section(node, "", &said,
		[]string{
			"effect", "lease", "send_within", "require_intent_time", "while_unknown", "max_attempts", "attributes", "request", "answers",
			"recovery", "replay", "retention",
		},
		"unique", "max_unknown", "irreversible", "approval", "compensation", "resolve")
	if node.Kind != yaml.MappingNode {
		return c
	}
	effect, ok := s.choice("effect", "read", "idempotent", "keyed", "unsafe")
	if ok {
		c.Effect = []ledger.Effect{ledger.Read, ledger.Idempotent, ledger.Keyed, ledger.Unsafe}[effect]
	} else if !s.has("effect") {
		r.fault(node, "effect is missing; write effect: unsafe unless you know that a repeat is harmless (read, idempotent) or is recognised by its key (keyed)")
	}
	// A query has no effect that an old key could repeat.
	c.RequireIntentTime = c.Effect != ledger.Read
	if v, ok := s.boolean("require_intent_time"); ok {
		c.RequireIntentTime = v
	}
	allow, _ := s.choice("while_unknown", "block", "allow")
	c.AllowWhileUnknown = allow == 1
	if n, ok := s.number("max_attempts", maxStarts); ok {
		c.MaxAttempts = uint32(n)
	}
	c.Attributes = s.list("attributes", wordRule, wordForm.MatchString)

	leases(s, &c)
	request(s, &c)
	answers(s, &c)
	recovery(s, &c)
	replay(s, &c)
	retention(s, &c)
	c.Version = said.version(string(tool))
	return c
}

func request(s section, c *ledger.Contract) {
	fields := s.sub("request", []string{"fields"}, "ignore")
	node := fields.fields["fields"]
	if node == nil {
		return
	}
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 || len(node.Content) > 2*maxFields {
		s.fault(node, "request.fields must be a mapping of 1 to %d top-level fields; write fields: {amount: {category: amount}}", maxFields)
		return
	}
	c.Categories = make(map[string]string, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, body := node.Content[i], node.Content[i+1]
		_, twice := c.Categories[name.Value]
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" || name.Value == "":
			s.fault(name, "request.fields must be named by texts; put the name in quotes")
			continue
		case twice:
			s.fault(name, "request.fields has a field twice; keep one of the two")
			continue
		}
		// Messages name the field: names are the owner's schema, not a request's content. In quotes, as they may hold anything.
		f := s.section(body, fmt.Sprintf("request.fields.%q", name.Value), s.said, []string{"category"}, "type", "currency", "default")
		category := f.fields["category"]
		switch {
		case body.Kind != yaml.MappingNode: // has been told
		case category == nil:
			s.fault(body, "%s.category is missing; write {category: amount}", f.at)
		case category.Kind != yaml.ScalarNode || !categoryForm.MatchString(category.Value) || slices.Contains(reserved, category.Value):
			s.fault(category, "%s.category must be %s, and not %s", f.at, categoryRule, strings.Join(reserved, " or "))
		default:
			c.Categories[name.Value] = category.Value
			s.said.say(f.path("category"), category.Value)
		}
	}
}

func answers(s section, c *ledger.Contract) {
	a := s.sub("answers", []string{"declined", "invalid", "sticky"})
	declined := a.list("declined", wordRule, wordForm.MatchString)
	invalid := a.list("invalid", wordRule, wordForm.MatchString)
	if slices.ContainsFunc(invalid, func(code string) bool { return slices.Contains(declined, code) }) {
		s.fault(a.where("invalid"), "answers.declined and answers.invalid share a code; keep it in one of the two")
	}
	c.RejectCodes = slices.Sorted(slices.Values(slices.Concat(declined, invalid)))
	c.StickyAnswers, _ = a.boolean("sticky")
	if c.StickyAnswers && len(c.RejectCodes) == 0 {
		s.fault(a.where("sticky"), "answers.sticky needs codes that stick; write answers: {declined: [code], sticky: true}")
	}
}

func replay(s section, c *ledger.Contract) {
	r := s.sub("replay", []string{"schemas", "payload_limit", "result_attributes"}, "rule")
	c.Schemas = r.list("schemas", wordRule, wordForm.MatchString)
	r.size("payload_limit", maxPayload, &c.PayloadLimit)
	c.ResultAttributes = r.list("result_attributes", wordRule, wordForm.MatchString)
}
