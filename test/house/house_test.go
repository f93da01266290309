// SPDX-License-Identifier: Apache-2.0

package house

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rules are all rules of the house, by name.
var rules = []struct {
	name  string
	check func(tree) []finding
}{
	{"direction of imports", directionOfImports},
	{"tests stay outside of the product", testsStayOutside},
	{"codes in one place", codesInOnePlace},
	{"package comments", packageComments},
	{"license lines", licenseLines},
	{"package names", packageNames},
	{"file sizes", fileSizes},
	{"the core has no clock", coreHasNoClock},
	{"no sleeps in tests", func(t tree) []finding { return noSleeps(t, sleepers) }},
	{"no machines", noMachines},
	{"paths in documents", documentPaths},
}

func TestHouse(t *testing.T) {
	house, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(house.goFiles()) == 0 || !house.paths["go.mod"] {
		t.Fatal("the tree has no Go files or no go.mod: this is not its root")
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(house) {
				t.Error(f)
			}
		})
	}
}

// TestRules shows of every rule that it can fail and that it lets the right thing pass.
func TestRules(t *testing.T) {
	const (
		spdx  = "// SPDX-License-Identifier: Apache-2.0\n"
		own   = `"github.com/opsledger/opsledger/`
		codes = `"google.golang.org/grpc/codes"`
	)
	imports := func(pkg string, paths ...string) string {
		return "package " + pkg + "\n\nimport (\n\t_ " + strings.Join(paths, "\n\t_ ") + "\n)\n"
	}
	tests := []struct {
		rule  string
		name  string
		files map[string]string
		want  []string // findings; none: the files pass
	}{
		{
			rule: "direction of imports", name: "the core imports a store",
			files: map[string]string{"ledger/a.go": imports("ledger", own+`ledger/sqlite"`)},
			want:  []string{"ledger/a.go:4: ledger may not import ledger/sqlite"},
		},
		{
			rule: "direction of imports", name: "the core imports what is generated",
			files: map[string]string{"ledger/a.go": imports("ledger", own+`gen/opsledger/v1"`)},
			want:  []string{"ledger/a.go:4: ledger may not import gen/opsledger/v1"},
		},
		{
			rule: "direction of imports", name: "the core imports a library that is no value",
			files: map[string]string{"ledger/fingerprint/a.go": imports("fingerprint", `"github.com/jackc/pgx/v5"`)},
			want:  []string{"ledger/fingerprint/a.go:4: the core imports the standard library and value libraries only, not github.com/jackc/pgx/v5"},
		},
		{
			rule: "direction of imports", name: "the core does I/O",
			files: map[string]string{"ledger/a.go": imports("ledger", `"net/http"`, `"os"`, `"go.yaml.in/yaml/v4"`)},
			want: []string{
				"ledger/a.go:4: the core does no I/O, so it cannot import net/http",
				"ledger/a.go:5: the core does no I/O, so it cannot import os",
				"ledger/a.go:6: the core imports the standard library and value libraries only, not go.yaml.in/yaml/v4",
			},
		},
		{
			rule: "direction of imports", name: "the core imports values",
			files: map[string]string{
				"ledger/a.go":             imports("ledger", `"context"`, `"net/url"`, `"github.com/google/uuid"`),
				"ledger/fingerprint/a.go": imports("fingerprint", `"github.com/cockroachdb/apd/v3"`, `"crypto/hmac"`, `"go.yaml.in/yaml/v4"`),
				"ledger/a_test.go":        imports("ledger", own+`ledger/sqlite"`),
			},
		},
		{
			rule: "direction of imports", name: "adapters import each other",
			files: map[string]string{
				"ledger/rpc/a.go":      imports("rpc", own+`authz"`),
				"ledger/postgres/a.go": imports("postgres", own+`ledger/sqlite"`),
				"recovery/probe/a.go":  imports("probe", own+`ledger/contract"`),
			},
			want: []string{
				"ledger/postgres/a.go:4: ledger/postgres may not import ledger/sqlite",
				"ledger/rpc/a.go:4: ledger/rpc may not import authz",
				"recovery/probe/a.go:4: recovery may not import ledger/contract",
			},
		},
		{
			rule: "direction of imports", name: "an example imports a store",
			files: map[string]string{
				"examples/agent/a.go":        imports("main", own+`client"`, own+`ledger/postgres"`),
				"examples/samedatabase/a.go": imports("main", own+`ledger"`, own+`ledger/postgres"`, own+`ledger/sqlite"`),
			},
			want: []string{
				"examples/agent/a.go:5: examples may not import ledger/postgres",
				"examples/samedatabase/a.go:6: examples/samedatabase may not import ledger/sqlite",
			},
		},
		{
			rule: "direction of imports", name: "an adapter imports cmd",
			files: map[string]string{"authz/a.go": imports("authz", own+`cmd/ledgerd"`)},
			want:  []string{"authz/a.go:4: authz may not import cmd/ledgerd"},
		},
		{
			rule: "direction of imports", name: "a store imports what is generated",
			files: map[string]string{"ledger/sqlite/a.go": imports("sqlite", own+`gen/opsledger/v1"`)},
			want:  []string{"ledger/sqlite/a.go:4: ledger/sqlite may not import gen/opsledger/v1"},
		},
		{
			rule: "direction of imports", name: "a client imports the core",
			files: map[string]string{
				"client/a.go":  imports("client", own+`ledger"`),
				"console/a.go": imports("console", own+`client"`),
			},
			want: []string{"client/a.go:4: client may not import ledger", "console/a.go:4: console may not import client"},
		},
		{
			rule: "direction of imports", name: "the server imports the client",
			files: map[string]string{"cmd/ledgerd/a.go": imports("main", own+`client"`, own+`test/target"`)},
			want:  []string{"cmd/ledgerd/a.go:4: cmd/ledgerd may not import client", "cmd/ledgerd/a.go:5: cmd/ledgerd may not import test/target"},
		},
		{
			rule: "direction of imports", name: "downwards",
			files: map[string]string{
				"cmd/ledgerd/a.go":       imports("main", own+`ledger/rpc"`, own+`authz"`, own+`migrations"`, own+`ledger"`, own+`cmd/ledgerd/config"`),
				"cmd/ledgerctl/a.go":     imports("main", own+`client"`, own+`gen/opsledger/v1"`, own+`test/target/proxy"`),
				"ledger/rpc/a.go":        imports("rpc", own+`ledger"`, own+`ledger/fingerprint"`, own+`gen/opsledger/v1"`, own+`failpoint"`),
				"recovery/a.go":          imports("recovery", own+`recovery/probe"`, own+`ledger"`),
				"client/clienttest/a.go": imports("clienttest", own+`client"`, own+`ledger"`, own+`ledger/rpc"`),
				"test/crash/a.go":        imports("crash", own+`cmd/ledgerd"`, own+`ledger/sqlite"`),
			},
		},
		{
			rule: "direction of imports", name: "a package without a place",
			files: map[string]string{"attic/a.go": "package attic\n"},
			want:  []string{"attic/a.go: the package has no place in the house: give it one in test/house/imports.go"},
		},
		{
			rule: "tests stay outside of the product", name: "product code imports test code",
			files: map[string]string{
				"ledger/sqlite/a.go": imports("sqlite", own+`ledger/storetest"`),
				"cmd/ledgerd/a.go":   imports("main", own+`test/target"`),
				"cmd/ledgerctl/a.go": imports("main", own+`test/crash"`),
			},
			want: []string{
				"cmd/ledgerctl/a.go:4: product code imports test/crash, which is for tests",
				"cmd/ledgerd/a.go:4: product code imports test/target, which is for tests",
				"ledger/sqlite/a.go:4: product code imports ledger/storetest, which is for tests",
			},
		},
		{
			rule: "tests stay outside of the product", name: "the demonstration and tests",
			files: map[string]string{
				"cmd/ledgerctl/a.go":      imports("main", own+`test/target"`),
				"ledger/sqlite/a_test.go": imports("sqlite", own+`ledger/storetest"`),
				"test/crash/a.go":         imports("crash", own+`test/target"`),
				"ledger/storetest/a.go":   imports("storetest", own+`ledger/storetest/clock"`),
			},
		},
		{
			rule: "codes in one place", name: "a service chooses a code",
			files: map[string]string{"ledger/rpc/claim.go": imports("rpc", codes)},
			want:  []string{"ledger/rpc/claim.go:4: only ledger/rpc/errors.go imports codes"},
		},
		{
			rule: "codes in one place", name: "the mapping, its tests, another package",
			files: map[string]string{
				"ledger/rpc/errors.go":     imports("rpc", codes),
				"ledger/rpc/claim_test.go": imports("rpc", codes),
				"client/a.go":              imports("client", codes),
			},
		},
		{
			rule: "package comments", name: "missing, detached, of another package",
			files: map[string]string{
				"a/a.go": spdx + "package a\n",
				"b/b.go": "// Package b is detached.\n\npackage b\n",
				"c/c.go": "// Package d is not c.\npackage c\n",
			},
			want: []string{
				`a: no comment "Package <name> ..." (main: "Command <name> ...") stands above its package clause`,
				`b: no comment "Package <name> ..." (main: "Command <name> ...") stands above its package clause`,
				`c: no comment "Package <name> ..." (main: "Command <name> ...") stands above its package clause`,
			},
		},
		{
			rule: "package comments", name: "in one of its files, of a command, generated",
			files: map[string]string{
				"a/a.go":   "package a\n",
				"a/doc.go": spdx + "\n// Package a is a.\npackage a\n",
				"b/b.go":   "// Command b does b.\npackage main\n",
				"c/c.go":   "// Code generated by x. DO NOT EDIT.\n\npackage c\n",
			},
		},
		{
			rule: "license lines", name: "missing in every kind of source",
			files: map[string]string{
				"a.go": "package a\n", "a.proto": "syntax\n", "a.sql": "SELECT 1;\n", "a.sh": "#!/bin/sh\nset -e\n", "a.yaml": "a: 1\n",
				"Makefile": "all:\n", ".ci/run": "#!/bin/sh\n", "empty.go": "package empty\n\n" + spdx,
			},
			want: []string{
				".ci/run:1: the file does not begin with a comment " + license,
				"Makefile:1: the file does not begin with a comment " + license,
				"a.go:1: the file does not begin with a comment " + license,
				"a.proto:1: the file does not begin with a comment " + license,
				"a.sh:1: the file does not begin with a comment " + license,
				"a.sql:1: the file does not begin with a comment " + license,
				"a.yaml:1: the file does not begin with a comment " + license,
				"empty.go:1: the file does not begin with a comment " + license,
			},
		},
		{
			rule: "license lines", name: "there, not needed in data and generated code",
			files: map[string]string{
				"a.go": spdx + "package a\n", "a.sql": "-- " + license + "\n", "a.sh": "#!/bin/sh\n# " + license + "\n",
				"a.css": "b {}\n", "testdata/a.yaml": "a: 1\n", "c.go": "// Code generated by x. DO NOT EDIT.\n\npackage c\n",
				"deploy/a.yaml": "{{- /* " + license + " */}}\n",
			},
		},
		{
			rule: "package names", name: "names that say nothing",
			files: map[string]string{"ledger/util/a.go": "package util\n", "a/a.go": "package helpers\n", "common/b/a.go": "package b\n"},
			want: []string{
				`a/a.go: a package called "helpers" says nothing about what it is for`,
				`common/b/a.go: a package called "common" says nothing about what it is for`,
				`ledger/util/a.go: a package called "util" says nothing about what it is for`,
			},
		},
		{
			rule: "package names", name: "names that say something",
			files: map[string]string{"ledger/a.go": "package ledger\n", "utility/a.go": "package utility\n"},
		},
		{
			rule: "file sizes", name: "one line too many",
			files: map[string]string{"a/a.go": "package a\n" + strings.Repeat("\n", maxLines)},
			want:  []string{"a/a.go: 451 lines, more than 450"},
		},
		{
			rule: "file sizes", name: "just right, tests, generated code",
			files: map[string]string{
				"a/a.go":      "package a\n" + strings.Repeat("\n", maxLines-1),
				"a/a_test.go": "package a\n" + strings.Repeat("\n", maxLines),
				"a/a.pb.go":   "// Code generated by x. DO NOT EDIT.\n\npackage a\n" + strings.Repeat("\n", maxLines),
			},
		},
		{
			rule: "the core has no clock", name: "it reads one, also under another name",
			files: map[string]string{
				"ledger/a.go":             "package ledger\n\nimport \"time\"\n\nvar now = time.Now\n",
				"ledger/fingerprint/a.go": "package fingerprint\n\nimport t \"time\"\n\nvar x = t.Since(t.Time{})\n",
			},
			want: []string{
				"ledger/a.go:5: the core reads the clock with time.Now",
				"ledger/fingerprint/a.go:5: the core reads the clock with time.Since",
			},
		},
		{
			rule: "the core has no clock", name: "it takes the time, stores read it",
			files: map[string]string{
				"ledger/a.go":        "package ledger\n\nimport \"time\"\n\nfunc f(now time.Time) time.Time { return now.Add(time.Second) }\n",
				"ledger/sqlite/a.go": "package sqlite\n\nimport \"time\"\n\nvar now = time.Now\n",
			},
		},
		{
			rule: "no sleeps in tests", name: "a test sleeps, also under another name",
			files: map[string]string{
				"a/a_test.go": "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n",
				"b/b_test.go": "package b\n\nimport t \"time\"\n\nvar f = t.Sleep\n",
			},
			want: []string{
				"a/a_test.go:5: a test sleeps: wait for the event, or give a reason in test/house/sources.go",
				"b/b_test.go:5: a test sleeps: wait for the event, or give a reason in test/house/sources.go",
			},
		},
		{
			rule: "no sleeps in tests", name: "in a bubble, in a program, another Sleep",
			files: map[string]string{
				"a/a_test.go": "package a\n\nimport (\n\t\"testing\"\n\t\"testing/synctest\"\n\t\"time\"\n)\n\n" +
					"func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }\n",
				"a/a.go":      "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n",
				"b/b_test.go": "package b\n\nimport \"time\"\n\nfunc f(x interface{ Sleep(time.Duration) }) { x.Sleep(1) }\n",
			},
		},
		{
			rule: "no machines", name: "folders and proxies of one machine",
			files: map[string]string{
				"a.md": "see `/" + "work/notes.md`\n", "b.sh": "\ncd /" + "root/x\n", "c.yaml": "proxy: https://proxy" + ".golang.org\n",
				"d.go": "package d // see .." + "/shared/x\n",
			},
			want: []string{
				"a.md:1: names something outside of the project: `/" + "work/",
				"b.sh:2: names something outside of the project: /" + "root/",
				"c.yaml:1: names something outside of the project: proxy" + ".golang.org",
				"d.go:1: names something outside of the project: .." + "/shared/",
			},
		},
		{
			rule: "no machines", name: "paths that every machine has, words that look alike",
			files: map[string]string{"a.md": "/etc/ledgerd/policy.yaml, /var/lib, https://example.com/work/x, homework/x\n"},
		},
		{
			rule: "paths in documents", name: "links and paths that lead nowhere",
			files: map[string]string{
				"README.md": "[a](docs/gone.md) [b](gone.md#top \"title\")\n`ledger/gone.go` and `SECURITY.md`\n\n```\ngo run ./cmd/gone serve\n```\n",
			},
			want: []string{
				"README.md:1: links to docs/gone.md, which does not exist",
				"README.md:1: links to gone.md, which does not exist",
				"README.md:2: names ledger/gone.go, which does not exist",
				"README.md:2: names SECURITY.md, which does not exist",
				"README.md:5: names cmd/gone, which does not exist",
			},
		},
		{
			rule: "paths in documents", name: "links and paths that exist, and what is no path",
			files: map[string]string{
				"README.md": "[a](docs/a.md) [b](#part) [c](https://example.com/x) [`d`](ledger)\n`ledger/a.go`, `go test ./ledger/...`, `./bin/ledgerd`\n" +
					"`agents/{principal}` `payments/refund` `test/*.go` `ledger/`\n\n```\ngo run ./cmd/ledgerd dev --config ./mine.yaml\n```\n",
				"docs/a.md": "[up](../README.md) `ledger/a.go`\n", "ledger/a.go": "package ledger\n", "cmd/ledgerd/main.go": "package main\n",
				"CHANGELOG.md": "`ledger/gone.go`\n",
			},
		},
	}
	shown := map[string]map[bool]bool{}
	for _, tt := range tests {
		if shown[tt.rule] == nil {
			shown[tt.rule] = map[bool]bool{}
		}
		shown[tt.rule][len(tt.want) > 0] = true
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			fake, err := parse(tt.files)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rules {
				if r.name != tt.rule {
					continue
				}
				var got []string
				for _, f := range r.check(fake) {
					got = append(got, f.String())
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("findings (-want +got):\n%s", diff)
				}
			}
		})
	}
	for _, r := range rules {
		if !shown[r.name][true] || !shown[r.name][false] {
			t.Errorf("the rule %q is not shown both to fail and to pass", r.name)
		}
	}
}

func TestAllowedSleepsNeedAReasonAndAUse(t *testing.T) {
	fake, err := parse(map[string]string{
		"a/a_test.go": "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n",
		"b/b_test.go": "package b\n\nimport \"time\"\n\nvar d time.Duration\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := noSleeps(fake, map[string]string{"a/a_test.go": "waits for a real clock to move"}); len(got) != 0 {
		t.Errorf("an allowed sleep is reported: %v", got)
	}
	if got := noSleeps(fake, map[string]string{"a/a_test.go": "a reason", "b/b_test.go": "a reason"}); len(got) != 1 {
		t.Errorf("a line of the list that nothing needs: %d findings, want 1: %v", len(got), got)
	}
	if got := noSleeps(fake, map[string]string{"a/a_test.go": ""}); len(got) != 2 {
		t.Errorf("a line of the list without a reason: %d findings, want 2: %v", len(got), got)
	}
}
