// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

var _ ledger.OperatorStore = (*Store)(nil)

// The sources of searches, each with a condition that everything of it fulfils. ?1 to ?3 are JSON lists.
const (
	byDownstreamKey  = `operations INDEXED BY operations_downstream_key WHERE downstream_key = ?8`
	byTask           = `operations INDEXED BY operations_by_task WHERE scope = ?5 AND task = ?6`
	withPeople       = `operations INDEXED BY operations_with_people WHERE custody <> 1`
	needingAttention = `operations INDEXED BY operations_needing_attention WHERE needs_attention`
	unknownOfTool    = `operations INDEXED BY operations_unknown_by_tool WHERE state = 5 AND tool = ?4`
	allUnknown       = `operations INDEXED BY operations_unknown_by_tool WHERE state = 5`
	ofScope          = `operations INDEXED BY operations_by_create WHERE scope = ?5`
	everywhere       = `operations NOT INDEXED WHERE 1`
)

// sourceOf is the narrowest source that has all that a search may find.
func sourceOf(q ledger.Search) string {
	people := q.Custodian != "" ||
		len(q.Custodies) > 0 && !slices.Contains(q.Custodies, ledger.Automation) ||
		len(q.QueueReasons) > 0 && !slices.Contains(q.QueueReasons, 0)
	unknown := len(q.States) > 0 && !slices.ContainsFunc(q.States, func(s ledger.State) bool { return s != ledger.Unknown })
	switch {
	case q.DownstreamKey != "":
		return byDownstreamKey
	case q.Task != "" && q.Scope != "":
		return byTask
	case people:
		return withPeople
	case q.NeedsAttention != nil && *q.NeedsAttention:
		return needingAttention
	case unknown && q.Tool != "":
		return unknownOfTool
	case unknown:
		return allUnknown
	case q.Scope != "":
		return ofScope
	default:
		return everywhere
	}
}

// searchKeys are what each order sorts by.
var searchKeys = map[ledger.SearchOrder]string{
	ledger.ByUpdateTime: `update_time`,
	ledger.ByCreateTime: `create_time`,
	ledger.BySettleTime: `COALESCE(CASE WHEN terms_effect_within > 0 THEN last_send + terms_effect_within / 1000 END, 253402214400000000)`,
}

// searchSQL has what is sought for in its rows' documents compared as text, which may be too much: Selects judges it.
func searchSQL(from string, order ledger.SearchOrder) string {
	key := searchKeys[order]
	return `SELECT ` + key + `, id, ` + allColumns + ` FROM ` + from + `
		AND (?1 = '[]' OR state IN (SELECT value FROM json_each(?1)))
		AND (?2 = '[]' OR custody IN (SELECT value FROM json_each(?2)))
		AND (?3 = '[]' OR queue_reason IN (SELECT value FROM json_each(?3)))
		AND (?4 = '' OR tool = ?4) AND (?5 = '' OR scope = ?5) AND (?6 = '' OR task = ?6)
		AND (?7 = '' OR custodian = ?7) AND (?8 = '' OR downstream_key = ?8)
		AND (?9 IS NULL OR needs_attention = ?9) AND (?10 IS NULL OR update_time < ?10)
		AND (?11 IS NOT 1 OR instr(detail, CAST('"expire_time":' AS BLOB)) > 0)
		AND (?12 IS NULL OR instr(result, ?12) > 0 OR instr(detail, ?12) > 0)
		AND (?13 OR tool IN (SELECT value FROM json_each(?14))
			OR EXISTS (SELECT 1 FROM json_each(?15) WHERE substr(tool, 1, length(value)) = value AND length(tool) > length(value)))
		AND (` + key + `, id) > (?16, ?17)
	ORDER BY ` + key + `, id LIMIT ?18`
}

func searchArgs(q ledger.Search, after ledger.SearchPosition, limit int) []any {
	return []any{
		numberList(q.States), numberList(q.Custodies), numberList(q.QueueReasons),
		string(q.Tool), string(q.Scope), string(q.Task), string(q.Custodian), q.DownstreamKey,
		flag(q.NeedsAttention), instant(q.UpdatedBefore), flag(q.ApprovalPending), blob(q.ResourceText()),
		q.Visible.Every, jsonList(q.Visible.Exact), jsonList(q.Visible.Prefixes), position(after.Time), after.ID[:], int64(limit),
	}
}

// flag is NULL where it is unset.
func flag(b *bool) any {
	if b == nil {
		return nil
	}
	return *b
}

const selectCheckable = `SELECT id FROM operations INDEXED BY operations_unknown_by_tool
	WHERE state = 5 AND tool = ? AND (custody = 2 OR custody = 1 AND next_check_time > ?)
	ORDER BY update_time, id LIMIT ?`

// Search reads a page, and further rows where what was read is not what is sought for.
func (s *Store) Search(caller context.Context, q ledger.Search) (ledger.Found, error) {
	ctx, done, err := s.enter(caller)
	if err != nil {
		return ledger.Found{}, err
	}
	defer done()
	from, leave := sourceOf(q), func(bool) {}
	if from == everywhere {
		if leave, err = s.breadth.Enter(ctx, time.Now); err != nil {
			return ledger.Found{}, err
		}
	}
	sql := searchSQL(from, q.Order)
	found, err := q.Fill(func(after ledger.SearchPosition, limit int) ([]ledger.FoundRow, time.Time, error) {
		now := s.now()
		rows, err := read(ctx, s, scanFound, sql, searchArgs(q, after, limit)...)
		return rows, now, err
	})
	tooLong := err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
	leave(tooLong && caller.Err() == nil)
	switch {
	case tooLong:
		return ledger.Found{}, ledger.SearchTooBroad()
	case err != nil:
		return ledger.Found{}, readError("search", err)
	}
	return found, nil
}

// scanFound reads a place in the order, an id, and allColumns, also of what a newer release wrote or what is damaged.
func scanFound(r *row) (ledger.FoundRow, error) {
	at := ledger.SearchPosition{Time: r.time(), ID: r.id()}
	o, err := scanListed(r)
	if err != nil && !errors.Is(err, errDamaged) {
		return ledger.FoundRow{}, err
	}
	r.damaged = false
	return ledger.FoundRow{Operation: o, At: at}, nil
}

// History reads what can be read of a history.
func (s *Store) History(ctx context.Context, op ledger.OperationID) ([]ledger.Event, bool, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, false, err
	}
	defer done()
	events, err := read(ctx, s, func(r *row) (ledger.Event, error) {
		e, err := scanEvent(r)
		if r.damaged || errors.Is(err, errDamaged) {
			r.damaged = false
			return ledger.Event{}, nil
		}
		return e, err
	}, selectEvents, op[:])
	read := len(events)
	events = slices.DeleteFunc(events, func(e ledger.Event) bool { return e.Sequence == 0 })
	return events, len(events) == read, readError("history", err)
}

// Checkable reads what is to be due later, or waits for people.
func (s *Store) Checkable(ctx context.Context, tool ledger.Tool, limit int) ([]ledger.OperationID, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ids, err := read(ctx, s, scanID, selectCheckable, string(tool), instant(s.now()), int64(limit))
	return ids, readError("find what can be checked", err)
}
