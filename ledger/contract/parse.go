// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// maxFile bounds what is read before anything is known about it, in bytes.
	maxFile = 4 << 20
	// maxPayload is the largest payload_limit, in bytes: a result is a small answer, not a document store.
	maxPayload = 64 << 10
	maxStarts  = 1000
	maxEntries = 256
	// maxUnknowns is the largest max_unknown.
	maxUnknowns = 1_000_000
	maxRules    = 8
	// maxFieldName bounds the name of a request's field, in bytes.
	maxFieldName = 128
)

var (
	toolForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`)
	wordForm = regexp.MustCompile(`^[!-~]{1,128}$`)
)

const (
	toolRule     = "a letter and then up to 127 letters, digits, '_', '.', '-'"
	wordRule     = "a text (in quotes if need be) of 1 to 128 printable ASCII characters without space"
	declaredRule = "a category that request.fields declares"
)

// File is one file of contracts and its content. Name is what errors show.
type File struct {
	Name string
	Data []byte
}

// Parse checks the contracts of one file. The error joins every fault found, each an *Error.
func Parse(file string, data []byte) (*Set, error) {
	return ParseFiles(File{Name: file, Data: data})
}

// ParseFiles checks files that together are one set: a tool has one contract in all of them. The error joins every fault found, each
// an *Error.
func ParseFiles(files ...File) (*Set, error) {
	p := &parser{set: &Set{tools: map[ledger.Tool]Contract{}}, tools: map[ledger.Tool]place{}}
	for _, f := range files {
		r := &reader{file: f.Name}
		if root := r.document(f.Data); root != nil {
			p.file(r, root)
		}
		slices.SortStableFunc(r.faults, func(a, b error) int { return a.(*Error).Line - b.(*Error).Line })
		p.faults = append(p.faults, r.faults...)
		p.set.warnings = append(p.set.warnings, r.warnings...)
	}
	p.together()
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return p.set, nil
}

// place is where something was declared.
type place struct {
	reader *reader
	node   *yaml.Node
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.reader.file, p.node.Line) }

// parser gathers a set out of files.
type parser struct {
	set    *Set
	strict *place // where strict was first given
	tools  map[ledger.Tool]place
	faults []error
}

func (p *parser) file(r *reader, root *yaml.Node) {
	top := r.section(root, "the file", &object{}, []string{"tools", "strict"})
	if root.Kind != yaml.MappingNode || len(root.Content) == 0 { // has been told
		return
	}
	p.strictness(top)
	tools := top.fields["tools"]
	switch {
	case tools == nil && !top.has("strict") && len(r.faults) == 0:
		r.fault(root, "tools is missing; write tools: {name: {effect: unsafe}}")
		return
	case tools == nil:
		return
	case tools.Kind != yaml.MappingNode || len(tools.Content) == 0:
		r.fault(tools, "tools must be a mapping of at least one tool's name to its contract; write tools: {name: {effect: unsafe}}")
		return
	}
	for i := 0; i+1 < len(tools.Content); i += 2 {
		name, body := tools.Content[i], tools.Content[i+1]
		tool := ledger.Tool(name.Value)
		other, twice := p.tools[tool]
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" || !toolForm.MatchString(name.Value):
			r.fault(name, "a tool's name must be %s", toolRule)
		case twice:
			r.tool = tool
			r.fault(name, "the tool has two contracts, the other one at %s; keep one of the two", other)
		default:
			r.tool = tool
			p.tools[tool] = place{r, name}
			p.set.tools[tool] = r.contract(tool, body)
		}
		r.tool = ""
	}
}

func (p *parser) strictness(top section) {
	if !top.has("strict") {
		return
	}
	strict := false
	top.boolean("strict", &strict)
	switch {
	case p.strict == nil:
		p.strict = &place{top.reader, top.fields["strict"]}
		p.set.strict = strict
	case strict != p.set.strict:
		top.fault(top.fields["strict"], "strict must be the same in every file of a set, and is otherwise at %s; keep one of the two", *p.strict)
	}
}

// together judges what no contract shows by itself.
func (p *parser) together() {
	if len(p.set.tools) == 0 && len(p.faults) == 0 {
		e := &Error{Rule: "tools is missing; write tools: {name: {effect: unsafe}}"}
		if p.strict != nil {
			e = p.strict.reader.errorAt(p.strict.node, "%s", e.Rule)
		}
		p.faults = append(p.faults, e)
	}
	for _, tool := range slices.Sorted(maps.Keys(p.set.tools)) {
		c := p.set.tools[tool]
		if c.Compensation == "" || c.Compensation == tool { // a tool that undoes itself has been told
			continue
		}
		p.set.undoneBy(c)
		r, node := p.tools[tool].reader, c.compensationAt
		r.tool = tool
		by, declared := p.set.tools[c.Compensation]
		switch {
		case !declared && p.set.strict:
			p.faults = append(p.faults, r.errorAt(node, "compensation.tool has no contract in this set, and strict refuses tools without one; declare it, or correct the name"))
		case !declared:
			p.set.warnings = append(p.set.warnings, r.errorAt(node, "compensation.tool has no contract in this set, so that it is unsafe and settled by people; declare it, or correct the name"))
		case by.Probe != nil && by.Probe.External && c.undone.requireUnchanged:
			p.faults = append(p.faults, r.errorAt(node, "compensation.tool leaves its questions to somebody else (probe: external), and so nobody would ask whether the resource is as it was left; let it be asked by http or grpc, or write require_unchanged: false"))
		case by.Effect == ledger.Read:
			p.faults = append(p.faults, r.errorAt(node, "compensation.tool must have an effect of its own, and is declared as read; name the tool that undoes this one"))
		}
		r.tool = ""
	}
}

// contract reads what is declared about one tool.
func (r *reader) contract(tool ledger.Tool, node *yaml.Node) Contract {
	c := Contract{Contract: ledger.DefaultContract(tool)}
	c.undone = undoing{c.RequireUnchanged, c.FreshFor, c.PerOriginal}
	defer r.tell(len(r.faults))
	said := &object{}
	s := r.section(node, "", said, []string{
		"effect", "irreversible", "lease", "send_within", "max_attempts", "request", "unique", "while_unknown", "require_intent_time", "max_unknown",
		"attributes", "answers", "recovery", "replay", "retention", "compensation", "approval", "resolve",
	})
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
		return c
	}
	effect(s, &c.Contract)
	s.boolean("irreversible", &c.Irreversible)
	// A query has no effect that an old key could repeat.
	c.RequireIntentTime = c.Effect != ledger.Read
	s.boolean("require_intent_time", &c.RequireIntentTime)
	c.AllowWhileUnknown = s.choice("while_unknown", "block", "allow") == 1
	number(s, "max_attempts", maxStarts, &c.MaxAttempts)
	number(s, "max_unknown", maxUnknowns, &c.MaxUnknown)
	c.Attributes = s.list("attributes", wordRule, wordForm.MatchString)

	leases(s, &c.Contract)
	request(s, &c.Contract)
	unique(s, &c.Contract)
	answers(s, &c.Contract)
	recovery(s, &c)
	replay(s, &c)
	retention(s, &c.Contract)
	compensation(s, &c)
	people(s, &c.Contract)
	harmless(s, &c)
	c.stored = storedForm(tool, said)
	c.effective = said
	c.Version = versionOf(c.stored)
	return c
}

func effect(s section, c *ledger.Contract) {
	if !s.has("effect") {
		s.fault(s.node, "effect is missing; write effect: unsafe unless you know that a repeat is harmless (read, idempotent) or is recognised by its key (keyed)")
		return
	}
	words := []string{"read", "idempotent", "keyed", "unsafe"}
	class := s.choice("effect", words...)
	c.Effect = []ledger.Effect{ledger.Read, ledger.Idempotent, ledger.Keyed, ledger.Unsafe}[class]
	s.said.set("effect", words[class]) // it has no usual value
}
