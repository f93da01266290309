// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectGate = `SELECT document FROM gates WHERE tool = ?`
	insertGate = `INSERT INTO gates (tool, document) VALUES (?, ?) ON CONFLICT (tool) DO NOTHING`
	updateGate = `UPDATE gates SET document = ?2 WHERE tool = ?1 AND document = ?3`

	selectGates = `SELECT tool, document FROM gates`

	// maxGateRaces bounds how often a record is decided on again.
	maxGateRaces = 16
)

var _ ledger.GateStore = (*Store)(nil)

// Gate decides on a tool's record. What changes nothing waits for no writer.
func (s *Store) Gate(ctx context.Context, tool ledger.Tool, decide func(now time.Time, was []byte) ([]byte, error)) error {
	const step = "change a gate"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	for i := 1; ; i++ {
		found, err := read(ctx, s, func(r *row) ([]byte, error) { return r.blob(), nil }, selectGate, string(tool))
		if err != nil {
			return readError(step, err)
		}
		var was []byte
		if len(found) > 0 {
			was = found[0]
		}
		next, err := decide(s.now(), was)
		if err != nil || next == nil {
			return err
		}
		changed, err := s.changeGate(ctx, tool, was, next)
		switch {
		case err == nil && changed:
			return nil
		case refused(err) != nil:
			return refused(err)
		case err != nil:
			return readError(step, err)
		case i == maxGateRaces:
			return fmt.Errorf("%w: %s: %d races lost in a row", ledger.ErrStoreUnavailable, step, i)
		}
		pause(ctx, min(i, 5))
	}
}

// changeGate compares and swaps, in a transaction beside the batches.
func (s *Store) changeGate(ctx context.Context, tool ledger.Tool, was, next []byte) (bool, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.begin(ctx); err != nil {
		return false, err
	}
	sql, args := insertGate, []any{string(tool), next}
	if was != nil {
		sql, args = updateGate, append(args, was)
	}
	changed, err := s.writer.exec(background, sql, args...)
	if err != nil || changed != 1 {
		s.undo()
		return false, err
	}
	if _, err := s.writer.exec(background, commit); err != nil {
		s.drop() // the log may or may not have got it
		return false, err
	}
	return true, nil
}

// Gates reads all records.
func (s *Store) Gates(ctx context.Context) (map[ledger.Tool][]byte, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	out := map[ledger.Tool][]byte{}
	_, err = read(ctx, s, func(r *row) (struct{}, error) {
		tool := ledger.Tool(r.text())
		out[tool] = r.blob()
		return struct{}{}, nil
	}, selectGates)
	if err != nil {
		return nil, time.Time{}, readError("read gates", err)
	}
	return out, s.now(), nil
}
