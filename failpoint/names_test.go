// SPDX-License-Identifier: Apache-2.0

package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesListsEveryConstantOnce(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []Name
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Name" {
			return true
		}
		for _, v := range spec.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, Name(text))
		}
		return true
	})
	if len(declared) == 0 {
		t.Fatal("no constant found")
	}
	if diff := cmp.Diff(declared, Names()); diff != "" {
		t.Errorf("constants and list differ (-declared +listed):\n%s", diff)
	}
	form := regexp.MustCompile(`^[a-z]+(\.[a-z-]+)+$`)
	for i, name := range declared {
		if !form.MatchString(string(name)) {
			t.Errorf("%s: not of the form place.operation.moment", name)
		}
		if slices.Contains(declared[:i], name) {
			t.Errorf("%s: declared twice", name)
		}
	}
}

func TestNamesReturnsACopy(t *testing.T) {
	Names()[0] = "changed"
	if Names()[0] == "changed" {
		t.Error("a caller changed the list")
	}
}

// A literal that is not registered compiles; only this test and a tagged run
// would see it.
func TestEveryHitInTheModuleNamesARegisteredPoint(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "gen") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil // the compiler reports what does not parse
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || fun.Sel.Name != "Hit" {
				return true
			}
			if pkg, ok := fun.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
				return true
			}
			if lit, ok := call.Args[1].(*ast.BasicLit); ok {
				name, err := strconv.Unquote(lit.Value)
				if err != nil || !slices.Contains(registered, Name(name)) {
					t.Errorf("%s: hits %s, which is not registered", path, lit.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
