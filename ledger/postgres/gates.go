// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectGate = `SELECT clock_timestamp(), (SELECT document FROM gates WHERE tool = $1)`
	insertGate = `INSERT INTO gates (tool, document) VALUES ($1, $2) ON CONFLICT (tool) DO NOTHING`
	// The document itself is compared: what is decided depends on nothing else, and no number that counts changes survives a failover.
	updateGate = `UPDATE gates SET document = $2 WHERE tool = $1 AND document = $3`

	selectGates = `SELECT tool, document FROM gates`
)

var _ ledger.GateStore = (*Store)(nil)

// Gate decides on a tool's record.
//
// That no standby has confirmed it is no error: a turn that is lost in a failover may be had twice, for as long as one lasts.
func (s *Store) Gate(ctx context.Context, tool ledger.Tool, decide func(now time.Time, was []byte) ([]byte, error)) error {
	const step = "change a gate"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	r := s.reading()
	for i := 1; ; i++ {
		var database time.Time
		var was []byte
		if err := r.again(ctx, func() error { return s.pool.QueryRow(ctx, selectGate, string(tool)).Scan(&database, &was) }); err != nil {
			return unavailable(step, err)
		}
		next, err := decide(r.clock.now(database), was)
		if err != nil || next == nil {
			return err
		}
		sql, args := insertGate, []any{string(tool), next}
		if was != nil {
			sql, args = updateGate, append(args, was)
		}
		var changed int64
		err = r.again(ctx, func() error { // where it was written and not seen, it changes nothing, and decide finds it
			tag, err := s.pool.Exec(ctx, sql, args...)
			changed = tag.RowsAffected()
			return err
		})
		switch {
		case err == nil && changed == 1:
			return nil
		case refused(err) != nil:
			return refused(err)
		case err != nil && !lostRace(err):
			return unavailable(step, err)
		case i == maxRaces:
			return fmt.Errorf("%w: %s: %d races lost in a row", ledger.ErrStoreUnavailable, step, i)
		}
		pause(ctx, i)
	}
}

// Gates reads all records.
func (s *Store) Gates(ctx context.Context) (map[ledger.Tool][]byte, time.Time, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer done()
	r := s.reading()
	now, err := r.time(ctx)
	if err != nil {
		return nil, time.Time{}, readError("read gates", err)
	}
	type gate struct {
		tool     string
		document []byte
	}
	rows, err := query(ctx, r, func(rows pgx.Rows) ([]gate, error) {
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (g gate, err error) {
			err = row.Scan(&g.tool, &g.document)
			return g, err
		})
	}, selectGates)
	if err != nil {
		return nil, time.Time{}, readError("read gates", err)
	}
	out := make(map[ledger.Tool][]byte, len(rows))
	for _, g := range rows {
		out[ledger.Tool(g.tool)] = g.document
	}
	return out, now, nil
}
