// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
)

// declaration is what was said about one tool, by path. Values are in one canonical form, so that 60s and 1m are the same word.
type declaration map[string][]string

// say notes a value. An empty list is a statement too, and differs from silence.
func (d *declaration) say(path string, values ...string) {
	if *d == nil {
		*d = declaration{}
	}
	(*d)[path] = values
}

// version digests a tool's declaration: 16 hex digits of SHA-256 over the tool, then each path in order with its values; every text
// after its length, every list after its count. A default that is not written is not part of it.
func (d declaration) version(tool string) string {
	b := text(nil, "opsledger/contract/1")
	b = text(b, tool)
	for _, path := range slices.Sorted(maps.Keys(d)) {
		b = text(b, path)
		b = binary.BigEndian.AppendUint64(b, uint64(len(d[path])))
		for _, v := range d[path] {
			b = text(b, v)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}
