// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectSecrets = `SELECT id, check_value, used FROM fingerprint_secrets ORDER BY id`

	// No check value is ever written again. WHERE TRUE tells the parser that ON begins no join.
	insertSecrets = `INSERT INTO fingerprint_secrets (id, check_value, used, create_time)
	SELECT value ->> 0, unhex(value ->> 1), (value ->> 0) = ?2, ?3 FROM json_each(?1) WHERE TRUE
	ON CONFLICT (id) DO UPDATE SET used = 1
	WHERE excluded.used AND NOT fingerprint_secrets.used AND excluded.check_value = fingerprint_secrets.check_value`

	deleteSecret = `DELETE FROM fingerprint_secrets WHERE id = ?`

	countSecrets = `SELECT fingerprint_secret, count(*) FROM operations GROUP BY fingerprint_secret`
)

var _ ledger.SecretStore = (*Store)(nil)

// KeptSecrets are those whose check values were kept.
func (s *Store) KeptSecrets(ctx context.Context) (map[string]ledger.KeptSecret, error) {
	const step = "read the secrets' check values"
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	out := map[string]ledger.KeptSecret{}
	_, err = read(ctx, s, func(r *row) (struct{}, error) {
		id, check, used := r.text(), r.blob(), r.boolean()
		if len(check) != len(ledger.SecretCheck{}) {
			return struct{}{}, errDamaged
		}
		out[id] = ledger.KeptSecret{Check: ledger.SecretCheck(check), Used: used}
		return struct{}{}, nil
	}, selectSecrets)
	if err != nil {
		return nil, readError(step, err)
	}
	return out, nil
}

// KeepSecrets keeps the check values of those that have none.
func (s *Store) KeepSecrets(ctx context.Context, checks map[string]ledger.SecretCheck, primary string) error {
	given := make([][2]string, 0, len(checks))
	for _, id := range slices.Sorted(maps.Keys(checks)) {
		check := checks[id]
		given = append(given, [2]string{id, hex.EncodeToString(check[:])})
	}
	return s.changeSecrets(ctx, "keep the secrets' check values", insertSecrets, jsonList(given), primary, instant(s.now()))
}

// ForgetSecret takes one out.
func (s *Store) ForgetSecret(ctx context.Context, id string) error {
	return s.changeSecrets(ctx, "forget a secret's check value", deleteSecret, id)
}

// changeSecrets runs one statement on a connection of its own, beside the batches: it waits for the lock as another process would.
func (s *Store) changeSecrets(ctx context.Context, step, sql string, args ...any) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	c, err := s.connect(ctx, s.writers)
	if err != nil {
		return unavailable(step, err)
	}
	if _, err = c.exec(ctx, sql, args...); err != nil {
		err = unavailable(step, err)
	}
	return errors.Join(err, c.close())
}

// SecretRecords counts operations, all of which it reads: no index has the secret.
func (s *Store) SecretRecords(ctx context.Context) (map[string]int64, error) {
	if s.life.Err() != nil {
		return nil, errClosed
	}
	counts := map[string]int64{}
	_, err := read(ctx, s, func(r *row) (struct{}, error) {
		id := r.text()
		counts[id] = r.integer()
		return struct{}{}, nil
	}, countSecrets)
	if err != nil {
		return nil, readError("count records by their secret", err)
	}
	return counts, nil
}
