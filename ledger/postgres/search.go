// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

var _ ledger.OperatorStore = (*Store)(nil)

// source is where a search looks. Each but the last has an index, or a table of what changes, from which all that can fit is found.
type source int

const (
	byDownstreamKey source = iota
	byTask
	withPeople
	needingAttention
	unknownOfTool
	allUnknown
	unsettled
	ofScope
	everywhere
)

// searchFrom are the sources, each with a condition that everything of it fulfils.
var searchFrom = map[source]string{
	byDownstreamKey:  `operations AS o WHERE o.downstream_key = $8`,
	byTask:           `operations AS o WHERE hashtextextended(o.task, hashtextextended(o.scope, 0)) = hashtextextended($6::text, hashtextextended($5::text, 0))`,
	withPeople:       `operations AS o WHERE o.custody <> 1`,
	needingAttention: `operations AS o WHERE o.needs_attention`,
	unknownOfTool:    `unknown AS u JOIN operations AS o ON o.id = u.operation_id WHERE u.tool_key = hashtextextended($4::text, 0)`,
	allUnknown:       `unknown AS u JOIN operations AS o ON o.id = u.operation_id WHERE TRUE`,
	unsettled:        `operations AS o WHERE o.id IN (SELECT operation_id FROM due UNION ALL SELECT p.id FROM operations AS p WHERE p.custody <> 1)`,
	ofScope:          `operations AS o WHERE hashtextextended(o.scope, 0) = hashtextextended($5::text, 0)`,
	everywhere:       `operations AS o WHERE TRUE`,
}

// sourceOf is the narrowest source that has all that a search may find.
func sourceOf(q ledger.Search) source {
	among := func(all ...ledger.State) bool {
		return len(q.States) > 0 && !slices.ContainsFunc(q.States, func(s ledger.State) bool { return !slices.Contains(all, s) })
	}
	people := q.Custodian != "" ||
		len(q.Custodies) > 0 && !slices.Contains(q.Custodies, ledger.Automation) ||
		len(q.QueueReasons) > 0 && !slices.Contains(q.QueueReasons, 0)
	switch {
	case q.DownstreamKey != "":
		return byDownstreamKey
	case q.Task != "" && q.Scope != "":
		return byTask
	case people:
		return withPeople
	case q.NeedsAttention != nil && *q.NeedsAttention:
		return needingAttention
	case among(ledger.Unknown) && q.Tool != "":
		return unknownOfTool
	case among(ledger.Unknown):
		return allUnknown
	case among(ledger.Unknown, ledger.Processing):
		return unsettled
	case q.Scope != "":
		return ofScope
	default:
		return everywhere
	}
}

// searchKeys are what each order sorts by.
var searchKeys = map[ledger.SearchOrder]string{
	ledger.ByUpdateTime: `o.update_time`,
	ledger.ByCreateTime: `o.create_time`,
	ledger.BySettleTime: `COALESCE(CASE WHEN o.terms_effect_within > 0 THEN o.last_send + o.terms_effect_within / 1000 * interval '1 microsecond' END, timestamptz '9999-12-31 00:00:00+00')`,
}

// searchSQL has what is sought for in its rows' documents compared as text, which may be too much: Selects judges it.
func searchSQL(from source, order ledger.SearchOrder) string {
	key := searchKeys[order]
	return `SELECT ` + key + `, o.id, ` + names("o.", mutableColumns, identityColumns) + ` FROM ` + searchFrom[from] + `
		AND (cardinality($1::smallint[]) = 0 OR o.state = ANY($1::smallint[]))
		AND (cardinality($2::smallint[]) = 0 OR o.custody = ANY($2::smallint[]))
		AND (cardinality($3::smallint[]) = 0 OR o.queue_reason = ANY($3::smallint[]))
		AND ($4::text = '' OR o.tool = $4) AND ($5::text = '' OR o.scope = $5) AND ($6::text = '' OR o.task = $6)
		AND ($7::text = '' OR o.custodian = $7) AND ($8::uuid IS NULL OR o.downstream_key = $8)
		AND ($9::boolean IS NULL OR o.needs_attention = $9) AND ($10::timestamptz IS NULL OR o.update_time < $10)
		AND ($11::boolean IS NOT TRUE OR position('"expire_time":'::bytea IN o.detail) > 0)
		AND ($12::bytea IS NULL OR position($12 IN o.result) > 0 OR position($12 IN o.detail) > 0)
		AND ($13::boolean OR o.tool = ANY($14::text[])
			OR EXISTS (SELECT 1 FROM unnest($15::text[]) AS p (prefix) WHERE starts_with(o.tool, p.prefix) AND length(o.tool) > length(p.prefix)))
		AND (` + key + `, o.id) > ($16::timestamptz, $17::uuid)
	ORDER BY ` + key + `, o.id LIMIT $18`
}

func searchArgs(q ledger.Search, after ledger.SearchPosition, limit int) []any {
	prefixes := q.Visible.Prefixes
	if prefixes == nil {
		prefixes = []string{} // NULL would compare with nothing
	}
	return []any{
		smalls(q.States), smalls(q.Custodies), smalls(q.QueueReasons),
		string(q.Tool), string(q.Scope), string(q.Task), string(q.Custodian), downstream(q.DownstreamKey),
		q.NeedsAttention, instant(q.UpdatedBefore), q.ApprovalPending, q.ResourceText(),
		q.Visible.Every, texts(q.Visible.Exact), prefixes, position(after.Time), uuid(after.ID), limit,
	}
}

func smalls[T ~uint8](list []T) []int16 {
	out := make([]int16, len(list))
	for i, v := range list {
		out[i] = int16(v)
	}
	return out
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

const (
	// Where there is no index for a search, the table is read from end to end: in the order of an index that has nothing to do with it, that
	// would take much longer.
	endToEnd = `SET LOCAL enable_seqscan = on`

	selectCheckable = `SELECT o.id FROM operations AS o
	WHERE o.id IN (SELECT operation_id FROM due WHERE next_check_time > $2 AND tool_key = hashtextextended($1::text, 0) UNION ALL SELECT p.id FROM operations AS p WHERE p.custody = 2)
		AND o.state = 5 AND o.tool = $1 AND o.custody <> 3
	ORDER BY o.update_time, o.id LIMIT $3`
)

// Search reads a page, and further rows where what was read is not what is sought for.
func (s *Store) Search(ctx context.Context, q ledger.Search) (ledger.Found, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.Found{}, err
	}
	defer done()
	if !isText(string(q.Tool)+string(q.Scope)+string(q.Task)+string(q.Custodian)) || q.DownstreamKey != "" && !downstream(q.DownstreamKey).Valid {
		q = ledger.Search{Limit: q.Limit} // it fits nothing
	}
	leave := func(bool) {}
	if sourceOf(q) == everywhere {
		if leave, err = s.breadth.Enter(ctx, time.Now); err != nil {
			return ledger.Found{}, err
		}
	}
	found, err := q.Fill(func(after ledger.SearchPosition, limit int) (rows []ledger.FoundRow, now time.Time, err error) {
		err = s.again(ctx, func() error {
			rows, now, err = s.searchOnce(ctx, q, after, limit)
			return err
		})
		return rows, now, err
	})
	leave(isCanceled(err))
	switch {
	case isCanceled(err):
		return ledger.Found{}, ledger.SearchTooBroad()
	case err != nil:
		return ledger.Found{}, readError("search", err)
	}
	return found, nil
}

// searchOnce reads some rows, with the store's time, in one round trip.
func (s *Store) searchOnce(ctx context.Context, q ledger.Search, after ledger.SearchPosition, limit int) (rows []ledger.FoundRow, now time.Time, err error) {
	from := sourceOf(q)
	b := &pgx.Batch{}
	b.Queue(beginRead)
	b.Queue(selectNow).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if from == everywhere {
		b.Queue(endToEnd)
	}
	b.Queue(searchSQL(from, q.Order), searchArgs(q, after, limit)...).Query(func(found pgx.Rows) error {
		rows, err = pgx.CollectRows(found, scanFound)
		return err
	})
	b.Queue(rollback)
	err = s.send(ctx, s.pool, b).Close()
	return rows, clock(s.opts.Now).now(now), err
}

// scanFound reads a place in the order, an id, and allColumns, also of what a newer release wrote or what is damaged.
func scanFound(row pgx.CollectableRow) (ledger.FoundRow, error) {
	var at stamp
	var u pgtype.UUID
	o, err := listed(scanRow(placed{row, &at, &u}))
	if err != nil && !errors.Is(err, errDamaged) {
		return ledger.FoundRow{}, err
	}
	return ledger.FoundRow{Operation: o, At: ledger.SearchPosition{Time: time.Time(at), ID: u.Bytes}}, nil
}

// placed is a row behind its place.
type placed struct {
	pgx.Row
	at *stamp
	id *pgtype.UUID
}

// Scan scans the place, too.
func (p placed) Scan(dest ...any) error { return p.Row.Scan(append([]any{p.at, p.id}, dest...)...) }

// History reads what can be read of a history.
func (s *Store) History(ctx context.Context, op ledger.OperationID) ([]ledger.Event, bool, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, false, err
	}
	defer done()
	whole := true
	events, err := query(ctx, s.reading(), func(rows pgx.Rows) (events []ledger.Event, err error) {
		defer rows.Close()
		for whole = true; rows.Next(); {
			e, err := scanEvent(rows)
			switch {
			case errors.Is(err, errDamaged):
				whole = false
			case err != nil:
				return nil, err
			default:
				events = append(events, e)
			}
		}
		return events, rows.Err()
	}, selectEvents, id(op))
	return events, whole, readError("history", err)
}

// Checkable reads what is to be due later, or waits for people.
func (s *Store) Checkable(ctx context.Context, tool ledger.Tool, limit int) ([]ledger.OperationID, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	r := s.reading()
	now, err := r.time(ctx)
	if err != nil || !isText(string(tool)) {
		return nil, readError("find what can be checked", err)
	}
	ids, err := query(ctx, r, collectIDs, selectCheckable, string(tool), instant(now), limit)
	return ids, readError("find what can be checked", err)
}
