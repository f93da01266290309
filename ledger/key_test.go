// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/opsledger/opsledger/ledger"
)

// readLines reads a file of JSON objects, one a line.
func readLines[T any](t *testing.T, file string) []T {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []T
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s is empty", file)
	}
	return rows
}

// TestKeyVectors pins what is stored and what targets see: the vectors were computed by another program, and no release may change them.
func TestKeyVectors(t *testing.T) {
	type vector struct {
		Scope         ledger.Scope `json:"scope"`
		Tool          ledger.Tool  `json:"tool"`
		Subject       string       `json:"subject"`
		Task          ledger.Task  `json:"task"`
		Key           string       `json:"key"`
		Hash          string       `json:"hash"`
		OperationID   string       `json:"operation_id"`
		DownstreamKey string       `json:"downstream_key"`
	}
	for _, v := range readLines[vector](t, "testdata/key-vectors.jsonl") {
		h := ledger.Key{Scope: v.Scope, Tool: v.Tool, Subject: v.Subject, Task: v.Task, Key: v.Key}.Hash()
		if got := hex.EncodeToString(h[:]); got != v.Hash {
			t.Errorf("hash %s, want %s", got, v.Hash)
		}
		if got := h.OperationID().String(); got != v.OperationID {
			t.Errorf("operation id %s, want %s", got, v.OperationID)
		}
		if got := h.DownstreamKey(); got != v.DownstreamKey {
			t.Errorf("downstream key %s, want %s", got, v.DownstreamKey)
		}
	}
}

// TestKeyPairsStayDistinct: keys that a database or a helpful library might merge.
func TestKeyPairsStayDistinct(t *testing.T) {
	type pair struct {
		ID     string `json:"id"`
		A      string `json:"a"`
		B      string `json:"b"`
		Expect string `json:"expect"`
		Reason string `json:"reason"`
	}
	pairs := readLines[pair](t, "testdata/key-pairs.jsonl")
	pairs = append(pairs,
		pair{ID: "trailing space", A: "order-1", B: "order-1 ", Expect: "distinct"},
		pair{ID: "Unicode form", A: "caf\u00e9", B: "cafe\u0301", Expect: "distinct"},
		pair{ID: "NUL", A: "order-1", B: "order-1\x00", Expect: "distinct"},
		pair{ID: "full width", A: "1", B: "\uff11", Expect: "distinct"},
		pair{ID: "leading zero", A: "1", B: "01", Expect: "distinct"},
	)
	for _, p := range pairs {
		if p.Expect != "distinct" {
			t.Errorf("%s expects %q: this test knows distinct only", p.ID, p.Expect)
			continue
		}
		for part, make := range keyParts {
			if make(p.A).Hash() == make(p.B).Hash() {
				t.Errorf("%s (%s): merged as %s", p.ID, p.Reason, part)
			}
		}
	}
}

// keyParts makes a key that differs in one part.
var keyParts = map[string]func(string) ledger.Key{
	"scope":   func(s string) ledger.Key { return ledger.Key{Scope: ledger.Scope(s), Key: "k"} },
	"tool":    func(s string) ledger.Key { return ledger.Key{Tool: ledger.Tool(s), Key: "k"} },
	"subject": func(s string) ledger.Key { return ledger.Key{Subject: s, Key: "k"} },
	"task":    func(s string) ledger.Key { return ledger.Key{Task: ledger.Task(s), Key: "k"} },
	"key":     func(s string) ledger.Key { return ledger.Key{Key: s} },
}

func keyOf(parts [5]string) ledger.Key {
	return ledger.Key{Scope: ledger.Scope(parts[0]), Tool: ledger.Tool(parts[1]), Subject: parts[2], Task: ledger.Task(parts[3]), Key: parts[4]}
}

// TestKeyHashIsOfParts: moving a byte from one part to another is another key.
func TestKeyHashIsOfParts(t *testing.T) {
	steadyRapid(t, 500)
	rapid.Check(t, func(t *rapid.T) {
		var parts [5]string
		for i := range parts {
			parts[i] = rapid.String().Draw(t, "part")
		}
		other := parts
		from := rapid.IntRange(0, 3).Draw(t, "from")
		if parts[from] == "" {
			other[from] = "x"
		} else {
			last := len(parts[from]) - 1
			other[from], other[from+1] = parts[from][:last], parts[from][last:]+parts[from+1]
		}
		a, b := keyOf(parts).Hash(), keyOf(other).Hash()
		if a == b || a.OperationID() == b.OperationID() || a.DownstreamKey() == b.DownstreamKey() {
			t.Fatal("two keys are one")
		}
		if again := keyOf(parts).Hash(); again != a {
			t.Fatal("a key's hash is not stable")
		}
	})
}

func TestOperationIDForm(t *testing.T) {
	steadyRapid(t, 500)
	rapid.Check(t, func(t *rapid.T) {
		h := ledger.Key{Scope: "team", Tool: "mail.send", Task: "task-1", Key: rapid.String().Draw(t, "key")}.Hash()
		id := h.OperationID()
		u := uuid.UUID(id)
		if u.Version() != 8 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("version %d, variant %s: not a UUIDv8", u.Version(), u.Variant())
		}
		for i := range id {
			if i != 6 && i != 8 && id[i] != h[i] || i == 6 && id[i]&0x0f != h[i]&0x0f || i == 8 && id[i]&0x3f != h[i]&0x3f {
				t.Fatalf("byte %d is not of the key's hash", i)
			}
		}
		back, err := ledger.ParseOperationID(id.String())
		if err != nil || back != id {
			t.Fatalf("does not read back: %v", err)
		}
		var again ledger.OperationID
		text, _ := id.MarshalText()
		if err := again.UnmarshalText(text); err != nil || again != id {
			t.Fatalf("does not read back from text: %v", err)
		}
		if key := h.DownstreamKey(); !downstreamForm.MatchString(key) || strings.Contains(key, hex.EncodeToString(h[:8])) {
			t.Fatalf("downstream key %q: not 32 lower-case hex digits of its own", key)
		}
	})
}

var downstreamForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

func TestParseOperationIDTakesOneFormOnly(t *testing.T) {
	const id = "a3bb189e-8bf9-8888-9912-ace4e6543002"
	if _, err := ledger.ParseOperationID(id); err != nil {
		t.Fatalf("the canonical form: %v", err)
	}
	for name, s := range map[string]string{
		"empty":              "",
		"upper case":         strings.ToUpper(id),
		"without hyphens":    strings.ReplaceAll(id, "-", ""),
		"in braces":          "{" + id + "}",
		"as a URN":           "urn:uuid:" + id,
		"trailing space":     id + " ",
		"leading space":      " " + id,
		"trailing line feed": id + "\n",
		"one digit short":    id[:35],
		"one digit more":     id + "0",
		"not hex":            "g" + id[1:],
		"hyphens elsewhere":  "a3bb189e8-bf9-8888-9912-ace4e6543002",
		"full width digit":   "\uff11" + id[1:],
		"with NUL":           id + "\x00",
	} {
		got, err := ledger.ParseOperationID(s)
		if err == nil || !got.IsZero() {
			t.Errorf("%s is taken", name)
		}
		if err != nil && s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error repeats what was given", name)
		}
	}
}
