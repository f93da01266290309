// SPDX-License-Identifier: Apache-2.0

// Package migrations holds the schemas of the stores and applies them. Both engines have the same numbers and names: what one of
// them doesn't need is an empty file there.
//
// A migration only adds: a release works on the schema before its own, on its own and on the next one. What it replaces goes in a
// later release. Each raises meta.schema_version in its own transaction; the stores look at nothing else.
//
// It depends on goose, and on nothing else of the project.
package migrations

import (
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Latest is the schema version that these migrations lead to. A release reads and writes [Latest-1, Latest+1], from 1.
const Latest = 1

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// Postgres returns the migrations of PostgreSQL, to be run over db. Two that run at once take turns by a lock of the session,
// which needs a direct connection, not a pooler of transactions.
func Postgres(db *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return provider(goose.DialectPostgres, db, "postgres", goose.WithSessionLocker(locker))
}

// SQLite returns the migrations of SQLite, to be run over db. The file's own lock makes two that run at once take turns.
func SQLite(db *sql.DB) (*goose.Provider, error) {
	return provider(goose.DialectSQLite3, db, "sqlite")
}

func provider(dialect goose.Dialect, db *sql.DB, dir string, opts ...goose.ProviderOption) (*goose.Provider, error) {
	sub, err := fs.Sub(files, dir)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	p, err := goose.NewProvider(dialect, db, sub, append(opts, goose.WithDisableGlobalRegistry(true))...)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return p, nil
}
