// SPDX-License-Identifier: Apache-2.0

// Package sqlite keeps the ledger in one file, for development and for a single host.
//
// It is a ledger.Store, with nothing to add to what that promises. One process is meant to use a file; two are safe, because each
// change is one immediate transaction, but slow, because they wait for each other. The file must be on a local disk.
//
// Commits are durable against power loss (write-ahead log, synchronous=FULL). There is one connection that writes; what only reads
// has others. Time is the host's clock, which all processes on one file share.
//
// It depends on modernc.org/sqlite, on package migrations and on the ledger's values.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/migrations"
)

// Options of a store. The zero value is useful.
type Options struct {
	// Readers bounds the connections that only read; 0: 4.
	Readers int

	// Now, for tests only, moves the store's clock: it gets the host's time and returns the one to use.
	Now func(host time.Time) time.Time
	// CommitFault, for tests only, is asked before each COMMIT. With an error the connection is as good as dead: the change was applied
	// or not, as apply says, and the store can't see which.
	CommitFault func() (apply bool, err error)
}

const (
	// callBound is how long a call may take, apart from what the caller's context says; once a write has begun, it counts anew.
	callBound = 5 * time.Second
	// readableFrom and readableTo are the schema versions that this release works on.
	readableFrom = max(migrations.Latest-1, 1)
	readableTo   = migrations.Latest + 1
)

// Store is a ledger.Store.
type Store struct {
	path    string
	writer  *sql.DB
	readers *sql.DB
	opts    Options
	// life ends with Close.
	life context.Context
	end  context.CancelFunc
}

var _ ledger.Store = (*Store)(nil)

// Open opens or creates the file. Migrate brings its schema up, Ready says whether it has the right one.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	// Not left to SQLite, which would let others read a new file. The log beside it gets the same mode.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	writer, err := open(path, "query_only(0)")
	if err != nil {
		return nil, err
	}
	writer.SetMaxOpenConns(1)
	readers, err := open(path, "query_only(1)")
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	if opts.Readers == 0 {
		opts.Readers = 4
	}
	readers.SetMaxOpenConns(opts.Readers)
	readers.SetMaxIdleConns(opts.Readers)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{path: path, writer: writer, readers: readers, opts: opts, life: life, end: end}
	if err := writer.PingContext(ctx); err != nil {
		return nil, errors.Join(unavailable("open", err), s.Close())
	}
	return s, nil
}

// open makes a handle whose connections all have the same settings.
func open(path, pragma string) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(2000)", "journal_mode(WAL)", "synchronous(FULL)", pragma}}
	dsn := (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: q.Encode()}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, errors.New("sqlite: the driver refuses the file's name")
	}
	return db, nil
}

// Close ends what is under way and closes the file.
func (s *Store) Close() error {
	s.end()
	return errors.Join(s.readers.Close(), s.writer.Close())
}

// Migrate brings the schema up to this release.
func (s *Store) Migrate(ctx context.Context) error {
	db, err := open(s.path, "query_only(0)")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	provider, err := migrations.SQLite(db)
	if err != nil {
		return err
	}
	if _, err = provider.Up(ctx); err != nil {
		_, err = provider.Up(ctx) // another process may have been faster: then nothing is left to do
	}
	if err != nil {
		return fmt.Errorf("sqlite: migrate: %w", err) // migrations have no parameters that it could show
	}
	return nil
}

// Ready reports whether the file can be read and has a schema that this release reads and writes.
func (s *Store) Ready(ctx context.Context) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	var version int
	if err := s.readers.QueryRowContext(ctx, selectSchemaVersion).Scan(&version); err != nil {
		return unavailable("read the schema's version", err)
	}
	return supported(version)
}

func supported(version int) error {
	if version < readableFrom || version > readableTo {
		return fmt.Errorf("%w: the schema has version %d, this release works on %d to %d", ledger.ErrStoreUnavailable, version, readableFrom, readableTo)
	}
	return nil
}

// enter bounds a call by the store's own limit and its life.
func (s *Store) enter(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.life.Err() != nil {
		return nil, nil, fmt.Errorf("%w: it is closed", ledger.ErrStoreUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, callBound)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// now is the host's time, cut to what the store keeps; a test may move it.
func (s *Store) now() time.Time {
	t := time.Now()
	if s.opts.Now != nil {
		t = s.opts.Now(t)
	}
	return t.UTC().Truncate(time.Microsecond)
}
