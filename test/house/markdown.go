// SPDX-License-Identifier: Apache-2.0

package house

import (
	"path"
	"regexp"
	"strings"
)

// rooms are the folders at the root of the tree. In a document, a path that begins with one is a path of ours, also when
// the folder does not exist.
var rooms = map[string]bool{
	".ci": true, "authz": true, "client": true, "cmd": true, "console": true, "deploy": true, "docs": true, "examples": true,
	"failpoint": true, "gen": true, "guard": true, "ledger": true, "migrations": true, "proto": true, "recovery": true, "sdk": true,
	"test": true, "tools": true,
}

var (
	link = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	// span is code within a line; fence opens and closes a block of it.
	span  = regexp.MustCompile("`([^`]+)`")
	fence = regexp.MustCompile("^\\s*(```|~~~)")
	// plain is a path without wildcards or placeholders.
	plain = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)
	// document is a document at the root.
	document = regexp.MustCompile(`^[A-Z]+\.md$`)
)

// documentPaths reports documents that name files which do not exist: targets of links, and paths in code. CHANGELOG.md
// is free, since it also names what is gone.
func documentPaths(t tree) []finding {
	var out []finding
	for _, f := range t.files {
		if path.Ext(f.path) != ".md" || f.isData() || path.Base(f.path) == "CHANGELOG.md" {
			continue
		}
		fenced := false
		for i, line := range strings.Split(f.text, "\n") {
			if fence.MatchString(line) {
				fenced = !fenced
				continue
			}
			var names []string
			if fenced {
				for _, word := range strings.Fields(line) {
					if strings.HasPrefix(word, "./") {
						names = append(names, word)
					}
				}
			} else {
				for _, m := range span.FindAllStringSubmatch(line, -1) {
					names = append(names, strings.Fields(m[1])...)
				}
				for _, m := range link.FindAllStringSubmatch(span.ReplaceAllString(line, ""), -1) {
					target, _, _ := strings.Cut(m[1], "#")
					if target != "" && !strings.Contains(target, ":") && !t.paths[path.Join(f.dir(), target)] {
						out = append(out, finding{f.path, i + 1, "links to " + target + ", which does not exist"})
					}
				}
			}
			for _, name := range names {
				if name, ok := repositoryPath(name); ok && !t.paths[name] && !t.paths[path.Join(f.dir(), name)] {
					out = append(out, finding{f.path, i + 1, "names " + name + ", which does not exist"})
				}
			}
		}
	}
	return out
}

// repositoryPath says whether a word of code is meant as a path of the tree, and cleans it.
func repositoryPath(word string) (string, bool) {
	word = strings.TrimRight(word, ".,;:")
	if document.MatchString(word) {
		return word, true
	}
	if !plain.MatchString(word) || !strings.Contains(word, "/") {
		return "", false
	}
	word = path.Clean(word)
	first, rest, _ := strings.Cut(word, "/")
	if !rooms[first] || rest == "" {
		return "", false
	}
	return word, true
}
