// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// Figures are counted, not timed. They are the same on every machine, busy or not, but for the little by which the size of batches
// moves them, so a change that makes one worse can be refused.

// figure that was counted.
type figure struct {
	limit
	Value float64
}

// ok: within its limits.
func (f figure) ok() bool { return (f.Most == 0 || f.Value <= f.Most) && f.Value >= f.Least }

// How much work is counted, in units.
const (
	warmUnits  = 50
	aloneUnits = 200
	crowdUnits = 2000
	crowd      = 128
)

// count is what some work took.
type count struct {
	units, news, wal, transactions, statements, trips, batches float64
	from, to                                                   string // positions in the log
}

// own adds what something beside the server and the runtime counts.
type own func(*count)

// counter counts. Each figure ends up in values by its name.
type counter struct {
	site     *site
	database *pgtest.Server
	control  *pgx.Conn
	values   map[string]float64
	log      []logPart
}

// countFigures counts all of them, on a server of its own: nothing else may write to its log.
func countFigures(ctx context.Context, s *site, connections int) (_ []figure, _ []logPart, err error) {
	settings := maps.Clone(databaseSettings)
	settings["autovacuum"] = "off" // it writes to the log when it likes
	database, err := pgtest.Start(ctx, pgtest.Options{Durable: true, Settings: settings})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, database.Stop()) }()
	control, err := pgx.Connect(ctx, database.DSN("postgres"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, control.Close(context.WithoutCancel(ctx))) }()
	c := &counter{site: s, database: database, control: control, values: map[string]float64{}}
	for _, step := range []func() error{
		func() error { return c.onPostgres(ctx) },
		func() error { return c.onSQLite(ctx) },
		func() error { return c.served(ctx, connections) },
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	var out []figure
	for _, l := range limits {
		value, ok := c.values[l.Name]
		if !ok {
			return nil, nil, fmt.Errorf("nothing has counted %q", l.Name)
		}
		out = append(out, figure{l, value})
	}
	return out, c.log, nil
}

// onPostgres counts the store on PostgreSQL: once as it is, and once with a tracer, which has objects of its own.
func (c *counter) onPostgres(ctx context.Context) error {
	if err := c.create(ctx, "figures"); err != nil {
		return err
	}
	dsn := c.database.DSN("figures")
	for _, tracer := range []*statementCounter{nil, {}} {
		opts := postgres.Options{}
		if tracer != nil {
			opts.Tracer = tracer
		}
		store, err := postgres.Open(ctx, dsn, opts)
		if err != nil {
			return err
		}
		alone, crowded, err := c.both(ctx, store, tracer.count)
		if err := errors.Join(err, store.Close()); err != nil {
			return err
		}
		if tracer == nil {
			if c.log, err = c.logParts(ctx, dsn, crowded); err != nil {
				return err
			}
			c.values[allocationsAlone] = alone.news / alone.units
			c.values[allocationsCrowd] = crowded.news / crowded.units
			c.values[walAlone] = alone.wal / alone.units
			c.values[walCrowd] = crowded.wal / crowded.units
			c.values[callsPerCommit] = 2 * crowded.units / crowded.transactions
		} else {
			c.values[statementsAlone] = alone.statements / alone.units
			c.values[tripsAlone] = alone.trips / alone.units
			c.values[commitsAlone] = alone.transactions / alone.units
			c.values[statementsCrowd] = crowded.statements / crowded.units
			c.values[statementsPerCommit] = crowded.statements / crowded.transactions
		}
	}
	return c.afterCheckpoint(ctx, dsn)
}

// afterCheckpoint counts what the first units after a checkpoint write: of each page that they change, its whole image first. The other
// counts of bytes are taken when the pages in use have had their images.
func (c *counter) afterCheckpoint(ctx context.Context, dsn string) error {
	store, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if _, err := c.control.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	units, err := localUnits(store)
	if err != nil {
		return err
	}
	first, err := c.span(ctx, func(*count) {}, plan{Callers: crowd, Units: crowdUnits / 4}, units)
	c.values[walCheckpoint] = first.wal / first.units
	return err
}

func (c *counter) onSQLite(ctx context.Context) error {
	store, err := openSQLite(ctx, c.site.path("figures.db"))
	if err != nil {
		return err
	}
	alone, crowded, err := c.both(ctx, store, func(n *count) {
		stats := store.Stats()
		n.statements, n.batches = float64(stats.Statements), float64(stats.WriteBatches)
	})
	c.values[allocationsSQLiteAlone] = alone.news / alone.units
	c.values[allocationsSQLiteCrowd] = crowded.news / crowded.units
	c.values[statementsSQLiteAlone] = alone.statements / alone.units
	c.values[statementsSQLiteCrowd] = crowded.statements / crowded.units
	c.values[callsSQLiteBatch] = 2 * crowded.units / crowded.batches
	return errors.Join(err, store.Close())
}

// both counts units of one caller, then of many. Each has begun before it is counted: connections, prepared statements, pages.
func (c *counter) both(ctx context.Context, store ledger.Store, more own) (alone, crowded count, err error) {
	units, err := localUnits(store)
	if err != nil {
		return alone, crowded, err
	}
	for _, part := range []struct {
		into *count
		plan plan
	}{
		{&count{}, plan{Callers: 1, Units: warmUnits}},
		{&alone, plan{Callers: 1, Units: aloneUnits}},
		{&count{}, plan{Callers: crowd, Units: crowdUnits / 4}},
		{&crowded, plan{Callers: crowd, Units: crowdUnits}},
	} {
		if *part.into, err = c.span(ctx, more, part.plan, units); err != nil {
			return alone, crowded, err
		}
	}
	return alone, crowded, nil
}

// span counts one run.
func (c *counter) span(ctx context.Context, more own, p plan, units func(context.Context, int) error) (count, error) {
	before, err := c.read(ctx, more)
	if err != nil {
		return count{}, err
	}
	nothing := func() {}
	o := drive(ctx, p, nothing, nothing, units)
	if o.Failed > 0 || o.Units != p.Units {
		return count{}, fmt.Errorf("%d of %d units: %s", o.Units, p.Units, o.Failure)
	}
	after, err := c.read(ctx, more)
	return count{
		units: float64(o.Units), news: after.news - before.news, wal: after.wal - before.wal, transactions: after.transactions - before.transactions,
		statements: after.statements - before.statements, trips: after.trips - before.trips, batches: after.batches - before.batches,
		from: before.to, to: after.to,
	}, err
}

func (c *counter) read(ctx context.Context, more own) (count, error) {
	var out count
	more(&out)
	// A transaction that writes takes an id; to look at the next one takes none.
	err := c.control.QueryRow(ctx, `SELECT at::text, (at - '0/0')::float8, pg_snapshot_xmax(pg_current_snapshot())::text::float8
	FROM pg_current_wal_insert_lsn() AS at`).Scan(&out.to, &out.wal, &out.transactions)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	out.news = float64(memory.Mallocs)
	return out, err
}

// served counts the allocations of a ledgerd process: TLS, gRPC, interceptors, service, core and store.
func (c *counter) served(ctx context.Context, connections int) error {
	if err := c.create(ctx, "served"); err != nil {
		return err
	}
	server, err := c.site.startLedgerd(ctx, "figures", c.database.DSN("served"))
	if err != nil {
		return err
	}
	load, err := startChild(asLoad, setup{
		Files: c.site.files("load"), Connections: connections, Addresses: map[string]string{targetPostgres: server.grpc},
	})
	if err != nil {
		return errors.Join(err, server.stop())
	}
	err = c.servedBy(ctx, server, load)
	return errors.Join(err, load.stop(), server.stop())
}

func (c *counter) servedBy(ctx context.Context, server *server, load *child) error {
	const mallocs = "go_memstats_mallocs_total"
	nothing := func() {}
	for _, part := range []struct {
		name string
		plan plan
	}{
		{"", plan{Callers: crowd, Units: crowdUnits / 4}},
		{allocationsServedAlone, plan{Callers: 1, Units: aloneUnits}},
		{allocationsServedCrowd, plan{Callers: crowd, Units: crowdUnits}},
	} {
		var at [3]float64 // what lies between the first two is the question's own
		for i := range at {
			if i == 2 {
				o, err := load.run(targetPostgres, part.plan, nothing, nothing)
				if err != nil || o.Failed > 0 {
					return errors.Join(err, fmt.Errorf("%d callers failed: %s", o.Failed, o.Failure))
				}
			}
			var err error
			if at[i], err = server.metric(ctx, mallocs); err != nil {
				return err
			}
		}
		if part.name != "" {
			c.values[part.name] = (at[2] - at[1] - (at[1] - at[0])) / float64(part.plan.Units)
		}
	}
	return nil
}

func (c *counter) create(ctx context.Context, name string) error {
	if _, err := c.control.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	return migrate(ctx, c.database.DSN(name))
}

// statementCounter counts what is sent to PostgreSQL: statements, and the round trips that they take.
type statementCounter struct{ statements, trips atomic.Int64 }

// count what it has seen; none has seen nothing.
func (s *statementCounter) count(n *count) {
	if s != nil {
		n.statements, n.trips = float64(s.statements.Load()), float64(s.trips.Load())
	}
}

var (
	_ pgx.QueryTracer = (*statementCounter)(nil)
	_ pgx.BatchTracer = (*statementCounter)(nil)
)

// TraceQueryStart sees a statement by itself.
func (s *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.statements.Add(1)
	s.trips.Add(1)
	return ctx
}

// TraceQueryEnd has nothing to count.
func (*statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart sees several at once.
func (s *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	s.trips.Add(1)
	return ctx
}

// TraceBatchQuery sees each of them.
func (s *statementCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	s.statements.Add(1)
}

// TraceBatchEnd has nothing to count.
func (*statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
