// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/opsledger/opsledger/ledger"

	"github.com/google/go-cmp/cmp"
)

// vector is a line of testdata/vectors.jsonl. The lines were made by another
// implementation of the package comment (in Python, over its decimal module);
// the secret is the 32 bytes 0x00 to 0x1f.
type vector struct {
	ID              string            `json:"id"`
	Request         string            `json:"request"`
	Categories      map[string]string `json:"categories"`
	DependsOn       []string          `json:"depends_on"`
	Compensates     string            `json:"compensates"`
	Corrects        string            `json:"corrects"`
	Canonical       string            `json:"canonical"`
	ContentSHA256   string            `json:"content_sha256"`
	Fingerprint     string            `json:"fingerprint"`
	CategoryDigests map[string]string `json:"category_digests"`
	Subject         *string           `json:"subject"`
	SubjectDigest   string            `json:"subject_digest"`
}

// readLines decodes a file of one JSON object a line.
func readLines[T any](t testing.TB, file string) []T {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []T
	for line := range bytes.Lines(data) {
		var row T
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no rows", file)
	}
	return rows
}

func testSecret(t testing.TB, id string, first byte) Secret {
	t.Helper()
	key := make([]byte, MinSecretSize)
	for i := range key {
		key[i] = first + byte(i)
	}
	s, err := NewSecret(id, key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rulesOf(categories map[string]string) Rules {
	return RulesOf(ledger.Contract{Categories: categories})
}

func mustCanonicalize(t testing.TB, request string, rules Rules) Canonical {
	t.Helper()
	c, err := Canonicalize([]byte(request), rules)
	if err != nil {
		t.Fatalf("Canonicalize(%q): %v", request, err)
	}
	return c
}

func TestPublishedVectors(t *testing.T) {
	secret := testSecret(t, "k1", 0)
	for _, v := range readLines[vector](t, "testdata/vectors.jsonl") {
		t.Run(v.ID, func(t *testing.T) {
			rules := rulesOf(v.Categories)
			c := mustCanonicalize(t, v.Request, rules)
			digest := c.ContentDigest()
			f := Digest(c, Relations{DependsOn: v.DependsOn, Compensates: v.Compensates, Corrects: v.Corrects}, secret)
			got := vector{
				ID: v.ID, Request: v.Request, Categories: v.Categories,
				DependsOn: v.DependsOn, Compensates: v.Compensates, Corrects: v.Corrects,
				Canonical: string(c.Text()), ContentSHA256: hex.EncodeToString(digest[:]),
				Fingerprint: hex.EncodeToString(f.Digest[:]), CategoryDigests: map[string]string{},
				Subject: v.Subject,
			}
			for name, d := range f.Categories {
				got.CategoryDigests[name] = hex.EncodeToString(d[:])
			}
			if v.Subject != nil {
				d := SubjectDigest(*v.Subject, secret)
				got.SubjectDigest = hex.EncodeToString(d[:])
			}
			if diff := cmp.Diff(v, got); diff != "" {
				t.Error(diff)
			}
			if f.Spec != Spec1 || f.SecretID != "k1" {
				t.Errorf("spec %d, secret %q", f.Spec, f.SecretID)
			}
			if again := mustCanonicalize(t, v.Canonical, rules); string(again.Text()) != v.Canonical {
				t.Error("the canonical text is not its own canonical text")
			}
		})
	}
}
