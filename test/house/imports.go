// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"path"
	"strings"
)

// place is one part of the house and what of ours its code may import. A part may always import its own packages.
type place struct {
	at  string // the folder; everything below belongs to it unless a longer place says otherwise
	may []string
	// pure places are the core: they reach nothing outside of the process, and of other people's code they import only
	// these libraries. The others choose freely.
	pure      bool
	libraries []string
}

// core is what every adapter may build on: the values and the pure functions, and the points at which tests make it fail.
var core = []string{"ledger", "ledger/fingerprint", "failpoint", "guard"}

// adapters connect the core to the world. They never import each other; only cmd puts them together.
var adapters = []string{
	"ledger/rpc", "ledger/contract", "ledger/postgres", "ledger/sqlite", "recovery", "authz", "migrations",
}

// places is the direction of imports: cmd, then adapters, then the core, which imports nothing of ours.
var places = []place{
	{at: "failpoint"},
	{at: "guard"},
	{at: "gen"},
	{at: "ledger", may: []string{"guard"}, pure: true, libraries: values},
	// It makes the core's requests out of JSON. The ring of secrets is a YAML document; parsing bytes is no I/O.
	{at: "ledger/fingerprint", may: []string{"ledger", "guard"}, pure: true, libraries: with(values, "go.yaml.in/yaml/v4")},

	{at: "ledger/contract", may: core},
	// Stores gather calls into batches; what a batch does is theirs.
	{at: "ledger/coalesce", pure: true},
	// And they may decide on what this process has just written.
	{at: "ledger/recent", may: []string{"ledger"}, pure: true, libraries: []string{"github.com/hashicorp/golang-lru/v2"}},
	// A store brings its own schema.
	{at: "ledger/postgres", may: with(core, "ledger/coalesce", "ledger/recent", "migrations")},
	{at: "ledger/sqlite", may: with(core, "ledger/coalesce", "ledger/recent", "migrations")},
	{at: "migrations", may: core},
	{at: "ledger/rpc", may: with(core, "gen")},
	{at: "recovery", may: with(core, "gen")},
	{at: "authz", may: with(core, "gen")},

	// For tests: the conformance suite of stores.
	{at: "ledger/storetest", may: core},

	{at: "cmd/ledgerd", may: with(core, adapters...)},
	{at: "cmd/ledgerctl", may: with(with(core, adapters...), "client", "console", "gen", "test/target")},

	{at: "client", may: []string{"gen", "guard"}},
	{at: "client/clienttest", may: []string{"gen", "client", "ledger", "ledger/fingerprint", "ledger/rpc"}},
	{at: "console", may: []string{"gen"}},
	{at: "examples", may: []string{"gen", "client", "client/clienttest"}},
	// The form without ledgerd: the Go packages as a library, on the database of the team's own rows. It wires them as cmd does.
	{at: "examples/samedatabase", may: []string{"ledger", "ledger/fingerprint", "ledger/contract", "ledger/postgres"}},
	{at: "sdk", may: []string{"gen", "client"}},
	{at: "tools"},
}

// forTests are packages that only tests import; test/ is the place of the others.
var forTests = []string{"ledger/storetest", "client/clienttest"}

// values are the libraries that the core may import besides the standard library: small, and without I/O.
var values = []string{
	"github.com/cockroachdb/apd/v3",
	"github.com/go-json-experiment/json/jsontext",
	"github.com/google/uuid",
	"golang.org/x/text",
}

// effects are packages of the standard library that reach outside of the process. The core decides; it does not act.
var effects = []string{"database/sql", "net", "os", "plugin", "syscall"}

func with(list []string, more ...string) []string {
	return append(append([]string(nil), list...), more...)
}

// directionOfImports reports imports against the direction of the house. Tests and test/ are free.
func directionOfImports(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		if f.isTest() || within(f.dir(), "test") {
			continue
		}
		home, ok := placeOf(f.dir())
		if !ok {
			out = append(out, finding{f.path, 0, "the package has no place in the house: give it one in test/house/imports.go"})
			continue
		}
		for _, i := range f.imports() {
			target, ours := ownPath(i.path)
			if !ours {
				if what := foreign(home, i.path); what != "" {
					out = append(out, finding{f.path, i.line, what})
				}
				continue
			}
			if !mayImport(home, target) {
				out = append(out, finding{f.path, i.line, fmt.Sprintf("%s may not import %s", home.at, target)})
			}
		}
	}
	return out
}

// mayImport says whether code at a place may import a package of ours.
func mayImport(home place, target string) bool {
	at := target
	if p, ok := placeOf(target); ok {
		at = p.at
	} else if !within(target, "test") {
		return false
	}
	if at == home.at {
		return true
	}
	for _, m := range home.may {
		// A place is named as a whole, or one package of test/, which is no place of the product.
		if m == at || within(target, "test") && within(target, m) {
			return true
		}
	}
	return false
}

// foreign says what is wrong with an import of somebody else's package, or "".
func foreign(home place, imp string) string {
	if !home.pure {
		return ""
	}
	if strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		for _, lib := range home.libraries {
			if within(imp, lib) {
				return ""
			}
		}
		return fmt.Sprintf("the core imports the standard library and value libraries only, not %s", imp)
	}
	for _, e := range effects {
		if within(imp, e) && imp != "net/netip" && imp != "net/url" {
			return fmt.Sprintf("the core does no I/O, so it cannot import %s", imp)
		}
	}
	return ""
}

// placeOf finds the longest place that holds a folder.
func placeOf(dir string) (place, bool) {
	var best place
	for _, p := range places {
		if within(dir, p.at) && len(p.at) > len(best.at) {
			best = p
		}
	}
	return best, best.at != ""
}

// ownPath turns an import path into a path below the root, if it is ours.
func ownPath(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	return strings.CutPrefix(imp, module+"/")
}

// within says whether a path is a folder or below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// testsStayOutside reports product code that imports packages made for tests. One exception: the demonstration of
// ledgerctl starts the target.
func testsStayOutside(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		if f.isTest() || within(f.dir(), "test") || within(f.dir(), "examples") {
			continue
		}
		for _, i := range f.imports() {
			target, ours := ownPath(i.path)
			if !ours {
				continue
			}
			made := within(target, "test")
			for _, p := range forTests {
				made = made || within(target, p) && !within(f.dir(), p)
			}
			if made && !(within(f.dir(), "cmd/ledgerctl") && within(target, "test/target")) {
				out = append(out, finding{f.path, i.line, "product code imports " + target + ", which is for tests"})
			}
		}
	}
	return out
}

// codesInOnePlace reports files of the gRPC services, other than errors.go, that choose a status code: errors become
// codes in one place.
func codesInOnePlace(t tree) []finding {
	var out []finding
	for _, f := range t.goFiles() {
		if f.isTest() || !within(f.dir(), "ledger/rpc") || f.path == path.Join("ledger/rpc", "errors.go") {
			continue
		}
		for _, i := range f.imports() {
			if i.path == "google.golang.org/grpc/codes" {
				out = append(out, finding{f.path, i.line, "only ledger/rpc/errors.go imports codes"})
			}
		}
	}
	return out
}
