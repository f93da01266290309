// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var paymentRules = rulesOf(map[string]string{"amount": "amount", "currency": "amount", "to": "recipient"})

func TestCompareNamesWhatDiffers(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	const stored = `{"amount":100,"currency":"EUR","to":"A","note":"n"}`
	related := Relations{DependsOn: []string{"r1", "r2"}}
	tests := []struct {
		name           string
		fresh          string
		before, now    Relations
		wantCategories []string
	}{
		{"the same", `{"note":"n","to":"\u0041","currency":"EUR","amount":1e2}`, Relations{}, Relations{}, nil},
		{"the same dependencies in another order, one twice", stored, related, Relations{DependsOn: []string{"r2", "r1", "r2"}}, nil},
		{"amount", `{"amount":1000,"currency":"EUR","to":"A","note":"n"}`, Relations{}, Relations{}, []string{"amount"}},
		{"a second field of a category", `{"amount":100,"currency":"JPY","to":"A","note":"n"}`, Relations{}, Relations{}, []string{"amount"}},
		{"an undeclared field", `{"amount":100,"currency":"EUR","to":"A","note":"m"}`, Relations{}, Relations{}, []string{"other"}},
		{"several, sorted", `{"amount":1,"currency":"EUR","to":"B","note":"m"}`, Relations{}, Relations{}, []string{"amount", "other", "recipient"}},
		{"a category that went away", `{"amount":100,"currency":"EUR","note":"n"}`, Relations{}, Relations{}, []string{"recipient"}},
		{"a relation that came", stored, Relations{}, related, []string{"relation"}},
		{"another dependency", stored, related, Relations{DependsOn: []string{"r1"}}, []string{"relation"}},
		{"compensates is not corrects", stored, Relations{Compensates: "x"}, Relations{Corrects: "x"}, []string{"relation"}},
		{"dependencies are not joined", stored, Relations{DependsOn: []string{"a", "b"}}, Relations{DependsOn: []string{"ab"}}, []string{"relation"}},
		{"a field and a relation", `{"amount":1,"currency":"EUR","to":"A","note":"n"}`, related, Relations{}, []string{"amount", "relation"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := Digest(mustCanonicalize(t, stored, paymentRules), tt.before, secret)
			b := Digest(mustCanonicalize(t, tt.fresh, paymentRules), tt.now, secret)
			if diff := cmp.Diff(tt.wantCategories, differ(a, b)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.wantCategories, differ(b, a)); diff != "" {
				t.Errorf("the other way round: %s", diff)
			}
		})
	}
}

// differ names the categories in which two fingerprints differ, sorted; nil: they are of one request.
func differ(a, b Fingerprint) []string {
	if a.Digest == b.Digest {
		return nil
	}
	names := map[string]bool{}
	for _, pair := range [][2]Fingerprint{{a, b}, {b, a}} {
		for name, digest := range pair[0].Categories {
			if other, ok := pair[1].Categories[name]; !ok || other != digest {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func TestFingerprintsThatCannotBeCompared(t *testing.T) {
	k1, k2 := testSecret(t, "k1", 0), testSecret(t, "k2", 1)
	c := mustCanonicalize(t, `{"a":1}`, Rules{})
	fresh := Digest(c, Relations{}, k1)
	tooNew, invalid, foreign := fresh, fresh, Digest(c, Relations{}, k2)
	tooNew.Spec, invalid.Spec = LatestSpec+1, 0
	for name, tt := range map[string]struct {
		stored Fingerprint
		want   error
	}{
		"a newer spec":   {tooNew, ErrSpecTooNew},
		"no spec":        {invalid, ErrSpecInvalid},
		"another secret": {foreign, ErrSecretMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := VerifyObserved(tt.stored, []byte(`{"a":1}`), Rules{}, k1, []string{"other"})
			if !errors.Is(err, tt.want) || v.Different != nil || v.Missing != nil {
				t.Errorf("VerifyObserved: %v, %v", v, err)
			}
		})
	}
	if foreign.Digest == fresh.Digest {
		t.Error("two secrets make the same digest")
	}
}

func TestDigestsOfDifferentKindsDiffer(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	rules := rulesOf(map[string]string{"a": "one"})
	other := rulesOf(map[string]string{"a": "two"})
	one := Digest(mustCanonicalize(t, `{"a":1}`, rules), Relations{}, secret)
	two := Digest(mustCanonicalize(t, `{"a":1}`, other), Relations{}, secret)
	if one.Digest != two.Digest {
		t.Error("the whole digest depends on the categories")
	}
	if one.Categories["one"] == two.Categories["two"] {
		t.Error("the same content has the same digest in two categories")
	}
	if one.Categories["one"] == short(one.Digest) {
		t.Error("category and whole are the same")
	}
	if SubjectDigest("x", secret) == SubjectDigest("y", secret) || SubjectDigest("x", secret) == SubjectDigest("x", testSecret(t, "k2", 1)) {
		t.Error("subjects are not told apart")
	}
}

func TestZeroValuesAreNotDigested(t *testing.T) {
	for name, digest := range map[string]func(){
		"no request": func() { Digest(Canonical{}, Relations{}, testSecret(t, "k1", 0)) },
		"no secret":  func() { Digest(mustCanonicalize(t, `{}`, Rules{}), Relations{}, Secret{}) },
		"subject":    func() { SubjectDigest("x", Secret{}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("made a digest that strangers share")
				}
			}()
			digest()
		})
	}
}

func TestVerifyObserved(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	tests := []struct {
		name     string
		asked    string
		observed string
		verify   []string
		want     Verification
	}{
		{"equal, other fields do not matter", `{"amount":5,"to":"A","note":"x"}`, `{"amount":5.00,"to":"A","state":"open"}`, []string{"recipient"}, Verification{}},
		{"two fields of a category", `{"amount":5,"currency":"EUR"}`, `{"currency":"EUR","amount":5}`, []string{"amount"}, Verification{}},
		{"a scale slip", `{"amount":80,"currency":"JPY"}`, `{"amount":8000,"currency":"JPY"}`, []string{"amount"}, Verification{Different: []string{"amount"}}},
		{"no field of the category", `{"amount":5,"to":"A"}`, `{"amount":5}`, []string{"recipient"}, Verification{Missing: []string{"recipient"}}},
		{"some fields of the category", `{"amount":5,"currency":"EUR"}`, `{"amount":5}`, []string{"amount"}, Verification{Missing: []string{"amount"}}},
		{"a declared field that nobody has", `{"amount":5}`, `{"amount":5}`, []string{"amount"}, Verification{}},
		{"not asked for, but there", `{"amount":5}`, `{"to":"A"}`, []string{"recipient"}, Verification{Different: []string{"recipient"}}},
		{"on neither side", `{"amount":5}`, `{}`, []string{"recipient"}, Verification{Missing: []string{"recipient"}}},
		{
			"sorted, each once",
			`{"amount":5,"currency":"EUR","to":"A","n":1}`, `{"to":"B","n":2}`,
			[]string{"recipient", "other", "amount", "recipient"},
			Verification{Different: []string{"other", "recipient"}, Missing: []string{"amount"}},
		},
		{"a relation is never observed", `{"amount":5}`, `{"amount":5}`, []string{"relation"}, Verification{Missing: []string{"relation"}}},
		{"nothing to verify", `{"amount":5}`, `{"amount":6}`, nil, Verification{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stored := Digest(mustCanonicalize(t, tt.asked, paymentRules), Relations{Compensates: "x"}, secret)
			got, err := VerifyObserved(stored, []byte(tt.observed), paymentRules, secret, tt.verify)
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
	var refused *Error
	stored := Digest(mustCanonicalize(t, `{}`, Rules{}), Relations{}, secret)
	if _, err := VerifyObserved(stored, []byte(`{"a":1,"a":2}`), Rules{}, secret, nil); !errors.As(err, &refused) {
		t.Errorf("observed duplicates: %v", err)
	}
}
