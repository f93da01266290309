// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"database/sql"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/test/pgtest"
)

// fault is a start that fails.
type fault struct {
	args []string // besides those of a house where all is well; the last one counts
	code int
	says []string // what the one line names, and what to do
}

// mustNotStart starts a server with each fault.
func mustNotStart(t *testing.T, h *house, faults map[string]fault) {
	t.Helper()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			err := run(call(t), append(h.args, f.args...), nil, io.Discard, io.Discard)
			if err == nil || exitCode(err) != f.code {
				t.Fatalf("exit code %d, want %d: %v", exitCode(err), f.code, err)
			}
			text := err.Error()
			for _, want := range f.says {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q: %s", want, text)
				}
			}
			if strings.Contains(text, "\n") || strings.Contains(text, "canary") {
				t.Errorf("more than a line, or too much: %s", text)
			}
			for _, twice := range append(f.says, "no such", "is a directory", "unavailable") {
				if strings.Count(text, twice) > 1 {
					t.Errorf("it says %q twice: %s", twice, text)
				}
			}
		})
	}
}

func TestAFileThatCantBeUsedIsNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	h.write(t, "empty", "")
	h.write(t, "garbage", "garbage")
	missing, dir, empty, garbage := h.path("missing"), h.dir, h.path("empty"), h.path("garbage")
	faults := map[string]fault{}
	for setting, c := range map[string]struct{ empty, garbage string }{
		"tls-cert":  {empty + ": must be PEM with the certificate chain", garbage + ": must be PEM with the certificate chain"},
		"tls-key":   {empty + ": must be PEM with the leaf's private key", garbage + ": must be PEM with the leaf's private key"},
		"tls-ca":    {empty + ": must hold at least one authority", garbage + ": must be PEM blocks of type CERTIFICATE"},
		"policy":    {empty + ": must be exactly one YAML document; begin with trust_domain", garbage + ":1: the policy must be a mapping"},
		"contracts": {empty + ":1: must be one valid YAML document", garbage + ":1: the file must be a mapping"},
		"secrets":   {empty + ": must be one valid YAML document", garbage + ":1: must be a mapping with the keys"},
		"config":    {"", garbage + ":1: must be a mapping of settings"},
	} {
		flag := "--" + setting
		faults[setting+", missing"] = fault{[]string{flag, missing}, 2, []string{flag + " (", missing, "no such file"}}
		if setting != "contracts" { // they may be
			faults[setting+", a directory"] = fault{[]string{flag, dir}, 2, []string{flag + " (", dir, "is a directory: name a file"}}
		}
		faults[setting+", garbage"] = fault{[]string{flag, garbage}, 2, []string{c.garbage}}
		if c.empty != "" {
			faults[setting+", empty"] = fault{[]string{flag, empty}, 2, []string{c.empty}}
		}
	}
	for name, says := range map[string][]string{
		"missing": {missing, "no such file"}, ".": {dir, "is a directory: name a file"}, "empty": {empty, "is empty: it must hold what --store would be"},
		"garbage": {"--store (", "must be postgres://USER@HOST/DATABASE or sqlite:PATH"},
	} {
		faults["store-file, "+name] = fault{[]string{"--store-file", h.path(name)}, 2, says}
	}
	mustNotStart(t, h, faults)
}

func TestCertificatesThatDontFitAreNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	other, err := h.ca.Issue(authz.LeafSpec{
		IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := other.PEM()
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, "expired.pem", string(cert))
	h.write(t, "expired-key.pem", string(key))
	h.write(t, "encrypted-key.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nY2FuYXJ5\n-----END ENCRYPTED PRIVATE KEY-----\n")
	h.write(t, "half-ca.pem", string(h.ca.PEM())[:200])
	mustNotStart(t, h, map[string]fault{
		"another certificate's key": {[]string{"--tls-key", h.path("expired-key.pem")}, 2, []string{
			h.path("expired-key.pem"), "must be the private key of the leaf, which is the first certificate of " + h.path("cert.pem"),
		}},
		"a certificate as key": {[]string{"--tls-key", h.path("cert.pem")}, 2, []string{h.path("cert.pem"), "the leaf's private key"}},
		"a key as certificate": {[]string{"--tls-cert", h.path("key.pem")}, 2, []string{h.path("key.pem"), "the certificate chain"}},
		"an encrypted key":     {[]string{"--tls-key", h.path("encrypted-key.pem")}, 2, []string{h.path("encrypted-key.pem"), "decrypt it"}},
		"expired": {[]string{"--tls-cert", h.path("expired.pem"), "--tls-key", h.path("expired-key.pem")}, 2, []string{
			h.path("expired.pem"), "has expired: put its successor there",
		}},
		"a leaf as authority": {[]string{"--tls-ca", h.path("cert.pem")}, 2, []string{h.path("cert.pem"), "not an authority's (CA:TRUE)"}},
		"half an authority":   {[]string{"--tls-ca", h.path("half-ca.pem")}, 2, []string{h.path("half-ca.pem"), "must be PEM blocks"}},
	})
}

func TestAStoreThatCantBeUsedIsNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	h.write(t, "garbage", strings.Repeat("garbage ", 1000))
	h.write(t, "short", "x")
	newer := filepath.Join(t.TempDir(), "newer.db")
	for _, statement := range []string{
		"CREATE TABLE goose_db_version (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')))",
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1), (999, 1)",
		"CREATE TABLE meta (schema_version INTEGER)",
	} {
		execute(t, newer, statement)
	}
	silent := listening(t)
	// Names, not paths of the tests: these are parts of a DSN.
	const user = "user=canary password=canary dbname=canary"
	host, port, err := net.SplitHostPort(silent)
	if err != nil {
		t.Fatal(err)
	}
	stored := func(store string, code int, says ...string) fault {
		return fault{h.stored(t, store), code, append(says, "--store (LEDGERD_STORE): ")}
	}
	mustNotStart(t, h, map[string]fault{
		"no directory":      stored("sqlite:"+h.path("no/ledger.db"), 2, h.path("no")+": no such directory: make it"),
		"a directory":       stored("sqlite:"+h.dir, 2, h.dir+": is a directory: name a file"),
		"no database":       stored("sqlite:"+h.path("garbage"), 2, h.path("garbage")+": is no SQLite database: name another file"),
		"too short for one": stored("sqlite:"+h.path("short"), 2, h.path("short")+": is no SQLite database"),
		"no schema": {[]string{"--migrations", "verify"}, 1, []string{
			"its schema has version 0", "run ledgerd migrate up",
		}},
		"a newer schema": {append(stored("sqlite:"+newer, 1).args, "--migrations", "verify"), 1, []string{"its schema has version 999", "start a newer ledgerd"}},

		"what is no store":             stored("mysql://canary@db.example/ledger", 2, "must be postgres://USER@HOST/DATABASE or sqlite:PATH"),
		"what is no DSN":               stored("postgres://canary:%zz@/", 2, "can't be read as a PostgreSQL DSN: write postgres://"),
		"a setting that risks answers": stored(stores["postgres"](t)+" synchronous_commit=off", 2, "synchronous_commit must be on"),
		"not verified":                 stored("host=db.example "+user, 2, "must have sslmode=verify-full"),
		"no file of authorities":       stored("host=db.example sslmode=verify-full sslrootcert=/no/such "+user, 2, "/no/such: no such file"),
		"nothing listens":              stored("host=127.0.0.1 port=1 sslmode=disable "+user, 1, "nothing listens there: start it"),
		"no socket":                    stored("host=/no/such "+user, 1, "there is no such socket: start it"),
		"no host":                      stored("host=ledger.invalid sslmode=verify-full "+user, 1, "its host has no address: correct the DSN"),
		"no answer": stored(fmt.Sprintf("host=%s port=%s connect_timeout=1 sslmode=disable %s", host, port, user), 1,
			"the database can't be reached: it does not answer"),
	})
}

// stored are the arguments for a store that is named by a file, as secrets are.
func (h *house) stored(t *testing.T, store string) []string {
	t.Helper()
	file, err := os.CreateTemp(h.dir, "store-*")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(store); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return []string{"--store-file", file.Name()}
}

func execute(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// listening is the address of a listener that says nothing.
func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// TestADatabaseThatRefusesIsNamed has a server with TLS that asks for a password, as databases on a network do.
func TestADatabaseThatRefusesIsNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	read := func(name string) []byte {
		data, err := os.ReadFile(h.path(name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	server := pgtest.Own(t, pgtest.Options{
		Durable: true, Auth: "scram-sha-256", Files: map[string][]byte{"server.crt": read("cert.pem"), "server.key": read("key.pem")},
		Settings: map[string]string{"ssl": "on"},
	})
	server.Password(t, "canary")
	plain := pgtest.Own(t, pgtest.Options{Auth: "password"})
	plain.Password(t, "canary")
	strangers, err := authz.NewCA("strangers", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, "strangers.pem", string(strangers.PEM()))
	stored := func(server *pgtest.Server, database, more string) []string {
		host, port, err := net.SplitHostPort(server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return append(h.stored(t, fmt.Sprintf("host=%s port=%s user=ledger dbname=%s %s", host, port, database, more)),
			"--migrations", "apply", "--store-durability", "required")
	}
	verified := "sslmode=verify-full sslrootcert=" + h.path("ca.pem")
	database := server.Database(t)
	mustNotStart(t, h, map[string]fault{
		"wrong password":    {stored(server, database, verified+" password=wrong-canary"), 1, []string{"it refuses the password: correct it in the DSN"}},
		"no such database":  {stored(server, "canary", verified+" password=canary"), 1, []string{"it has no database of that name: create it"}},
		"another authority": {stored(server, database, "password=canary sslmode=verify-full sslrootcert="+h.path("strangers.pem")), 1, []string{"its certificate can't be verified: name its authority"}},
		"no TLS":            {stored(plain, "postgres", verified+" password=canary"), 1, []string{"it speaks no TLS"}},
		"a password in clear text": {
			stored(plain, "postgres", "sslmode=disable password=canary"), 1, []string{"asks for the password in clear text or as MD5, which require_auth in the DSN would have to allow"},
		},
	})
	start(t, nil, append(h.args, stored(server, database, verified+" password=canary")...)...)
}

func TestASettingThatCantBeIsNamed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	taken := listening(t)
	faults := map[string]fault{
		"an unknown flag":     {[]string{"--nope"}, 2, []string{"unknown flag: --nope", "ledgerd serve --help"}},
		"a flag without more": {[]string{"--store"}, 2, []string{"flag needs an argument: --store", "ledgerd serve --help"}},
		"no unit":             {[]string{"--drain-delay", "3"}, 2, []string{"--drain-delay (LEDGERD_DRAIN_DELAY): must be a number with its unit, such as 3s"}},
		"a long drain":        {[]string{"--drain-delay", "1h"}, 2, []string{"--drain-delay (", "must be from 0s to 5m0s"}},
		"no number":           {[]string{"--max-connections", "many"}, 2, []string{"--max-connections (", "must be a whole number"}},
		"too many":            {[]string{"--max-connections-per-address", "1000000"}, 2, []string{"--max-connections-per-address (", "must be from 0 to 100000"}},
		"no size":             {[]string{"--gc-memory", "256MB"}, 2, []string{"--gc-memory (", "such as 512MiB"}},
		"no word":             {[]string{"--store-durability", "maybe"}, 2, []string{"--store-durability (", "must be one of required, as-it-is"}},
		"an argument":         {[]string{"now"}, 2, []string{"ledgerd serve takes no arguments"}},
	}
	for _, setting := range []string{"grpc-addr", "admin-addr"} {
		flag := "--" + setting
		faults[setting+", taken"] = fault{[]string{flag, taken}, 1, []string{flag + " (", taken, "another program listens there: end it"}}
		faults[setting+", another host's"] = fault{[]string{flag, "192.0.2.1:7443"}, 1, []string{flag + " (", "192.0.2.1:7443", "this host has no such address"}}
		for _, bad := range []string{"7443", "localhost", ":99999", ":no-such-service", ""} {
			faults[setting+", "+bad] = fault{[]string{flag, bad}, 2, []string{flag + " (", "must be host:port, or :port for every address of this host"}}
		}
	}
	mustNotStart(t, h, faults)
}

func TestCommandsWithoutACommandSayHow(t *testing.T) {
	for _, args := range [][]string{nil, {"migrate"}, {"policy"}} {
		var out, told strings.Builder
		err := run(t.Context(), args, nil, &out, &told)
		if exitCode(err) != 2 || out.Len() > 0 || !strings.Contains(told.String(), "Available Commands:") {
			t.Errorf("%q: exit code %d, %v\nstdout %q\nstderr %q", args, exitCode(err), err, &out, &told)
		}
	}
	for _, args := range [][]string{{"policy", "check", "/no/such"}, {"contracts", "check", "/no/such"}} {
		if err := run(t.Context(), args, nil, io.Discard, io.Discard); exitCode(err) != 1 || strings.Count(err.Error(), "/no/such: no such file") != 1 {
			t.Errorf("%q: exit code %d, %v", args, exitCode(err), err)
		}
	}
}

// Kubernetes mounts secrets so that every user of a container can read them: they are taken, and named once.
func TestFilesWithSecretsThatEverybodyReadsAreNamedOnce(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	files := map[string]string{"tls-key": "key.pem", "secrets": "secrets.yaml", "store-file": "store"}
	warnings := func(r *running) string {
		log, _ := r.log.read()
		return log
	}
	r := start(t, nil, h.args...)
	if log := warnings(r); strings.Contains(log, "can read a file with a secret") {
		t.Errorf("nobody else can read them:\n%s", log)
	}
	for _, name := range append([]string{"cert.pem", "policy.yaml"}, files["tls-key"], files["secrets"], files["store-file"]) {
		if err := os.Chmod(h.path(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.write(t, "config.yaml", "store: sqlite:"+h.path("other.db"))
	if err := os.Chmod(h.path("config.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	r = start(t, nil, append(h.args, "--config", h.path("config.yaml"))...)
	if log := warnings(r); strings.Count(log, "can read a file with a secret") != len(files) {
		t.Errorf("not one line each:\n%s", log)
	}
	for setting, name := range files {
		if log := warnings(r); strings.Count(log, fmt.Sprintf(`"setting":%q,"file":%q`, setting, h.path(name))) != 1 {
			t.Errorf("%s is not named once:\n%s", setting, log)
		}
	}
	without := append([]string{"serve"}, h.args[3:]...)
	if log := warnings(start(t, nil, append(without, "--config", h.path("config.yaml"))...)); !strings.Contains(log, `"setting":"config"`) {
		t.Errorf("the file of settings, which has the store, is not named:\n%s", log)
	}
}
