// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive makes one of files by name, and its digest.
func archive(t *testing.T, files map[string]string) (data []byte, integrity string) {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []interface{ Close() error }{w, zip} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha512.Sum512(b.Bytes())
	return b.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

const oneLink = `[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]`

func TestArchiveIsUnpackedWithItsLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	data, integrity := archive(t, map[string]string{
		"package/package.json": "{}", "package/native/" + links: oneLink,
		"package/native/bin/postgres": "server", "package/native/lib/libpq.so.5.18": "library",
	})
	if err := unpack(data, integrity, dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"bin/postgres": "server", "lib/libpq.so.5": "library"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "bin/postgres")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program can't be run: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "package.json")); err == nil {
		t.Error("what is not PostgreSQL's was unpacked, too")
	}
}

func TestArchiveThatIsNotTheOneThatWasTriedIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	data, integrity := archive(t, map[string]string{"package/native/" + links: "[]"})
	data[9] ^= 1 // the header's operating system: it would unpack all the same
	if err := unpack(data, integrity, dir); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("got %v, want an error about the digest", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("something was written")
	}
}

func TestArchiveThatLeavesItsFolderIsRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"a file":           {"package/native/../../outside": "x", "package/native/" + links: "[]"},
		"a link out of it": {"package/native/" + links: `[{"source":"native/lib/a","target":"native/../../outside"}]`},
	} {
		parent := t.TempDir()
		data, integrity := archive(t, files)
		if err := unpack(data, integrity, filepath.Join(parent, "tree")); err == nil {
			t.Errorf("%s is taken", name)
		}
		if _, err := os.Lstat(filepath.Join(parent, "outside")); err == nil {
			t.Errorf("%s is there", name)
		}
	}
}

func TestReportIsCounted(t *testing.T) {
	var r result
	r.count([]byte(`== ./ledger/postgres
FAIL p 1.0s: 3 passed, 1 failed, 3 skipped

failed:
  p TestStore/of a case

skipped:
  p TestStore/a_case: store_test.go:7: it is not ours
  p TestOther: other_test.go:12: it is not ours
  p TestThird: no place

3 passed, 1 failed, 3 skipped
`))
	if r.passed != "3" || r.failed != "1" || r.skipped != "3" || r.failures["p TestStore/of a case"] != 1 || r.reasons["it is not ours"] != 2 || r.reasons["see its log"] != 1 {
		t.Errorf("read %+v", r)
	}
}

func TestEveryEngineHasABuild(t *testing.T) {
	for _, e := range engines {
		if b := builds[e.major]; !strings.HasPrefix(b.version, e.major+".") || len(b.integrity) != 2 {
			t.Errorf("%s: %+v", e.name, b)
		}
		if _, err := os.Stat(filepath.Join("../..", e.after)); err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
	}
}
