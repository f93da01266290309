// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// object is a mapping of what a declaration says, in one form whatever the file looks like: each value in its one spelling, defaults
// filled in. Values are string, bool, int64, []string, []*object, *object and anyJSON.
type object struct {
	values map[string]any
	// usual keys say what would hold if the format did not know them: they are shown to people, and are not part of a version, so that a
	// release with a new key moves no version.
	usual map[string]bool
}

// anyJSON is a value that a file may give in any form, in its one spelling.
type anyJSON string

func (o *object) set(key string, value any) { o.setUsual(key, value, false) }

func (o *object) setUsual(key string, value any, usual bool) {
	if o.values == nil {
		o.values, o.usual = map[string]any{}, map[string]bool{}
	}
	o.values[key], o.usual[key] = value, usual
}

// sub is the object under a key.
func (o *object) sub(key string) *object {
	if below, ok := o.values[key].(*object); ok {
		return below
	}
	below := &object{}
	o.set(key, below)
	return below
}

// keys that are written, in the order of their bytes; all: the usual ones, too. An object without any is left out itself.
func (o *object) keys(all bool) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(o.values)) {
		below, nested := o.values[key].(*object)
		if nested && len(below.keys(all)) > 0 || !nested && (all || !o.usual[key]) {
			keys = append(keys, key)
		}
	}
	return keys
}

// appendJSON writes the object without white space. It has one text for one meaning.
func (o *object) appendJSON(b []byte, all bool) []byte {
	b = append(b, '{')
	for i, key := range o.keys(all) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(quoted(b, key), ':')
		b = appendJSON(b, o.values[key], all)
	}
	return append(b, '}')
}

func appendJSON(b []byte, value any, all bool) []byte {
	switch v := value.(type) {
	case string:
		return quoted(b, v)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case *object:
		return v.appendJSON(b, all)
	case anyJSON:
		return append(b, v...)
	case []string:
		return appendList(b, v, all)
	case []*object:
		return appendList(b, v, all)
	default:
		panic("contract: a value without a form")
	}
}

func appendList[V any](b []byte, list []V, all bool) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSON(b, v, all)
	}
	return append(b, ']')
}

// quoted appends a text as JSON, in the shortest of its spellings. What is read from a file is valid UTF-8.
func quoted(b []byte, s string) []byte {
	out, err := jsontext.AppendQuote(b, s)
	if err != nil {
		panic("contract: a text that is not UTF-8")
	}
	return out
}

// versionOf is what names a declaration: 16 hex digits of SHA-256 over its stored form.
func versionOf(stored []byte) string {
	sum := sha256.Sum256(append([]byte("opsledger/contract/1\n"), stored...))
	return hex.EncodeToString(sum[:8])
}
