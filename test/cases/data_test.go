// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// laterPolicies are the policies of rows that need declared types or ignored fields, which come with a later release.
var laterPolicies = []string{"typed", "exclude"}

// pair is a row of equal.jsonl or different.jsonl.
type pair struct {
	ID     string `json:"id"`
	Policy string `json:"policy"`
	A      string `json:"a"`
	B      string `json:"b"`
	Reason string `json:"reason"`
}

// pairs reads a file of pairs and names those that it leaves out.
func pairs(t *testing.T, file string) []pair {
	t.Helper()
	return slices.DeleteFunc(lines[pair](t, file), func(p pair) bool {
		if !slices.Contains(laterPolicies, p.Policy) {
			return false
		}
		t.Logf("%s %s left out: the policy %s comes with declared fields", file, p.ID, p.Policy)
		return true
	})
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
