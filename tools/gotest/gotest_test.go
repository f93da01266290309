// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	tests := []struct {
		name   string
		events []string
		last   string
		code   int
		shows  []string
	}{
		{
			name: "leaves are counted, their parent is not",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestA/one"}`,
				`{"Action":"run","Package":"p","Test":"TestA/two"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/one"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/two"}`,
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Elapsed":0.1}`,
			},
			last: "2 passed, 0 failed, 0 skipped",
		},
		{
			name: "a failed subtest is one failure and shows its output",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestA/one"}`,
				`{"Action":"output","Package":"p","Test":"TestA/one","Output":"    a_test.go:1: two, want three\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestA/one"}`,
				`{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			last: "0 passed, 1 failed, 0 skipped", code: 1,
			shows: []string{"two, want three", "--- FAIL p TestA/one"},
		},
		{
			name: "a parent that fails by itself counts",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestA/one"}`,
				`{"Action":"pass","Package":"p","Test":"TestA/one"}`,
				`{"Action":"fail","Package":"p","Test":"TestA"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			last: "1 passed, 1 failed, 0 skipped", code: 1,
		},
		{
			name: "a skip shows its reason",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestB"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: needs two disks\n"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestB"}`,
				`{"Action":"pass","Package":"p"}`,
			},
			last:  "1 passed, 0 failed, 1 skipped",
			shows: []string{"p TestB: a_test.go:9: needs two disks"},
		},
		{
			name: "a skip without a reason is a failure",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestB"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestB"}`,
				`{"Action":"pass","Package":"p"}`,
			},
			last: "0 passed, 1 failed, 0 skipped", code: 1,
			shows: []string{"skipped without a reason"},
		},
		{
			name: "a package that does not build shows the compiler's words",
			events: []string{
				`{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3:1: undefined: x\n"}`,
				`{"ImportPath":"p [p.test]","Action":"build-fail"}`,
				`{"Action":"start","Package":"p"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
				`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			},
			last: "0 passed, 1 failed, 0 skipped", code: 1,
			shows: []string{"undefined: x", "p (does not build)"},
		},
		{
			name: "a package that fails outside its tests shows what it printed",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Output":"goroutine leak\n"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			last: "1 passed, 1 failed, 0 skipped", code: 1,
			shows: []string{"goroutine leak", "p (package)"},
		},
		{
			name: "tests that never end are failures, once a leaf",
			events: []string{
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"run","Package":"p","Test":"TestA/one"}`,
				`{"Action":"run","Package":"p","Test":"TestA/two"}`,
				`{"Action":"fail","Package":"p"}`,
			},
			last: "0 passed, 2 failed, 0 skipped", code: 1,
			shows: []string{"the test did not end"},
		},
		{
			name:   "a stream that breaks off is a failure",
			events: []string{`{"Action":"run","Package":"p","Test":"TestA"}`},
			last:   "0 passed, 1 failed, 0 skipped", code: 1,
		},
		{
			name:  "no tests at all",
			last:  "0 passed, 0 failed, 0 skipped",
			code:  1,
			shows: []string{"no test passed"},
		},
		{
			name:   "what is no event is shown",
			events: []string{"go: updates to go.mod needed"},
			last:   "0 passed, 0 failed, 0 skipped",
			code:   1,
			shows:  []string{"updates to go.mod needed"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			rep := newReport(&out)
			if err := rep.read(bufio.NewReader(strings.NewReader(strings.Join(tt.events, "\n")))); err != nil {
				t.Fatal(err)
			}
			rep.endPass()
			if code := rep.finish(); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, out.String())
			}
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			if diff := cmp.Diff(tt.last, lines[len(lines)-1]); diff != "" {
				t.Errorf("last line (-want +got):\n%s", diff)
			}
			for _, s := range tt.shows {
				if !strings.Contains(out.String(), s) {
					t.Errorf("the output lacks %q:\n%s", s, out.String())
				}
			}
		})
	}
}

func TestExitWithoutAFailureIsAFailure(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"./no/such/package"}, &out, &errs)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := "0 passed, 1 failed, 0 skipped\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("output does not end with %q:\n%s%s", want, out.String(), errs.String())
	}
}

func TestTaggedTests(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"a/behind_test.go":       "//go:build failpoints\n\npackage a\n\nfunc TestBehind() {}\nfunc TestMain() {}\nfunc helper() {}\n",
		"a/plain_test.go":        "package a\n\nfunc TestPlain() {}\n",
		"b/both_test.go":         "//go:build linux && failpoints\n\npackage b\n\nfunc TestBoth() {}\n",
		"b/without_test.go":      "//go:build !failpoints\n\npackage b\n\nfunc TestWithout() {}\n",
		"b/other_test.go":        "//go:build linux\n\npackage b\n\nfunc TestOther() {}\n",
		"c/not_a_test_file.go":   "//go:build failpoints\n\npackage c\n\nfunc TestNo() {}\n",
		"d/go.mod":               "module d\n",
		"d/behind_test.go":       "//go:build failpoints\n\npackage d\n\nfunc TestElsewhere() {}\n",
		"e/testdata/x_test.go":   "//go:build failpoints\n\npackage x\n\nfunc TestData() {}\n",
		"a/sub/behind_test.go":   "//go:build failpoints\n\npackage sub\n\nfunc TestSub() {}\n",
		"node_modules/x_test.go": "not Go at all",
	}
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name     string
		patterns []string
		want     tagged
	}{
		{"everything", []string{"./..."}, tagged{packages: []string{"./a", "./a/sub", "./b"}, tests: []string{"TestBehind", "TestBoth", "TestSub"}}},
		{"one tree", []string{"./a/..."}, tagged{packages: []string{"./a", "./a/sub"}, tests: []string{"TestBehind", "TestSub"}}},
		{"one package", []string{"./b"}, tagged{packages: []string{"./b"}, tests: []string{"TestBoth"}}},
		{"none", []string{"./c"}, tagged{packages: []string{}, tests: []string{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := taggedTests(root, "failpoints", tt.patterns)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(tagged{})); diff != "" {
				t.Errorf("tests behind the tag (-want +got):\n%s", diff)
			}
		})
	}
}
