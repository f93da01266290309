// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/binary"
	"testing"

	"github.com/opsledger/opsledger/ledger"
)

// numbered makes an id or a digest of a number.
func numbered(n int) (id ledger.OperationID, digest [32]byte) {
	binary.BigEndian.PutUint64(id[:], uint64(n+1))
	binary.BigEndian.PutUint64(digest[:], uint64(n+1))
	return id, digest
}

func TestLookAlikesAreOfOneIntent(t *testing.T) {
	of := ledger.Key{Scope: "s", Subject: "u", Task: "t", Tool: "w"}
	_, digest := numbered(0)
	_, other := numbered(1)
	intents := map[intent]string{intentOf(of, digest): "itself", intentOf(of, other): "another request"}
	for name, key := range map[string]ledger.Key{
		"another scope": {Scope: "s2", Subject: "u", Task: "t", Tool: "w"}, "another subject": {Scope: "s", Subject: "", Task: "t", Tool: "w"},
		"another task": {Scope: "s", Subject: "u", Task: "t2", Tool: "w"}, "another tool": {Scope: "s", Subject: "u", Task: "t", Tool: "w2"},
		"other borders": {Scope: "su", Subject: "", Task: "t", Tool: "w"},
	} {
		if same, twice := intents[intentOf(key, digest)]; twice {
			t.Errorf("%s is the intent of %s", name, same)
		}
		intents[intentOf(key, digest)] = name
	}
	of.Key = "K2"
	if intents[intentOf(of, digest)] != "itself" {
		t.Error("another key is another intent")
	}
}

func TestLookAlikesAreBounded(t *testing.T) {
	l := newLookAlikes()
	see := func(i, id int) bool {
		_, digest := numbered(i)
		operation, _ := numbered(id)
		return l.see(intentOf(ledger.Key{}, digest), operation)
	}
	// Each operation counts once, the first not at all.
	for n, want := range []bool{false, true, true, true} {
		if got := see(0, n); got != want || see(0, n) {
			t.Errorf("operation %d looks alike: %t, want %t, and not again", n, got, want)
		}
	}
	for n := 1; n < recentIntents; n++ {
		see(n, n)
	}
	if see(0, 0) || !see(0, recentKeys) {
		t.Error("the oldest was forgotten too early")
	}
	see(recentIntents, 0)
	if see(0, recentKeys+1) {
		t.Error("the oldest was not forgotten")
	}
	for n := range 3 * recentIntents {
		see(10*recentIntents+n, n)
	}
	if len(l.seen) != recentIntents || len(l.recent) != recentIntents {
		t.Errorf("%d and %d intents are remembered, want %d", len(l.seen), len(l.recent), recentIntents)
	}
}
