// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"fmt"
	"strings"
)

// identityColumns are written once; no statement below updates them. downstream_key is derived from key_hash and not read back.
const identityColumns = `id, key_hash, scope, principal, tool, task, subject_digest, intent_time, create_time,
	compensates, corrects, depends_on, fingerprint_spec, fingerprint_secret, fingerprint_contract, fingerprint_digest, fingerprint_categories`

// mutableColumns follow the order of mutableArgs and of scanning.
const mutableColumns = `record_version, state, custody, custodian, queue_reason, sequence, version, last_hash, update_time, timeline,
	terms_contract, terms_effect, terms_effect_within, terms_key_retention,
	grant_claim_id, grant_worker_id, grant_epoch, grant_time, grant_lease_until, grant_send_until, grant_lease,
	grant_started, grant_released, grant_used_approval, grant_used_waiver,
	attempts, starts, may_have_applied, first_start, last_send, next_check_time,
	check_number, check_began, check_lease_until, check_open,
	target_summary, target_attributes, result, failure, final_time, needs_attention, compensated_by, detail`

const allColumns = mutableColumns + ", " + identityColumns

const (
	selectReady = `SELECT schema_version, pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit')
	FROM meta WHERE id = 1`
	selectUnsafe = `SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name`

	// The snapshot makes row, history and relatives fit together.
	beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ`
	// Each statement sees what was committed before it: after a lock, what is read is fresh.
	begin   = `BEGIN`
	lockRow = `SELECT 1 FROM operations WHERE id = $1 FOR UPDATE`

	// What InTx puts around its work on a caller's transaction.
	savepoint    = `SAVEPOINT opsledger`
	undo         = `ROLLBACK TO SAVEPOINT opsledger; RELEASE SAVEPOINT opsledger`
	release      = `RELEASE SAVEPOINT opsledger`
	selectCommit = `SELECT current_setting('synchronous_commit')`

	selectMeta = `SELECT clock_timestamp(), schema_version, timeline, watermark_time, watermark_lost_since FROM meta WHERE id = 1`
	selectRow  = `SELECT ` + allColumns + ` FROM operations WHERE id = $1`
	selectRows = `SELECT ` + allColumns + ` FROM operations WHERE id = ANY($1::uuid[])`

	selectPrior = `SELECT body, hash FROM events WHERE operation_id = $1 AND command_id = $2 ORDER BY sequence`

	// The digest that a row has itself can't be compared with those made under other secrets: what has one of them may be of the same
	// subject, and counts.
	selectSiblings = `SELECT id FROM operations
	WHERE state = 5 AND scope = $1 AND task = $2 AND tool = $3 AND id <> $4
		AND (subject_digest = ANY($5::bytea[]) OR (cardinality($5::bytea[]) = 0 AND subject_digest IS NULL)
			OR (cardinality($5::bytea[]) = 1 AND subject_digest IS NOT NULL AND fingerprint_secret <>
				(SELECT self.fingerprint_secret FROM operations self WHERE self.id = $4 AND self.subject_digest = ($5::bytea[])[1])))
	ORDER BY create_time, id LIMIT 32`

	selectNow          = `SELECT clock_timestamp()`
	selectRowWithTime  = `SELECT clock_timestamp(), ` + allColumns + ` FROM operations WHERE id = $1`
	selectByDownstream = `SELECT id FROM operations WHERE downstream_key = $1 ORDER BY id LIMIT 1`

	// statement_timestamp is stable where clock_timestamp is not: only so can the index bound the scan.
	selectDue = `SELECT next_check_time, id FROM operations
	WHERE next_check_time <= COALESCE($1::timestamptz, statement_timestamp()) AND (next_check_time, id) > ($2::timestamptz, $3::uuid)
	ORDER BY next_check_time, id LIMIT $4`

	selectEvents = `SELECT body, hash FROM events WHERE operation_id = $1 ORDER BY sequence`

	listFilter = `
		AND (subject_digest = ANY($5::bytea[]) OR (cardinality($5::bytea[]) = 0 AND subject_digest IS NULL))
		AND (cardinality($6::smallint[]) = 0 OR state = ANY($6::smallint[]))`
	listByCreate = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = $1 AND (create_time, id) > ($3::timestamptz, $4::uuid) AND $2::text IS NOT NULL` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	listByTask = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = $1 AND task = $2 AND (create_time, id) > ($3::timestamptz, $4::uuid)` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	listByUpdate = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = $1 AND ($2::text = '' OR task = $2) AND (update_time, id) > ($3::timestamptz, $4::uuid)` + listFilter + `
	ORDER BY update_time, id LIMIT $7`

	selectHash  = `SELECT hash FROM events WHERE operation_id = $1 AND sequence = $2`
	selectLease = `SELECT sequence, grant_lease_until FROM operations WHERE id = $1`
	// touchRow changes nothing. Its commit waits for the standbys like any other, and with it what was committed before.
	touchRow = `UPDATE operations SET record_version = record_version WHERE id = $1`
)

var (
	identityCount = strings.Count(identityColumns, ",") + 1
	mutableCount  = strings.Count(mutableColumns, ",") + 1
	rowCount      = identityCount + mutableCount

	// insertRow and updateRow change one row or none, and append the event only with it: the count of events is the proof.
	insertRow = `WITH o AS (
	INSERT INTO operations (` + allColumns + `, downstream_key) VALUES (` + placeholders(1, rowCount+1) + `)
	ON CONFLICT (id) DO NOTHING RETURNING id)
	INSERT INTO events (operation_id, sequence, command, command_id, command_digest, time, body, hash)
	SELECT o.id, ` + eventPlaceholders(rowCount+2) + ` FROM o`

	updateRow = `WITH o AS (` + renewRow + ` RETURNING id)
	INSERT INTO events (operation_id, sequence, command, command_id, command_digest, time, body, hash)
	SELECT o.id, ` + eventPlaceholders(mutableCount+4) + ` FROM o`

	// renewRow is the compare-and-swap alone. It names no column of a partial index, so that the plan is always by the primary key.
	renewRow = `UPDATE operations SET (` + mutableColumns + `) = ROW(` + placeholders(4, mutableCount) + `)
	WHERE id = $1 AND sequence = $2 AND grant_lease_until IS NOT DISTINCT FROM $3::timestamptz`
)

// placeholders are $from, $from+1, ...
func placeholders(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", from+i)
	}
	return b.String()
}

// eventPlaceholders have types: in a SELECT list nothing else tells them.
func eventPlaceholders(from int) string {
	return fmt.Sprintf("$%d::bigint, $%d::text, $%d::text, $%d::text, $%d::timestamptz, $%d::bytea, $%d::bytea",
		from, from+1, from+2, from+3, from+4, from+5, from+6)
}
