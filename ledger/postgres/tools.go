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
	// Commands about tools go one after another.
	lockPaused = `SELECT clock_timestamp(), paused FROM meta WHERE id = 1 FOR UPDATE`
	setPaused  = `UPDATE meta SET paused = $1 WHERE id = 1`

	toolCommandColumns = `command_id, kind, tool, actor, reason, time, due`
	selectToolCommand  = `SELECT ` + toolCommandColumns + ` FROM tool_commands WHERE command_id = $1`
	insertToolCommand  = `INSERT INTO tool_commands (` + toolCommandColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	// The table has as many rows as people have given such commands.
	selectPauses = `SELECT DISTINCT ON (tool) ` + toolCommandColumns + ` FROM tool_commands
	WHERE kind = 'pause_tool' AND tool = ANY((SELECT paused FROM meta WHERE id = 1)::text[])
	ORDER BY tool, time DESC, command_id`

	countAllUnknown = `SELECT (SELECT o.tool FROM operations AS o WHERE o.id =
			(SELECT x.operation_id FROM unknown AS x WHERE x.tool_key = u.tool_key ORDER BY x.create_time LIMIT 1)), u.n, u.oldest
	FROM (SELECT tool_key, count(*) AS n, min(create_time) AS oldest FROM unknown GROUP BY tool_key) AS u`
	countQueued = `SELECT tool, count(*) FROM operations WHERE custody = 2 AND custody <> 1 GROUP BY tool`
	// What is PROCESSING is due when its lease ends.
	countProcessing = `SELECT o.tool, count(*)
	FROM (SELECT operation_id FROM due WHERE next_check_time > $1 ORDER BY next_check_time, operation_id LIMIT 50000) AS d
	JOIN operations AS o ON o.id = d.operation_id WHERE o.state = 2 GROUP BY o.tool`
)

// CommandTool keeps a command in a transaction of its own, and with it which tools are paused.
func (s *Store) CommandTool(ctx context.Context, c ledger.ToolCommand) (ledger.ToolCommand, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.ToolCommand{}, err
	}
	defer done()
	for i := 1; ; i++ {
		kept, err := s.commandTool(ctx, c)
		switch {
		case err == nil, errors.Is(err, ledger.ErrCommandReused), errors.Is(err, ledger.ErrStoreUnavailable):
			return kept, err
		case i == maxFailures || ctx.Err() != nil:
			if err := refused(err); err != nil {
				return ledger.ToolCommand{}, err
			}
			return ledger.ToolCommand{}, unavailable("keep a command", err)
		}
		pause(ctx, i) // also where its outcome could not be seen: it is found by its id
	}
}

func (s *Store) commandTool(ctx context.Context, c ledger.ToolCommand) (ledger.ToolCommand, error) {
	conn, leave, err := s.enterAlone(ctx)
	if err != nil {
		return ledger.ToolCommand{}, err
	}
	defer leave()
	var now time.Time
	var paused ledger.PausedTools
	var kept []ledger.ToolCommand
	b := &pgx.Batch{}
	b.Queue(begin)
	b.Queue(lockPaused).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &paused) })
	b.Queue(selectToolCommand, string(c.CommandID)).Query(func(rows pgx.Rows) (err error) {
		kept, err = pgx.CollectRows(rows, scanToolCommand)
		return err
	})
	if err := s.send(ctx, conn, b).Close(); err != nil {
		s.suspect(ctx, err)
		return ledger.ToolCommand{}, err
	}
	b = &pgx.Batch{}
	switch {
	case len(kept) > 0 && !kept[0].Same(c):
		return ledger.ToolCommand{}, &ledger.Refusal{Err: ledger.ErrCommandReused}
	case len(kept) > 0: // the commit is as durable as that of its first copy
		c = kept[0]
	default:
		c.Time = clock(s.opts.Now).now(now)
		b.Queue(insertToolCommand, string(c.CommandID), string(c.Kind), string(c.Tool), string(c.Actor), []byte(c.Reason), instant(c.Time), c.Due)
		b.Queue(setPaused, texts(c.Pauses(paused)))
	}
	if err := s.send(ctx, conn, b).Close(); err != nil {
		s.suspect(ctx, err)
		return ledger.ToolCommand{}, err
	}
	err = s.commit(ctx, conn.Conn(), false)
	s.suspect(ctx, err)
	return c, err
}

func scanToolCommand(row pgx.CollectableRow) (c ledger.ToolCommand, err error) {
	var reason []byte
	err = row.Scan((*string)(&c.CommandID), (*string)(&c.Kind), (*string)(&c.Tool), (*string)(&c.Actor), &reason, (*stamp)(&c.Time), &c.Due)
	c.Reason = string(reason)
	return c, err
}

func collectToolCommands(rows pgx.Rows) ([]ledger.ToolCommand, error) {
	return pgx.CollectRows(rows, scanToolCommand)
}

// ToolCommand reads a command that is kept.
func (s *Store) ToolCommand(ctx context.Context, id ledger.CommandID) (*ledger.ToolCommand, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := query(ctx, s.reading(), collectToolCommands, selectToolCommand, string(id))
	if err != nil || len(found) == 0 {
		return nil, readError("read a command", err)
	}
	return &found[0], nil
}

// Pauses reads who paused what is paused.
func (s *Store) Pauses(ctx context.Context) ([]ledger.ToolCommand, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := query(ctx, s.reading(), collectToolCommands, selectPauses)
	return found, readError("read pauses", err)
}

// CountTools counts what is kept apart of rows that are not settled.
func (s *Store) CountTools(ctx context.Context) ([]ledger.ToolCount, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	r := s.reading()
	now, err := r.time(ctx)
	if err != nil {
		return nil, time.Time{}, readError("count", err)
	}
	counts := ledger.ToolCounts{}
	for _, of := range []struct {
		sql  string
		args []any
		add  func(c *ledger.ToolCount, n int64, oldest time.Time)
	}{
		{countAllUnknown, nil, func(c *ledger.ToolCount, n int64, oldest time.Time) { c.Unknown, c.OldestUnknown = n, oldest }},
		{countQueued, nil, func(c *ledger.ToolCount, n int64, _ time.Time) { c.Queued = n }},
		{countProcessing, []any{instant(now)}, func(c *ledger.ToolCount, n int64, _ time.Time) { c.Processing = n }},
	} {
		_, err := query(ctx, r, func(rows pgx.Rows) ([]struct{}, error) {
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
				var tool pgtype.Text
				var n int64
				var oldest stamp
				dest := []any{&tool, &n, &oldest}
				err := row.Scan(dest[:len(row.FieldDescriptions())]...)
				if tool.Valid { // the row that would name it may have been settled meanwhile
					of.add(counts.Of(ledger.Tool(tool.String)), n, time.Time(oldest))
				}
				return struct{}{}, err
			})
		}, of.sql, of.args...)
		if err != nil {
			return nil, time.Time{}, readError("count", err)
		}
	}
	return counts.Sorted(), now, nil
}
