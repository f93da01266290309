// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/wrapperspb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestPlain: what is printed within a line has nothing but what shows as itself.
func TestPlain(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"order 8841 · +31•••••12 é 日本", "order 8841 · +31•••••12 é 日本"},
		{"\x1b[31m", `\u001b[31m`},
		{"a\r\nnext: ledgerctl op resolve", `a\u000d\u000anext: ledgerctl op resolve`},
		{"\u009b2J\u0085", `\u009b2J\u0085`},
		{"\u202etxt\u2066", `\u202etxt\u2066`},
		{"\u2028\u00a0\u200b", `\u2028\u00a0\u200b`},
		{"\U000e0041", `\udb40\udc41`},
		{"\xff\xef", `\xff\xef`},
		{"\ufffd", "\ufffd"},
		{"", ""},
	} {
		if got := plain(tt.text); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
	if got := plainLines("a\x1b\nb"); got != "a\\u001b\nb" {
		t.Errorf("lines: %q", got)
	}
}

// FuzzPlain: whatever others wrote, and in JSON, too.
func FuzzPlain(f *testing.F) {
	f.Add("\x1b[2J\u009b\u202e\x00\x7f\xff\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range plain(text) {
			if !unicode.IsGraphic(r) {
				t.Errorf("%q: has %q", text, r)
			}
		}
		if !utf8.ValidString(text) {
			return // no such message
		}
		var b strings.Builder
		if err := (printer{w: &b, output: outputJSONL}).message(wrapperspb.String(text)); err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != text {
			t.Errorf("%q: %q, %v: %s", text, back, err, &b)
		}
		for _, r := range strings.TrimSuffix(b.String(), "\n") {
			if !unicode.IsGraphic(r) {
				t.Errorf("%q: JSON has %q", text, r)
			}
		}
	})
}

func TestSpan(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{999 * time.Millisecond, "0s"},
		{59*time.Second + 999*time.Millisecond, "59s"},
		{61 * time.Second, "1m01s"},
		{41*time.Minute + 59*time.Second, "41m"},
		{3*time.Hour + 2*time.Minute, "3h02m"},
		{50 * time.Hour, "2d"},
		{-90 * time.Second, "1m30s"},
	} {
		if got := span(tt.d); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.d, got, tt.want)
		}
	}
}

// TestWord: a value of a later release is its number, and never mistaken.
func TestWord(t *testing.T) {
	if got := word(pb.QueueReason_QUEUE_REASON_GAVE_UP); got != "GAVE_UP" {
		t.Error(got)
	}
	if got := word(pb.State(99)); got != "99" {
		t.Error(got)
	}
	if got := queued(pb.QueueReason(99)); got != "99" {
		t.Error(got)
	}
	// Each reason of this release is said in words.
	values := pb.QueueReason(0).Descriptor().Values()
	for i := 1; i < values.Len(); i++ {
		if r := pb.QueueReason(values.Get(i).Number()); !strings.Contains(queued(r), "(") {
			t.Errorf("%s has no words", word(r))
		}
	}
}
