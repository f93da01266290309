// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"
	"time"
)

// TestIntentKey: the digests are what sha256sum says of the parts, written out by hand; they must never change.
func TestIntentKey(t *testing.T) {
	tests := []struct {
		name   string
		intent Intent
		want   string
	}{
		{"first", Intent{Task: "task-1", Step: "open-incident"}, "9f9dd77f29cfb4fdca4b2ac3f3f2d8f86c37a50b6ec913ab8cbfe2507f4d5e6b"},
		{"once more", Intent{Task: "task-1", Step: "open-incident", Occurrence: 1}, "1e7928e15c6f888b17e4987234c8080486ed17d49b255ca5efa42bbb450fb6b0"},
		{"any text is a step", Intent{Task: "t", Step: "schließe das Ticket\x00"}, "bf47c4b5327df962bcf50ad64fe8fb76058dd07ec43fdf31654267ed58f9c6d2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.intent.Key(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestIntentKeyParts: parts never run into each other, and what is no part of the key does not change it.
func TestIntentKeyParts(t *testing.T) {
	seen := map[string]Intent{}
	for _, i := range []Intent{
		{Task: "ab", Step: "c"},
		{Task: "a", Step: "bc"},
		{Task: "a", Step: "b", Occurrence: 1},
		{Task: "a", Step: "b1"},
		{Task: "a", Step: "b"},
		{Task: "a", Step: "B"},
		{Task: "a", Step: "b "},
	} {
		if other, ok := seen[i.Key()]; ok {
			t.Errorf("%+v and %+v have the same key", other, i)
		}
		seen[i.Key()] = i
	}
	a, b := Intent{Task: "a", Step: "b"}, Intent{Task: "a", Step: "b", Subject: "u", Time: time.Unix(1, 0)}
	if a.Key() != b.Key() {
		t.Error("subject or time changes the key: the ledger has them apart")
	}
}
