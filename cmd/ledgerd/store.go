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
	ledger.ContractStore
	ledger.SecretStore
	ledger.GateStore
	ledger.OperatorStore
	ledger.AgedStore
	ledger.RestoreStore
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
	return location{}, usageError{ruleError("store", "must be postgres://USER@HOST/DATABASE or sqlite:PATH; --store-file names a file that holds it")}
}

// storeOptions are those of PostgreSQL alone. The zero value is useful.
type storeOptions struct {
	conns      int
	durable    bool                     // refuse each connection to a server that may lose what it commits
	failover   postgres.Failover        // what another server means
	onTimeline func(ledger.Timeline)    // is told of it
	onRefused  func(error)              // is told of a server that is not used
	traces     *sdktrace.TracerProvider // statements are spans, without their arguments
}

// openStore opens a store without asking anything of it.
func openStore(ctx context.Context, at location, o storeOptions) (database, error) {
	if at.isFile() {
		return openFile(ctx, at.path)
	}
	opts := postgres.Options{MaxConns: int32(o.conns), Durable: o.durable, Failover: o.failover, OnTimeline: o.onTimeline, OnRefused: o.onRefused}
	if o.traces != nil {
		opts.Tracer = tracer{otelpgx.NewTracer(otelpgx.WithTracerProvider(o.traces))}
	}
	store, err := postgres.Open(ctx, at.dsn, opts)
	if err != nil {
		return nil, usageError{ruleError("store", err.Error())}
	}
	return store, nil
}

func openFile(ctx context.Context, path string) (database, error) {
	store, err := sqlite.Open(ctx, path, sqlite.Options{})
	var unusable *fs.PathError
	switch {
	case err == nil:
		return store, nil
	case errors.As(err, &unusable):
		return nil, fileFault("store", path, err)
	}
	return nil, usageError{fileError("store", path, fmt.Sprintf("can't be opened (%v): this user must be able to write it and into its directory, on a local disk", err))}
}

// What --store-durability may be.
const (
	durabilityRequired = "required"
	durabilityAsItIs   = "as-it-is"
)

const (
	migrateBound = 10 * time.Minute
	readyBound   = 15 * time.Second
)

// prepareStore opens a store and brings it to, or checks for, a schema that this release works on.
func prepareStore(ctx context.Context, at location, c Config, log *slog.Logger, told *telemetry) (database, error) {
	store, err := reachStore(ctx, at, c)
	if err != nil {
		return nil, err
	}
	if c.Migrations == "apply" || c.Migrations == auto && at.isFile() {
		ctx, cancel := context.WithTimeout(ctx, migrateBound)
		defer cancel()
		if err := store.Migrate(ctx); err != nil {
			return nil, errors.Join(ruleError("store", err.Error()), store.Close())
		}
	}
	ready, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	if err := store.Ready(ready); err != nil {
		return nil, errors.Join(notReady(ready, at, err), store.Close())
	}
	if err := tellQuarantine(ready, store, log, time.Now()); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if at.isFile() {
		return store, nil
	}
	required := c.Durability == durabilityRequired
	err = errors.Join(checkDurability(ready, store, required, log), checkRecognized(ready, store, log))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	// What has been asked of this server is asked of each one that a later connection meets.
	if err := store.Close(); err != nil {
		return nil, err
	}
	w, err := told.watch(log)
	if err != nil {
		return nil, err
	}
	return openStore(ctx, at, storeOptions{c.StoreConns, required, failovers[c.Failover], w.timeline, w.connection, told.traces})
}

// reachStore opens a store that can be reached, without telemetry, and as one on which nothing is decided.
func reachStore(ctx context.Context, at location, c Config) (database, error) {
	if err := checkTransport(at, c.StoreTLS); err != nil {
		return nil, err
	}
	if err := reach(ctx, at); err != nil {
		return nil, err
	}
	return openStore(ctx, at, storeOptions{conns: c.StoreConns, failover: postgres.FailoverIgnored})
}

// notReady says what to do about a store that can be reached.
func notReady(ctx context.Context, at location, err error) error {
	current, unread := schemaVersion(ctx, at)
	why := err.Error()
	switch {
	case unread != nil:
	case current < migrations.Latest:
		why = fmt.Sprintf("its schema has version %d, this release needs %d: run ledgerd migrate up, or start with --migrations apply", current, migrations.Latest)
	case current > migrations.Latest:
		why = fmt.Sprintf("its schema has version %d, this release knows %d: start a newer ledgerd", current, migrations.Latest)
	}
	return ruleError("store", why)
}

// checkDurability refuses a server that may lose what it has committed, or warns of it.
func checkDurability(ctx context.Context, store database, required bool, log *slog.Logger) error {
	server, ok := store.(interface {
		UnsafeSettings(ctx context.Context) ([]string, error)
	})
	if !ok {
		return nil
	}
	off, err := server.UnsafeSettings(ctx)
	switch {
	case err != nil:
		return ruleError("store", err.Error())
	case len(off) == 0:
		return nil
	case required:
		return ruleError("store-durability", fmt.Sprintf("the database has %s off, and may lose what was answered when its host crashes: "+
			"turn on what is off, or take it with --store-durability=%s", strings.Join(off, ", "), durabilityAsItIs))
	}
	log.Warn("the database may lose what it has committed when its host crashes: turn these settings on", "settings", off)
	return nil
}

func (p program) migrateCommand() *cobra.Command {
	up := p.configured(&cobra.Command{
		Use:     "up",
		Short:   "Bring the store's schema up to this release",
		Example: "  ledgerd migrate up --store-file /run/secrets/ledger-dsn",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		at, err := locate(c.Store)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), migrateBound)
		defer cancel()
		store, err := reachStore(ctx, at, c)
		if err != nil {
			return err
		}
		if err = store.Migrate(ctx); err == nil {
			err = store.Ready(ctx)
		}
		if err = errors.Join(err, store.Close()); err != nil {
			return ruleError("store", err.Error())
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
		if err := reach(cmd.Context(), at); err != nil {
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
	config, err := parseDSN(at.dsn)
	if err != nil {
		return nil, err
	}
	return stdlib.OpenDB(*config), nil
}
