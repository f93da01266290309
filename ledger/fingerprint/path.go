// SPDX-License-Identifier: Apache-2.0

package fingerprint

import "strings"

// element is the token of a path that stands for each element of an array.
const element = "*"

// path names places of a request: a JSON pointer (RFC 6901) by its tokens, one
// of which may be [element].
type path []string

// parsePath reads a path as contracts write it: a pointer, or the bare name of a
// member of the root object, which is escaped as in a pointer.
func parsePath(text string) (path, bool) {
	if !strings.HasPrefix(text, "/") {
		if text == "" || strings.Contains(text, "/") {
			return nil, false
		}
		text = "/" + text
	}
	tokens := strings.Split(text[1:], "/")
	for i, token := range tokens {
		// Each ~ begins one of the two escapes.
		if strings.Count(token, "~") != strings.Count(token, "~0")+strings.Count(token, "~1") {
			return nil, false
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	// The root is an object, and nothing lies deeper than MaxDepth containers.
	return tokens, tokens[0] != element && len(tokens) <= MaxDepth
}

// String is the path as a pointer.
func (p path) String() string {
	var b strings.Builder
	for _, token := range p {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// last is the last token.
func (p path) last() string { return p[len(p)-1] }

// common is how many tokens p and q begin with alike.
func (p path) common(q path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n] == q[n] {
		n++
	}
	return n
}

// Pointer is the one spelling of a path that a contract may write in others;
// false if it is no path.
func Pointer(text string) (string, bool) {
	p, ok := parsePath(text)
	if !ok {
		return "", false
	}
	return p.String(), true
}
