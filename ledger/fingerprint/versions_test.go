// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// ignoring is a contract that drops a field.
func ignoring(version string, paths ...string) ledger.Contract {
	return ledger.Contract{Tool: "t", Version: version, Ignored: paths}
}

func TestVersionsAreFetchedOnceForAllRequests(t *testing.T) {
	asked, down := 0, errors.New("down")
	failing := down
	v := &Versions{Fetch: func(_ context.Context, tool ledger.Tool, version string) (Rules, error) {
		asked++
		if tool != "t" || version != "v1" {
			return Rules{}, ledger.ErrRecordTooNew
		}
		if failing != nil {
			return Rules{}, failing
		}
		return RulesOf(ignoring("v1", "trace"))
	}}
	ring := testRing(t, "k1", "k1")
	first, err := NewRequest(ring, ledger.Claim{}, ignoring("v1", "trace"), []byte(`{"a":1,"trace":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	record, err := first.Fingerprint(nil)
	if err != nil {
		t.Fatal(err)
	}
	claim := func(text string, like ledger.Fingerprint) (ledger.Fingerprint, error) {
		t.Helper()
		r, err := Options{Versions: v}.NewRequest(ring, ledger.Claim{}, ignoring("v2", "sent"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return fetched(r, &like)
	}
	// What could not be looked up is neither the same nor another request, and it is looked for again.
	for range 2 {
		if _, err := claim(`{"a":1}`, record); !errors.Is(err, down) {
			t.Errorf("while it can't be looked up: %v", err)
		}
	}
	failing = nil
	unknown := record
	unknown.Contract = "v0"
	for range 2 {
		if _, err := claim(`{"a":1}`, unknown); !errors.Is(err, ledger.ErrRecordTooNew) {
			t.Errorf("of a version that nobody knows: %v", err)
		}
	}
	asked = 0
	for text, same := range map[string]bool{`{"a":1}`: true, `{"a":1,"trace":"y"}`: true, `{"a":2}`: false, `{"a":1,"sent":1}`: false} {
		if got, err := claim(text, record); err != nil || cmp.Equal(got, record) != same {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if asked != 1 {
		t.Errorf("it was asked for %d times", asked)
	}
}

func TestFetchedVersionsAreBounded(t *testing.T) {
	v := &Versions{Fetch: func(context.Context, ledger.Tool, string) (Rules, error) { return Rules{}, nil }}
	for i := range mostFetched + 10 {
		digest := fmt.Sprint("v", i)
		var lacking *ledger.Lacking
		if _, err := v.rulesOf(digest, ignoring("now"), Rules{}); !errors.As(err, &lacking) {
			t.Fatalf("version %d is there before it is fetched: %v", i, err)
		}
		if err := lacking.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := v.rulesOf(digest, ignoring("now"), Rules{}); err != nil {
			t.Fatalf("version %d is not there after it was fetched: %v", i, err)
		}
	}
	if n := len(v.fetched); n != mostFetched {
		t.Errorf("%d versions are kept", n)
	}
}
