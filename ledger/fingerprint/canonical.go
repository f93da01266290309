// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
)

const (
	// MaxSize bounds a request in bytes: 256 KiB. It bounds, too, what defaults
	// may add to one.
	MaxSize = 256 << 10
	// MaxDepth bounds how deep objects and arrays may be nested; the root
	// object is the first level.
	MaxDepth = 64
)

// Canonical is a request in its canonical form, of which it keeps the digests
// only. As small requests can be guessed from those, it prints as a placeholder.
// The zero value is no request at all and cannot be digested.
type Canonical struct {
	// Behind a function for the same reason as the key of a Secret.
	content func() *content
}

type content struct {
	spec   int
	digest [sha256.Size]byte
	seen   []bool // by the index of the declared fields: it was there
	// The SHA-256 of each category's part.
	categories map[string][sha256.Size]byte
}

// Canonicalize parses one request and brings it into the canonical form of spec
// version 1, by the types of its declared fields, and grouped by category, as
// rules say. Every error is an *[Error]. It neither keeps nor changes
// requestJSON.
func Canonicalize(requestJSON []byte, rules Rules) (Canonical, error) {
	return canonical(requestJSON, rules, false)
}

// CanonicalizeObserved does the same with what a target shows of a resource, a
// JSON object in the request's own field names: what it does not show has not
// been seen, so that no default stands for it, and money without its currency
// is no error.
func CanonicalizeObserved(observedJSON []byte, rules Rules) (Canonical, error) {
	return canonical(observedJSON, rules, true)
}

func canonical(text []byte, rules Rules, observed bool) (Canonical, error) {
	var c *content
	err := parse(text, rules, observed, func(p *parser) { c = p.content() })
	if err != nil {
		return Canonical{}, err
	}
	return Canonical{content: func() *content { return c }}, nil
}

// Text is the canonical text of a request, for those who compare
// implementations. It shows the request.
func Text(requestJSON []byte, rules Rules) ([]byte, error) {
	var text []byte
	err := parse(requestJSON, rules, false, func(p *parser) { text = bytes.Clone(p.out) })
	return text, err
}

// parse lends out a parser that has read a text.
func parse(text []byte, rules Rules, observed bool, use func(p *parser)) error {
	p := parsers.Get().(*parser)
	defer parsers.Put(p)
	defer p.forget()
	p.input, p.rules, p.observed, p.seen = text, rules, observed, make([]bool, len(rules.fields))
	if p.parse(); p.fault != nil {
		return p.fault
	}
	use(p)
	return nil
}

// content digests what was read.
func (p *parser) content() *content {
	c := &content{spec: Spec1, digest: sha256.Sum256(p.out), seen: p.seen, categories: map[string][sha256.Size]byte{}}
	if at := p.rules.root; at != nil && at.walked {
		p.parts.divide(p.out, p.rules, c)
	} else if len(p.out) > len("{}") {
		c.categories[CategoryOther] = c.digest
	}
	return c
}

// parsers keeps the memory of parsers that are done: a request takes many times
// its own size, and most of the time goes into getting that.
var parsers = sync.Pool{New: func() any { return new(parser) }}

// as says that another spec than the first has made it.
func (c Canonical) as(spec int) Canonical {
	of := *c.content()
	of.spec = spec
	return Canonical{content: func() *content { return &of }}
}

// ContentDigest is the SHA-256 of the canonical text, without a key: a small
// request can be guessed from it. It is an input of [Digest], not for storing.
func (c Canonical) ContentDigest() [sha256.Size]byte { return c.content().digest }

// Categories are the sorted names of the categories that the request has fields
// of.
func (c Canonical) Categories() []string {
	return slices.Sorted(maps.Keys(c.content().categories))
}

// CategoryDigest is the SHA-256 of what the request has of one category, without
// a key, as [Canonical.ContentDigest] is; false where it has nothing of it.
func (c Canonical) CategoryDigest(name string) ([sha256.Size]byte, bool) {
	digest, ok := c.content().categories[name]
	return digest, ok
}
