// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// ready opens a store, asks whether it is ready, and closes it.
func ready(t *testing.T, dsn string, opts postgres.Options) error {
	t.Helper()
	s, err := postgres.Open(t.Context(), dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	return errors.Join(s.Ready(t.Context()), s.Close())
}

// TestPasswordsAreNotGivenAway is about servers that ask for the password in a way that whoever takes their place could use.
func TestPasswordsAreNotGivenAway(t *testing.T) {
	const password = " password=canary"
	for method, c := range map[string]struct {
		let    bool   // in, where nothing is said
		asking string // for what lets it in where it is refused
	}{
		"trust":         {let: true},
		"scram-sha-256": {let: true},
		"md5":           {asking: " require_auth=md5,scram-sha-256"},
		"password":      {asking: " require_auth=password"},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			encryption := "scram-sha-256"
			if method == "md5" {
				encryption = "md5"
			}
			server := pgtest.Own(t, pgtest.Options{Auth: method, Settings: map[string]string{"password_encryption": encryption}})
			server.Password(t, "canary")
			tcp, err := server.TCPDSN(server.Addr(), migrated(t, server))
			if err != nil {
				t.Fatal(err)
			}
			err = ready(t, tcp+password, postgres.Options{})
			if (err == nil) != c.let || !c.let && !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("nothing is said: %v", err)
			}
			if err := ready(t, tcp+password+c.asking, postgres.Options{}); err != nil {
				t.Errorf("as the DSN says: %v", err)
			}
			if method == "trust" { // who has no password is not who was meant, if the DSN says so
				if err := ready(t, tcp+password+" require_auth=scram-sha-256", postgres.Options{}); err == nil {
					t.Error("a server that asks for nothing is believed against the DSN")
				}
				return
			}
			err = ready(t, tcp+" password=wrong-canary"+c.asking, postgres.Options{})
			if err == nil || !strings.Contains(err.Error(), "28P01") || strings.Contains(err.Error(), "canary") {
				t.Errorf("a wrong password: %v", err)
			}
		})
	}
}

func TestEachConnectionIsToAServerThatKeepsWhatItCommits(t *testing.T) {
	durable := pgtest.Own(t, pgtest.Options{Durable: true})
	d := data{dsn: durable.DSN(migrated(t, durable))}
	s := d.open(t, postgres.Options{Durable: true})
	if err := s.Ready(t.Context()); err != nil {
		t.Fatalf("a durable server: %v", err)
	}
	// What it was when the store came to be is not what it is after a failover, or after somebody has turned it off.
	conn := d.connect(t)
	defer func() { _ = conn.Close(context.Background()) }()
	for _, statement := range []string{"ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for fsync := "on"; fsync == "on"; { // until the server has heard of it
		fresh := d.connect(t)
		if err := errors.Join(fresh.QueryRow(t.Context(), "SHOW fsync").Scan(&fsync), fresh.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("the connection that is there: %v", err)
	}
	const end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ledgerd'"
	if _, err := conn.Exec(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("a new connection to a server without fsync: %v", err)
	}
	if err := ready(t, d.dsn, postgres.Options{}); err != nil {
		t.Errorf("where nobody asks for it: %v", err)
	}
}

func TestValuesNeverBecomePartOfAStatement(t *testing.T) {
	if _, err := postgres.Open(t.Context(), "host=/x default_query_exec_mode=simple_protocol", postgres.Options{}); err == nil {
		t.Error("the simple protocol is used")
	}
}
