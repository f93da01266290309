// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

func testRing(t *testing.T, primary string, ids ...string) *Ring {
	t.Helper()
	var secrets []Secret
	for _, id := range ids {
		secrets = append(secrets, testSecret(t, id, id[len(id)-1]))
	}
	ring, err := NewRing(primary, secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func TestARequestIsJudgedAsItsRecordWas(t *testing.T) {
	contract := ledger.Contract{Version: "v7", Fields: map[string]ledger.RequestField{"cents": {Category: "amount"}}}
	one, other := ledger.OperationID{8: 0x80, 15: 1}, ledger.OperationID{8: 0x80, 15: 2}
	claim := ledger.Claim{Key: ledger.Key{Subject: "somebody"}, DependsOn: []ledger.OperationID{one, other}, Corrects: other}
	of := func(ring *Ring, claim ledger.Claim, text string) *Request {
		t.Helper()
		r, err := NewRequest(ring, claim, contract, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	old, rotated := testRing(t, "k1", "k1"), testRing(t, "k2", "k1", "k2")
	first := of(old, claim, `{"item":"chair","cents":4900}`)
	record, err := first.Fingerprint(nil)
	if err != nil {
		t.Fatal(err)
	}
	if record.SecretID != "k1" || len(record.Categories) != 3 {
		t.Errorf("secret %s, categories %v", record.SecretID, record.Categories)
	}

	reordered := claim
	reordered.DependsOn = []ledger.OperationID{other, one}
	compensating := claim
	compensating.Corrects, compensating.Compensates = ledger.OperationID{}, other
	fewer := claim
	fewer.DependsOn = claim.DependsOn[:1]
	for title, c := range map[string]struct {
		claim ledger.Claim
		text  string
		same  bool
	}{
		"spelled otherwise":              {reordered, `{"cents":49e2,"item":"\u0063hair"}`, true},
		"another price":                  {claim, `{"item":"chair","cents":4901}`, false},
		"it compensates, not corrects":   {compensating, `{"item":"chair","cents":4900}`, false},
		"it depends on something else":   {fewer, `{"item":"chair","cents":4900}`, false},
		"it has nothing to do with both": {ledger.Claim{}, `{"item":"chair","cents":4900}`, false},
	} {
		again, err := of(rotated, c.claim, c.text).Fingerprint(&record)
		if err != nil {
			t.Fatal(err)
		}
		if got := cmp.Equal(again, record); got != c.same {
			t.Errorf("%s: equal is %v", title, got)
		}
		if again.SecretID != "k1" || again.Contract != "v7" {
			t.Errorf("%s: under %s, %s", title, again.SecretID, again.Contract)
		}
	}
	if fresh, err := of(rotated, claim, `{}`).Fingerprint(nil); err != nil || fresh.SecretID != "k2" || fresh.Contract != "v7" {
		t.Errorf("a new record: %v, %v", fresh, err)
	}
}

// TestAnotherOriginal: the same request under the same key, of another original, is another request.
func TestAnotherOriginal(t *testing.T) {
	if record, again := anotherOriginal(t); record.Digest == again.Digest {
		t.Error("it is the same request, and would be replayed")
	}
}

// anotherOriginal digests one request twice, the second time under the versions of the first, and of another original.
func anotherOriginal(t *testing.T) (record, again ledger.Fingerprint) {
	digest := func(original byte, like *ledger.Fingerprint) ledger.Fingerprint {
		r, err := NewRequest(testRing(t, "k1", "k1"), ledger.Claim{Compensates: ledger.OperationID{original}}, ledger.Contract{Version: "v1"}, []byte(`{"cents":4900}`))
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.Fingerprint(like)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	record = digest(1, nil)
	return record, digest(2, &record)
}

func TestNothingIsSaidOfARecordTooNew(t *testing.T) {
	r, err := NewRequest(testRing(t, "k1", "k1"), ledger.Claim{Key: ledger.Key{Subject: "somebody"}}, ledger.Contract{}, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	for title, like := range map[string]ledger.Fingerprint{
		"a secret that the ring lacks":    {Spec: Spec1, SecretID: "k2"},
		"a spec that this release lacks":  {Spec: Spec1 + 1, SecretID: "k1"},
		"a spec that no release ever had": {SecretID: "k1"},
	} {
		if got, err := r.Fingerprint(&like); !errors.Is(err, ledger.ErrRecordTooNew) || !cmp.Equal(got, ledger.Fingerprint{}) {
			t.Errorf("%s: %v, %v", title, got, err)
		}
	}
	if got, err := r.SubjectDigest(ledger.Fingerprint{SecretID: "k2"}); !errors.Is(err, ledger.ErrRecordTooNew) || got != nil {
		t.Errorf("its subject: %x, %v", got, err)
	}
}

func TestASubjectIsFoundUnderEachSecret(t *testing.T) {
	ring := testRing(t, "k2", "k1", "k2")
	r, err := NewRequest(ring, ledger.Claim{Key: ledger.Key{Subject: "somebody"}}, ledger.Contract{}, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	all := r.SubjectDigests()
	if len(all) != 2 || slices.Equal(all[0], all[1]) {
		t.Fatalf("digests %x", all)
	}
	for i, id := range ring.IDs() {
		if one, err := r.SubjectDigest(ledger.Fingerprint{SecretID: id}); err != nil || !slices.Equal(one, all[i]) {
			t.Errorf("%s: %x, %v; want %x", id, one, err, all[i])
		}
	}
	nobody, err := NewRequest(ring, ledger.Claim{}, ledger.Contract{}, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if one, err := nobody.SubjectDigest(ledger.Fingerprint{SecretID: "k1"}); len(one) != 0 || err != nil || len(nobody.SubjectDigests()) != 0 {
		t.Errorf("without a subject: %x, %x, %v", one, nobody.SubjectDigests(), err)
	}
}

func TestATextThatIsNoRequestIsRefused(t *testing.T) {
	r, err := NewRequest(testRing(t, "k1", "k1"), ledger.Claim{}, ledger.Contract{}, []byte(`{"a":1,"a":2}`))
	var broken *Error
	if r != nil || !errors.As(err, &broken) {
		t.Errorf("%v, %v", r, err)
	}
}
