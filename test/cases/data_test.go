// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

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

// lines reads a file of JSON lines; a file without one is a fault.
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
	if in.Err() != nil || len(all) == 0 {
		t.Fatalf("%s has %d rows: %v", file, len(all), in.Err())
	}
	return all
}
