// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func TestWhatATargetShows(t *testing.T) {
	type fields = map[string]ledger.RequestField
	plain := fields{"amount": {Category: "amount"}, "currency": {Category: "amount"}, "to": {Category: "recipient"}}
	typed := fields{
		"amount": {Type: "money", Currency: "currency", Category: "amount"}, "to": {Category: "recipient"}, "priority": {Category: "body", Default: `"normal"`},
		"at": {Type: "timestamp", Category: "body"}, "/lines/*/price": {Type: "decimal", Category: "price"}, "tags": {Type: "set", Category: "tags"},
	}
	missing := func(categories ...string) Verification { return Verification{Missing: categories} }
	different := func(categories ...string) Verification { return Verification{Different: categories} }
	tests := []struct {
		name     string
		fields   fields
		asked    string
		observed string
		verify   []string
		want     Verification
	}{
		{"equal, other fields do not matter", plain, `{"amount":5,"to":"A","note":"x"}`, `{"amount":5.00,"to":"A","state":"open"}`, []string{"recipient"}, Verification{}},
		{"two fields of a category", plain, `{"amount":5,"currency":"EUR"}`, `{"currency":"EUR","amount":5}`, []string{"amount"}, Verification{}},
		{"a scale slip", plain, `{"amount":80,"currency":"JPY"}`, `{"amount":8000,"currency":"JPY"}`, []string{"amount"}, different("amount")},
		{"no field of the category", plain, `{"amount":5,"to":"A"}`, `{"amount":5}`, []string{"recipient"}, missing("recipient")},
		{"some fields of the category", plain, `{"amount":5,"currency":"EUR"}`, `{"amount":5}`, []string{"amount"}, missing("amount")},
		{"a declared field that nobody has", plain, `{"amount":5}`, `{"amount":5}`, []string{"amount"}, Verification{}},
		{"not asked for, but there", plain, `{"amount":5}`, `{"to":"A"}`, []string{"recipient"}, different("recipient")},
		{"on neither side", plain, `{"amount":5}`, `{}`, []string{"recipient"}, missing("recipient")},
		{
			"sorted, each once", plain, `{"amount":5,"currency":"EUR","to":"A","n":1}`, `{"to":"B","n":2}`,
			[]string{"recipient", "other", "amount", "recipient"},
			Verification{Different: []string{"other", "recipient"}, Missing: []string{"amount"}},
		},
		{"a relation is never observed", plain, `{"amount":5}`, `{"amount":5}`, []string{"relation"}, missing("relation")},
		{"nothing to verify", plain, `{"amount":5}`, `{"amount":6}`, nil, Verification{}},

		{"money, spelled otherwise", typed, `{"amount":"80","currency":"JPY"}`, `{"amount":80.0,"currency":"JPY"}`, []string{"amount"}, Verification{}},
		{"money a hundred times as much", typed, `{"amount":"80","currency":"JPY"}`, `{"amount":8000,"currency":"JPY"}`, []string{"amount"}, different("amount")},
		{"the same number of another currency", typed, `{"amount":"80","currency":"JPY"}`, `{"amount":80,"currency":"USD"}`, []string{"amount"}, different("amount")},
		{"money without its currency", typed, `{"amount":"80","currency":"JPY"}`, `{"amount":80}`, []string{"amount"}, missing("amount")},
		{"money with a currency that is null", typed, `{"amount":"80","currency":"JPY"}`, `{"amount":80,"currency":null}`, []string{"amount"}, missing("amount")},
		{"a default that is not shown", typed, `{"to":"A","at":"2026-03-01T09:00:00Z"}`, `{"at":"2026-03-01T09:00:00Z"}`, []string{"body"}, missing("body")},
		{"a default that is shown", typed, `{"to":"A","at":"2026-03-01T09:00:00Z"}`, `{"at":"2026-03-01T10:00:00+01:00","priority":"normal"}`, []string{"body"}, Verification{}},
		{"not the default", typed, `{"to":"A","at":"2026-03-01T09:00:00Z"}`, `{"at":"2026-03-01T09:00:00Z","priority":"high"}`, []string{"body"}, different("body")},
		{"fields of elements", typed, `{"lines":[{"price":"1.50","sku":"A"},{"price":2}]}`, `{"lines":[{"price":1.5},{"price":"2.0"}]}`, []string{"price"}, Verification{}},
		{"one element less", typed, `{"lines":[{"price":"1.50"},{"price":2}]}`, `{"lines":[{"price":1.5}]}`, []string{"price"}, different("price")},
		{"elements that changed places", typed, `{"lines":[{"price":1},{"price":2}]}`, `{"lines":[{"price":2},{"price":1}]}`, []string{"price"}, different("price")},
		{"a set in another order", typed, `{"tags":["a","b"]}`, `{"tags":["b","a"]}`, []string{"tags"}, Verification{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ring := testRing(t, "k1", "k1")
			contract := ledger.Contract{Version: "v1", Fields: tt.fields, Verify: tt.verify}
			asked, err := NewRequest(ring, ledger.Claim{Compensates: ledger.OperationID{1}}, contract, []byte(tt.asked))
			if err != nil {
				t.Fatal(err)
			}
			stored, err := asked.Fingerprint(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Options{}.VerifyObserved(ring, stored, contract, []byte(tt.observed))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if got.OK() != (tt.want.Different == nil && tt.want.Missing == nil) {
				t.Errorf("OK is %t", got.OK())
			}
		})
	}
}

// TestNothingObserved: a find without a word on what was asked for verifies nothing.
func TestNothingObserved(t *testing.T) {
	if v := nothingObserved(t); v.OK() || !cmp.Equal(v.Missing, []string{"amount"}) {
		t.Errorf("%+v, want the amount missing", v)
	}
}

func nothingObserved(t *testing.T) Verification {
	ring := testRing(t, "k1", "k1")
	contract := ledger.Contract{Version: "v1", Fields: map[string]ledger.RequestField{"amount": {Category: "amount"}}, Verify: []string{"amount"}}
	asked, err := NewRequest(ring, ledger.Claim{}, contract, []byte(`{"amount":5}`))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := asked.Fingerprint(nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Options{}.VerifyObserved(ring, stored, contract, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestObservationsThatSayNothing(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	contract := ledger.Contract{
		Version: "v1", Fields: map[string]ledger.RequestField{"amount": {Type: "money", Currency: "currency", Category: "amount"}}, Verify: []string{"amount"},
	}
	asked, err := NewRequest(ring, ledger.Claim{}, contract, []byte(`{"amount":5,"currency":"EUR"}`))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := asked.Fingerprint(nil)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*ledger.Fingerprint)) ledger.Fingerprint {
		f := stored
		change(&f)
		return f
	}
	for name, f := range map[string]ledger.Fingerprint{
		"a newer spec":              with(func(f *ledger.Fingerprint) { f.Spec = Spec1 + 1 }),
		"no spec":                   with(func(f *ledger.Fingerprint) { f.Spec = 0 }),
		"a secret of another ring":  with(func(f *ledger.Fingerprint) { f.SecretID = "k2" }),
		"a contract that was never": with(func(f *ledger.Fingerprint) { f.Contract = "v0" }),
	} {
		if v, err := (Options{}).VerifyObserved(ring, f, contract, []byte(`{"amount":5,"currency":"EUR"}`)); !errors.Is(err, ledger.ErrRecordTooNew) || !cmp.Equal(v, Verification{}) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	for text, want := range map[string]Rule{
		`{"a":1,"a":2}`: RuleDuplicate, ``: RuleEmpty, `{"amount":"5,00","currency":"EUR"}`: RuleDecimal,
		`{"amount":5,"currency":"eur"}`: RuleCurrency, `{"amount":"5.001","currency":"EUR"}`: RuleMinorUnits,
	} {
		var broken *Error
		if _, err := (Options{}).VerifyObserved(ring, stored, contract, []byte(text)); !errors.As(err, &broken) || broken.Rule != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	// The record's own contract reads what is shown: under it the field was no money.
	earlier := Options{Versions: &Versions{Fetch: func(_ context.Context, _ ledger.Tool, version string) (Rules, error) {
		if version != "v0" {
			return Rules{}, ledger.ErrRecordTooNew
		}
		return NewRules(map[string]Field{"amount": {Category: "amount"}}, nil)
	}}}
	old, err := NewRequest(ring, ledger.Claim{}, ledger.Contract{Version: "v0", Fields: map[string]ledger.RequestField{"amount": {Category: "amount"}}}, []byte(`{"amount":"5.00"}`))
	if err != nil {
		t.Fatal(err)
	}
	if stored, err = old.Fingerprint(nil); err != nil {
		t.Fatal(err)
	}
	var lacking *ledger.Lacking
	if _, err := earlier.VerifyObserved(ring, stored, contract, []byte(`{}`)); !errors.As(err, &lacking) {
		t.Fatalf("before the record's contract is there: %v", err)
	}
	if err := lacking.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for observed, want := range map[string]bool{`{"amount":"5.00"}`: true, `{"amount":5}`: false} {
		if v, err := earlier.VerifyObserved(ring, stored, contract, []byte(observed)); err != nil || v.OK() != want {
			t.Errorf("%s: %v, %v", observed, v, err)
		}
	}
}
