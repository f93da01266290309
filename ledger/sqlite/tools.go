// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

const (
	setPaused = `UPDATE meta SET paused = ? WHERE id = 1`

	toolCommandColumns = `command_id, kind, tool, actor, reason, time, due`
	selectToolCommand  = `SELECT ` + toolCommandColumns + ` FROM tool_commands WHERE command_id = ?`
	insertToolCommand  = `INSERT INTO tool_commands (` + toolCommandColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?)`
	// Commands about tools go one after another: of one time there is the one that was given last.
	selectPauses = `SELECT ` + toolCommandColumns + ` FROM tool_commands
	WHERE rowid IN (SELECT max(rowid) FROM tool_commands
		WHERE kind = 'pause_tool' AND tool IN (SELECT value FROM json_each((SELECT paused FROM meta WHERE id = 1))) GROUP BY tool)
	ORDER BY tool`

	countAllUnknown = `SELECT tool, count(*), min(create_time) FROM operations INDEXED BY operations_unknown_by_tool WHERE state = 5 GROUP BY tool`
	countQueued     = `SELECT tool, count(*), NULL FROM operations INDEXED BY operations_with_people WHERE custody <> 1 AND custody = 2 GROUP BY tool`
	// What is PROCESSING is due when its lease ends.
	countProcessing = `SELECT tool, count(*), NULL
	FROM (SELECT tool, state FROM operations INDEXED BY operations_due WHERE next_check_time > ? ORDER BY next_check_time, id LIMIT 50000)
	WHERE state = 2 GROUP BY tool`
)

// CommandTool keeps a command in a transaction of its own, and with it which tools are paused.
func (s *Store) CommandTool(ctx context.Context, c ledger.ToolCommand) (ledger.ToolCommand, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return ledger.ToolCommand{}, err
	}
	defer done()
	s.writing.Lock()
	defer s.writing.Unlock()
	m, err := s.begin(ctx)
	if err != nil {
		return ledger.ToolCommand{}, readError("keep a command", err)
	}
	kept, err := query(background, s.writer, scanToolCommand, selectToolCommand, string(c.CommandID))
	switch {
	case err != nil:
	case len(kept) > 0:
		s.undo()
		if !kept[0].Same(c) {
			return ledger.ToolCommand{}, &ledger.Refusal{Err: ledger.ErrCommandReused}
		}
		return kept[0], nil
	default:
		c.Time = s.now()
		_, err = s.writer.exec(background, insertToolCommand,
			string(c.CommandID), string(c.Kind), string(c.Tool), string(c.Actor), []byte(c.Reason), instant(c.Time), c.Due)
		if err == nil {
			m.paused = c.Pauses(m.paused)
			_, err = s.writer.exec(background, setPaused, jsonList(m.paused))
		}
	}
	if err != nil {
		s.undo()
		if err := refused(err); err != nil {
			return ledger.ToolCommand{}, err
		}
		return ledger.ToolCommand{}, unavailable("keep a command", err)
	}
	if _, err := s.writer.exec(background, commit); err != nil {
		s.drop() // the log may or may not have got it
		return ledger.ToolCommand{}, unavailable("keep a command", err)
	}
	s.met.Store(&m)
	return c, nil
}

func scanToolCommand(r *row) (ledger.ToolCommand, error) {
	return ledger.ToolCommand{
		CommandID: ledger.CommandID(r.text()), Kind: ledger.CommandKind(r.text()), Tool: ledger.Tool(r.text()),
		Actor: ledger.Principal(r.text()), Reason: string(r.blob()), Time: r.time(), Due: r.integer(),
	}, nil
}

// ToolCommand reads a command that is kept.
func (s *Store) ToolCommand(ctx context.Context, id ledger.CommandID) (*ledger.ToolCommand, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := read(ctx, s, scanToolCommand, selectToolCommand, string(id))
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
	found, err := read(ctx, s, scanToolCommand, selectPauses)
	return found, readError("read pauses", err)
}

// counted is one row of a count.
type counted struct {
	tool   ledger.Tool
	n      int64
	oldest time.Time
}

func scanCounted(r *row) (counted, error) {
	return counted{ledger.Tool(r.text()), r.integer(), r.time()}, nil
}

// CountTools counts rows that are not settled, by indexes that have no others.
func (s *Store) CountTools(ctx context.Context) ([]ledger.ToolCount, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	now := s.now()
	unknown, err := read(ctx, s, scanCounted, countAllUnknown)
	if err != nil {
		return nil, time.Time{}, readError("count", err)
	}
	queued, err := read(ctx, s, scanCounted, countQueued)
	if err != nil {
		return nil, time.Time{}, readError("count", err)
	}
	processing, err := read(ctx, s, scanCounted, countProcessing, instant(now))
	if err != nil {
		return nil, time.Time{}, readError("count", err)
	}
	counts := ledger.ToolCounts{}
	for _, c := range unknown {
		of := counts.Of(c.tool)
		of.Unknown, of.OldestUnknown = c.n, c.oldest
	}
	for _, c := range queued {
		counts.Of(c.tool).Queued = c.n
	}
	for _, c := range processing {
		counts.Of(c.tool).Processing = c.n
	}
	return counts.Sorted(), now, nil
}
