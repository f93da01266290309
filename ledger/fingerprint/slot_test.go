// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// charged is a contract with two unique rules.
var charged = ledger.Contract{
	Tool: "payments.charge", Version: "v1",
	Fields: map[string]ledger.RequestField{
		"amount": {Type: "money", Currency: "currency", Category: "amount"}, "to": {Category: "recipient"}, "note": {Category: "note"},
	},
	Unique: []ledger.UniqueRule{{By: []string{"amount", "recipient"}, Within: time.Minute}, {By: []string{"note"}, Within: time.Hour}},
}

func mustSlots(t *testing.T, ring *Ring, key ledger.Key, contract ledger.Contract, request string) []ledger.UniqueSlot {
	t.Helper()
	r, err := NewRequest(ring, ledger.Claim{Key: key}, contract, []byte(request))
	if err != nil {
		t.Fatal(err)
	}
	slots, err := r.Slots()
	if err != nil {
		t.Fatal(err)
	}
	return slots
}

func uniqueRing(t *testing.T, first byte, primary string, ids ...string) *Ring {
	t.Helper()
	ring := testRing(t, primary, ids...)
	if err := ring.SetUnique(bytes.Repeat([]byte{first}, MinSecretSize)); err != nil {
		t.Fatal(err)
	}
	return ring
}

// A slot is that of a scope, a subject, a tool and what one rule compares, and of nothing else.
func TestSlotsAreWhatARuleCompares(t *testing.T) {
	const request = `{"amount":"20.00","currency":"EUR","to":"A","note":"n"}`
	key := ledger.Key{Scope: "team", Tool: "payments.charge", Task: "t1", Key: "k1", Subject: "somebody"}
	ring := uniqueRing(t, 1, "k1", "k1")
	want := mustSlots(t, ring, key, charged, request)
	if len(want) != 2 || want[0].Within != time.Minute || want[1].Within != time.Hour || want[0].Slot == want[1].Slot {
		t.Fatalf("slots %v", want)
	}
	with := func(change func(k *ledger.Key, c *ledger.Contract)) (ledger.Key, ledger.Contract) {
		k, c := key, charged
		change(&k, &c)
		return k, c
	}
	none := func(*ledger.Key, *ledger.Contract) {}
	for name, c := range map[string]struct {
		change      func(k *ledger.Key, c *ledger.Contract)
		ring        *Ring
		request     string
		first, note bool // is the slot of that rule the same?
	}{
		"another key and task":      {func(k *ledger.Key, _ *ledger.Contract) { k.Key, k.Task = "k2", "t2" }, ring, request, true, true},
		"another version":           {func(_ *ledger.Key, c *ledger.Contract) { c.Version = "v2" }, ring, request, true, true},
		"another spelling":          {none, ring, `{"note":"\u006e","to":"A","currency":"EUR","amount":2e1,"memo":"x"}`, true, true},
		"a ring after its rotation": {none, uniqueRing(t, 1, "k2", "k2"), request, true, true},
		"another amount":            {none, ring, `{"amount":"20.01","currency":"EUR","to":"A","note":"n"}`, false, true},
		"another currency":          {none, ring, `{"amount":"20.00","currency":"USD","to":"A","note":"n"}`, false, true},
		"no recipient":              {none, ring, `{"amount":"20.00","currency":"EUR","note":"n"}`, false, true},
		"another note":              {none, ring, `{"amount":"20.00","currency":"EUR","to":"A","note":"N"}`, true, false},
		"another scope":             {func(k *ledger.Key, _ *ledger.Contract) { k.Scope = "other" }, ring, request, false, false},
		"another subject":           {func(k *ledger.Key, _ *ledger.Contract) { k.Subject = "" }, ring, request, false, false},
		"another tool":              {func(k *ledger.Key, _ *ledger.Contract) { k.Tool = "payments.refund" }, ring, request, false, false},
		"a subject that was scope":  {func(k *ledger.Key, _ *ledger.Contract) { k.Scope, k.Subject = "teamsome", "body" }, ring, request, false, false},
		"another secret":            {none, uniqueRing(t, 2, "k1", "k1"), request, false, false},
	} {
		k, contract := with(c.change)
		got := mustSlots(t, c.ring, k, contract, c.request)
		if (got[0] == want[0]) != c.first || (got[1] == want[1]) != c.note {
			t.Errorf("%s: the same %t and %t, want %t and %t", name, got[0] == want[0], got[1] == want[1], c.first, c.note)
		}
	}
}

// What is in a category is no key of another one: two rules never share a slot.
func TestSlotsOfOtherRulesAreOthers(t *testing.T) {
	ring, key := uniqueRing(t, 1, "k1", "k1"), ledger.Key{Scope: "team", Tool: "payments.charge"}
	seen := map[ledger.Slot][]string{}
	for _, by := range [][]string{{"amount"}, {"recipient"}, {"note"}, {"amount", "recipient"}, {"amount", "note"}, {"amount", "note", "recipient"}} {
		contract := charged
		contract.Unique = []ledger.UniqueRule{{By: by}}
		slot := mustSlots(t, ring, key, contract, `{}`)[0].Slot
		if other := seen[slot]; other != nil {
			t.Errorf("%v and %v share a slot", by, other)
		}
		seen[slot] = by
	}
}

func TestWhatHasNoSlots(t *testing.T) {
	ring := uniqueRing(t, 1, "k1", "k1")
	if got := mustSlots(t, ring, ledger.Key{}, ledger.Contract{}, `{}`); got != nil {
		t.Errorf("without rules: %v", got)
	}
	// An earlier contract may have judged it: its key is not refused for its slots.
	if got := mustSlots(t, ring, ledger.Key{}, charged, `{"amount":"much"}`); got != nil {
		t.Errorf("a misfit: %v", got)
	}
	r, err := NewRequest(testRing(t, "k1", "k1"), ledger.Claim{}, charged, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Slots(); !errors.Is(err, ErrNoUniqueSecret) || got != nil {
		t.Errorf("without the secret: %v, %v", got, err)
	}
}
