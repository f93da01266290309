// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/ledger/sqlite"
	"github.com/opsledger/opsledger/test/pgtest"
)

// What is run.
const (
	targetEcho          = "echo"
	targetPostgres      = "ledgerd, PostgreSQL"
	targetSQLite        = "ledgerd, SQLite"
	targetStorePostgres = "store, PostgreSQL"
	targetStoreSQLite   = "store, SQLite"
	targetYardstick     = "pgbench"
)

// variant is one thing at one number of callers.
type variant struct {
	Target  string
	Callers int
}

func (v variant) String() string { return fmt.Sprintf("%s, c=%d", v.Target, v.Callers) }

// usesPostgres: its database works for it.
func (v variant) usesPostgres() bool {
	return v.Target == targetPostgres || v.Target == targetStorePostgres || v.Target == targetYardstick
}

// sample is one variant in one round. Processor seconds and bytes are those within the window.
type sample struct {
	outcome
	Server   float64 // ledgerd, the echo server, or this process with the store and its callers
	Postgres float64 // all its processes
	Client   float64 // the load, or pgbench
	WAL      float64 // bytes
	Ours     float64 // of all processors, the share that these took
	Others   float64 // the share that others took
	Stolen   float64 // the share that the host gave to others
	Failed   string
}

// rate of units in one second; no number for a run that failed.
func (s sample) rate() float64 {
	if s.Failed != "" {
		return math.NaN()
	}
	return ratio(float64(s.Units), s.Seconds)
}

// perUnit of anything that was counted in the window.
func (s sample) perUnit(v float64) float64 {
	if s.Failed != "" {
		return math.NaN()
	}
	return ratio(v, float64(s.Units))
}

// bench is all that runs during a benchmark.
type bench struct {
	site        *site
	database    *pgtest.Server
	postmaster  int
	control     *pgx.Conn
	servers     map[string]*server // by target
	echo, load  *child
	local       map[string]func(context.Context, int) error
	yardstick   *yardstick
	connections int
	pacing      pacing
	closers     []func() error
}

// databaseSettings keep checkpoints to those that are asked for. Everything that durability rests on is PostgreSQL's default.
var databaseSettings = map[string]string{"shared_buffers": "1GB", "max_wal_size": "16GB", "checkpoint_timeout": "30min"}

func newBench(ctx context.Context, connections int) (_ *bench, err error) {
	b := &bench{servers: map[string]*server{}, local: map[string]func(context.Context, int) error{}, connections: connections}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.site, err = newSite(); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, b.site.remove)
	if err := b.site.build(ctx); err != nil {
		return nil, err
	}
	if b.database, err = pgtest.Start(ctx, pgtest.Options{Durable: true, Settings: databaseSettings}); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, b.database.Stop)
	if b.postmaster, err = postmaster(ctx, b.database.DSN("postgres")); err != nil {
		return nil, err
	}
	if b.control, err = pgx.Connect(ctx, b.database.DSN("postgres")); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() error { return b.control.Close(context.WithoutCancel(ctx)) })
	for _, start := range []func(context.Context) error{b.startServers, b.openStores, b.startLoad} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// startServers starts a ledgerd on each store, and the echo server with the same settings of the garbage collector as theirs.
func (b *bench) startServers(ctx context.Context) (err error) {
	if _, err := b.control.Exec(ctx, "CREATE DATABASE ledgerd"); err != nil {
		return err
	}
	for target, store := range map[string]string{
		targetPostgres: b.database.DSN("ledgerd"),
		targetSQLite:   "sqlite:" + b.site.path("ledgerd.db"),
	} {
		s, err := b.site.startLedgerd(ctx, target, store)
		if err != nil {
			return err
		}
		b.servers[target] = s
		b.closers = append(b.closers, s.stop)
	}
	if b.pacing, err = pacingOf(ctx, b.servers[targetPostgres]); err != nil {
		return err
	}
	b.pacing.take()
	if b.echo, err = startChild(asEcho, setup{Files: b.site.files("server")}, b.pacing.env()...); err != nil {
		return err
	}
	b.closers = append(b.closers, b.echo.stop)
	return nil
}

// pacing of the garbage collector. All of this program's processes have ledgerd's: what it gains by a setting of the runtime is no merit
// of its code.
type pacing struct {
	percent int // -1: off
	limit   int64
}

func pacingOf(ctx context.Context, s *server) (pacing, error) {
	percent, err := s.metric(ctx, "go_gc_gogc_percent")
	if err != nil {
		return pacing{}, err
	}
	limit, err := s.metric(ctx, "go_gc_gomemlimit_bytes")
	if err != nil {
		return pacing{}, err
	}
	p := pacing{int(min(percent, math.MaxInt32)), int64(min(limit, math.MaxInt64/2))}
	if p.percent == math.MaxInt32 { // how the runtime tells that it is off
		p.percent = -1
	}
	return p, nil
}

// take makes it that of this process.
func (p pacing) take() {
	debug.SetGCPercent(p.percent)
	debug.SetMemoryLimit(p.limit)
}

// env makes it that of another one.
func (p pacing) env() []string {
	percent := "off"
	if p.percent >= 0 {
		percent = strconv.Itoa(p.percent)
	}
	return []string{"GOGC=" + percent, fmt.Sprintf("GOMEMLIMIT=%dB", p.limit)}
}

func (p pacing) String() string {
	text := p.env()[0]
	if p.limit < math.MaxInt64/2 {
		text += fmt.Sprintf(", GOMEMLIMIT=%dMiB", p.limit>>20)
	}
	return text
}

func (b *bench) openStores(ctx context.Context) error {
	for _, name := range []string{"store", "pgbench"} {
		if _, err := b.control.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return err
		}
		if err := migrate(ctx, b.database.DSN(name)); err != nil {
			return err
		}
	}
	onPostgres, err := postgres.Open(ctx, b.database.DSN("store"), postgres.Options{})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, onPostgres.Close)
	onSQLite, err := openSQLite(ctx, b.site.path("store.db"))
	if err != nil {
		return err
	}
	b.closers = append(b.closers, onSQLite.Close)
	if b.local[targetStorePostgres], err = localUnits(onPostgres); err != nil {
		return err
	}
	if b.local[targetStoreSQLite], err = localUnits(onSQLite); err != nil {
		return err
	}
	b.yardstick, err = newYardstick(ctx, b.site.dir, b.database.DSN("pgbench"))
	return err
}

func migrate(ctx context.Context, dsn string) error {
	s, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		return err
	}
	return errors.Join(s.Migrate(ctx), s.Close())
}

func openSQLite(ctx context.Context, path string) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	if err := s.Migrate(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (b *bench) startLoad(ctx context.Context) (err error) {
	s := setup{Files: b.site.files("load"), Connections: b.connections, Addresses: map[string]string{}}
	for target, server := range b.servers {
		s.Addresses[target] = server.grpc
	}
	var addr string
	if err := b.echo.hear(&addr); err != nil {
		return err
	}
	s.Addresses[targetEcho] = addr
	if s.Sizes, err = b.site.unitSizes(ctx, b.servers[targetPostgres]); err != nil {
		return err
	}
	if b.load, err = startChild(asLoad, s, b.pacing.env()...); err != nil {
		return err
	}
	b.closers = append(b.closers, b.load.stop)
	return nil
}

// close undoes in the other order.
func (b *bench) close() error {
	var faults []error
	for _, undo := range slices.Backward(b.closers) {
		faults = append(faults, undo())
	}
	b.closers = nil
	return errors.Join(faults...)
}

// clocks are what is read when a window begins and ends.
type clocks struct {
	server, postgres, client, wal, busy, stolen float64
	at                                          time.Time
}

func (b *bench) look(ctx context.Context, v variant) clocks {
	c := clocks{at: time.Now()}
	c.busy, c.stolen = machineSeconds()
	switch v.Target {
	case targetEcho:
		c.server, c.client = ownSeconds(b.echo.cmd.Process.Pid), ownSeconds(b.load.cmd.Process.Pid)
	case targetPostgres, targetSQLite:
		c.server, c.client = ownSeconds(b.servers[v.Target].cmd.Process.Pid), ownSeconds(b.load.cmd.Process.Pid)
	case targetYardstick:
		c.client = ownSeconds(b.yardstick.pid)
	default:
		c.server = ownSeconds(os.Getpid())
	}
	if v.usesPostgres() {
		c.postgres = familySeconds(b.postmaster)
		// What backends have put into the log, not what has been written of it: the difference to the byte.
		_ = b.control.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&c.wal) // without it, a run shows 0 bytes
	}
	return c
}

// measure runs one variant once.
func (b *bench) measure(ctx context.Context, v variant, p plan) sample {
	p.Callers = v.Callers
	var before, after clocks
	begun, ended := func() { before = b.look(ctx, v) }, func() { after = b.look(ctx, v) }
	var o outcome
	var err error
	switch v.Target {
	case targetYardstick:
		o, err = b.yardstick.run(ctx, p, begun, ended)
	case targetStorePostgres, targetStoreSQLite:
		o = drive(ctx, p, begun, ended, b.local[v.Target])
	default:
		o, err = b.load.run(v.Target, p, begun, ended)
	}
	s := sample{outcome: o}
	switch {
	case err != nil:
		s.Failed = err.Error()
	case o.Failed > 0:
		s.Failed = fmt.Sprintf("%d of %d callers: %s", o.Failed, v.Callers, o.Failure)
	case o.Units == 0:
		s.Failed = "no unit ended within the window"
	}
	s.Server, s.Postgres, s.Client = after.server-before.server, after.postgres-before.postgres, after.client-before.client
	s.WAL = after.wal - before.wal
	if all := after.at.Sub(before.at).Seconds() * float64(runtime.NumCPU()); all > 0 {
		s.Ours = (s.Server + s.Postgres + s.Client) / all
		s.Others = max(0, (after.busy-before.busy)/all-s.Ours)
		s.Stolen = (after.stolen - before.stolen) / all
	}
	return s
}

// samples are those of all rounds, by variant. A variant has one for each round.
type samples map[variant][]sample

// groups are what runs side by side in time, so that ratios are of the same minute. pgbench is asked for its best number of clients, so
// those need not be those of the others.
func groups(callers []int, clients []int) [][]variant {
	var out [][]variant
	for _, c := range callers {
		out = append(out, []variant{
			{targetEcho, c}, {targetPostgres, c}, {targetSQLite, c}, {targetStorePostgres, c}, {targetStoreSQLite, c},
		})
	}
	for i, c := range clients { // spread over the groups
		at := i * len(out) / len(clients)
		out[at] = append(out[at], variant{targetYardstick, c})
	}
	return out
}

// rounds runs every variant once in each round, beginning with another one each time.
func (b *bench) rounds(ctx context.Context, n int, p plan, groups [][]variant, progress io.Writer) (samples, error) {
	all := samples{}
	for round := range n {
		begin := time.Now()
		for _, group := range groups {
			for i := range group {
				v := group[(i+round)%len(group)]
				s := b.measure(ctx, v, p)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if s.Failed != "" {
					fmt.Fprintf(progress, "round %d, %v: %s\n", round+1, v, s.Failed)
				}
				all[v] = append(all[v], s)
			}
		}
		fmt.Fprintf(progress, "round %d of %d: %.0f s\n", round+1, n, time.Since(begin).Seconds())
	}
	return all, nil
}
