// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectContract = `SELECT document FROM contracts WHERE version = ?`
	insertContract = `INSERT INTO contracts (version, document, create_time) VALUES (?, ?, ?) ON CONFLICT (version) DO NOTHING`
)

var _ ledger.ContractStore = (*Store)(nil)

// SaveContracts inserts the versions that are not there, in one transaction; where all are there, nothing is written and no writer is
// waited for.
func (s *Store) SaveContracts(ctx context.Context, versions []ledger.ContractVersion) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	var absent []ledger.ContractVersion
	for _, v := range versions {
		found, err := s.contract(ctx, v.Version)
		switch {
		case err != nil:
			return readError("save contracts", err)
		case len(found) == 0:
			absent = append(absent, v)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.begin(ctx); err != nil {
		return readError("save contracts", err)
	}
	for _, v := range absent {
		if _, err := s.writer.exec(background, insertContract, v.Version, v.Document, instant(s.now())); err != nil {
			s.undo()
			if err := refused(err); err != nil {
				return err
			}
			return unavailable("save contracts", err)
		}
	}
	if _, err := s.writer.exec(background, commit); err != nil {
		s.drop() // the log may or may not have got it
		return unavailable("save contracts", err)
	}
	return nil
}

// SavedContract reads one version.
func (s *Store) SavedContract(ctx context.Context, version string) ([]byte, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := s.contract(ctx, version)
	if err != nil || len(found) == 0 {
		return nil, readError("read a contract", err)
	}
	return found[0], nil
}

func (s *Store) contract(ctx context.Context, version string) ([][]byte, error) {
	return read(ctx, s, func(r *row) ([]byte, error) { return r.blob(), nil }, selectContract, version)
}
