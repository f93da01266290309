// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Error is one fault of a file: where it is, and what to write instead. It never repeats a value of the file.
type Error struct {
	File string
	Line int // 0: the whole file
	Rule string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Rule
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Rule)
}

// reader collects every fault of a file, so that one run of a check shows them all.
type reader struct {
	file   string
	faults []error
}

func (r *reader) fault(node *yaml.Node, format string, args ...any) {
	line := 0
	if node != nil {
		line = node.Line
	}
	r.faults = append(r.faults, &Error{File: r.file, Line: line, Rule: fmt.Sprintf(format, args...)})
}

// section is one mapping of the file, read strictly: each key is one that is known, and there once.
type section struct {
	*reader
	at     string // its path within the tool, "" at the top
	node   *yaml.Node
	fields map[string]*yaml.Node
	said   *declaration
}

// section reads a mapping. later are keys that the format knows and this release does not serve.
func (r *reader) section(node *yaml.Node, at string, said *declaration, known []string, later ...string) section {
	s := section{reader: r, at: at, node: node, said: said, fields: map[string]*yaml.Node{}}
	if node == nil {
		return s
	}
	if node.Kind != yaml.MappingNode {
		r.fault(node, "%s must be a mapping with %s", s.name(), strings.Join(known, ", "))
		return s
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind == yaml.ScalarNode && slices.Contains(later, key.Value):
			r.fault(key, "%s is not served in this release; remove it", s.path(key.Value))
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			r.fault(key, "unknown key in %s; write one of %s", s.name(), strings.Join(known, ", "))
		case s.fields[key.Value] != nil:
			r.fault(key, "%s is given twice; keep one of the two", s.path(key.Value))
		default:
			s.fields[key.Value] = value
		}
	}
	return s
}

func (s section) name() string {
	if s.at == "" {
		return "a tool's contract"
	}
	return s.at
}

func (s section) path(key string) string {
	if s.at == "" {
		return key
	}
	return s.at + "." + key
}

// sub reads a mapping below this one; absent, it is empty.
func (s section) sub(key string, known []string, later ...string) section {
	return s.section(s.fields[key], s.path(key), s.said, known, later...)
}

// has reports whether a key is given.
func (s section) has(key string) bool { return s.fields[key] != nil }

// where is the place to point at for a rule about a key, given or not.
func (s section) where(key string) *yaml.Node {
	if n := s.fields[key]; n != nil {
		return n
	}
	return s.node
}

// The bounds of every duration of a contract: a store keeps microseconds, and no window is longer than ten years.
const (
	shortest = time.Millisecond
	longest  = 10 * 365 * 24 * time.Hour
)

// duration reads a time with its unit into to, if it is given.
func (s section) duration(key string, to *time.Duration) {
	node := s.fields[key]
	if node == nil {
		return
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		s.fault(node, "%s must be a number with its unit; write for example 30s, 10m or 24h", s.path(key))
		return
	}
	d, err := time.ParseDuration(node.Value)
	switch {
	case err != nil:
		s.fault(node, "%s must be a number with one of the units ms, s, m, h; write for example 30s, 10m or 24h", s.path(key))
	case d < shortest || d > longest || d%time.Millisecond != 0:
		s.fault(node, "%s must be whole milliseconds, from 1ms to 87600h", s.path(key))
	default:
		*to = d
		s.said.say(s.path(key), strconv.FormatInt(int64(d), 10))
	}
}

// number reads a whole number of 1 to most.
func (s section) number(key string, most int64) (int64, bool) {
	node := s.fields[key]
	if node == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(node.Value, 10, 64)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" || err != nil || n < 1 || n > most {
		s.fault(node, "%s must be a whole number from 1 to %d", s.path(key), most)
		return 0, false
	}
	s.said.say(s.path(key), strconv.FormatInt(n, 10))
	return n, true
}

// size reads a number of bytes with its unit into to.
func (s section) size(key string, most int, to *int) {
	node := s.fields[key]
	if node == nil {
		return
	}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!str" {
		digits := strings.TrimRight(node.Value, "BKi")
		unit, ok := map[string]int{"B": 1, "KiB": 1 << 10}[node.Value[len(digits):]]
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= 0 && n <= most/unit {
			*to = n * unit
			s.said.say(s.path(key), strconv.Itoa(*to))
			return
		}
	}
	s.fault(node, "%s must be a whole number with the unit B or KiB, at most %dKiB; write for example 16KiB", s.path(key), most>>10)
}

// boolean reads true or false; ok tells whether it is given.
func (s section) boolean(key string) (value, ok bool) {
	node := s.fields[key]
	if node == nil {
		return false, false
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!bool" {
		s.fault(node, "%s must be true or false", s.path(key))
		return false, false
	}
	value = strings.EqualFold(node.Value, "true")
	s.said.say(s.path(key), strconv.FormatBool(value))
	return value, true
}

// choice reads one of several words; ok tells whether it is given and good.
func (s section) choice(key string, words ...string) (index int, ok bool) {
	node := s.fields[key]
	if node == nil {
		return 0, false
	}
	index = slices.Index(words, node.Value)
	if node.Kind != yaml.ScalarNode || index < 0 {
		s.fault(node, "%s must be one of %s", s.path(key), strings.Join(words, ", "))
		return 0, false
	}
	s.said.say(s.path(key), node.Value)
	return index, true
}

// list reads a list of texts, none twice, each good by its form; the result is sorted, because their order says nothing.
func (s section) list(key, rule string, good func(string) bool) []string {
	node := s.fields[key]
	if node == nil {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		s.fault(node, "%s must be a list; write for example [name]", s.path(key))
		return nil
	}
	out := make([]string, 0, len(node.Content))
	for _, entry := range node.Content {
		switch {
		case entry.Kind != yaml.ScalarNode || entry.ShortTag() != "!!str" || !good(entry.Value):
			s.fault(entry, "each entry of %s must be %s", s.path(key), rule)
		case slices.Contains(out, entry.Value):
			s.fault(entry, "%s has an entry twice; keep one of the two", s.path(key))
		default:
			out = append(out, entry.Value)
		}
	}
	slices.Sort(out)
	s.said.say(s.path(key), out...)
	return out
}
