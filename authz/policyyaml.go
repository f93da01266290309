// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// The strict reading of YAML nodes: what the decoder would let pass (unknown and
// repeated keys, aliases, a number where a name is meant, an empty list) is a
// fault with its line.

// mapping returns the values of a mapping by key, nil after a fault that leaves
// nothing to look at.
func (c *policyParser) mapping(node *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		c.fault(node.Line, "%s must be a mapping with %s", what, strings.Join(known, ", "))
		return nil
	}
	fields := make(map[string]*yaml.Node, len(known))
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case !contains(known, key):
			c.fault(key.Line, "unknown key in %s; write one of %s", what, strings.Join(known, ", "))
		case fields[key.Value] != nil:
			c.fault(key.Line, "%s is given twice; keep one of the two", key.Value)
		default:
			fields[key.Value] = value
		}
	}
	return fields
}

func contains(known []string, key *yaml.Node) bool {
	if key.Kind != yaml.ScalarNode {
		return false
	}
	for _, name := range known {
		if name == key.Value {
			return true
		}
	}
	return false
}

func (c *policyParser) required(node *yaml.Node, fields map[string]*yaml.Node, what string, names ...string) bool {
	ok := true
	for _, name := range names {
		if fields[name] == nil {
			c.fault(node.Line, "%s needs %s", what, name)
			ok = false
		}
	}
	return ok
}

// optionalList returns the entries of a list; a list that is there is not empty.
func (c *policyParser) optionalList(node *yaml.Node, field string) []*yaml.Node {
	if node == nil {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		c.fault(node.Line, "%s must be a list", field)
		return nil
	}
	if len(node.Content) == 0 {
		c.fault(node.Line, "%s is empty, and empty means nobody; name at least one, or remove what the list belongs to", field)
	}
	return node.Content
}

func (c *policyParser) text(node *yaml.Node, field string) (string, bool) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" || node.Value == "" {
		c.fault(node.Line, "%s must be a text; put it in quotes", field)
		return "", false
	}
	return node.Value, true
}

// texts returns the entries of a list of texts, none of them twice.
func (c *policyParser) texts(node *yaml.Node, field string) []placed {
	seen := make(map[string]int)
	var texts []placed
	for _, entry := range c.optionalList(node, field) {
		text, ok := c.text(entry, field)
		if !ok {
			continue
		}
		if line, again := seen[text]; again {
			c.fault(entry.Line, "%s: the same entry is at line %d; keep one of the two", field, line)
			continue
		}
		seen[text] = entry.Line
		texts = append(texts, placed{pattern: text, line: entry.Line})
	}
	return texts
}
