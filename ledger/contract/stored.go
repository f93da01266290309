// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

// storedSpec is the version of the stored form. A release reads all that came before it.
const storedSpec = 1

// storedForm is what a store keeps of a declaration, and what its version digests: the contract's own keys as JSON, each value in its one
// spelling, defaults filled in.
func storedForm(tool ledger.Tool, said *object) []byte {
	o := &object{}
	o.set("spec", int64(storedSpec))
	o.set("tool", string(tool))
	o.set("contract", said)
	return o.appendJSON(nil, false)
}

// Encode is the stored form of a declared contract, by which a record can be judged later, also by a process that has another file. Its
// digest is the contract's version.
func Encode(c Contract) []byte { return bytes.Clone(c.stored) }

// Decode reads a stored form. Its version is that of these bytes. Windows are not judged again: they were good by the rules of the release
// that read the file. An error means that this release can't read it, as it may be if a newer one wrote it.
func Decode(stored []byte) (Contract, error) {
	root, err := nodes(stored)
	if err != nil {
		return Contract{}, fmt.Errorf("stored contract: %w", err)
	}
	r := &reader{file: "stored contract", stored: true}
	top := r.section(root, "the stored form", &object{}, []string{"spec", "tool", "contract"})
	tool, body, spec := top.fields["tool"], top.fields["contract"], top.fields["spec"]
	switch {
	case len(r.faults) > 0:
	case spec == nil || spec.Value != strconv.Itoa(storedSpec):
		r.fault(spec, "spec must be %d", storedSpec)
	case tool == nil || !toolForm.MatchString(tool.Value):
		r.fault(tool, "tool must be %s", toolRule)
	case body == nil:
		r.fault(root, "contract is missing")
	}
	if len(r.faults) > 0 {
		return Contract{}, errors.Join(r.faults...)
	}
	r.tool = ledger.Tool(tool.Value)
	c := r.contract(r.tool, body)
	if len(r.faults) > 0 {
		return Contract{}, errors.Join(r.faults...)
	}
	c.stored = bytes.Clone(stored)
	c.Version = versionOf(stored)
	return c, nil
}

// YAML is the contract as it holds, with every default filled in, as a file that declares it.
func (c Contract) YAML() ([]byte, error) {
	tools, file := &object{}, &object{}
	tools.set(string(c.Tool), c.effective)
	file.set("tools", tools)
	root, err := nodes(file.appendJSON(nil, true))
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(root)
}

var errStored = errors.New("is not one JSON object without repeated names")

// nodes turns JSON into what the reader of files walks, so that one reader gives both their meaning.
func nodes(text []byte) (*yaml.Node, error) {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	root, err := nodeOf(d, 0)
	if err != nil {
		return nil, errStored
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errStored
	}
	return root, nil
}

func nodeOf(d *jsontext.Decoder, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, errStored
	}
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	scalar := func(tag string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: token.String()}, nil
	}
	switch token.Kind() {
	case 'n':
		return scalar("!!null")
	case 't', 'f':
		return scalar("!!bool")
	case '"':
		return scalar("!!str")
	case '0':
		if _, err := strconv.ParseUint(strings.TrimPrefix(token.String(), "-"), 10, 64); err != nil {
			return scalar("!!float") // as YAML sees it
		}
		return scalar("!!int")
	}
	node, end := &yaml.Node{Kind: yaml.SequenceNode}, jsontext.Kind(']')
	if token.Kind() == '{' {
		node.Kind, end = yaml.MappingNode, '}'
	}
	for d.PeekKind() != end {
		child, err := nodeOf(d, depth+1)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	_, err = d.ReadToken()
	return node, err
}
