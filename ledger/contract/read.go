// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

// Error is one fault of a file: where it is, and what to write instead. It never repeats a value of the file.
type Error struct {
	File string
	Line int // 0: the whole file
	// Tool whose contract is at fault; empty for the file's own keys.
	Tool ledger.Tool
	Rule string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Tool != "" {
		b.WriteString(string(e.Tool) + ": ")
	}
	b.WriteString(e.Rule)
	return b.String()
}

// reader collects every fault of a file, so that one run of a check shows them all.
type reader struct {
	file   string
	tool   ledger.Tool
	faults []error
	// judged are faults of values that are good each by itself. They are told once the form of a contract is good: until then they may be about
	// a default that stands in for what could not be read.
	judged   []error
	warnings []*Error
	// stored: what is read was judged when it was written, by the rules of then; only its form counts.
	stored bool
}

func (r *reader) fault(node *yaml.Node, format string, args ...any) {
	r.faults = append(r.faults, r.errorAt(node, format, args...))
}

func (r *reader) errorAt(node *yaml.Node, format string, args ...any) *Error {
	e := &Error{File: r.file, Tool: r.tool, Rule: fmt.Sprintf(format, args...)}
	if node != nil {
		e.Line = node.Line
	}
	return e
}

// judge reports a fault of values that are good each by itself.
func (r *reader) judge(node *yaml.Node, format string, args ...any) {
	r.judged = append(r.judged, r.errorAt(node, format, args...))
}

// tell ends the reading of one contract, whose faults begin at an index.
func (r *reader) tell(begin int) {
	if len(r.faults) == begin && !r.stored {
		r.faults = append(r.faults, r.judged...)
	}
	r.judged = nil
}

// document parses one YAML document into nodes. They are walked by hand: the decoder's own errors quote values, and its types hide what
// was written.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > maxFile {
		r.fault(nil, "must have at most %d bytes; spread it over the files of a directory", maxFile)
		return nil
	}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		at := &yaml.Node{Line: 1}
		var load *yaml.LoadError
		if errors.As(err, &load) {
			at.Line = max(at.Line, load.Mark.Line)
		}
		r.fault(at, "must be one valid YAML document that begins with tools:")
		return nil
	}
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if !r.plain(root) {
		return nil
	}
	return root
}

// plain refuses what makes a file say more than it shows: anchors, aliases and tags.
func (r *reader) plain(node *yaml.Node) bool {
	good := true
	switch {
	case node.Kind == yaml.AliasNode:
		r.fault(node, "must not refer to another place by *; write out what is meant")
		return false
	case node.Anchor != "":
		r.fault(node, "must not name a place by &; remove the anchor, and write out what is meant where it is used")
		good = false
	case node.Style&yaml.TaggedStyle != 0:
		r.fault(node, "must not tag a value by !; remove the tag, and put texts in quotes")
		good = false
	case !utf8.ValidString(node.Value):
		r.fault(node, "must be UTF-8 throughout")
		good = false
	}
	for _, child := range node.Content {
		good = r.plain(child) && good
	}
	return good
}

// section is one mapping of the file, read strictly: each key is one that is known, and there once.
type section struct {
	*reader
	at     string // its path within the tool, "" at the top
	node   *yaml.Node
	fields map[string]*yaml.Node
	said   *object
}

// section reads a mapping.
func (r *reader) section(node *yaml.Node, at string, said *object, known []string) section {
	s := section{reader: r, at: at, node: node, said: said, fields: map[string]*yaml.Node{}}
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
		r.fault(node, "%s must be a mapping with %s", s.name(), strings.Join(known, ", "))
		return s
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			r.fault(key, "unknown key%s in %s; write one of %s", shown(key), s.name(), strings.Join(known, ", "))
		case s.fields[key.Value] != nil:
			r.fault(key, "%s is given twice; keep one of the two", s.path(key.Value))
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" && !(key.Value == keyDefault && value.Value == "null"):
			r.fault(key, "%s is empty; write a value, or remove the key", s.path(key.Value))
		default:
			s.fields[key.Value] = value
		}
	}
	return s
}

// keyDefault can be null, if that is written out: a field of a request may be null.
const keyDefault = "default"

// keyForm is what an unknown key may look like to be shown.
var keyForm = regexp.MustCompile(`^[a-z][a-z_]{0,31}$`)

func shown(key *yaml.Node) string {
	if key.Kind != yaml.ScalarNode || !keyForm.MatchString(key.Value) {
		return ""
	}
	return " " + key.Value
}

func (s section) name() string {
	if s.at == "" {
		return "a tool's contract"
	}
	return s.at
}

// path of one of the section's keys.
func (s section) path(key string) string {
	if s.at == "" {
		return key
	}
	return s.at + "." + key
}

// sub reads a mapping below this one; absent, it is empty, and its faults point at this one.
func (s section) sub(key string, known []string) section {
	if s.fields[key] == nil {
		return section{reader: s.reader, at: s.path(key), node: s.node, said: s.said.sub(key)}
	}
	return s.section(s.fields[key], s.path(key), s.said.sub(key), known)
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

var durationForm = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`)

// duration reads a time with its unit into to, if it is given, and notes what holds; 0 means that nothing is stated.
func (s section) duration(key string, to *time.Duration) {
	if node := s.fields[key]; node != nil {
		s.durationOf(node, key, to)
	}
	if *to > 0 {
		s.said.set(key, durationText(*to))
	}
}

func (s section) durationOf(node *yaml.Node, key string, to *time.Duration) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		s.fault(node, "%s must be a number with its unit; write for example 30s, 10m or 24h", s.path(key))
		return
	}
	d, err := time.ParseDuration(node.Value)
	switch {
	case err != nil || !durationForm.MatchString(node.Value):
		s.fault(node, "%s must be a number with one of the units ms, s, m, h; write for example 30s, 10m or 24h", s.path(key))
	case d < shortest || d > longest || d%time.Millisecond != 0:
		s.fault(node, "%s must be whole milliseconds, from 1ms to 87600h", s.path(key))
	default:
		*to = d
	}
}

// durationText is the one way in which a duration is written down.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// number reads a whole number of 1 to most into to, if it is given; 0 means that nothing is stated.
func number[N int | uint32](s section, key string, most N, to *N) {
	if node := s.fields[key]; node != nil {
		n, err := strconv.ParseInt(node.Value, 10, 64)
		if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" || err != nil || n < 1 || n > int64(most) {
			s.fault(node, "%s must be a whole number from 1 to %d", s.path(key), most)
		} else {
			*to = N(n)
		}
	}
	if *to > 0 {
		s.said.set(key, int64(*to))
	}
}

// size reads a number of bytes with its unit into to, if it is given.
func (s section) size(key string, most int, to *int) {
	if node := s.fields[key]; node != nil {
		n, ok := sizeOf(node, most)
		if ok {
			*to = n
		} else {
			s.fault(node, "%s must be a whole number with the unit B or KiB, at most %dKiB; write for example 16KiB", s.path(key), most>>10)
		}
	}
	s.said.set(key, sizeText(*to))
}

// sizeForm has one way to write each number, so that no two files mean the same by different digits.
var sizeForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})(B|KiB)$`)

func sizeOf(node *yaml.Node, most int) (int, bool) {
	parts := sizeForm.FindStringSubmatch(node.Value)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" || parts == nil {
		return 0, false
	}
	n, err := strconv.Atoi(parts[1])
	if parts[2] == "KiB" {
		n <<= 10
	}
	return n, err == nil && n <= most
}

func sizeText(n int) string {
	if n%(1<<10) == 0 {
		return strconv.Itoa(n>>10) + "KiB"
	}
	return strconv.Itoa(n) + "B"
}

// boolean reads true or false into to, if it is given.
func (s section) boolean(key string, to *bool) {
	usual := *to
	if node := s.fields[key]; node != nil {
		if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!bool" {
			s.fault(node, "%s must be true or false", s.path(key))
		} else {
			*to = strings.EqualFold(node.Value, "true")
		}
	}
	s.said.setUsual(key, *to, !usual && !*to)
}

// choice reads one of several words, the first of which holds if none is given.
func (s section) choice(key string, words ...string) (index int) {
	if node := s.fields[key]; node != nil {
		index = slices.Index(words, node.Value)
		if node.Kind != yaml.ScalarNode || index < 0 {
			s.fault(node, "%s must be one of %s", s.path(key), strings.Join(words, ", "))
			return 0
		}
	}
	s.said.setUsual(key, words[index], index == 0)
	return index
}

// list reads a list of texts, none twice, each good by its form; the result is sorted, because their order says nothing.
func (s section) list(key, rule string, good func(string) bool) []string {
	node := s.fields[key]
	if node == nil {
		s.said.setUsual(key, []string(nil), true)
		return nil
	}
	if node.Kind != yaml.SequenceNode || len(node.Content) > maxEntries {
		s.fault(node, "%s must be a list of at most %d entries; write for example [name]", s.path(key), maxEntries)
		return nil
	}
	var out []string // nil, if there is none: an empty list says what silence says
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
	s.said.setUsual(key, out, len(out) == 0)
	return out
}

// text reads a text of at most so many bytes.
func (s section) text(key string, most int) string {
	node := s.fields[key]
	if node == nil {
		return ""
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" || strings.TrimSpace(node.Value) == "" || len(node.Value) > most || !printable(node.Value) {
		s.fault(node, "%s must be a text (in quotes if need be) of at most %d bytes", s.path(key), most)
		return ""
	}
	s.said.set(key, node.Value)
	return node.Value
}

// printable: nothing in it moves a terminal's cursor or hides from a reader, but the ends of lines.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) })
}
