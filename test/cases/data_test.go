// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

// handed are the files of requests and keys that others wrote down, with the number of their rows: one that is not read whole is a fault.
var handed = map[string]int{"equal.jsonl": 20, "different.jsonl": 24, "reject.jsonl": 16, "keys.jsonl": 12, "key-pairs.jsonl": 1}

// pair is a row of equal.jsonl or different.jsonl.
type pair struct {
	ID      string            `json:"id"`
	A       string            `json:"a"`
	B       string            `json:"b"`
	Fields  map[string]string `json:"fields"`
	Exclude []string          `json:"exclude"`
	Reason  string            `json:"reason"`
}

// rowTool is the tool whose contract says what a row needs declared: order.place has all of it.
func rowTool(t *testing.T, usual string, fields map[string]string, exclude []string) string {
	t.Helper()
	if fields == nil && exclude == nil {
		return usual
	}
	for path, typ := range fields {
		if map[string]string{"/p": "money", "/at": "timestamp"}[path] != typ {
			t.Fatalf("order.place does not declare %s as %s", path, typ)
		}
	}
	for _, path := range exclude {
		if !slices.Contains([]string{"/trace_id", "/sent_at", "/order/sdk"}, path) {
			t.Fatalf("order.place does not ignore %s", path)
		}
	}
	return "order.place"
}

// eachRow checks each row of a handed file over a store, and says how many it has checked: all, unless the run asks for single ones.
func eachRow[T any](t *testing.T, e *env, file string, id func(T) string, check func(t *testing.T, row T)) {
	t.Helper()
	rows := lines[T](t, file)
	checked := 0
	for _, row := range rows {
		t.Run(id(row), func(t *testing.T) {
			check(t, row)
			checked++
		})
	}
	t.Logf("%s over %s: rows checked: %d of %d", file, e.store, checked, handed[file])
	if single := strings.Contains(flag.Lookup("test.run").Value.String(), "/"); checked != handed[file] && !single {
		t.Errorf("%s over %s: %d rows checked, want %d", file, e.store, checked, handed[file])
	}
}

// The canonicaliser's own tests read the same rows.
func TestHandedFilesAreThoseOfTheCanonicaliser(t *testing.T) {
	for file := range handed {
		ours, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := os.ReadFile("../../ledger/fingerprint/testdata/" + file)
		if err != nil || !bytes.Equal(ours, theirs) {
			t.Errorf("%s is another file there: %v", file, err)
		}
	}
}

// lines reads a handed file of JSON lines.
func lines[T any](t *testing.T, file string) []T {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []T
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var row T
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			t.Fatalf("%s, line %d: %v", file, len(all)+1, err)
		}
		all = append(all, row)
	}
	if in.Err() != nil || len(all) != handed[file] {
		t.Fatalf("%s has %d rows, want %d: %v", file, len(all), handed[file], in.Err())
	}
	return all
}
