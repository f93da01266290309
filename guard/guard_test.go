// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	constant = regexp.MustCompile(`(?m)^\t([A-Z][A-Za-z]+)\s+Guard = "[a-z-]+"$`)
	mark     = regexp.MustCompile(`\bguard\.([A-Z][A-Za-z]+)\.(?:On|Off)\(\)`)
)

// TestEachIsMarkedOnce: each guard stands at one place of the product, so that switching it off leaves out that and nothing else.
func TestEachIsMarkedOnce(t *testing.T) {
	source, err := os.ReadFile("guard.go")
	if err != nil {
		t.Fatal(err)
	}
	marks := map[string][]string{}
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range mark.FindAllSubmatch(text, -1) {
			marks[string(m[1])] = append(marks[string(m[1])], path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range constant.FindAllSubmatch(source, -1) {
		if at := marks[string(m[1])]; len(at) != 1 {
			t.Errorf("%s is marked in %d places: %v", m[1], len(at), at)
		}
	}
}
