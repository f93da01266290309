// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// spec2 is a version that normalises one thing more: letters' case.
func spec2(t *testing.T, write int) Specs {
	t.Helper()
	specs, err := NewSpecs(write, Spec{
		Number:       2,
		Canonicalize: func(text []byte, rules Rules) (Canonical, error) { return Canonicalize(bytes.ToLower(text), rules) },
		Observed: func(text []byte, rules Rules) (Canonical, error) {
			return CanonicalizeObserved(bytes.ToLower(text), rules)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

// Case C14. Two builds and two contracts at once: whoever wrote a record, and whoever judges a retry, the record's
// own spec and contract decide. What is not known is never called different.
func TestRetriesAreJudgedByTheRecordsVersions(t *testing.T) {
	ring := testRing(t, "k1", "k1", "k2")
	// One contract compares the amount as it is written, the next one by its value.
	contracts := map[string]ledger.Contract{
		"v1": {Tool: "t", Version: "v1", Fields: map[string]ledger.RequestField{"amount": {Category: "amount"}}},
		"v2": {Tool: "t", Version: "v2", Fields: map[string]ledger.RequestField{"amount": {Type: "decimal", Category: "money"}}},
	}
	all := func(_ context.Context, tool ledger.Tool, version string) (Rules, error) {
		if c, ok := contracts[version]; ok && c.Tool == tool {
			return RulesOf(c)
		}
		return Rules{}, ledger.ErrRecordTooNew
	}
	builds := map[string]struct {
		fetch func(context.Context, ledger.Tool, string) (Rules, error)
		specs Specs
	}{
		"old":                            {all, Specs{}},
		"new, before it writes":          {all, spec2(t, 1)},
		"new":                            {all, spec2(t, 2)},
		"old, without earlier contracts": {nil, Specs{}},
		"new, without earlier contracts": {nil, spec2(t, 2)},
	}
	const request = `{"amount":"10.0","to":"A"}`
	retries := map[string]func(spec int, contract string) (categories []string){
		request: func(int, string) []string { return nil },
		`{"amount":"10","to":"A"}`: func(_ int, contract string) []string {
			return map[string][]string{"v1": {"amount"}}[contract]
		},
		`{"amount":"10.0","to":"a"}`: func(spec int, _ string) []string {
			return map[int][]string{1: {"other"}}[spec]
		},
		`{"amount":"11","to":"A"}`: func(_ int, contract string) []string {
			return map[string][]string{"v1": {"amount"}, "v2": {"money"}}[contract]
		},
	}
	// Each request is of another process, which has had only its own contract in force.
	make := func(build, contract, text string) *Request {
		t.Helper()
		o := Options{Specs: builds[build].specs, Versions: &Versions{Fetch: builds[build].fetch}}
		r, err := o.NewRequest(ring, ledger.Claim{}, contracts[contract], []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	judged, unknown := 0, 0
	for writer, written := range builds {
		for wroteUnder := range contracts {
			record, err := make(writer, wroteUnder, request).Fingerprint(nil)
			if err != nil {
				t.Fatal(err)
			}
			if int(record.Spec) != written.specs.Write() || record.Contract != wroteUnder {
				t.Errorf("%s wrote spec %d, contract %s", writer, record.Spec, record.Contract)
			}
			for reader, read := range builds {
				for readsUnder := range contracts {
					for text, want := range retries {
						name := fmt.Sprintf("%s wrote under %s, %s reads %s under %s", writer, wroteUnder, reader, text, readsUnder)
						got, err := fetched(make(reader, readsUnder, text), &record)
						if read.specs.Check(int(record.Spec)) != nil || wroteUnder != readsUnder && read.fetch == nil {
							if unknown++; !errors.Is(err, ledger.ErrRecordTooNew) || !cmp.Equal(got, ledger.Fingerprint{}) {
								t.Errorf("%s: %v, %v", name, got, err)
							}
							continue
						}
						if judged++; err != nil {
							t.Errorf("%s: %v", name, err)
							continue
						}
						categories := differ(asDigested(record), asDigested(got))
						if diff := cmp.Diff(want(int(record.Spec), wroteUnder), categories); diff != "" {
							t.Errorf("%s: %s", name, diff)
						}
						if got.Spec != record.Spec || got.Contract != record.Contract || got.SecretID != record.SecretID {
							t.Errorf("%s: under %d, %s, %s", name, got.Spec, got.Contract, got.SecretID)
						}
					}
				}
			}
		}
	}
	if judged == 0 || unknown == 0 {
		t.Errorf("%d retries were judged, %d could not be", judged, unknown)
	}
}

// fetched is the fingerprint that a decision gets, after what it lacks was fetched outside of it.
func fetched(r *Request, like *ledger.Fingerprint) (ledger.Fingerprint, error) {
	f, err := r.Fingerprint(like)
	if lacking := (*ledger.Lacking)(nil); errors.As(err, &lacking) {
		if err := lacking.Fetch(context.Background()); err != nil {
			return ledger.Fingerprint{}, err
		}
		return r.Fingerprint(like)
	}
	return f, err
}

func asDigested(f ledger.Fingerprint) Fingerprint {
	return Fingerprint{Spec: int(f.Spec), SecretID: f.SecretID, Digest: f.Digest, Categories: f.Categories}
}

func TestObservationsAreReadUnderTheRecordsSpec(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	contract := ledger.Contract{Version: "v1", Fields: map[string]ledger.RequestField{"to": {Category: "recipient"}}, Verify: []string{"recipient"}}
	for write, want := range map[int]bool{1: false, 2: true} {
		o := Options{Specs: spec2(t, write)}
		r, err := o.NewRequest(ring, ledger.Claim{}, contract, []byte(`{"to":"A"}`))
		if err != nil {
			t.Fatal(err)
		}
		record, err := r.Fingerprint(nil)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := o.VerifyObserved(ring, record, contract, []byte(`{"to":"a"}`)); err != nil || v.OK() != want {
			t.Errorf("spec %d: %v, %v", write, v, err)
		}
	}
}

func TestSpecsThatCanNotBe(t *testing.T) {
	good := Spec{Number: 2, Canonicalize: Canonicalize, Observed: CanonicalizeObserved}
	for name, err := range map[string]error{
		"spec 1 twice":   errOf(NewSpecs(1, Spec{Number: 1, Canonicalize: Canonicalize, Observed: CanonicalizeObserved})),
		"spec 2 twice":   errOf(NewSpecs(1, good, good)),
		"no number":      errOf(NewSpecs(1, Spec{Canonicalize: Canonicalize, Observed: CanonicalizeObserved})),
		"no function":    errOf(NewSpecs(1, Spec{Number: 2, Canonicalize: Canonicalize})),
		"it is unknown":  errOf(NewSpecs(3, good)),
		"it is no spec":  errOf(NewSpecs(0, good)),
		"beyond 15 bits": errOf(NewSpecs(1, Spec{Number: 1 << 15, Canonicalize: Canonicalize, Observed: CanonicalizeObserved})),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	var none Specs
	if none.Write() != Spec1 || none.Check(1) != nil || !errors.Is(none.Check(2), ErrSpecTooNew) || !errors.Is(none.Check(0), ErrSpecInvalid) {
		t.Error("the zero value does not know spec 1 alone")
	}
}

func errOf[T any](_ T, err error) error { return err }

// A request that a later contract refuses is still what an earlier one took.
func TestMisfitsOfALaterContractAreNoneOfARecord(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	before := ledger.Contract{Tool: "t", Version: "v1"}
	now := ledger.Contract{Tool: "t", Version: "v2", Fields: map[string]ledger.RequestField{"amount": {Type: "decimal"}}}
	o := Options{Versions: &Versions{Fetch: func(context.Context, ledger.Tool, string) (Rules, error) { return Rules{}, nil }}}
	for text, rule := range map[string]Rule{`{"amount":"1,000.00"}`: RuleDecimal, `{"amount":"1e999"}`: RuleBounds} {
		first, err := o.NewRequest(ring, ledger.Claim{}, before, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		record, err := first.Fingerprint(nil)
		if err != nil {
			t.Fatal(err)
		}
		retry, err := o.NewRequest(ring, ledger.Claim{}, now, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := fetched(retry, &record); err != nil || !cmp.Equal(again, record) {
			t.Errorf("the retry: %v, %v", again, err)
		}
		for _, err := range []error{errOf(retry.Fingerprint(nil)), errOf(retry.Fingerprint(&ledger.Fingerprint{Spec: 1, SecretID: "k1", Contract: "v2"})), retry.Misfit()} {
			var broken *Error
			if !errors.As(err, &broken) || broken.Rule != rule || broken.Pointer != "/amount" {
				t.Errorf("under the contract in force: %v", err)
			}
		}
		// A record of a tool that had no contract then.
		undeclared := record
		undeclared.Contract = ledger.DefaultContract("t").Version
		if again, err := retry.Fingerprint(&undeclared); err != nil || again.Digest != record.Digest {
			t.Errorf("without a contract: %v", err)
		}
		if first.Misfit() != nil {
			t.Error("a misfit without types")
		}
	}
}

func TestDeclarationsThatCanNotBeUsedMakeNoRequest(t *testing.T) {
	bad := ledger.Contract{Fields: map[string]ledger.RequestField{"a": {Type: "number"}}}
	var fault *FieldError
	if _, err := NewRequest(testRing(t, "k1", "k1"), ledger.Claim{}, bad, []byte(`{}`)); !errors.As(err, &fault) {
		t.Errorf("a request: %v", err)
	}
	if _, err := (Options{}).VerifyObserved(testRing(t, "k1", "k1"), ledger.Fingerprint{Spec: 1, SecretID: "k1"}, bad, []byte(`{}`)); !errors.As(err, &fault) {
		t.Errorf("an observation: %v", err)
	}
}

func TestVersionsThatWereInForceAreRemembered(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	o := Options{Versions: new(Versions)}
	before := ledger.Contract{Tool: "t", Version: "v1", Fields: map[string]ledger.RequestField{"a": {Type: "decimal"}}}
	plain, now, others := ledger.Contract{Tool: "t", Version: "v2"}, ledger.Contract{Tool: "t", Version: "v3"}, ledger.Contract{Tool: "other", Version: "v3"}
	var records []ledger.Fingerprint
	for _, c := range []ledger.Contract{before, plain} {
		r, err := o.NewRequest(ring, ledger.Claim{}, c, []byte(`{"a":"1.0"}`))
		if err != nil {
			t.Fatal(err)
		}
		record, err := r.Fingerprint(nil)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	retry, err := o.NewRequest(ring, ledger.Claim{}, now, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := retry.Fingerprint(&records[0]); err != nil || !cmp.Equal(got, records[0]) {
		t.Errorf("by the one with a type: %v, %v", got, err)
	}
	if got, err := retry.Fingerprint(&records[1]); err != nil || got.Digest == records[1].Digest {
		t.Errorf("by the one without: %v, %v", got, err)
	}
	// What nobody remembers says nothing, neither that a request is another one nor that it is the same: what is in force may ignore what it did not.
	for _, text := range []string{`{"a":1}`, `{"a":"1.00"}`, `{"a":2}`} {
		stranger, err := o.NewRequest(ring, ledger.Claim{}, others, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := stranger.Fingerprint(&records[0]); !errors.Is(err, ledger.ErrRecordTooNew) {
			t.Errorf("%s by a contract that is not the record's: %v, %v", text, got, err)
		}
	}
	// Tools without a contract are as many as callers like to name.
	for i := range 100 {
		if _, err := o.NewRequest(ring, ledger.Claim{}, ledger.DefaultContract(ledger.Tool(fmt.Sprint("t", i))), []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	o.Versions.made.Range(func(_, _ any) bool { n++; return true })
	if n != 4 {
		t.Errorf("%d versions are remembered", n)
	}
}
