// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

const (
	// Scopes have the order of their digests, which the index begins with: the next one is found by a look into it.
	selectScopeAfter = `SELECT min(hashtextextended(scope, 0)) FROM operations WHERE hashtextextended(scope, 0) > $1::bigint`
	selectFirstScope = `SELECT min(hashtextextended(scope, 0)) FROM operations`
	selectAged       = `SELECT id, tool, record_version, state, custody, may_have_applied, needs_attention, create_time, final_time FROM operations
	WHERE hashtextextended(scope, 0) = $1::bigint AND (create_time, id) > ($2::timestamptz, $3::uuid) AND create_time <= $4
	ORDER BY create_time, id LIMIT $5`

	selectForgotten = `SELECT tool, final_time FROM forgotten WHERE tool = ANY($1::text[])`

	// What is retired never changes again: with its final time it is that very operation.
	tombstones = `SELECT o.id, o.tool, o.final_time FROM unnest($1::uuid[], $2::timestamptz[]) AS r (id, final_time)
		JOIN operations AS o ON o.id = r.id AND o.final_time = r.final_time
		WHERE o.id = ANY($1::uuid[]) AND o.state = 6 ORDER BY o.id`

	forgetHistories = `WITH old AS (` + tombstones + `),
	gone AS (DELETE FROM events USING old WHERE events.operation_id = old.id AND events.operation_id = ANY($1::uuid[]) RETURNING events.operation_id)
	SELECT count(DISTINCT operation_id) FROM gone`
	// The rows are locked in the order of their ids, and after them the tools in theirs: two who forget the same wait, and nobody for both.
	forgetKeys = `WITH old AS (` + tombstones + ` FOR UPDATE OF o),
	mark AS (INSERT INTO forgotten AS f (tool, final_time) SELECT tool, max(final_time) FROM old GROUP BY tool ORDER BY tool
		ON CONFLICT (tool) DO UPDATE SET final_time = greatest(f.final_time, excluded.final_time)),
	e AS (DELETE FROM events USING old WHERE events.operation_id = old.id AND events.operation_id = ANY($1::uuid[])),
	s AS (DELETE FROM slots USING old WHERE slots.operation_id = old.id AND slots.operation_id = ANY($1::uuid[])),
	gone AS (DELETE FROM operations USING old WHERE operations.id = old.id AND operations.id = ANY($1::uuid[]) RETURNING 1)
	SELECT count(*) FROM gone`
)

var _ ledger.AgedStore = (*Store)(nil)

// aged is a place in the walk: behind a row of a scope, or, with the last id, behind the scope.
type aged struct {
	scope int64
	at    time.Time
	id    ledger.OperationID
}

func (a aged) text() string {
	return fmt.Sprintf("%d %d %x", a.scope, a.at.UnixMicro(), a.id[:])
}

func readAged(text string) (a aged, err error) {
	var id []byte
	var micros int64
	if _, err = fmt.Sscanf(text, "%d %d %x", &a.scope, &micros, &id); err != nil || len(id) != len(a.id) {
		return aged{}, errPlace
	}
	a.at = time.UnixMicro(micros).UTC()
	copy(a.id[:], id)
	return a, nil
}

// errPlace is a fault of the caller's code.
var errPlace = errors.New("postgres: a page begins where another one has ended")

// Aged returns a page of old operations of one scope.
func (s *Store) Aged(ctx context.Context, q ledger.AgedQuery) (ledger.AgedPage, error) {
	const step = "read what is old"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.AgedPage{}, err
	}
	defer done()
	now, err := s.reading().time(ctx)
	if err != nil {
		return ledger.AgedPage{}, readError(step, err)
	}
	from := aged{}
	next := selectFirstScope
	var args []any
	if q.After != "" {
		if from, err = readAged(q.After); err != nil {
			return ledger.AgedPage{}, err
		}
		next, args = selectScopeAfter, []any{from.scope}
	}
	if q.After == "" || from.id == lastID {
		var scope pgtype.Int8
		err := s.again(ctx, func() error { return s.pool.QueryRow(ctx, next, args...).Scan(&scope) })
		if err != nil || !scope.Valid {
			return ledger.AgedPage{Now: now}, readError(step, err)
		}
		from = aged{scope: scope.Int64}
	}
	page := ledger.AgedPage{Now: now, End: aged{scope: from.scope, id: lastID}.text()}
	rows, err := query(ctx, s.reading(), collectAged, selectAged, from.scope, position(from.at), uuid(from.id), instant(now.Add(-q.Age)), q.Limit)
	if err != nil {
		return ledger.AgedPage{}, readError(step, err)
	}
	for _, r := range rows {
		if r.record <= recordVersion {
			page.Operations = append(page.Operations, r.AgedOperation)
		}
	}
	if n := len(rows); n > 0 && n == q.Limit {
		page.End = aged{from.scope, rows[n-1].CreateTime, rows[n-1].ID}.text()
	}
	return page, nil
}

type agedRow struct {
	ledger.AgedOperation
	record int16
}

func collectAged(rows pgx.Rows) ([]agedRow, error) {
	return pgx.AppendRows([]agedRow(nil), rows, func(row pgx.CollectableRow) (r agedRow, err error) {
		var id pgtype.UUID
		err = row.Scan(&id, (*string)(&r.Tool), &r.record, (*uint8)(&r.State), (*uint8)(&r.Custody), &r.MayHaveApplied, &r.NeedsAttention,
			(*stamp)(&r.CreateTime), (*stamp)(&r.FinalTime))
		r.ID = id.Bytes
		return r, err
	})
}

// ForgetHistories removes the events of retired operations.
func (s *Store) ForgetHistories(ctx context.Context, of []ledger.Tombstone) (int, error) {
	return s.forget(ctx, "forget histories", forgetHistories, of)
}

// ForgetKeys removes retired operations. That no standby has confirmed it is no error: one that lacks it remembers more.
func (s *Store) ForgetKeys(ctx context.Context, of []ledger.Tombstone) (int, error) {
	return s.forget(ctx, "forget keys", forgetKeys, of)
}

// forget runs one statement, which can be run again where its outcome can't be seen: it then finds less.
func (s *Store) forget(ctx context.Context, step, sql string, of []ledger.Tombstone) (gone int, err error) {
	if len(of) == 0 {
		return 0, nil
	}
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	ids, times := make(pgtype.FlatArray[pgtype.UUID], len(of)), make(pgtype.FlatArray[pgtype.Timestamptz], len(of))
	for i, t := range of {
		ids[i], times[i] = uuid(t.ID), instant(t.FinalTime)
	}
	for i := 1; ; i++ {
		err = s.again(ctx, func() error { return s.pool.QueryRow(ctx, sql, ids, times).Scan(&gone) })
		if i == maxFailures || ctx.Err() != nil || !lostRace(err) {
			return gone, readError(step, err)
		}
		pause(ctx, i)
	}
}

// addForgotten reads until when keys were forgotten of the tools that sets name.
func (g *gathered) addForgotten(b *pgx.Batch) {
	var tools pgtype.FlatArray[string]
	for _, set := range g.sets {
		if set.Forgotten != "" && isText(string(set.Forgotten)) {
			tools = append(tools, string(set.Forgotten))
		}
	}
	if len(tools) == 0 {
		return
	}
	g.forgotten = make(map[string]time.Time, len(tools))
	b.Queue(selectForgotten, tools).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var tool string
			var until time.Time
			if err := rows.Scan(&tool, (*stamp)(&until)); err != nil {
				return err
			}
			g.forgotten[tool] = until
		}
		return rows.Err()
	})
}
