// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// A rotation, step by step, while requests go on: add a secret, make it the primary, take the old one out.
func TestSecretsRotate(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	contract := ledger.Contract{Version: "v1"}
	request, err := NewRequest(ring, ledger.Claim{Key: ledger.Key{Subject: "somebody"}}, contract, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	fingerprint := func(like *ledger.Fingerprint) ledger.Fingerprint {
		t.Helper()
		f, err := request.Fingerprint(like)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := fingerprint(nil)
	if err := ring.Replace(testRing(t, "k1", "k1", "k2")); err != nil {
		t.Fatal(err)
	}
	if got := fingerprint(nil); got.SecretID != "k1" || len(request.SubjectDigests()) != 2 {
		t.Errorf("before it is the primary: under %s", got.SecretID)
	}
	if err := ring.Replace(testRing(t, "k2", "k1", "k2")); err != nil {
		t.Fatal(err)
	}
	second := fingerprint(nil)
	if second.SecretID != "k2" || second.Digest == first.Digest {
		t.Errorf("the new primary: under %s", second.SecretID)
	}
	if again := fingerprint(&first); !cmp.Equal(again, first) {
		t.Errorf("an old record: %s", cmp.Diff(first, again))
	}
	if diff := cmp.Diff(map[string]uint64{"k1": 3, "k2": 1}, ring.Uses()); diff != "" {
		t.Error(diff)
	}
	if err := ring.Replace(testRing(t, "k2", "k2")); err != nil {
		t.Fatal(err)
	}
	if _, err := request.Fingerprint(&first); !errors.Is(err, ledger.ErrRecordTooNew) {
		t.Errorf("an old record without its secret: %v", err)
	}
	if diff := cmp.Diff(map[string]uint64{"k2": 1}, ring.Uses()); diff != "" {
		t.Error(diff)
	}
}

func TestAnIDKeepsItsSecret(t *testing.T) {
	other := testSecret(t, "k1", 77)
	stranger, err := NewRing("k1", other, testSecret(t, "k3", 3))
	if err != nil {
		t.Fatal(err)
	}
	ring := testRing(t, "k2", "k1", "k2")
	before := ring.Primary()
	err = ring.Replace(stranger)
	if err == nil || !strings.Contains(err.Error(), "k1") || strings.Contains(err.Error(), "k3") {
		t.Errorf("another secret under an id: %v", err)
	}
	if got := ring.Primary(); got.ID() != "k2" || string(got.key()) != string(before.key()) {
		t.Error("the ring has changed")
	}
	// Two servers, by what a store has noted of the first.
	if diff := cmp.Diff([]string{"k1"}, stranger.Conflicts(ring.Checks())); diff != "" {
		t.Error(diff)
	}
	if ids := testRing(t, "k2", "k2", "k3").Conflicts(ring.Checks()); ids != nil {
		t.Errorf("conflicts of one secret: %v", ids)
	}
	if ring.Checks()["k1"] == ring.Checks()["k2"] || ring.Checks()["k1"] != testSecret(t, "k1", '1').Check() {
		t.Error("check values are not those of id and secret")
	}
	// The same key under another id is another check value: it is the id's.
	if testSecret(t, "a", 1).Check() == testSecret(t, "b", 1).Check() {
		t.Error("the id is not in the check value")
	}
}

// For the race detector: a ring is replaced while it is used.
func TestARingIsReplacedWhileItIsUsed(t *testing.T) {
	ring, next := testRing(t, "k1", "k1", "k2"), testRing(t, "k2", "k1", "k2")
	request, err := NewRequest(ring, ledger.Claim{}, ledger.Contract{}, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				f, err := request.Fingerprint(nil)
				if err != nil {
					t.Error(err)
					return
				}
				if again, err := request.Fingerprint(&f); err != nil || again.Digest != f.Digest {
					t.Errorf("%v, %v", again, err)
				}
				ring.Uses()
			}
		})
	}
	for range 50 {
		if err := errors.Join(ring.Replace(next), ring.Replace(testRing(t, "k1", "k1", "k2"))); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}
