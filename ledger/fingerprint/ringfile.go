// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ParseRing reads a ring of secrets:
//
//	primary: "k2"
//	secrets:
//	  - {id: "k1", secret: "<base64, at least 32 bytes>"}
//	  - {id: "k2", secret: "<base64, at least 32 bytes>"}
//	unique_secret: "<base64, at least 32 bytes>"
//
// The first two keys of the file and both of each entry are required; the last
// is for contracts with unique rules, and never changes. None other is allowed.
// An error names file, line, field and rule, and nothing that the file says:
// a secret may stand in the wrong place.
func ParseRing(file string, data []byte) (*Ring, error) {
	// The document is walked as nodes: the decoder's own errors quote values.
	f := ringFile{name: file}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		line := 0
		var load *yaml.LoadError
		if errors.As(err, &load) {
			line = load.Mark.Line
		}
		return nil, f.failAt(line, "", "must be one valid YAML document")
	}
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	top, err := f.mapping(root, "", []string{"primary", "secrets"}, uniqueSecret)
	if err != nil {
		return nil, err
	}
	primary, err := f.text(top["primary"], "primary")
	if err != nil {
		return nil, err
	}
	list := top["secrets"]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, f.fail(list, "secrets", "must be a list with at least one entry")
	}
	secrets, places := make([]Secret, 0, len(list.Content)), map[string]string{}
	for i, node := range list.Content {
		s, err := f.secret(node, fmt.Sprintf("secrets[%d]", i))
		if err != nil {
			return nil, err
		}
		secrets, places[s.id] = append(secrets, s), f.place(node.Line)
	}
	ring, err := NewRing(primary, secrets...)
	var fault *ringFault
	switch {
	case errors.As(err, &fault) && fault.entry < 0:
		return nil, f.fail(top["primary"], fault.at(), fault.rule)
	case errors.As(err, &fault):
		return nil, f.fail(list.Content[fault.entry], fault.at(), fault.rule)
	case err != nil:
		return nil, err
	}
	if node := top[uniqueSecret]; node != nil {
		key, err := f.key(node, uniqueSecret)
		if err != nil {
			return nil, err
		}
		if err := ring.SetUnique(key); err != nil {
			return nil, fmt.Errorf("%s: %w", f.place(node.Line), err)
		}
		places[UniqueID] = f.place(node.Line)
	}
	ring.current.Load().places = places
	return ring, nil
}

type ringFile struct{ name string }

func (f ringFile) secret(node *yaml.Node, at string) (Secret, error) {
	entry, err := f.mapping(node, at, []string{"id", "secret"})
	if err != nil {
		return Secret{}, err
	}
	id, err := f.text(entry["id"], at+".id")
	if err != nil {
		return Secret{}, err
	}
	if !secretID.MatchString(id) {
		return Secret{}, f.fail(entry["id"], at+".id", ruleSecretID)
	}
	key, err := f.key(entry["secret"], at+".secret")
	if err != nil {
		return Secret{}, err
	}
	return NewSecret(id, key)
}

func (f ringFile) key(node *yaml.Node, at string) ([]byte, error) {
	encoded, err := f.text(node, at)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	switch {
	case err != nil:
		return nil, f.fail(node, at, "must be base64 (RFC 4648 section 4, with padding)")
	case len(key) < MinSecretSize:
		return nil, f.fail(node, at, ruleSecretSize)
	}
	return key, nil
}

// mapping returns the values of a mapping that has each of the required keys
// once, each of the optional ones at most once, and no other.
func (f ringFile) mapping(node *yaml.Node, at string, required []string, optional ...string) (map[string]*yaml.Node, error) {
	known := slices.Concat(required, optional)
	if node.Kind != yaml.MappingNode {
		return nil, f.fail(node, at, "must be a mapping with the keys "+strings.Join(known, ", "))
	}
	values := make(map[string]*yaml.Node, len(known))
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value) {
			return nil, f.fail(key, at, "has an unknown key; known are "+strings.Join(known, ", "))
		}
		if values[key.Value] != nil {
			return nil, f.fail(key, at, "has the key "+key.Value+" twice")
		}
		values[key.Value] = node.Content[i+1]
	}
	for _, key := range required {
		if values[key] == nil {
			return nil, f.fail(node, at, "lacks the key "+key)
		}
	}
	return values, nil
}

func (f ringFile) text(node *yaml.Node, at string) (string, error) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		return "", f.fail(node, at, "must be a string (in quotes)")
	}
	return node.Value, nil
}

func (f ringFile) fail(node *yaml.Node, at, rule string) error { return f.failAt(node.Line, at, rule) }

func (f ringFile) failAt(line int, at, rule string) error {
	place := f.place(line)
	if at != "" {
		place += ": " + at
	}
	return errors.New(place + ": " + rule)
}

// place is a line of the file; 0: the file.
func (f ringFile) place(line int) string {
	if line == 0 {
		return f.name
	}
	return fmt.Sprintf("%s:%d", f.name, line)
}
