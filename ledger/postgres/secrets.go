// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
)

const (
	selectSecrets = `SELECT id, check_value, used FROM fingerprint_secrets ORDER BY id`

	// Two servers that come at once wait for each other here, and the second one finds the first one's rows. No check value is ever
	// written again.
	insertSecrets = `INSERT INTO fingerprint_secrets (id, check_value, used, create_time)
	SELECT given.id, given.check_value, given.id = $3, clock_timestamp() FROM unnest($1::text[], $2::bytea[]) AS given (id, check_value)
	ORDER BY given.id
	ON CONFLICT (id) DO UPDATE SET used = TRUE
	WHERE EXCLUDED.used AND NOT fingerprint_secrets.used AND EXCLUDED.check_value = fingerprint_secrets.check_value`

	deleteSecret = `DELETE FROM fingerprint_secrets WHERE id = $1`

	countSecrets = `SELECT fingerprint_secret, count(*) FROM operations GROUP BY fingerprint_secret`
)

var _ ledger.SecretStore = (*Store)(nil)

// KeptSecrets are those whose check values were kept.
func (s *Store) KeptSecrets(ctx context.Context) (map[string]ledger.KeptSecret, error) {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	type kept struct {
		id    string
		check []byte
		used  bool
	}
	rows, err := query(ctx, s.reading(), func(rows pgx.Rows) ([]kept, error) {
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k kept, err error) {
			err = row.Scan(&k.id, &k.check, &k.used)
			return k, err
		})
	}, selectSecrets)
	if err != nil {
		return nil, unavailable("read the secrets' check values", err)
	}
	out := make(map[string]ledger.KeptSecret, len(rows))
	for _, k := range rows {
		if len(k.check) != len(ledger.SecretCheck{}) {
			return nil, unavailable("read the secrets' check values", errDamaged)
		}
		out[k.id] = ledger.KeptSecret{Check: ledger.SecretCheck(k.check), Used: k.used}
	}
	return out, nil
}

// KeepSecrets keeps the check values of those that have none.
func (s *Store) KeepSecrets(ctx context.Context, checks map[string]ledger.SecretCheck, primary string) error {
	ids := slices.Sorted(maps.Keys(checks))
	values := make([][]byte, len(ids))
	for i, id := range ids {
		check := checks[id]
		values[i] = check[:]
	}
	return s.changeSecrets(ctx, "keep the secrets' check values", insertSecrets, ids, values, primary)
}

// ForgetSecret takes one out.
func (s *Store) ForgetSecret(ctx context.Context, id string) error {
	return s.changeSecrets(ctx, "forget a secret's check value", deleteSecret, id)
}

// changeSecrets runs one statement, which can be run again where its outcome can't be seen.
func (s *Store) changeSecrets(ctx context.Context, step, sql string, args ...any) error {
	ctx, done, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = s.again(ctx, func() error {
		_, err := s.pool.Exec(ctx, sql, args...)
		return err
	})
	if err != nil {
		return unavailable(step, err)
	}
	return nil
}

// SecretRecords counts operations on a connection of its own, where a statement may take its time, and the whole table is read from end to
// end: no index has the secret.
func (s *Store) SecretRecords(ctx context.Context) (_ map[string]int64, err error) {
	const step = "count records by their secret"
	if s.life.Err() != nil {
		return nil, fmt.Errorf("%w: it is closed", ledger.ErrStoreUnavailable)
	}
	cfg := s.pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["statement_timeout"] = "0"
	cfg.RuntimeParams["enable_seqscan"] = "on"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, unavailable(step, err)
	}
	defer func() {
		if lost := conn.Close(context.WithoutCancel(ctx)); lost != nil {
			err = errors.Join(err, unavailable(step, lost))
		}
	}()
	rows, err := conn.Query(ctx, countSecrets)
	if err != nil {
		return nil, unavailable(step, err)
	}
	counts := map[string]int64{}
	var id string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		counts[id] = n
		return nil
	}); err != nil {
		return nil, unavailable(step, err)
	}
	return counts, nil
}
