// SPDX-License-Identifier: Apache-2.0

package migrations

import (
	"fmt"
	"io/fs"
	"slices"
	"testing"
)

func TestBothEnginesHaveTheSameNumbersAndNames(t *testing.T) {
	names := func(dir string) []string {
		t.Helper()
		entries, err := fs.ReadDir(files, dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	pg, lite := names("postgres"), names("sqlite")
	if !slices.Equal(pg, lite) {
		t.Fatalf("postgres has %v, sqlite has %v", pg, lite)
	}
	for i, name := range pg {
		if want := fmt.Sprintf("%05d_", i+1); name[:6] != want {
			t.Errorf("%s: want a name that begins with %s", name, want)
		}
	}
	if len(pg) != Latest {
		t.Errorf("Latest is %d, there are %d migrations", Latest, len(pg))
	}
}
