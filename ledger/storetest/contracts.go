// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/opsledger/opsledger/ledger"
)

// testContracts: the versions of contracts that a store keeps.
func testContracts(t *testing.T, d Data) {
	stores, kept := make([]ledger.Store, 3), make([]ledger.ContractStore, 3)
	for i := range stores {
		stores[i] = d.Open(t, Options{})
		var ok bool
		if kept[i], ok = stores[i].(ledger.ContractStore); !ok {
			t.Fatal("the store keeps no contracts")
		}
	}
	t.Run("kept once", func(t *testing.T) { testContractOnce(t, kept[0], kept[1]) })
	t.Run("saved at once", func(t *testing.T) { testContractsAtOnce(t, kept[:2]) })
	t.Run("impossible", func(t *testing.T) { testImpossibleContracts(t, kept[0]) })
	t.Run("a closed store", func(t *testing.T) {
		if err := stores[2].Close(); err != nil {
			t.Fatal(err)
		}
		wantUnavailable(t, "save", kept[2].SaveContracts(t.Context(), []ledger.ContractVersion{{Version: "late", Document: []byte("{}")}}))
		_, err := kept[2].SavedContract(t.Context(), "late")
		wantUnavailable(t, "read", err)
		wantSaved(t, kept[0], "late", nil)
	})
}

func mustSave(t *testing.T, s ledger.ContractStore, versions ...ledger.ContractVersion) {
	t.Helper()
	if err := s.SaveContracts(t.Context(), versions); err != nil {
		t.Fatalf("save contracts: %v", err)
	}
}

// wantSaved fails unless a version is kept with these very bytes; nil: it is not kept.
func wantSaved(t *testing.T, s ledger.ContractStore, version string, want []byte) {
	t.Helper()
	got, err := s.SavedContract(t.Context(), version)
	if err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
		t.Errorf("version %q: %d bytes, want %d, byte by byte: %v", version, len(got), len(want), err)
	}
}

// everyByte has all values that a byte can have, and is no text.
func everyByte(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// testContractOnce: a version is kept once, as it was saved first, and what looks like it is another one.
func testContractOnce(t *testing.T, s, other ledger.ContractStore) {
	small := ledger.ContractVersion{Version: "0123456789abcdef", Document: everyByte(256)}
	large := ledger.ContractVersion{Version: "fedcba9876543210", Document: everyByte(3 << 20)}
	wantSaved(t, s, small.Version, nil)
	mustSave(t, s)
	mustSave(t, s, small)
	wantSaved(t, s, large.Version, nil)
	mustSave(t, s, large, small) // one of them is there, and they have no order
	for range 2 {
		for _, s := range []ledger.ContractStore{s, other} {
			wantSaved(t, s, small.Version, small.Document)
			wantSaved(t, s, large.Version, large.Document)
			wantSaved(t, s, "", nil)
			wantSaved(t, s, "0123456789ABCDEF", nil)
			wantSaved(t, s, "0123456789abcdef ", nil)
		}
		mustSave(t, other, ledger.ContractVersion{Version: small.Version, Document: []byte("another")}, large)
	}
	mustSave(t, s, ledger.ContractVersion{Version: "0123456789ABCDEF", Document: []byte("{}")})
	wantSaved(t, s, "0123456789ABCDEF", []byte("{}"))
	wantSaved(t, s, small.Version, small.Document)
}

// testContractsAtOnce: instances that start together save one set, or sets that overlap; none is in another's way.
func testContractsAtOnce(t *testing.T, stores []ledger.ContractStore) {
	const versions, each = 16, 8
	version := func(i int) ledger.ContractVersion {
		return ledger.ContractVersion{Version: fmt.Sprint("at once ", i), Document: fmt.Appendf(nil, "document %d", i)}
	}
	atOnce(t, 2*versions, func(i int) error {
		set := make([]ledger.ContractVersion, each)
		for j := range set {
			set[j] = version((i/2 + j) % versions)
			if i%4 > 1 { // against the others' order
				set[j] = version((i/2 + each - j) % versions)
			}
		}
		return stores[i%2].SaveContracts(t.Context(), set)
	})
	for i := range versions {
		wantSaved(t, stores[i%2], version(i).Version, version(i).Document)
	}
}

// testImpossibleContracts: what is no version is refused as a fault of the code, and with it all that was to be saved.
func testImpossibleContracts(t *testing.T, s ledger.ContractStore) {
	good := ledger.ContractVersion{Version: "beside another", Document: []byte("{}")}
	for name, bad := range map[string]ledger.ContractVersion{
		"no version":     {Document: []byte("{}")},
		"a long version": {Version: fmt.Sprintf("%065d", 1), Document: []byte("{}")},
		"no document":    {Version: "without a document"},
		"an empty one":   {Version: "without a document", Document: []byte{}},
	} {
		if err := s.SaveContracts(t.Context(), []ledger.ContractVersion{good, bad}); err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%s: got %v, want an error that no retry mends", name, err)
		}
		wantSaved(t, s, good.Version, nil)
	}
	mustSave(t, s, good) // the store goes on
	wantSaved(t, s, good.Version, good.Document)
}
