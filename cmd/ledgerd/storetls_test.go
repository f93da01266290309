// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

func TestADatabaseOnTheNetworkIsVerified(t *testing.T) {
	const base, inURL = "postgres://ledger:canary@db.example/ledger", storeTLSAsInURL
	for name, c := range map[string]struct {
		dsn, rule string
		ok        bool
	}{
		"nothing said":                   {base, storeTLSVerified, false},
		"no TLS":                         {base + "?sslmode=disable", storeTLSVerified, false},
		"TLS without verification":       {base + "?sslmode=require", storeTLSVerified, false},
		"verified without its name":      {base + "?sslmode=verify-ca", storeTLSVerified, false},
		"verified":                       {base + "?sslmode=verify-full", storeTLSVerified, true},
		"words, verified":                {"host=db.example user=ledger sslmode=verify-full", storeTLSVerified, true},
		"words, no TLS":                  {"host=db.example user=ledger sslmode=disable", storeTLSVerified, false},
		"a second host without TLS":      {"host=/run/postgresql,db.example user=ledger sslmode=disable", storeTLSVerified, false},
		"two verified hosts":             {"host=a.example,b.example user=ledger sslmode=verify-full", storeTLSVerified, true},
		"a socket":                       {"host=/run/postgresql user=ledger", storeTLSVerified, true},
		"the loopback":                   {"postgres://ledger@127.0.0.1/ledger?sslmode=disable", storeTLSVerified, true},
		"the loopback by name":           {"postgres://ledger@localhost/ledger", storeTLSVerified, true},
		"the loopback of IPv6":           {"postgres://ledger@[::1]/ledger", storeTLSVerified, true},
		"an address that is no loopback": {"postgres://ledger@10.0.0.1/ledger?sslmode=require", storeTLSVerified, false},
		"as the URL says":                {base + "?sslmode=disable", inURL, true},
		"what is no DSN":                 {"postgres://canary:%zz@/", storeTLSVerified, false},
	} {
		err := checkTransport(location{dsn: c.dsn}, c.rule)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (exitCode(err) != 2 || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "--store ")) {
			t.Errorf("%s: exit code %d, %v", name, exitCode(err), err)
		}
	}
	if err := checkTransport(location{path: "ledger.db"}, storeTLSVerified); err != nil {
		t.Errorf("a file: %v", err)
	}
	for _, args := range [][]string{{"migrate", "status", "--store", base}, {"migrate", "up", "--store", base}} {
		if err := run(t.Context(), args, nil, os.Stdout, os.Stderr); err == nil || !strings.Contains(err.Error(), "verify-full") {
			t.Errorf("%v: %v", args[:2], err)
		}
	}
}
