// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// store is what the house's servers are given as their store.
func (h *house) store(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(h.path("store"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// change runs a statement in the house's store beside its server.
func (h *house) change(t *testing.T, statement string, args ...any) {
	t.Helper()
	at, err := locate(Secret(h.store(t)))
	if err != nil {
		t.Fatal(err)
	}
	var db *sql.DB
	if at.isFile() {
		db, err = sql.Open("sqlite", "file:"+at.path+"?_pragma=busy_timeout(5000)")
	} else {
		db, err = openPlain(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// keys runs "keys" to its end.
func keys(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, talk bytes.Buffer
	err = run(t.Context(), append([]string{"keys"}, args...), nil, &out, &talk)
	return out.String(), talk.String(), err
}

func TestKeysOfAFileThatIsNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secrets.yaml")
	if _, _, err := keys(t, "use", "k1", "--secrets", file); exitCode(err) != 2 || !strings.Contains(err.Error(), "is not there: ledgerd keys add makes it") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	first, talk, err := keys(t, "add", "--secrets", file)
	if err != nil || !regexp.MustCompile(`^k\d{8}-[A-Z2-7]{4}\n$`).MatchString(first) || !strings.Contains(talk, "it is the primary") {
		t.Fatalf("%q, %q, %v", first, talk, err)
	}
	first = strings.TrimSpace(first)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if out, talk, err := keys(t, "add", "next", "--secrets", file); err != nil || out != "next\n" || !strings.HasSuffix(talk, "ledgerd keys use next\n") {
		t.Errorf("%q, %q, %v", out, talk, err)
	}
	ring := func() *fingerprint.Ring {
		t.Helper()
		ring, err := readRing(file)
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
	was := ring()
	if diff := cmp.Diff([]string{first, "next"}, was.IDs()); diff != "" || was.PrimaryID() != first {
		t.Errorf("%s, primary %s", diff, was.PrimaryID())
	}
	if _, _, err := keys(t, "use", "next", "--secrets", file); err != nil {
		t.Error(err)
	}
	if now := ring(); now.PrimaryID() != "next" || !cmp.Equal(now.Checks(), was.Checks()) {
		t.Errorf("primary %s, %s", now.PrimaryID(), cmp.Diff(was.Checks(), now.Checks()))
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"add", "next"},
		{"add", "not an id"},
		{"add", "a", "b"},
		{"use", "absent"},
		{"use"},
		{"use", "a", "b"},
		{"remove"},
		{"remove", "next"},
		{"frobnicate"},
		{},
		{"--output", "xml"},
	} {
		if _, _, err := keys(t, append(args, "--secrets", file)...); exitCode(err) != 2 {
			t.Errorf("%v: exit code %d, %v", args, exitCode(err), err)
		}
	}
	for _, args := range [][]string{{"add"}, {"use", "next"}, {"remove", first}, {}} {
		if _, _, err := keys(t, args...); exitCode(err) != 2 || !strings.Contains(err.Error(), "--secrets (LEDGERD_SECRETS): name the file") {
			t.Errorf("%v without a file: exit code %d, %v", args, exitCode(err), err)
		}
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what was refused has changed the file: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "ledger.db")
	if _, _, err := keys(t, "--secrets", file, "--store", sqliteScheme+missing); exitCode(err) != 2 || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a store was made")
	}
}

func TestAFileThatIsWrittenAnewKeepsItsModeAndItsLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "ring"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte(ringText("k1", "k1")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, _, err := keys(t, "add", "k2", "--secrets", link); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != 0o640 { // what everybody might do is taken away
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if to, err := os.Readlink(link); err != nil || to != file {
		t.Errorf("the link leads to %s, %v", to, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err != nil || left != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestSomebodyElsesChangeOfTheFileIsNotUndone(t *testing.T) {
	file := written(t, "secrets.yaml", ringText("k1", "k1"))
	theirs := ringText("k1", "k1", "k2")
	err := editRing(file, func(ring *fingerprint.Ring) (*fingerprint.Ring, error) {
		if err := os.WriteFile(file, []byte(theirs), 0o600); err != nil {
			t.Fatal(err)
		}
		secret, err := fingerprint.NewRandomSecret("k3")
		if err != nil {
			return nil, err
		}
		return ring.With(secret)
	})
	if exitCode(err) != 1 || !strings.Contains(err.Error(), "was changed by somebody else") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != theirs {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestASecretStaysAsLongAsARecordHasIt(t *testing.T) {
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, store(t))
			file := h.path("secrets.yaml")
			with := []string{"--secrets", file, "--store-file", h.path("store")}
			h.write(t, "secrets.yaml", ringText("k1", "k1", "k2"))
			if _, _, err := keys(t, with...); err == nil || !strings.Contains(err.Error(), map[string]string{"postgres": "ledgerd migrate up", "sqlite": "no such file"}[name]) {
				t.Errorf("without a schema: %v", err)
			}
			r := start(t, nil, append(h.args, "--migrations", "apply", "--reload-interval", "100ms")...)
			client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
			newKey(t, client, "a")
			table := func() []key {
				t.Helper()
				out, _, err := keys(t, append(with, "-o", "json")...)
				var all []key
				if jsonErr := json.Unmarshal([]byte(out), &all); jsonErr != nil {
					t.Fatalf("%v, %v\n%s", err, jsonErr, out)
				}
				return all
			}
			check := func(id string) string {
				ring, err := fingerprint.ParseRing(id, []byte(ringText(id, id)))
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprintf("%x", ring.Checks()[id])
			}
			want := []key{{"k1", "primary", check("k1"), "same", 1}, {"k2", "kept", check("k2"), "same", 0}}
			if diff := cmp.Diff(want, table()); diff != "" {
				t.Error(diff)
			}
			refuse := func(want string, args ...string) {
				t.Helper()
				before, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = keys(t, append(args, with...)...)
				if exitCode(err) == 0 || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: exit code %d, %v; want %s", args, exitCode(err), err, want)
				}
				if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
					t.Errorf("%v has changed the file: %v", args, err)
				}
			}
			refuse("k1 is the primary", "remove", "k1")
			refuse("neither the file nor the store has that id", "remove", "k9")
			if _, _, err := keys(t, "use", "k2", "--secrets", file); err != nil {
				t.Fatal(err)
			}
			r.log.waitFor(t, `"kind":"secrets"}`)
			refuse("1 records in the store were made with this secret: it must outlive them", "remove", "k1")
			refuse("it must outlive them", "remove", "k1", "--lost")
			newKey(t, client, "b")
			// Without its record it may go; the server goes on, and one that starts does not miss it.
			h.change(t, "DELETE FROM operations WHERE fingerprint_secret = $1", "k1")
			if _, _, err := keys(t, append(with, "remove", "k1")...); err != nil {
				t.Error(err)
			}
			r.log.waitForAll(t, `"kind":"secrets"}`, 2)
			want = []key{{"k2", "primary", check("k2"), "same", 1}}
			if diff := cmp.Diff(want, table()); diff != "" {
				t.Error(diff)
			}
			sameAgain(t, client, "b")
			start(t, nil, h.args...)

			// A file that has lost a secret.
			h.write(t, "secrets.yaml", ringText("k3", "k3"))
			out, _, err := keys(t, with...)
			if exitCode(err) != 1 || !strings.Contains(err.Error(), "lacks the secret of the id k2") || !strings.Contains(out, "\nk2  missing  ") || !strings.Contains(out, "  none   0\n") {
				t.Errorf("exit code %d, %v\n%s", exitCode(err), err, out)
			}
			refuse("put it back into the file, or, if nobody has it any more, go on without it by --lost", "remove", "k2")
			if _, err := output(t, nil, h.args...); exitCode(err) != 2 {
				t.Errorf("a server started without it: %v", err)
			}
			if _, _, err := keys(t, append(with, "remove", "k2", "--lost")...); err != nil {
				t.Error(err)
			}
			last := start(t, nil, h.args...)
			again, err := pb.NewLedgerServiceClient(dial(t, last.at.GRPC, h.as(t, agentA))).Claim(call(t), claim("b"))
			if err == nil || !strings.Contains(err.Error(), "newer release") {
				t.Errorf("a record whose secret is lost: %v, %v", again, err)
			}
		})
	}
}
