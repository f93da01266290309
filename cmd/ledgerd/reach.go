// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/opsledger/opsledger/ledger/postgres"
)

// reachBound is how long a first connection may take where the DSN says nothing.
const reachBound = 5 * time.Second

// parseDSN reads a DSN as the store does.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	pool, err := pgxpool.ParseConfig(dsn)                    // not pgx's own: it would send the pool's parameters to the server
	if file := (*fs.PathError)(nil); errors.As(err, &file) { // of sslrootcert and its like
		return nil, fileFault("store", file.Path, err)
	}
	if err != nil {
		return nil, usageError{ruleError("store", "can't be read as a PostgreSQL DSN: write postgres://USER@HOST/DATABASE?sslmode=verify-full")}
	}
	config := pool.ConnConfig
	if config.RequireAuth == "" {
		config.RequireAuth = postgres.RequireAuth
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = reachBound
	}
	return config, nil
}

// reach says in the operator's words why a store can't be reached; nil: it can, or is still to be made. The store's own errors are for
// callers, and say less. No text of the driver is shown: it may hold parts of the DSN.
func reach(ctx context.Context, at location) error {
	if at.isFile() {
		return isDatabase(at.path)
	}
	config, err := parseDSN(at.dsn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return ruleError("store", "the database can't be reached: "+whyNot(err))
	}
	_ = conn.Close(ctx) // it has been reached
	return nil
}

// refusals of PostgreSQL, by SQLSTATE.
var refusals = map[string]string{
	"28P01": "it refuses the password: correct it in the DSN",
	"28000": "it does not let this user in from here: see its pg_hba.conf",
	"3D000": "it has no database of that name: create it, or correct the DSN",
	"57P03": "it is starting up, shutting down or recovering: try again",
	"53300": "it has no connection left: raise its max_connections, or lower --store-connections here",
}

func whyNot(err error) string {
	var refused *pgconn.PgError
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused):
		if why, ok := refusals[refused.Code]; ok {
			return why
		}
		return "it refuses the connection with SQLSTATE " + refused.Code
	case errors.As(err, &certificate):
		return "its certificate can't be verified: name its authority with sslrootcert, and its own name as the host"
	case errors.As(err, &name):
		return "its host has no address: correct the DSN, or the resolver"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: start it, or correct host and port in the DSN"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such socket: start it, or correct the host in the DSN"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not use its socket"
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "it does not answer"
	default:
		return "it speaks no TLS although the DSN asks for it, or asks for the password in clear text or as MD5, which require_auth in the DSN " +
			"would have to allow, or is no PostgreSQL"
	}
}

// sqliteMagic begins every file of SQLite.
var sqliteMagic = []byte("SQLite format 3\x00")

// isDatabase says why a file can't be the ledger's. One that is absent or empty becomes a database.
func isDatabase(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Dir(path)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return usageError{fileError("store", dir, "no such directory: make it")}
		}
		return nil
	}
	if err != nil {
		return fileFault("store", path, err)
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, len(sqliteMagic))
	n, err := io.ReadFull(file, head)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return fileFault("store", path, err)
	case !bytes.Equal(head[:n], sqliteMagic):
		return usageError{fileError("store", path, "is no SQLite database: name another file; this one was left as it is")}
	}
	return nil
}

// fileError names the setting, its file and the rule.
func fileError(setting, path, rule string) error {
	return ruleError(setting, fmt.Sprintf("%s: %s", path, rule))
}

// fileFault says why a setting's file can't be used.
func fileFault(setting, path string, err error) error {
	return usageError{fileError(setting, path, whyUnread(err))}
}

func whyUnread(err error) string {
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("may not be read or written by this user (%d)", os.Getuid())
	case errors.Is(err, syscall.EISDIR):
		return "is a directory: name a file"
	case errors.As(err, &at):
		return "can't be used: " + at.Err.Error()
	}
	return "can't be read: " + err.Error()
}

// named gives an error about one of the settings' files the name of its setting; other errors it leaves as they are.
func (c Config) named(err error) error {
	var at *fs.PathError
	if !errors.As(err, &at) {
		return err
	}
	for _, file := range []struct{ setting, path string }{
		{"tls-cert", c.TLSCert}, {"tls-key", c.TLSKey}, {"tls-ca", c.TLSCA}, {"policy", c.Policy}, {"contracts", c.Contracts}, {"secrets", c.Secrets},
	} {
		if file.path == at.Path || file.path != "" && filepath.Dir(at.Path) == filepath.Clean(file.path) { // contracts may be a directory
			return fileFault(file.setting, at.Path, err)
		}
	}
	return err
}
