// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"strconv"
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
	// selectAny is the least that reads the file.
	selectAny = `SELECT 1 FROM sqlite_schema LIMIT 1`

	// An immediate transaction holds the file's write lock from its first statement: what it reads stays true until it commits.
	begin = `BEGIN IMMEDIATE`
	// What a deferred one reads is of one moment.
	beginRead = `BEGIN`
	commit    = `COMMIT`
	rollback  = `ROLLBACK`

	// Around a change of two rows: both are written or none, whatever becomes of the rest of the batch.
	savepoint = `SAVEPOINT pair`
	release   = `RELEASE pair`
	undo      = `ROLLBACK TO pair`

	selectMeta = `SELECT schema_version, timeline, watermark_time, watermark_lost_since, paused FROM meta WHERE id = 1`
	// What every decision begins with, in one statement: a statement costs more than a row.
	selectView = `SELECT schema_version, ledger_timeline, watermark_time, watermark_lost_since, paused, ` + allColumns + `
	FROM (SELECT schema_version, timeline AS ledger_timeline, watermark_time, watermark_lost_since, paused FROM meta WHERE id = 1)
		LEFT JOIN operations ON id = ?`
	selectRow   = `SELECT ` + allColumns + ` FROM operations WHERE id = ?`
	selectRows  = `SELECT ` + allColumns + ` FROM operations WHERE id IN (SELECT unhex(value) FROM json_each(?))`
	selectPrior = `SELECT body, hash FROM events WHERE operation_id = ? AND command_id = ? ORDER BY sequence`

	// SQLite has no arrays: lists are JSON, bytes in them hex.
	subjectFilter = `
		AND (hex(subject_digest) IN (SELECT value FROM json_each(?)) OR (json_array_length(?) = 0 AND subject_digest IS NULL))`

	// The digest that a row has itself can't be compared with those made under other secrets: what has one of them may be of the same
	// subject, and counts. ?5 are the digests in hex, each in <>, ?6 their number: a list that is read by json_each is a table
	// to build, for each claim twice.
	selectSiblings = `SELECT id FROM operations
	WHERE state = 5 AND scope = ?1 AND task = ?2 AND tool = ?3 AND id <> ?4
		AND (instr(?5, '<' || hex(subject_digest) || '>') > 0 OR (?6 = 0 AND subject_digest IS NULL)
			OR (?6 = 1 AND subject_digest IS NOT NULL AND fingerprint_secret <>
				(SELECT self.fingerprint_secret FROM operations self WHERE self.id = ?4 AND '<' || hex(self.subject_digest) || '>' = ?5)))
	ORDER BY create_time, id LIMIT 32`

	countUnknowns = `SELECT count(*) FROM (SELECT 1 FROM operations WHERE state = 5 AND tool = ? LIMIT ?)`

	selectOwner = `SELECT operation_id FROM slots WHERE slot = ?`
	takeSlot    = `INSERT INTO slots (slot, operation_id) VALUES (?, ?) ON CONFLICT (slot) DO UPDATE SET operation_id = excluded.operation_id`

	selectByDownstream = `SELECT id FROM operations WHERE downstream_key = ? ORDER BY id LIMIT 1`

	// No low-water mark: what is no longer due has left the index, where PostgreSQL's keeps it until a vacuum. After 45,000 completed
	// units it has one page, and the scan takes as long as on an empty file.
	// The last one that is looked at is returned, too, lest what was left out be looked at again.
	selectDue = `SELECT next_check_time, id, wanted, last FROM (
		SELECT next_check_time, id, tool NOT IN (SELECT value FROM json_each(?5)) AS wanted, row_number() OVER (ORDER BY next_check_time, id) = ?6 AS last
		FROM (SELECT next_check_time, id, tool FROM operations
			WHERE next_check_time <= ?1 AND (next_check_time, id) > (?2, ?3)
			ORDER BY next_check_time, id LIMIT ?6))
	WHERE wanted OR last
	ORDER BY next_check_time, id LIMIT ?4`

	selectEvents = `SELECT body, hash FROM events WHERE operation_id = ? ORDER BY sequence`

	stateFilter = `
		AND (json_array_length(?) = 0 OR state IN (SELECT value FROM json_each(?)))`
	listByCreate = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = ? AND ? = '' AND (create_time, id) > (?, ?)` + subjectFilter + stateFilter + `
	ORDER BY create_time, id LIMIT ?`
	listByTask = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = ? AND task = ? AND (create_time, id) > (?, ?)` + subjectFilter + stateFilter + `
	ORDER BY create_time, id LIMIT ?`
	listByUpdate = `SELECT ` + allColumns + ` FROM operations
	WHERE scope = ? AND task = COALESCE(NULLIF(?, ''), task) AND (update_time, id) > (?, ?) AND update_time < ?` + subjectFilter + stateFilter + `
	ORDER BY update_time, id LIMIT ?`

	selectHash  = `SELECT hash FROM events WHERE operation_id = ? AND sequence = ?`
	selectLease = `SELECT sequence, grant_lease_until, last_hash FROM operations WHERE id = ?`

	// SQLite's WITH can't write: the event is a statement of its own, in the same transaction.
	insertEvent = `INSERT INTO events (operation_id, sequence, command, command_id, command_digest, time, body, hash)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
)

var (
	identityCount = strings.Count(identityColumns, ",") + 1
	mutableCount  = strings.Count(mutableColumns, ",") + 1

	insertRow = `INSERT INTO operations (` + allColumns + `, downstream_key)
	VALUES (` + placeholders(mutableCount+identityCount+1) + `) ON CONFLICT (id) DO NOTHING`

	// updateRow is the compare-and-swap.
	updateRow = `UPDATE operations SET (` + mutableColumns + `) = (` + placeholders(mutableCount) + `)
	WHERE id = ? AND sequence = ? AND grant_lease_until IS ? AND last_hash = ? AND record_version <= ` + strconv.Itoa(recordVersion) + `
		AND NOT EXISTS (SELECT 1 FROM events WHERE operation_id = id AND command = ? AND command_id = ? AND command_digest = ?)`
)

func placeholders(n int) string { return strings.Repeat("?, ", n-1) + "?" }
