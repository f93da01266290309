// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// tagged names the tests that exist only under a build tag.
type tagged struct {
	packages []string // as ./path
	tests    []string // names of test functions
}

// taggedTests finds the tests under root whose files need the tag, within the packages that the patterns name.
func taggedTests(root, tag string, patterns []string) (tagged, error) {
	packages, tests := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" || hasModule(path)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = "./" + filepath.ToSlash(dir)
		if !matches(dir, patterns) {
			return nil
		}
		names, err := testsBehind(path, tag)
		if err != nil {
			return err
		}
		for _, n := range names {
			packages[dir], tests[n] = true, true
		}
		return nil
	})
	return tagged{packages: sorted(packages), tests: sorted(tests)}, err
}

// hasModule says whether a folder is a module of its own, which the packages of this one do not include.
func hasModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// matches says whether a package lies within one of go's patterns (./a, ./a/..., ./...).
func matches(dir string, patterns []string) bool {
	for _, p := range patterns {
		p = strings.TrimSuffix(p, "/")
		if base, all := strings.CutSuffix(p, "/..."); all {
			if base == "." || dir == base || strings.HasPrefix(dir, base+"/") {
				return true
			}
		} else if dir == p {
			return true
		}
	}
	return false
}

// testsBehind lists the test functions of a file that is built with the tag and not without it.
func testsBehind(path, tag string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if !needs(file, tag) {
		return nil, nil
	}
	var names []string
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name != "TestMain" && strings.HasPrefix(fn.Name.Name, "Test") {
			names = append(names, fn.Name.Name)
		}
	}
	return names, nil
}

func needs(file *ast.File, tag string) bool {
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, c := range group.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				return false
			}
			// Every other tag holds, so that only this one decides.
			with := expr.Eval(func(string) bool { return true })
			without := expr.Eval(func(t string) bool { return t != tag })
			return with && !without
		}
	}
	return false
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for s := range set {
		out = append(out, s)
	}
	sort.Strings(out)
	return out
}
