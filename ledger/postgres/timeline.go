// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

// Failover is what another server than the one that is remembered is taken for.
type Failover int

const (
	// FailoverLossy: it may have lost the last commits, so that a quarantine begins.
	FailoverLossy Failover = iota
	// FailoverLossless: it is declared that it has lost none. Where this process knows better, it is lossy.
	FailoverLossless
	// FailoverIgnored is for tools that neither grant nor settle anything: nothing is compared, and nothing remembered.
	FailoverIgnored
)

const (
	selectStandby = `SELECT pg_is_in_recovery()`
	// A promoted server tells its new timeline at once by the names of its log's files; its control file has it only after a checkpoint.
	// The time of the last commit that came from the server before is known until this one restarts.
	selectServer = `SELECT (pg_control_system()).system_identifier::text,
		('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint, pg_last_xact_replay_timestamp()`

	metaOfServer    = `clock_timestamp(), m.timeline, m.server_id, m.server_timeline, m.watermark_time, m.watermark_lost_since`
	selectRemembers = `SELECT ` + metaOfServer + `,
		$1::uuid IS NULL OR EXISTS (SELECT 1 FROM operations AS o WHERE o.id = $1
			AND (o.sequence > $2 OR o.sequence = $2 AND o.last_hash = $3))
		OR EXISTS (SELECT 1 FROM forgotten AS f WHERE f.tool = $4 AND f.final_time >= $5)
	FROM meta AS m WHERE m.id = 1`
	lockRemembers = `SELECT ` + metaOfServer + `, TRUE FROM meta AS m WHERE m.id = 1 FOR UPDATE`
	setTimeline   = `UPDATE meta SET timeline = $1, server_id = $2, server_timeline = $3, watermark_time = $4, watermark_lost_since = $5 WHERE id = 1`

	timelineColumns = `number, begin_time, lost_since, cause`
	selectTimelines = `SELECT ` + timelineColumns + ` FROM timelines ORDER BY number, begin_time`
	// Of a transaction of somebody else's connection.
	selectSameServer = `SELECT CASE WHEN m.server_id IS NULL THEN TRUE ELSE m.server_id = (pg_control_system()).system_identifier::text
		AND m.server_timeline = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END
	FROM meta AS m WHERE m.id = 1`
	selectBegun    = `SELECT max(begin_time) FROM timelines WHERE number = $1`
	insertTimeline = `INSERT INTO timelines (` + timelineColumns + `, server_id, server_timeline) VALUES ($1, $2, $3, $4, $5, $6)`
)

// server is which one answers. The zero value is one that does not tell.
type server struct {
	id       string // PostgreSQL's system identifier
	timeline int64  // PostgreSQL's timeline
}

// remembers is what the database remembers.
type remembers struct {
	now       time.Time
	timeline  int64
	server    server
	watermark ledger.Watermark
	// witnessed: what this process was told is committed is there.
	witnessed bool
}

var _ ledger.RestoreStore = (*Store)(nil)

// recognition is what a process knows of the store's timelines, whatever the database has forgotten.
type recognition struct {
	mu sync.Mutex
	// latest is the highest number that was seen.
	latest uint32
	// witness is a change that was acknowledged.
	witness witness
}

// witness is an acknowledged change: where it is missing, commits were lost.
type witness struct {
	op       ledger.OperationID
	tool     ledger.Tool
	sequence uint64
	hash     [32]byte
	time     time.Time
	// timeline that it was decided in; 0: there was no change yet.
	timeline uint32
}

func (r *recognition) acknowledged(o *ledger.Operation, timeline uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.witness = witness{o.ID, o.Tool, o.Sequence, o.LastHash, o.UpdateTime, timeline}
}

func (r *recognition) known() (latest uint32, w witness) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest, r.witness
}

// parameters are those of selectRemembers.
func (w witness) parameters() []any {
	if w.timeline == 0 {
		return []any{nil, nil, nil, nil, nil}
	}
	return []any{uuid(w.op), int64(w.sequence), w.hash[:], string(w.tool), instant(w.time)}
}

func (r *recognition) saw(timeline uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = max(r.latest, timeline)
}

// timelineOf is where a connection notes which timeline it was made in.
const timelineOf = "opsledger.timeline"

// madeIn reports whether writes may be made on a connection: none that was decided before a failover, on what another server had.
func madeIn(conn *pgx.Conn, writes []write) bool {
	of, noted := conn.PgConn().CustomData()[timelineOf].(uint32)
	return !noted || !slices.ContainsFunc(writes, func(w write) bool { return w.timeline < of })
}

// The reasons why a new connection is not used.
var (
	errStandby = fmt.Errorf("%w: the server is in recovery, or a standby: %w", ledger.ErrStoreUnavailable, errNoWrites)
	// errOther is InTx's, whose connections nobody has recognized.
	errOther  = fmt.Errorf("%w: the server is another one than the database remembers, and may have lost commits: ledgerd, or a Store that is asked Ready, has to come first", ledger.ErrStoreUnavailable)
	errUnsafe = fmt.Errorf("%w: fsync or full_page_writes is off", ledger.ErrStoreUnavailable)
	errOlder  = fmt.Errorf("%w: the server has an older timeline of the store than this process has seen: it is a primary of before, which must be stopped, "+
		"or was restored, which ledgerd restored has to be told", ledger.ErrStoreUnavailable)
)

// connected tells of a new connection that is not used.
func (s *Store) connected(ctx context.Context, conn *pgx.Conn) error {
	err := s.recognize(ctx, conn)
	if s.opts.OnRefused != nil && errors.Is(err, ledger.ErrStoreUnavailable) {
		s.opts.OnRefused(err)
	}
	return err
}

// recognize judges a new connection before anything is decided on it: each one may be to another server. Where commits may have been lost, the next
// timeline begins here.
func (s *Store) recognize(ctx context.Context, conn *pgx.Conn) error {
	if s.opts.Durable {
		if err := refuseUnsafe(ctx, conn); err != nil {
			return err
		}
	}
	if s.opts.Failover == FailoverIgnored {
		return nil
	}
	var standby bool
	if err := conn.QueryRow(ctx, selectStandby).Scan(&standby); err != nil {
		return err
	}
	if standby { // promoted, it would be another server without another connection
		return errStandby
	}
	here, left, err := identify(ctx, conn)
	if err != nil {
		return err
	}
	for range maxRaces {
		timeline, err := s.admit(ctx, conn, here, left)
		switch {
		case errors.Is(err, errRace):
			continue
		case errors.Is(err, errUnseen):
			return unavailable("recognize the server", err)
		case missing(err): // Ready says that there is no schema, or another one
			return nil
		case err != nil:
			return err
		}
		s.recognized.saw(timeline)
		conn.PgConn().CustomData()[timelineOf] = timeline
		return nil
	}
	return unavailable("recognize the server", errRace)
}

// identify asks which server it is, and when the last commit happened that it has from the one before. Not every engine tells.
func identify(ctx context.Context, conn querier) (here server, left time.Time, err error) {
	err = conn.QueryRow(ctx, selectServer).Scan(&here.id, &here.timeline, (*stamp)(&left))
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == undefinedFunction || pg.Code == insufficientPrivilege || pg.Code == featureNotSupported) {
		return server{}, time.Time{}, nil
	}
	return here, left, err
}

// admit is one look at what the database remembers, and what follows from it. With errRace somebody else was faster.
func (s *Store) admit(ctx context.Context, conn *pgx.Conn, here server, left time.Time) (timeline uint32, err error) {
	known, w := s.recognized.known()
	m, err := scanRemembers(conn.QueryRow(ctx, selectRemembers, w.parameters()...))
	if err != nil {
		return 0, err
	}
	same := here == m.server || here == server{}
	older := uint32(m.timeline) < known
	lost := !m.witnessed && uint32(m.timeline) <= w.timeline
	var cause ledger.TimelineCause
	switch {
	case same && older:
		return 0, errOlder
	case same && !lost:
		return uint32(m.timeline), nil
	case lost, older && m.server == server{}:
		cause = ledger.CauseLostCommit
	case m.server == server{}: // nobody has noted one yet
		if _, err := s.follow(ctx, conn, m, here, left, ""); err != nil && !refusesWrites(err) {
			return 0, err
		}
		return uint32(m.timeline), nil
	case s.opts.Failover == FailoverLossless && !older:
		cause = ledger.CauseSwitched
	case here.id != m.server.id:
		cause = ledger.CauseOtherServer
	default:
		cause = ledger.CauseFailover
	}
	return s.follow(ctx, conn, m, here, left, cause)
}

func scanRemembers(row pgx.Row) (m remembers, err error) {
	var id pgtype.Text
	var timeline pgtype.Int8
	err = row.Scan(&m.now, &m.timeline, &id, &timeline, (*stamp)(&m.watermark.At), (*stamp)(&m.watermark.LostSince), &m.witnessed)
	m.server = server{id.String, timeline.Int64}
	return m, err
}

// follow notes another server, and begins a timeline unless no commit was lost.
func (s *Store) follow(ctx context.Context, conn *pgx.Conn, seen remembers, here server, left time.Time, cause ledger.TimelineCause) (uint32, error) {
	next, err := s.move(ctx, conn, here, func(m remembers) (ledger.Timeline, ledger.Watermark, error) {
		next := ledger.Timeline{Number: uint32(m.timeline), Cause: cause}
		switch {
		case m.timeline != seen.timeline || m.server != seen.server:
			return next, m.watermark, errRace
		case cause == "":
			return next, m.watermark, nil
		}
		next.BeginTime = clock(s.opts.Now).now(m.now)
		if cause == ledger.CauseSwitched {
			return next, m.watermark, nil
		}
		since := left
		if since.IsZero() { // then it is only known when the timeline before began
			if err := conn.QueryRow(ctx, selectBegun, m.timeline).Scan((*stamp)(&since)); err != nil {
				return next, m.watermark, err
			}
		}
		// The clock of the server before may have been ahead of this one's, and callers' with it.
		at := latest(next.BeginTime, left, clock(s.opts.Now).now(s.seen.elapsed()))
		return s.after(m, at, ledger.LostSince(since), cause)
	})
	if err == nil && cause != "" && s.opts.OnTimeline != nil {
		s.opts.OnTimeline(next)
	}
	return next.Number, err
}

// after is a timeline that begins now, and the quarantine of what was decided before at.
func (s *Store) after(m remembers, at, lostSince time.Time, cause ledger.TimelineCause) (ledger.Timeline, ledger.Watermark, error) {
	now := clock(s.opts.Now).now(m.now)
	known, _ := s.recognized.known()
	w := m.watermark.Moved(at, lostSince)
	number := ledger.NextTimeline(max(uint32(m.timeline), known), now)
	return ledger.Timeline{Number: number, BeginTime: now, LostSince: w.LostSince, Cause: cause}, w, nil
}

// move writes what the database is to remember, in a transaction of its own. It locks the row of meta, so that of many connections that come at once
// one does it.
func (s *Store) move(ctx context.Context, conn *pgx.Conn, here server,
	judge func(m remembers) (ledger.Timeline, ledger.Watermark, error),
) (next ledger.Timeline, err error) {
	if _, err := conn.Exec(ctx, begin); err != nil {
		return next, err
	}
	defer func() {
		if conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
			_, _ = conn.Exec(ctx, rollback) // else it is not used
		}
	}()
	m, err := scanRemembers(conn.QueryRow(ctx, lockRemembers))
	if err != nil {
		return next, err
	}
	next, w, err := judge(m)
	if err != nil {
		return next, err
	}
	b := &pgx.Batch{}
	id, timeline := pgtype.Text{String: here.id, Valid: here.id != ""}, pgtype.Int8{Int64: here.timeline, Valid: here.id != ""}
	b.Queue(setTimeline, int64(next.Number), id, timeline, instant(w.At), instant(w.LostSince))
	if next.Cause != "" {
		b.Queue(insertTimeline, int64(next.Number), instant(next.BeginTime), instant(next.LostSince), string(next.Cause), id, timeline)
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return next, err
	}
	b = &pgx.Batch{}
	b.Queue(commit)
	return next, answered(conn, conn.SendBatch(ctx, b))
}

func latest(times ...time.Time) (last time.Time) {
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// refusesWrites reports whether the server can only be read, which Ready says.
func refusesWrites(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == readOnlyTransaction
}

// missing reports whether an error says that there is no table or column of that name.
func missing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == undefinedTable || pg.Code == undefinedColumn) || errors.Is(err, pgx.ErrNoRows)
}

// Restored begins a timeline because a person knows that commits may have been lost.
func (s *Store) Restored(ctx context.Context, lostSince time.Time) (next ledger.Timeline, err error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.Timeline{}, err
	}
	defer done()
	conn, leave, err := s.enterAlone(ctx)
	if err != nil {
		return ledger.Timeline{}, unavailable("connect", err)
	}
	defer leave()
	here, left, err := identify(ctx, conn)
	if err != nil {
		return ledger.Timeline{}, unavailable("recognize the server", err)
	}
	next, err = s.move(ctx, conn.Conn(), here, func(m remembers) (ledger.Timeline, ledger.Watermark, error) {
		now := clock(s.opts.Now).now(m.now)
		if err := ledger.CheckLostSince(lostSince, now); err != nil {
			return ledger.Timeline{}, m.watermark, err
		}
		return s.after(m, latest(now, left), lostSince, ledger.CauseRestored)
	})
	var invalid *ledger.Refusal
	switch {
	case errors.As(err, &invalid):
		return ledger.Timeline{}, err
	case err != nil:
		return ledger.Timeline{}, readError("begin a timeline", err)
	}
	s.recognized.saw(next.Number)
	return next, nil
}

// Timelines returns all of them, the oldest first.
func (s *Store) Timelines(ctx context.Context) ([]ledger.Timeline, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := query(ctx, s.reading(), func(rows pgx.Rows) ([]ledger.Timeline, error) {
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t ledger.Timeline, err error) {
			var number int64
			err = row.Scan(&number, (*stamp)(&t.BeginTime), (*stamp)(&t.LostSince), (*string)(&t.Cause))
			t.Number = uint32(number)
			return t, err
		})
	}, selectTimelines)
	return found, readError("read the timelines", err)
}

// Recognized reports whether the server tells which one it is. Where it does not, only a person can say that commits were lost.
func (s *Store) Recognized(ctx context.Context) (bool, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	here, _, err := identify(ctx, s.reading().from)
	return here != server{}, readError("recognize the server", err)
}
