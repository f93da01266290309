// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectStandby = `SELECT pg_is_in_recovery()`
	// A promoted server tells its new timeline at once by the names of its log's files; its control file has it only after a checkpoint.
	thisServer   = `(pg_control_system()).system_identifier::text`
	thisTimeline = `('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint`
	// The time of the last commit that came from the server before is known until this one restarts.
	selectServer = `SELECT ` + thisServer + `, ` + thisTimeline + `, pg_last_xact_replay_timestamp()`

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
	selectSameServer = `SELECT CASE WHEN m.server_id IS NULL THEN TRUE ELSE m.server_id = ` + thisServer + ` AND m.server_timeline = ` + thisTimeline + ` END
	FROM meta AS m WHERE m.id = 1`
	// The same where the server does not tell which one it is.
	selectNoServer = `SELECT server_id IS NULL FROM meta WHERE id = 1`
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
	// It has begun also where no standby has it yet, and may have where the answer was lost: the next connection finds nothing to tell.
	begun := err == nil || errors.Is(err, ledger.ErrStoreUnavailable) || errors.Is(err, errUnseen)
	if begun && cause != "" && s.opts.OnTimeline != nil {
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
		var begun time.Time // the clock may have been another one's then
		if err := conn.QueryRow(ctx, selectBegun, m.timeline).Scan((*stamp)(&begun)); err != nil {
			return ledger.Timeline{}, m.watermark, err
		}
		return s.after(m, latest(now, left, begun), lostSince, ledger.CauseRestored)
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
