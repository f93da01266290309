// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// vector is a line of testdata/vectors.jsonl, all of which were made by
// testdata/spec1.py; the secret is the 32 bytes 0x00 to 0x1f.
type vector struct {
	ID          string          `json:"id,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Request     string          `json:"request"`
	Contract    *vectorContract `json:"contract,omitempty"`
	DependsOn   []string        `json:"depends_on,omitempty"`
	Compensates string          `json:"compensates,omitempty"`
	Corrects    string          `json:"corrects,omitempty"`

	Refused         *vectorRefusal    `json:"refused,omitempty"`
	Canonical       string            `json:"canonical,omitempty"`
	ContentSHA256   string            `json:"content_sha256,omitempty"`
	Parts           map[string]string `json:"parts,omitempty"`
	Fingerprint     string            `json:"fingerprint,omitempty"`
	CategoryDigests map[string]string `json:"category_digests,omitempty"`
	Subject         *string           `json:"subject,omitempty"`
	SubjectDigest   string            `json:"subject_digest,omitempty"`
	SecretID        string            `json:"secret_id,omitempty"`
	Check           string            `json:"check,omitempty"`
	SlotOf          *slotOf           `json:"slot_of,omitempty"`
	Slot            string            `json:"slot,omitempty"`
}

// slotOf is what a slot is made of beside the request.
type slotOf struct {
	Scope   string   `json:"scope"`
	Subject string   `json:"subject"`
	Tool    string   `json:"tool"`
	By      []string `json:"by"`
}

type vectorRefusal struct {
	Pointer string `json:"pointer"`
	Kind    string `json:"kind"`
}

// kinds are what testdata/spec1.py calls the rules of declared types.
var kinds = map[Rule]string{
	RuleDecimal: "decimal", RuleBounds: "bounds", RuleMoney: "money", RuleCurrency: "currency", RuleNoCurrency: "no currency", RuleMinorUnits: "minor units",
	RuleTimestamp: "timestamp", RuleUUID: "uuid", RuleSet: "set", RuleRepeat: "repeat", RuleText: "text", RuleCombining: "combining",
}

// vectorContract is the request part of a contract, as JSON.
type vectorContract struct {
	Fields map[string]vectorField `json:"fields,omitempty"`
	Ignore []string               `json:"ignore,omitempty"`
}

type vectorField struct {
	Type     Type            `json:"type,omitempty"`
	Currency string          `json:"currency,omitempty"`
	Category string          `json:"category,omitempty"`
	Default  json.RawMessage `json:"default,omitempty"`
}

func (c *vectorContract) rules(t testing.TB) Rules {
	t.Helper()
	if c == nil {
		return Rules{}
	}
	fields := map[string]Field{}
	for path, f := range c.Fields {
		fields[path] = Field{Type: f.Type, Currency: f.Currency, Category: f.Category, Default: string(f.Default)}
	}
	return mustRules(t, fields, c.Ignore...)
}

func mustRules(t testing.TB, fields map[string]Field, ignored ...string) Rules {
	t.Helper()
	rules, err := NewRules(fields, ignored)
	if err != nil {
		t.Fatal(err)
	}
	return rules
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
	if want := handed[file]; len(rows) == 0 || want > 0 && len(rows) != want {
		t.Fatalf("%s has %d rows, want %d", file, len(rows), want)
	}
	t.Logf("%s: rows: %d", file, len(rows))
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

func mustCanonicalize(t testing.TB, request string, rules Rules) Canonical {
	t.Helper()
	c, err := Canonicalize([]byte(request), rules)
	if err != nil {
		t.Fatalf("Canonicalize(%q): %v", request, err)
	}
	return c
}

func mustText(t testing.TB, request string, rules Rules) string {
	t.Helper()
	text, err := Text([]byte(request), rules)
	if err != nil {
		t.Fatalf("Text(%q): %v", request, err)
	}
	return string(text)
}

// partsOf are the texts that the digests of the categories are made of.
func partsOf(text []byte, rules Rules, observed bool) (map[string]string, error) {
	parts := map[string]string{}
	err := parse(text, rules, observed, func(p *parser) {
		c := p.content()
		if rules.root == nil || !rules.root.walked {
			if len(c.categories) > 0 {
				parts[CategoryOther] = string(p.out)
			}
			return
		}
		for i, part := range p.parts.parts {
			if len(part.text) > 0 {
				parts[rules.categories[i]] = string(part.text)
			}
		}
	})
	return parts, err
}

// result is what this implementation makes of the given part of a vector.
func (v vector) result(t testing.TB) vector {
	t.Helper()
	rules, secret := v.Contract.rules(t), testSecret(t, "k1", 0)
	got := vector{
		ID: v.ID, Reason: v.Reason, Request: v.Request, Contract: v.Contract,
		DependsOn: v.DependsOn, Compensates: v.Compensates, Corrects: v.Corrects, Subject: v.Subject, SecretID: v.SecretID, SlotOf: v.SlotOf,
	}
	c, err := Canonicalize([]byte(v.Request), rules)
	var refused *Error
	if errors.As(err, &refused) {
		got.Refused = &vectorRefusal{Kind: kinds[refused.Rule]}
		if got.Refused.Kind != "" {
			got.Refused.Pointer = refused.Pointer
		}
		return got
	}
	digest := c.ContentDigest()
	f := Digest(c, Relations{DependsOn: v.DependsOn, Compensates: v.Compensates, Corrects: v.Corrects}, secret)
	if f.Spec != Spec1 || f.SecretID != "k1" {
		t.Errorf("spec %d, secret %q", f.Spec, f.SecretID)
	}
	got.Canonical, got.ContentSHA256, got.Fingerprint = mustText(t, v.Request, rules), hex.EncodeToString(digest[:]), hex.EncodeToString(f.Digest[:])
	if got.Parts, err = partsOf([]byte(v.Request), rules, false); err != nil {
		t.Fatal(err)
	}
	got.CategoryDigests = map[string]string{}
	for name, d := range f.Categories {
		got.CategoryDigests[name] = hex.EncodeToString(d[:])
	}
	if v.Subject != nil {
		d := SubjectDigest(*v.Subject, secret)
		got.SubjectDigest = hex.EncodeToString(d[:])
	}
	if v.SecretID != "" {
		check := testSecret(t, v.SecretID, 0).Check()
		got.Check = hex.EncodeToString(check[:])
	}
	if of := v.SlotOf; of != nil {
		d := slot(c, ledger.Key{Scope: ledger.Scope(of.Scope), Subject: of.Subject, Tool: ledger.Tool(of.Tool), Task: "t", Key: "k"}, of.By, secret)
		got.Slot = hex.EncodeToString(d[:])
	}
	return got
}

// comparable leaves out which of the rules that hold for all input was broken:
// the tokenisers of two languages notice them in different orders.
func (v vector) comparable() vector {
	if v.Refused != nil {
		typed := false
		for _, kind := range kinds {
			typed = typed || kind == v.Refused.Kind
		}
		if !typed {
			v.Refused = &vectorRefusal{}
		}
	}
	return v
}

func TestPublishedVectors(t *testing.T) {
	for _, v := range readLines[vector](t, "testdata/vectors.jsonl") {
		t.Run(v.ID, func(t *testing.T) {
			got := v.result(t)
			if diff := cmp.Diff(v.comparable(), got); diff != "" {
				t.Errorf("%s (-python +go):\n%s", v.Reason, diff)
			}
			if v.Refused == nil {
				if again := mustText(t, v.Canonical, v.Contract.rules(t)); again != v.Canonical {
					t.Errorf("the canonical text is not its own canonical text, but %s", again)
				}
			}
		})
	}
}

// python is the other implementation, asked line by line.
func python(t *testing.T) func(vector) vector {
	t.Helper()
	program, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here: the vectors in testdata were made by it and are compared in any case")
	}
	cmd := exec.CommandContext(t.Context(), program, "testdata/spec1.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	ask, answers := json.NewEncoder(in), json.NewDecoder(out)
	return func(v vector) (answer vector) {
		t.Helper()
		if err := errors.Join(ask.Encode(v), answers.Decode(&answer)); err != nil {
			t.Fatalf("%+v: %v", v, err)
		}
		return answer
	}
}

func TestTheOtherImplementationMakesTheVectors(t *testing.T) {
	ask := python(t)
	for _, v := range readLines[vector](t, "testdata/vectors.jsonl") {
		if diff := cmp.Diff(v, ask(v)); diff != "" {
			t.Errorf("%s (-file +python):\n%s", v.ID, diff)
		}
	}
}
