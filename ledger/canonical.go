// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"
)

// canonical writes an RFC 8785 object whose members are strings or objects of strings, in the order of their names, which the
// caller keeps. Unset members are left out, as ProtoJSON does.
type canonical struct{ buf bytes.Buffer }

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
	inner := canonical{}
	// Names of facts are ASCII: their order by byte is that by UTF-16 code unit.
	for _, k := range slices.Sorted(maps.Keys(m)) {
		inner.next(k)
		inner.str(m[k])
	}
	w.buf.Write(inner.bytes())
}

func (w *canonical) next(key string) {
	if w.buf.Len() == 0 {
		w.buf.WriteByte('{')
	} else {
		w.buf.WriteByte(',')
	}
	w.str(key)
	w.buf.WriteByte(':')
}

// str writes a string as RFC 8785, section 3.2.2.2: only what JSON requires is escaped.
func (w *canonical) str(s string) {
	const hexDigits = "0123456789abcdef"
	w.buf.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.buf.WriteByte('\\')
			w.buf.WriteByte(byte(r))
		case r == '\b':
			w.buf.WriteString(`\b`)
		case r == '\t':
			w.buf.WriteString(`\t`)
		case r == '\n':
			w.buf.WriteString(`\n`)
		case r == '\f':
			w.buf.WriteString(`\f`)
		case r == '\r':
			w.buf.WriteString(`\r`)
		case r < 0x20:
			w.buf.WriteString(`\u00`)
			w.buf.WriteByte(hexDigits[r>>4])
			w.buf.WriteByte(hexDigits[r&0xf])
		default: // invalid UTF-8 arrives here as U+FFFD
			var b [utf8.UTFMax]byte
			w.buf.Write(b[:utf8.EncodeRune(b[:], r)])
		}
	}
	w.buf.WriteByte('"')
}

func (w *canonical) bytes() []byte {
	if w.buf.Len() == 0 {
		return []byte("{}")
	}
	return append(slices.Clone(w.buf.Bytes()), '}')
}

// contentDigest tells two reports or decisions under one id apart. It covers content, not who sent it.
func contentDigest(content any) string {
	b, err := json.Marshal(content) // maps in the order of their keys
	if err != nil {
		panic("ledger: a command's content is plain values: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
