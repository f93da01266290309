// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"sort"
	"strings"
)

// packageComments reports packages that no file introduces. The comment is what a newcomer reads first.
func packageComments(t tree) []finding {
	type state struct{ documented, product bool }
	packages := map[string]*state{}
	for _, f := range t.goFiles() {
		s := packages[f.dir()]
		if s == nil {
			s = &state{}
			packages[f.dir()] = s
		}
		s.product = s.product || !f.isTest()
		if f.syn.Doc == nil || strings.HasSuffix(f.syn.Name.Name, "_test") {
			continue
		}
		text := f.syn.Doc.Text()
		s.documented = s.documented || strings.HasPrefix(text, "Package "+f.syn.Name.Name+" ") ||
			f.syn.Name.Name == "main" && strings.HasPrefix(text, "Command ")
	}
	var out []finding
	for dir, s := range packages {
		if !s.documented {
			out = append(out, finding{dir, 0, `no comment "Package <name> ..." (main: "Command <name> ...") stands above its package clause`})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].path < out[j].path })
	return out
}

const license = "SPDX-License-Identifier: Apache-2.0"

// licenseLines reports source files that do not begin with the license (after #! where there is one).
func licenseLines(t tree) []finding {
	var out []finding
	for _, f := range t.files {
		if f.isData() || f.isGenerated() || !isSource(f.path) {
			continue
		}
		first, rest, _ := strings.Cut(f.text, "\n")
		if strings.HasPrefix(first, "#!") {
			first, _, _ = strings.Cut(rest, "\n")
		}
		if !strings.HasSuffix(strings.TrimRight(first, " */}"), license) {
			out = append(out, finding{f.path, 1, "the file does not begin with a comment " + license})
		}
	}
	return out
}

func isSource(name string) bool {
	switch path.Ext(name) {
	case ".go", ".proto", ".sql", ".sh", ".yaml", ".yml", ".py", ".ts":
		return true
	}
	return path.Base(name) == "Makefile" || path.Base(name) == "Dockerfile" || name == ".ci/run"
}

// emptyNames say nothing about what a package is for.
var emptyNames = regexp.MustCompile(`^(utils?|commons?|helpers?|misc|shared|base|lib)$`)

// packageNames reports packages whose name says nothing.
func packageNames(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		for _, part := range append(strings.Split(f.dir(), "/"), f.syn.Name.Name) {
			if emptyNames.MatchString(part) {
				out = append(out, finding{f.path, 0, fmt.Sprintf("a package called %q says nothing about what it is for", part)})
				break
			}
		}
	}
	return out
}

// maxLines is how long a Go file may be, tests apart. Longer ones hold two things.
const maxLines = 450

func fileSizes(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		if n := strings.Count(f.text, "\n"); !f.isTest() && n > maxLines {
			out = append(out, finding{f.path, 0, fmt.Sprintf("%d lines, more than %d", n, maxLines)})
		}
	}
	return out
}

// clockReaders are the functions that read the process's clock.
var clockReaders = map[string]bool{"Now": true, "Since": true, "Until": true}

// coreHasNoClock reports core code that reads a clock: time comes from the store, as an argument.
func coreHasNoClock(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		home, _ := placeOf(f.dir())
		if f.isTest() || !home.pure {
			continue
		}
		if local := f.localName("time"); local != "" {
			uses(f.syn, local, clockReaders, func(sel *ast.SelectorExpr) {
				out = append(out, finding{f.path, f.line(sel.Pos()), "the core reads the clock with time." + sel.Sel.Name})
			})
		}
	}
	return out
}

// sleepers are the test files that may sleep for real, with the reason. A line that is no longer needed is a finding.
var sleepers = map[string]string{}

// noSleeps reports tests that sleep: they wait on what they need, or run in a testing/synctest bubble, where a sleep
// moves a clock of its own.
func noSleeps(t tree, allowed map[string]string) []finding {
	var out []finding
	used := map[string]bool{}
	for _, f := range t.goFiles() {
		local := f.localName("time")
		if !f.isTest() || local == "" {
			continue
		}
		inBubble := bubbles(f)
		uses(f.syn, local, map[string]bool{"Sleep": true}, func(sel *ast.SelectorExpr) {
			if inBubble(sel) {
				return
			}
			if allowed[f.path] != "" {
				used[f.path] = true
				return
			}
			out = append(out, finding{f.path, f.line(sel.Pos()), "a test sleeps: wait for the event, or give a reason in test/house/sources.go"})
		})
	}
	for name := range allowed {
		if !used[name] {
			out = append(out, finding{name, 0, "is allowed to sleep and does not, or gives no reason: remove it from the list"})
		}
	}
	return out
}

// bubbles returns a function that says whether a node lies in the arguments of a call of synctest.Test.
func bubbles(f file) func(ast.Node) bool {
	local := f.localName("testing/synctest")
	var calls []*ast.CallExpr
	if local != "" {
		ast.Inspect(f.syn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && sel.Sel.Name == "Test" {
						calls = append(calls, call)
					}
				}
			}
			return true
		})
	}
	return func(n ast.Node) bool {
		for _, c := range calls {
			if c.Pos() <= n.Pos() && n.End() <= c.End() {
				return true
			}
		}
		return false
	}
}

// machine matches what belongs to somebody's machine: folders outside of the tree, a proxy of modules. Folders that every
// Unix has (/etc, /var, /tmp, /usr) are no such thing.
var machine = regexp.MustCompile(`(^|[\s"'` + "`" + `(=:,])/(work|root|Users)/|\.\./shared/|proxy\.golang\.org`)

// noMachines reports files that name a place which only one machine has. The project speaks of itself alone.
func noMachines(t tree) []finding {
	var out []finding
	for _, f := range t.files {
		for i, line := range strings.Split(f.text, "\n") {
			if m := machine.FindString(line); m != "" {
				out = append(out, finding{f.path, i + 1, "names something outside of the project: " + strings.TrimSpace(m)})
			}
		}
	}
	return out
}
