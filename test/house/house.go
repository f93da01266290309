// SPDX-License-Identifier: Apache-2.0

// Package house holds the rules of the source tree as functions, and the test that applies them.
//
// A rule takes the parsed tree and returns findings; it reads no file and starts no program, so that each rule is itself
// tested on a few small sources that must and must not pass. The tree is read with os calls only: the test cache watches
// those, so a cached result is never older than the sources.
//
// It depends on the standard library.
package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// module is the import path of the tree's root.
const module = "github.com/opsledger/opsledger"

// maxText is the size in bytes above which a file is data: its path is known, its text is not looked at.
const maxText = 1 << 20

// file is one file of the tree.
type file struct {
	path string // with slashes, relative to the root
	text string // empty for what is no text
	syn  *ast.File
	fset *token.FileSet
}

// tree is what the rules look at.
type tree struct {
	files []file
	paths map[string]bool // files and folders
}

// finding is one breach of a rule.
type finding struct {
	path string
	line int // 0: the whole file
	what string
}

func (f finding) String() string {
	if f.line == 0 {
		return f.path + ": " + f.what
	}
	return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.what)
}

// skipped are folders that hold nothing of ours.
var skipped = map[string]bool{
	".git": true, ".cache": true, "bin": true, "dist": true, "node_modules": true, ".venv": true, "__pycache__": true,
}

// load reads the tree under root.
func load(root string) (tree, error) {
	sources := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file that went away between listing and reading
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped[d.Name()] {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(text) > maxText || !utf8.Valid(text) {
			text = nil
		}
		sources[filepath.ToSlash(rel)] = string(text)
		return nil
	})
	if err != nil {
		return tree{}, err
	}
	return parse(sources)
}

// parse makes a tree of file texts by path.
func parse(sources map[string]string) (tree, error) {
	t := tree{paths: map[string]bool{".": true}}
	names := make([]string, 0, len(sources))
	for name := range sources {
		names = append(names, name)
		for p := name; p != "."; p = path.Dir(p) {
			t.paths[p] = true
		}
	}
	sort.Strings(names)
	for _, name := range names {
		f := file{path: name, text: sources[name]}
		if strings.HasSuffix(name, ".go") && !f.isData() {
			f.fset = token.NewFileSet()
			syn, err := parser.ParseFile(f.fset, name, f.text, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return tree{}, err
			}
			f.syn = syn
		}
		t.files = append(t.files, f)
	}
	return t, nil
}

// isData says whether a file is input of a test: it may look like anything.
func (f file) isData() bool {
	return strings.HasPrefix(f.path, "testdata/") || strings.Contains(f.path, "/testdata/")
}

func (f file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) isGenerated() bool { return f.syn != nil && ast.IsGenerated(f.syn) }

// dir is the folder of the file: for Go, the package's path below the module.
func (f file) dir() string { return path.Dir(f.path) }

func (f file) line(pos token.Pos) int { return f.fset.Position(pos).Line }

// goFiles returns the Go files that are neither data nor generated.
func (t tree) goFiles() []file {
	var out []file
	for _, f := range t.files {
		if f.syn != nil && !f.isGenerated() {
			out = append(out, f)
		}
	}
	return out
}

// imported is one import of a file.
type imported struct {
	path string
	name string // the name in the file, empty where it is the package's own
	line int
}

func (f file) imports() []imported {
	var out []imported
	for _, spec := range f.syn.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		i := imported{path: p, line: f.line(spec.Pos())}
		if spec.Name != nil {
			i.name = spec.Name.Name
		}
		out = append(out, i)
	}
	return out
}

// localName is the name under which a file uses an imported package, or "" when it does not import it.
func (f file) localName(importPath string) string {
	for _, i := range f.imports() {
		if i.path != importPath {
			continue
		}
		if i.name != "" {
			return i.name
		}
		return path.Base(importPath)
	}
	return ""
}

// uses calls found for every use of pkg.name for one of the names, in a file that imports the package as local.
func uses(root ast.Node, local string, names map[string]bool, found func(*ast.SelectorExpr)) {
	ast.Inspect(root, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && names[sel.Sel.Name] {
			found(sel)
		}
		return true
	})
}
