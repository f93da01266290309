// SPDX-License-Identifier: Apache-2.0

// Package sqlite keeps the ledger in one file, for development and for a single host.
//
// It is a ledger.Store, with nothing to add to what that promises. One process is meant to use a file; two are safe, because each
// batch is one immediate transaction, but slow, because they wait for each other. The file must be on a local disk.
//
// A call reads and decides on the caller's goroutine, by one of some connections that only read, and never waits for a writer there. What
// it wants written goes into a queue: all that arrived while one batch was being written is the next, in one transaction, with one
// sync of the disk. Each call of a batch has its own compare-and-swap and its own answer. A call on a key that is new, or on a row that
// this process has written itself, reads nothing before: it is decided on a guess, and the batch looks whether that holds.
//
// Commits are durable against power loss (write-ahead log, synchronous=FULL), and nobody sees one before it is. Time is the host's clock,
// which all processes on one file share.
//
// It depends on modernc.org/sqlite, on packages coalesce, recent and migrations and on the ledger's values.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
	"github.com/opsledger/opsledger/ledger/recent"
	"github.com/opsledger/opsledger/migrations"
)

// Options of a store. The zero value is useful.
type Options struct {
	// Readers bounds the connections that only read; 0: 4.
	Readers int
	// Batch is how many calls one transaction takes at most; 0: 256.
	Batch int
	// Queue is how many calls may wait for their batch at a time; 0: 4096. New operations may fill three quarters of it: who reports
	// on one that exists is refused last.
	Queue int

	// Now, for tests only, moves the store's clock: it gets the host's time and returns the one to use.
	Now func(host time.Time) time.Time
	// CommitFault, for tests only, is asked before each COMMIT. With an error the connection is as good as dead: the change was applied
	// or not, as apply says, and the store can't see which.
	CommitFault func() (apply bool, err error)
}

const (
	// remembered is how many rows a process knows as it has written them.
	remembered = 8192
	// callBound is how long a call may take, apart from what the caller's context says; once a write has begun, it counts anew.
	callBound = 5 * time.Second
	// readableFrom and readableTo are the schema versions that this release works on.
	readableFrom = max(migrations.Latest-1, 1)
	readableTo   = migrations.Latest + 1
)

// Store is a ledger.Store.
type Store struct {
	path    string
	opts    Options
	bound   time.Duration
	readers *pool
	queue   *coalesce.Queue[*job, outcome]
	// creating counts calls that wait to insert a row.
	creating atomic.Int64
	flights  flights
	// met is what the last batch met in the file as a whole; with it and recent a call can be decided before anything is read.
	met    atomic.Pointer[meta]
	recent *recent.Rows

	// writing is held by the batch under way, and guards writer, which is nil where there is no sound connection.
	writing sync.Mutex
	writer  *conn
	writers driver.Connector

	stats counters
	// breadth bounds searches that read the whole table.
	breadth *ledger.Breadth

	// life ends with Close.
	life context.Context
	end  context.CancelFunc
}

var _ ledger.Store = (*Store)(nil)

// Open opens or creates the file. Migrate brings its schema up, Ready says whether it has the right one.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	path, err := create(path)
	if err != nil {
		return nil, err
	}
	// Each commit then waits for the log's data and size, not for its time of modification, too. Where there is no such call nothing changes.
	_, _ = sqlite.Fdatasync(true)
	opts.Readers = orElse(opts.Readers, 4)
	opts.Batch = orElse(opts.Batch, 256)
	opts.Queue = orElse(opts.Queue, 4096)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{path: path, opts: opts, bound: callBound, life: life, end: end, breadth: ledger.NewBreadth()}
	s.recent = recent.New(remembered)
	s.queue = coalesce.New(coalesce.Options{Batch: opts.Batch, Queue: opts.Queue, Batches: 1}, s.run)
	readers, err := connector(path, "query_only(1)")
	if err != nil {
		return nil, err
	}
	s.readers = newPool(life, opts.Readers, func(ctx context.Context) (*conn, error) { return s.connect(ctx, readers) })
	if s.writers, err = connector(path, "query_only(0)", fmt.Sprintf("cache_size(-%d)", cached)); err != nil {
		return nil, err
	}
	if err := s.connectWriter(ctx); err != nil {
		return nil, errors.Join(unavailable("open", err), s.Close())
	}
	return s, nil
}

func orElse(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// create makes the file where there is none, and says where it is. It is not left to SQLite, which would let others read it. The log
// beside it gets the same mode. A file that is there is not opened: closing it again would drop the locks that SQLite has on it in
// this process.
func create(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		path, err = filepath.EvalSymlinks(path) // SQLite does so, too, and has the log beside the file
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	return path, nil
}

// connector makes connections that all have the same settings.
func connector(path string, pragmas ...string) (driver.Connector, error) {
	c, err := sqlite.NewConnector(source(path, pragmas...))
	if err != nil {
		return nil, errors.New("sqlite: the driver refuses the file's name")
	}
	return c, nil
}

func source(path string, pragmas ...string) string {
	q := url.Values{"_pragma": append([]string{
		"busy_timeout(2000)", "journal_mode(WAL)", "synchronous(FULL)",
		// Pages of the log until they are copied into the file, four times SQLite's own number: pages of indexes come again, and are then
		// copied once, which saves a fifth of all that is written. More would not fit one block of the log's index.
		"wal_autocheckpoint(4000)",
	}, pragmas...)}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: q.Encode()}).String()
}

// Close ends what is under way and closes the file. A batch that is being written is finished first.
func (s *Store) Close() error {
	s.end()
	err := s.readers.close()
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.writer != nil {
		err = errors.Join(err, s.writer.close())
		s.writer = nil
	}
	return err
}

// Stats count what a store has done since it was opened. They hold no values.
type Stats struct {
	// Writes are the calls that were served in WriteBatches.
	WriteBatches, Writes uint64
	// Confirmed are the batches of which it had to be found out what became of their commit.
	Confirmed uint64
	// Statements of all connections, BEGIN and the like included.
	Statements uint64
}

type counters struct{ writeBatches, writes, confirmed, statements atomic.Uint64 }

// Stats are as they stand now.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{
		WriteBatches: c.writeBatches.Load(), Writes: c.writes.Load(), Confirmed: c.confirmed.Load(), Statements: c.statements.Load(),
	}
}

// Migrate brings the schema up to this release.
func (s *Store) Migrate(ctx context.Context) error {
	db, err := sql.Open("sqlite", source(s.path, "query_only(0)"))
	if err != nil {
		return errors.New("sqlite: the driver refuses the file's name")
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
	err = s.readers.use(ctx, func(c *conn) error {
		_, err := readMeta(c)
		return err
	})
	return readError("read the schema's version", err)
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
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.bound)
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
