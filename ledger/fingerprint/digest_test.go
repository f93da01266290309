// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var paymentRules = func() Rules {
	rules, err := NewRules(map[string]Field{"amount": {Category: "amount"}, "currency": {Category: "amount"}, "to": {Category: "recipient"}}, nil)
	if err != nil {
		panic(err)
	}
	return rules
}()

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

func TestDigestsOfDifferentKindsDiffer(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	rules := mustRules(t, map[string]Field{"a": {Category: "one"}})
	other := mustRules(t, map[string]Field{"a": {Category: "two"}})
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
