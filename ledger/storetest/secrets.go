// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// RunSecrets runs the cases of a store that servers share, and that keeps for them what a ledger.SecretStore does.
func RunSecrets(t *testing.T, h Harness) {
	for _, c := range []testCase{
		{"the first check value of an id stays", testSecretsKept},
		{"servers that come at once agree on the first", testSecretsAtOnce},
		{"a secret that was forgotten is kept anew", testSecretsForgotten},
		{"ids of secrets that look alike stay apart", testSecretsLookAlike},
		{"records are counted by their secret", testSecretRecords},
		{"secrets of a closed store", testSecretsClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h.New(t)) })
	}
}

func openSecrets(t *testing.T, d Data) (ledger.SecretStore, ledger.Store) {
	t.Helper()
	s := d.Open(t, Options{})
	secrets, ok := s.(ledger.SecretStore)
	if !ok {
		t.Fatalf("%T is no ledger.SecretStore", s)
	}
	return secrets, s
}

func keep(t *testing.T, s ledger.SecretStore, primary string, checks map[string]ledger.SecretCheck) {
	t.Helper()
	if err := s.KeepSecrets(t.Context(), checks, primary); err != nil {
		t.Fatal(err)
	}
}

func wantKept(t *testing.T, s ledger.SecretStore, want map[string]ledger.KeptSecret) {
	t.Helper()
	got, err := s.KeptSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func testSecretsKept(t *testing.T, d Data) {
	one, _ := openSecrets(t, d)
	two, _ := openSecrets(t, d)
	a, b, other := ledger.SecretCheck{1, 0, 2}, ledger.SecretCheck{0xff}, ledger.SecretCheck{}
	wantKept(t, one, map[string]ledger.KeptSecret{})
	keep(t, one, "k1", map[string]ledger.SecretCheck{"k1": a, "k2": b})
	want := map[string]ledger.KeptSecret{"k1": {Check: a, Used: true}, "k2": {Check: b}}
	wantKept(t, two, want)
	keep(t, two, "k1", map[string]ledger.SecretCheck{"k1": a})
	wantKept(t, one, want)
	// Another secret under an id is neither kept nor used.
	keep(t, two, "k2", map[string]ledger.SecretCheck{"k1": other, "k2": other, "k3": other})
	want["k3"] = ledger.KeptSecret{Check: other}
	wantKept(t, one, want)
	// One that was used stays so when another is the primary.
	keep(t, two, "k2", map[string]ledger.SecretCheck{"k1": a, "k2": b})
	want["k2"] = ledger.KeptSecret{Check: b, Used: true}
	wantKept(t, one, want)
}

func testSecretsAtOnce(t *testing.T, d Data) {
	const servers = 8
	stores := make([]ledger.SecretStore, servers)
	for i := range stores {
		stores[i], _ = openSecrets(t, d)
	}
	for round := range 5 {
		saw := make([]map[string]ledger.KeptSecret, servers)
		ids := []string{fmt.Sprint("a", round), fmt.Sprint("b", round)}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() {
				<-start
				own := ledger.SecretCheck{byte(i)}
				if err := s.KeepSecrets(t.Context(), map[string]ledger.SecretCheck{ids[0]: own, ids[1]: own}, ids[0]); err != nil {
					t.Error(err)
				}
				var err error
				if saw[i], err = s.KeptSecrets(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		for i := range saw {
			if len(saw[i]) != 2*(round+1) || saw[i][ids[0]] != saw[0][ids[0]] || saw[i][ids[1]].Check != saw[0][ids[0]].Check || !saw[i][ids[0]].Used {
				t.Errorf("server %d saw %v, the first %v", i, saw[i], saw[0])
			}
		}
	}
}

func testSecretsForgotten(t *testing.T, d Data) {
	s, _ := openSecrets(t, d)
	keep(t, s, "k1", map[string]ledger.SecretCheck{"k1": {1}, "k2": {2}})
	for range 2 { // one that is not there is no error
		if err := s.ForgetSecret(t.Context(), "k1"); err != nil {
			t.Fatal(err)
		}
		wantKept(t, s, map[string]ledger.KeptSecret{"k2": {Check: ledger.SecretCheck{2}}})
	}
	keep(t, s, "k2", map[string]ledger.SecretCheck{"k1": {3}, "k2": {2}})
	wantKept(t, s, map[string]ledger.KeptSecret{"k1": {Check: ledger.SecretCheck{3}}, "k2": {Check: ledger.SecretCheck{2}, Used: true}})
}

func testSecretsLookAlike(t *testing.T, d Data) {
	s, _ := openSecrets(t, d)
	checks, want := map[string]ledger.SecretCheck{}, map[string]ledger.KeptSecret{}
	for i, id := range []string{"k", "K", "k.", "k_", "k-", "k1", "k10", "k01"} {
		checks[id] = ledger.SecretCheck{byte(i)}
		want[id] = ledger.KeptSecret{Check: checks[id], Used: id == "K"}
	}
	keep(t, s, "K", checks)
	wantKept(t, s, want)
	if err := s.ForgetSecret(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	delete(want, "k")
	wantKept(t, s, want)
}

func testSecretRecords(t *testing.T, d Data) {
	secrets, s := openSecrets(t, d)
	want := map[string]int64{}
	wantRecords := func() {
		t.Helper()
		got, err := secrets.SecretRecords(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	}
	wantRecords()
	for i, secret := range []string{"k1", "k2", "K1", "k1", "k1"} {
		k := testKey(fmt.Sprint("record-", i))
		mustUpdate(t, s, ledger.ReadSet{ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) {
			o := received(k, v.Now)
			o.Fingerprint.SecretID = secret
			return step(o, note("made"), v.Now), nil
		})
		want[secret]++
	}
	wantRecords()
	// What is done with a record changes nothing of what it was made with.
	mustUpdate(t, s, ledger.ReadSet{ID: testID("record-0")}, change(note("again"), func(o *ledger.Operation, _ time.Time) { o.Fingerprint.SecretID = "k9" }))
	wantRecords()
}

func testSecretsClosed(t *testing.T, d Data) {
	secrets, s := openSecrets(t, d)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, kept := secrets.KeptSecrets(t.Context())
	_, records := secrets.SecretRecords(t.Context())
	for name, err := range map[string]error{
		"kept": kept, "keep": secrets.KeepSecrets(t.Context(), map[string]ledger.SecretCheck{"k1": {}}, "k1"),
		"forget": secrets.ForgetSecret(t.Context(), "k1"), "records": records,
	} {
		if !errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: %v, want ErrStoreUnavailable", name, err)
		}
	}
}
