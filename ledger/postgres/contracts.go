// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectContracts = `SELECT version FROM contracts WHERE version = ANY($1::text[])`
	selectContract  = `SELECT document FROM contracts WHERE version = $1`
	// In the order of the versions: of instances that save the same ones, none then waits for what another one has while that waits for it.
	insertContracts = `INSERT INTO contracts (version, document, create_time)
	SELECT r.version, r.document, clock_timestamp() FROM unnest($1::text[], $2::bytea[]) AS r (version, document)
	ORDER BY r.version
	ON CONFLICT (version) DO NOTHING`
)

var _ ledger.ContractStore = (*Store)(nil)

// SaveContracts inserts the versions that are not there, in one statement; where all are there, nothing is written.
//
// That no standby has confirmed it is no error: what is recorded under a version is committed after it, so that no server has the record
// and lacks the version.
func (s *Store) SaveContracts(ctx context.Context, versions []ledger.ContractVersion) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	for i := 1; ; i++ {
		err := s.saveContracts(ctx, versions)
		if i == maxFailures || ctx.Err() != nil || !lostRace(err) {
			return savingError(err)
		}
		pause(ctx, i)
	}
}

func (s *Store) saveContracts(ctx context.Context, versions []ledger.ContractVersion) error {
	r := s.reading()
	names := make([]string, len(versions))
	for i, v := range versions {
		names[i] = v.Version
	}
	known, err := query(ctx, r, func(rows pgx.Rows) ([]string, error) { return pgx.CollectRows(rows, pgx.RowTo[string]) }, selectContracts, names)
	if err != nil {
		return err
	}
	absent := slices.DeleteFunc(slices.Clone(versions), func(v ledger.ContractVersion) bool { return slices.Contains(known, v.Version) })
	if len(absent) == 0 {
		return nil
	}
	slices.SortFunc(absent, func(a, b ledger.ContractVersion) int { return strings.Compare(a.Version, b.Version) })
	names = names[:0]
	documents := make([][]byte, len(absent))
	for i, v := range absent {
		names, documents[i] = append(names, v.Version), v.Document
	}
	// Where its outcome could not be seen, it may run again: what is there stays as it is.
	return r.again(ctx, func() error {
		_, err := s.pool.Exec(ctx, insertContracts, names, documents)
		return err
	})
}

func savingError(err error) error {
	if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
		return err
	}
	if err := refused(err); err != nil {
		return err
	}
	return unavailable("save contracts", err)
}

// SavedContract reads one version.
func (s *Store) SavedContract(ctx context.Context, version string) ([]byte, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := query(ctx, s.reading(), func(rows pgx.Rows) ([][]byte, error) { return pgx.CollectRows(rows, pgx.RowTo[[]byte]) }, selectContract, version)
	if err != nil || len(found) == 0 {
		return nil, readError("read a contract", err)
	}
	return found[0], nil
}
