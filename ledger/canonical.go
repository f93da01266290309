// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"
)

// canonical writes an RFC 8785 object whose members are strings or objects of strings, in the order of their names, which the
// caller keeps. Unset members are left out, as ProtoJSON does.
type canonical struct{ buf []byte }

// usualBody is room for most events.
const usualBody = 768

func newCanonical() *canonical { return &canonical{buf: append(make([]byte, 0, usualBody), '{')} }

func (w *canonical) field(key, value string) {
	if value == "" {
		return
	}
	w.next(key)
	w.str(value)
}

func (w *canonical) enum(key, prefix string, value uint8, word string) {
	if value != 0 {
		w.field(key, prefix+word)
	}
}

func (w *canonical) object(key string, m map[string]string) {
	if len(m) == 0 {
		return
	}
	w.next(key)
	w.buf = append(w.buf, '{')
	// Names of facts are ASCII: their order by byte is that by UTF-16 code unit.
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.next(k)
		w.str(m[k])
	}
	w.buf = append(w.buf, '}')
}

func (w *canonical) next(key string) {
	if w.buf[len(w.buf)-1] != '{' {
		w.buf = append(w.buf, ',')
	}
	w.str(key)
	w.buf = append(w.buf, ':')
}

// str writes a string as RFC 8785, section 3.2.2.2: only what JSON requires is escaped.
func (w *canonical) str(s string) {
	const hexDigits = "0123456789abcdef"
	w.buf = append(w.buf, '"')
	for len(s) > 0 {
		if n := plain(s); n > 0 {
			w.buf = append(w.buf, s[:n]...)
			s = s[n:]
			continue
		}
		r, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		switch {
		case r == '"' || r == '\\':
			w.buf = append(w.buf, '\\', byte(r))
		case r == '\b':
			w.buf = append(w.buf, `\b`...)
		case r == '\t':
			w.buf = append(w.buf, `\t`...)
		case r == '\n':
			w.buf = append(w.buf, `\n`...)
		case r == '\f':
			w.buf = append(w.buf, `\f`...)
		case r == '\r':
			w.buf = append(w.buf, `\r`...)
		case r < 0x20:
			w.buf = append(append(w.buf, `\u00`...), hexDigits[r>>4], hexDigits[r&0xf])
		default: // invalid UTF-8 arrives here as U+FFFD
			w.buf = utf8.AppendRune(w.buf, r)
		}
	}
	w.buf = append(w.buf, '"')
}

// plain is how many bytes at the beginning stand for themselves, each on its own.
func plain(s string) int {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return i
		}
	}
	return len(s)
}

func (w *canonical) bytes() []byte { return append(w.buf, '}') }

// contentDigest tells two reports or decisions under one id apart. It covers content, not who sent it.
func contentDigest(content any) string {
	b, err := json.Marshal(content) // maps in the order of their keys
	if err != nil {
		panic("ledger: a command's content is plain values: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
