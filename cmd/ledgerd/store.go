// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/spf13/cobra"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/sqlite"
	"github.com/opsledger/opsledger/migrations"
)

// database is a store as start-up sees it.
type database interface {
	ledger.Store
	Migrate(ctx context.Context) error
}

// location is where a store is: a PostgreSQL DSN, or the path of a file.
type location struct {
	dsn  string
	path string
}

func (l location) isFile() bool { return l.path != "" }

// sqliteScheme begins a store that is a file.
const sqliteScheme = "sqlite:"

func locate(store Secret) (location, error) {
	text := store.Reveal()
	if path, ok := strings.CutPrefix(text, sqliteScheme); ok && path != "" {
		return location{path: path}, nil
	}
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") || strings.Contains(text, "host=") {
		return location{dsn: text}, nil
	}
	return location{}, usageError{ruleError("store", "must be postgres://USER@HOST/DATABASE or sqlite:PATH")}
}

// openStore opens a store without asking anything of it. With traces, PostgreSQL's statements are spans, without their arguments.
func openStore(ctx context.Context, at location, conns int, traces *sdktrace.TracerProvider) (database, error) {
	if at.isFile() {
		return sqlite.Open(ctx, at.path, sqlite.Options{})
	}
	opts := postgres.Options{MaxConns: int32(conns)}
	if traces != nil {
		opts.Tracer = tracer{otelpgx.NewTracer(otelpgx.WithTracerProvider(traces))}
	}
	return postgres.Open(ctx, at.dsn, opts)
}

const (
	migrateBound = 10 * time.Minute
	readyBound   = 15 * time.Second
)

// prepareStore opens a store and brings it to, or checks for, a schema that this release works on.
func prepareStore(ctx context.Context, at location, c Config, log *slog.Logger, traces *sdktrace.TracerProvider) (database, error) {
	if err := checkTransport(at, c.StoreTLS); err != nil {
		return nil, err
	}
	store, err := openStore(ctx, at, c.StoreConns, traces)
	if err != nil {
		return nil, err
	}
	if c.Migrations == "apply" || c.Migrations == auto && at.isFile() {
		ctx, cancel := context.WithTimeout(ctx, migrateBound)
		defer cancel()
		if err := store.Migrate(ctx); err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	ready, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	if err := store.Ready(ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; is it there, and has it been migrated (ledgerd migrate status)?", err), store.Close())
	}
	if server, ok := store.(interface {
		UnsafeSettings(ctx context.Context) ([]string, error)
	}); ok {
		off, err := server.UnsafeSettings(ready)
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
		if len(off) > 0 {
			log.Warn("the database may lose what it has committed when its host crashes: turn these settings on", "settings", off)
		}
	}
	return store, nil
}

func (p program) migrateCommand() *cobra.Command {
	up := p.configured(&cobra.Command{
		Use:     "up",
		Short:   "Bring the store's schema up to this release",
		Example: "  ledgerd migrate up --store-file /run/secrets/ledger-dsn",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		at, err := locate(c.Store)
		if err == nil {
			err = checkTransport(at, c.StoreTLS)
		}
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), migrateBound)
		defer cancel()
		store, err := openStore(ctx, at, c.StoreConns, nil)
		if err != nil {
			return err
		}
		if err = store.Migrate(ctx); err == nil {
			err = store.Ready(ctx)
		}
		if err = errors.Join(err, store.Close()); err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "schema version %d\n", migrations.Latest)
		return err
	}, "store", "store-tls")
	status := p.configured(&cobra.Command{
		Use:     "status",
		Short:   "Show the store's schema version and what this release needs; fails while migrations are pending",
		Example: "  ledgerd migrate status --store sqlite:/var/lib/ledgerd/ledger.db",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		at, err := locate(c.Store)
		if err == nil {
			err = checkTransport(at, c.StoreTLS)
		}
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), readyBound)
		defer cancel()
		current, err := schemaVersion(ctx, at)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(p.stdout, "schema version %d, this release migrates to %d\n", current, migrations.Latest); err != nil {
			return err
		}
		if current < migrations.Latest {
			return errPending
		}
		return nil
	}, "store", "store-tls")
	return group("migrate", "Look at the store's schema, or bring it up to this release", up, status)
}

// errPending makes migrate status fail, for scripts that wait.
var errPending = errors.New("migrations are pending; run ledgerd migrate up")

// schemaVersion reads the version without changing anything. An absent file has none.
func schemaVersion(ctx context.Context, at location) (int64, error) {
	db, err := openPlain(at)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	make := migrations.Postgres
	if at.isFile() {
		make = migrations.SQLite
	}
	provider, err := make(db)
	if err != nil {
		return 0, err
	}
	return version(ctx, db, provider)
}

// version is 0 as long as there is no table of versions: asking goose would make it.
func version(ctx context.Context, db *sql.DB, provider *goose.Provider) (int64, error) {
	var n int64
	if err := db.PingContext(ctx); err != nil {
		return 0, errors.New("migrate status: the store can't be reached") // the driver's text may show parts of the DSN
	}
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM goose_db_version").Scan(&n); err != nil {
		return 0, nil
	}
	current, err := provider.GetDBVersion(ctx)
	if err != nil {
		return 0, errors.New("migrate status: the table of versions can't be read")
	}
	return current, nil
}

func openPlain(at location) (*sql.DB, error) {
	if at.isFile() {
		if _, err := os.Stat(at.path); err != nil {
			return nil, err
		}
		// Read only: a status never makes a file or a table.
		name := url.URL{Scheme: "file", Opaque: (&url.URL{Path: at.path}).EscapedPath(), RawQuery: "mode=ro"}
		return sql.Open("sqlite", name.String())
	}
	config, err := pgx.ParseConfig(at.dsn)
	if err != nil {
		return nil, usageError{ruleError("store", "can't be read as a PostgreSQL DSN")}
	}
	return stdlib.OpenDB(*config), nil
}
