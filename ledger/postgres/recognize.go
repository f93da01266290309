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
	// updated is when it was made, time from when on it may be forgotten.
	updated, time time.Time
	// timeline that it was decided in; 0: there was no change yet.
	timeline uint32
}

func (r *recognition) acknowledged(o *ledger.Operation, timeline uint32) {
	at := o.UpdateTime
	if o.State.Final() { // by that it is forgotten, whatever was noted since
		at = o.FinalTime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = max(r.latest, timeline)
	if timeline == r.witness.timeline && o.UpdateTime.Before(r.witness.updated) {
		return // answers came in another order than commits: the later one is the witness
	}
	r.witness = witness{o.ID, o.Tool, o.Sequence, o.LastHash, o.UpdateTime, at, timeline}
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

// upToDate reports whether a connection is of the latest timeline that this process has seen. One of before may be to the primary of before, which
// somebody has forgotten to stop.
func (s *Store) upToDate(conn *pgx.Conn) bool {
	of, noted := conn.PgConn().CustomData()[timelineOf].(uint32)
	latest, _ := s.recognized.known()
	return !noted || of >= latest
}

// madeIn reports whether writes may be made on a connection: none that was decided before a failover, on what another server had.
func (s *Store) madeIn(conn *pgx.Conn, writes []write) bool {
	of, noted := conn.PgConn().CustomData()[timelineOf].(uint32)
	return s.upToDate(conn) && (!noted || !slices.ContainsFunc(writes, func(w write) bool { return w.timeline < of }))
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

// connected tells of a new connection that is not used. To be asked who it is belongs to the time that a connection may take to be made. What the server
// answers is of no call that waits for the connection.
func (s *Store) connected(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, conn.Config().ConnectTimeout)
	defer cancel()
	err := s.recognize(ctx, conn)
	if errors.As(err, new(*pgconn.PgError)) {
		err = unavailable("recognize the server", err)
	}
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

// refuseUnsafe ends a new connection to a server that may lose what it commits.
func refuseUnsafe(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, selectUnsafe)
	if err != nil {
		return err
	}
	off, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(off) > 0 {
		err = errUnsafe
	}
	return err
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
	case same && older: // lost or not: nothing may begin at a primary of before
		return 0, errOlder
	case same && !lost:
		return uint32(m.timeline), nil
	case lost: // also where the server is another one, and declared lossless
		cause = ledger.CauseLostCommit
	case m.server == server{} && older: // what began the later timeline is missing
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
