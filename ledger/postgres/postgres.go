// SPDX-License-Identifier: Apache-2.0

// Package postgres keeps the ledger in PostgreSQL, or in an engine that speaks its protocol.
//
// It is a ledger.Store, with nothing to add to what that promises: one row per operation, compare-and-swap on its history and its
// lease's end, each event in the transaction of its change. Any number of processes may use one database.
//
// How a change is written: calls gather in two queues (package coalesce), and what arrives while a batch is under way goes into the next
// one. A batch of reads is one round trip: one snapshot, begun after all of its calls came in. decide runs on the caller's goroutine. A
// batch of writes is one round trip and one transaction: one statement inserts, one compares and swaps, each with the events; what they
// do not return has lost its race, and is read and decided again. A lone call waits for nobody.
//
// Most calls read nothing. A key that is new, and a row that this process has written itself, are decided on a guess: that there is no
// such row, or that it is as it was left; that nothing like it is UNKNOWN; and that the database's timeline, watermark and time are those
// seen a moment ago. The statement that writes looks at all of that itself. Where something is otherwise it changes nothing, and the call
// is read for like any other.
//
// A change of a row touches none of its indexes: what is looked for by something that changes has a table of its own, which is kept in
// the transaction of the row (due, unknown), or is found through its events.
//
// No call spoils the batch that it is in. What the database could not hold is refused before. A batch that the server refuses, or that
// has waited for a row which another transaction holds, is run again in parts, down to the one call that is at fault; who has to wait for a row
// waits alone, on a connection of its own, and those who want the same row wait behind it without one. Alone go also a change with a
// companion, and who has lost twice in a row: behind a lock of the row, so that many writers of one row queue instead of colliding, a
// courtesy and not what correctness rests on.
//
// The commit runs detached from the caller. When its outcome can't be seen, each caller of the batch runs its own write again on a fresh
// connection; when the server says that a standby did not confirm it, the change is not durable and the callers are told that the store is
// unavailable.
//
// Each new connection is asked which server answers. Where it is another one than the database remembers, or lacks what this process was told is
// committed, the last commits may be lost: a new timeline begins before anything is decided there, and a decision that was taken before is taken anew.
//
// InTx is the other form: the same decisions on a transaction of the caller, for a team whose business rows live in the same database.
//
// A decision that writes nothing may answer a resent call with what an earlier copy wrote. Such an answer, too, waits for the standbys:
// it commits a change that changes nothing, in the next batch. What others are told of a row (a replay, a look) does not wait, and may be lost with it.
//
// No error of this package holds a driver's text, because PostgreSQL puts values into it: only the SQLSTATE. A Tracer sees the driver's
// errors as they are, and must not keep their texts where values may not go.
//
// It depends on pgx, on packages coalesce, recent and migrations, and on the ledger's values.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/coalesce"
	"github.com/opsledger/opsledger/ledger/recent"
	"github.com/opsledger/opsledger/migrations"
)

// Options of a store. The zero value is useful.
type Options struct {
	// MaxConns bounds the pool; 0: pgx's default, the larger of 4 and the number of CPUs, or what the DSN says. Batches need few: half of
	// them is at most for those who go alone.
	MaxConns int32
	// MaxConnLifetime after which a connection is replaced; 0: an hour.
	MaxConnLifetime time.Duration
	// ApplicationName as the server's views show it; empty: "ledgerd".
	ApplicationName string
	// Durable refuses each new connection to a server that may lose in a crash of its host what it has committed: see UnsafeSettings.
	Durable bool
	// Failover is what another server, or another timeline of a server, means.
	Failover Failover
	// OnTimeline, if set, is told when this process has begun a timeline, or has followed the store to another server. It must return at once.
	OnTimeline func(ledger.Timeline)
	// OnRefused, if set, is told why a new connection is not used. It must return at once.
	OnRefused func(error)
	// Batch is how many calls are served together at most; 0: 512.
	Batch int
	// Queue is how many calls may wait for that at a time, to read and to write each; 0: 8192. Those who want to begin something may fill
	// three quarters of it: who reports on what exists is refused last.
	Queue int
	// ReadBatches and WriteBatches may be under way at a time, each on a connection; a second one begins only where 256 calls wait.
	// 0: 2 of each.
	ReadBatches, WriteBatches int
	// Tracer sees statements and the driver's errors. It must record neither arguments nor the texts of errors: both hold values.
	Tracer pgx.QueryTracer

	// Now, for tests only, moves the store's clock: it gets the database's time and returns the one to use.
	Now func(database time.Time) time.Time
	// CommitFault, for tests only, is asked before each COMMIT, which may be that of many calls. With an error the connection is as good
	// as dead: the changes were applied or not, as apply says, and the store can't see which.
	CommitFault func() (apply bool, err error)
}

const (
	// callBound is how long a call may take, apart from what the caller's context says; once a write has begun, it counts anew.
	callBound = 5 * time.Second
	// batchBound is how long a batch may take: less than a call, so that those whose connection hangs can go on to another one.
	batchBound = 3 * time.Second
	// confirmBound is how long a call may take in addition, when the outcome of its commit can't be seen.
	confirmBound = 3 * time.Second
	// connectBound is how long a connection may take to be made, where the DSN says nothing: as long as one hangs, it has a place in the pool.
	connectBound = 3 * time.Second
	// pingBound is how long an idle connection may take to answer before it is given up: after a failover all old ones may be silent.
	pingBound = 500 * time.Millisecond
	// readableFrom and readableTo are the schema versions that this release works on.
	readableFrom = max(migrations.Latest-1, 1)
	readableTo   = migrations.Latest + 1
)

// RequireAuth is how a server may ask for the password, where neither the DSN (require_auth) nor PGREQUIREAUTH says so: not in clear text
// and not as MD5, so that who takes the server's place gets neither it nor what can be turned into it.
const RequireAuth = "!password,!md5"

// defaults are settings of each session; the DSN may say otherwise.
var defaults = map[string]string{
	"statement_timeout":                   "2s",
	"lock_timeout":                        "1s",
	"idle_in_transaction_session_timeout": "5s",
	"synchronous_commit":                  "on",
	// One plan per statement, made once, that depends on no value and no batch's size. Each statement has its index: also where the table
	// is young and the planner thinks it small, it is not read from end to end, and no plan is kept that does so when it has grown.
	"plan_cache_mode": "force_generic_plan",
	"enable_seqscan":  "off",
	// A statement that takes a millisecond is not worth a compiler's tenth of a second, whatever the planner thinks it costs.
	"jit": "off",
}

// Store is a ledger.Store.
type Store struct {
	pool *pgxpool.Pool
	opts Options
	// reads and writes gather calls into batches.
	reads  *coalesce.Queue[ledger.ReadSet, ledger.View]
	writes *coalesce.Queue[write, struct{}]
	// alone has a place for each caller that may have a connection for itself, turns those who want one row.
	alone chan struct{}
	turns turns
	mark  mark
	// seen and recent are what guesses are made of.
	seen   glimpse
	recent *recent.Rows
	// recognized is what is known of timelines.
	recognized recognition
	stats      counters
	// breadth bounds searches that read the whole table.
	breadth *ledger.Breadth
	// life ends with Close.
	life context.Context
	end  context.CancelFunc
}

var _ ledger.Store = (*Store)(nil)

// Open prepares a store. It does not connect: Ready says whether the database can be reached. The DSN is a PostgreSQL URL or
// keyword string, with pgx's pool parameters.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("postgres: the DSN can't be read") // pgx's text may show parts of it
	}
	if opts.MaxConns > 0 {
		cfg.MaxConns = opts.MaxConns
	}
	if opts.MaxConnLifetime > 0 {
		cfg.MaxConnLifetime = opts.MaxConnLifetime
	}
	cfg.MaxConnLifetimeJitter = cfg.MaxConnLifetime / 10
	cfg.PingTimeout = pingBound
	if opts.ApplicationName == "" {
		opts.ApplicationName = "ledgerd"
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectBound
	}
	if cfg.ConnConfig.RequireAuth == "" {
		cfg.ConnConfig.RequireAuth = RequireAuth
	}
	if cfg.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return nil, errors.New("postgres: default_query_exec_mode must not be simple_protocol: values never become part of a statement")
	}
	params, err := lowered(cfg.ConnConfig.RuntimeParams)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams = params
	for name, value := range defaults {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
	// Given at the start of a session, these are stronger than the settings of server, database and role, and than "options".
	params["default_transaction_isolation"] = "read committed" // what a plain BEGIN relies on
	params["client_min_messages"] = "warning"                  // what noteWarning relies on
	if !safeCommits(params["synchronous_commit"]) {
		return nil, errors.New("postgres: synchronous_commit must be on or remote_apply: what was answered must survive a crash")
	}
	if _, ok := params["application_name"]; !ok {
		params["application_name"] = opts.ApplicationName
	}
	cfg.ConnConfig.OnNotice = noteWarning
	cfg.ConnConfig.Tracer = opts.Tracer
	s := &Store{opts: opts, alone: make(chan struct{}, max(1, cfg.MaxConns/2)), recent: recent.New(remembered), breadth: ledger.NewBreadth()}
	cfg.AfterConnect = s.connected
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return s.upToDate(conn), nil }
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, errors.New("postgres: the pool's settings are wrong")
	}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.openLanes()
	return s, nil
}

// lowered makes names of settings comparable: for PostgreSQL they are the same in upper and lower case.
func lowered(params map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(params))
	for name, value := range params {
		name = strings.ToLower(name)
		if _, ok := out[name]; ok {
			return nil, errors.New("postgres: the DSN gives one setting twice")
		}
		out[name] = value
	}
	return out, nil
}

// Close ends what is under way and closes the connections.
func (s *Store) Close() error {
	s.end()
	s.pool.Close()
	return nil
}

// Migrate brings the schema up to this release. It may take longer than any call of the store is allowed to.
func (s *Store) Migrate(ctx context.Context) error {
	cfg := s.pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["lock_timeout"] = "5s" // what waits for a lock of a table makes all others wait
	db := stdlib.OpenDB(*cfg)
	defer func() { _ = db.Close() }()
	provider, err := migrations.Postgres(db)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err) // migrations have no parameters that it could show
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return unavailable("connect", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return readError("recognize the server", s.recognize(ctx, conn)) // a new database notes it
}

// Ready reports whether the database answers, takes writes, and has a schema that this release reads and writes.
func (s *Store) Ready(ctx context.Context) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err = s.reading().ready(ctx); errors.Is(err, errNoWrites) {
		s.pool.Reset() // another server may have taken over
		err = s.reading().ready(ctx)
	}
	return err
}

// errNoWrites says that the server can be read only.
var errNoWrites = errors.New("it takes no writes")

func (r reading) ready(ctx context.Context) error {
	var version int
	var recovering bool
	var readOnly, commits string
	err := r.again(ctx, func() error {
		return r.from.QueryRow(ctx, selectReady).Scan(&version, &recovering, &readOnly, &commits)
	})
	switch {
	case errors.Is(err, ErrRetryTransaction):
		return err
	case err != nil:
		return unavailable("read the schema's version", err)
	case recovering:
		return errStandby
	case readOnly != "off":
		return fmt.Errorf("%w: transactions are read-only (default_transaction_read_only): %w", ledger.ErrStoreUnavailable, errNoWrites)
	case !safeCommits(commits):
		return errUnsafeCommits
	}
	return supported(version)
}

// errUnsafeCommits says that a crash may lose what was answered.
var errUnsafeCommits = fmt.Errorf("%w: synchronous_commit is neither on nor remote_apply", ledger.ErrStoreUnavailable)

// UnsafeSettings names settings of the server that are off although without them a crash of its host loses what was answered: fsync,
// full_page_writes.
func (s *Store) UnsafeSettings(ctx context.Context) ([]string, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	names, err := query(ctx, s.reading(), func(rows pgx.Rows) ([]string, error) { return pgx.CollectRows(rows, pgx.RowTo[string]) }, selectUnsafe)
	return names, readError("read the server's settings", err)
}

// safeCommits: what was answered survives a crash.
func safeCommits(setting string) bool { return setting == "on" || setting == "remote_apply" }

func supported(version int) error {
	if version < readableFrom || version > readableTo {
		return fmt.Errorf("%w: the schema has version %d, this release works on %d to %d", ledger.ErrStoreUnavailable, version, readableFrom, readableTo)
	}
	return nil
}

// errClosed says that Close was called.
var errClosed = fmt.Errorf("%w: it is closed", ledger.ErrStoreUnavailable)

// enter bounds a call by the store's own limit and its life.
func (s *Store) enter(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.life.Err() != nil {
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, callBound)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// clock is how a test moves the store's time; nil: it is the database's.
type clock func(database time.Time) time.Time

// now cuts to what the store keeps, and lets a test move it.
func (c clock) now(database time.Time) time.Time {
	if c != nil {
		database = c(database)
	}
	return database.UTC().Truncate(time.Microsecond)
}

// warned marks a connection on which the server has sent a warning.
const warned = "opsledger.warned"

// noteWarning remembers warnings. During COMMIT there is only one kind of them: the server gave up waiting for a standby, after it had
// committed by itself. Its code is the general one (01000, or that of a shutdown) and its text depends on the server's language, so
// neither is looked at.
func noteWarning(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" {
		conn.CustomData()[warned] = true
	}
}
