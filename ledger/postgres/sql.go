// SPDX-License-Identifier: Apache-2.0

package postgres

import "slices"

const (
	selectReady = `SELECT schema_version, pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit')
	FROM meta WHERE id = 1`
	selectUnsafe = `SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name`

	// One snapshot makes rows, histories and relatives fit together.
	beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`
	// Each statement sees what was committed before it: after a lock, what is read is fresh.
	begin    = `BEGIN`
	rollback = `ROLLBACK`
	commit   = `COMMIT`
	lockRow  = `SELECT 1 FROM operations WHERE id = $1 FOR UPDATE`
	// Many writes do not wait for one row that somebody holds: see apart.
	waitShortly = `SET LOCAL lock_timeout = '50ms'`

	// What InTx puts around its work on a caller's transaction.
	savepoint    = `SAVEPOINT opsledger`
	undo         = `ROLLBACK TO SAVEPOINT opsledger; RELEASE SAVEPOINT opsledger`
	release      = `RELEASE SAVEPOINT opsledger`
	selectCommit = `SELECT current_setting('synchronous_commit')`

	selectMeta = `SELECT clock_timestamp(), schema_version, timeline, watermark_time, watermark_lost_since FROM meta WHERE id = 1`

	// The digest that a row has itself can't be compared with those made under other secrets: what has one of them may be of the same
	// subject, and counts. Arrays of arrays are rectangles: digests come as the text of an array.
	selectSiblings = `SELECT r.n, s.id
	FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[]) AS r (n, scope, task, tool, self, digests)
	CROSS JOIN LATERAL (
		SELECT o.create_time, o.id FROM operations AS o
		WHERE o.state = 5 AND o.scope = r.scope AND o.task = r.task AND o.tool = r.tool AND o.id <> r.self
			AND (o.subject_digest = ANY(r.digests::bytea[]) OR (r.digests = '{}' AND o.subject_digest IS NULL)
				OR (cardinality(r.digests::bytea[]) = 1 AND o.subject_digest IS NOT NULL AND o.fingerprint_secret <>
					(SELECT me.fingerprint_secret FROM operations AS me WHERE me.id = r.self AND me.subject_digest = (r.digests::bytea[])[1])))
		ORDER BY o.create_time, o.id LIMIT 32) AS s
	ORDER BY r.n, s.create_time, s.id`

	selectNow = `SELECT clock_timestamp()`
	// OFFSET 0 keeps the planner from walking the primary key, in its order, to the first row that fits.
	selectByDownstream = `SELECT id FROM (SELECT id FROM operations WHERE downstream_key = $1 OFFSET 0) AS o ORDER BY id LIMIT 1`

	selectDue = `SELECT next_check_time, id FROM operations
	WHERE next_check_time <= $1 AND (next_check_time, id) > ($2::timestamptz, $3::uuid)
	ORDER BY next_check_time, id LIMIT $4`

	listFilter = `
		AND (subject_digest = ANY($5::bytea[]) OR (cardinality($5::bytea[]) = 0 AND subject_digest IS NULL))
		AND (cardinality($6::smallint[]) = 0 OR state = ANY($6::smallint[]))`

	selectHash  = `SELECT hash FROM events WHERE operation_id = $1 AND sequence = $2`
	selectLease = `SELECT sequence, grant_lease_until FROM operations WHERE id = $1`
	// touchRows changes nothing. Its commit waits for the standbys like any other, and with it what was committed before.
	touchRows = `UPDATE operations SET record_version = record_version WHERE id = ANY($1::uuid[])`
)

var (
	// allColumns follow the order of scanRow.
	allColumns = names("", mutableColumns, identityColumns)

	selectEvents = `SELECT operation_id, ` + names("", eventColumns) + ` FROM events WHERE operation_id = $1 ORDER BY sequence`

	// What was asked for by number n, with its rows in order.
	selectPrior = `SELECT r.n, e.operation_id, ` + names("e.", eventColumns) + `
	FROM unnest($1::bigint[], $2::uuid[], $3::text[]) AS r (n, id, command_id)
	JOIN events AS e ON e.operation_id = r.id AND e.command_id = r.command_id
	WHERE e.operation_id = ANY($2::uuid[])
	ORDER BY r.n, e.sequence`

	selectRows = `SELECT ` + allColumns + ` FROM operations WHERE id = ANY($1::uuid[])`

	listByCreate = `SELECT ` + allColumns + ` FROM operations
	WHERE hashtextextended(scope, 0) = hashtextextended($1::text, 0) AND scope = $1 AND (create_time, id) > ($3::timestamptz, $4::uuid) AND $2::text IS NOT NULL` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	listByTask = `SELECT ` + allColumns + ` FROM operations
	WHERE hashtextextended(task, hashtextextended(scope, 0)) = hashtextextended($2::text, hashtextextended($1::text, 0))
		AND scope = $1 AND task = $2 AND (create_time, id) > ($3::timestamptz, $4::uuid)` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	listByUpdate = `SELECT ` + allColumns + ` FROM operations
	WHERE hashtextextended(scope, 0) = hashtextextended($1::text, 0) AND scope = $1 AND ($2::text = '' OR task = $2) AND (update_time, id) > ($3::timestamptz, $4::uuid)` + listFilter + `
	ORDER BY update_time, id LIMIT $7`
)

// The statements that write. Each changes those of its rows whose race is not lost, appends their events, and returns their ids. Rows
// come in the order of their ids, and so are their locks taken; ids are there once.
var (
	insertOne, insertMany = inserting(oneRow), inserting(manyRows)
	updateOne, updateMany = updating(oneRow), updating(manyRows)

	insertColumns = append(slices.Concat(identityColumns, mutableColumns), downstreamKey)
	appendColumns = append(slices.Clone(eventColumns), commandKey)
)

func inserting(s shape) string {
	return `WITH o AS (
	INSERT INTO operations (` + names("", insertColumns) + `)
	` + s.rows(values(s, 1, insertColumns)) + s.from + `
	ON CONFLICT (id) DO NOTHING RETURNING id)
	INSERT INTO events (operation_id, ` + names("", appendColumns) + `)
	SELECT o.id, ` + values(s, 1+len(insertColumns), appendColumns) + ` FROM o` + s.match + `
	RETURNING operation_id`
}

// updating: the swap names no column of a partial index, so that no plan can use one; that of operations_due has all open operations.
func updating(s shape) string {
	next := 1 + len(swapColumns)
	past := next + len(mutableColumns)
	was := func(i int) string { return s.value(1+i, swapColumns[i].kind) }
	spread, number := "", ""
	if s.from != "" {
		spread = ` AND t.id = ANY($1::uuid[])` // for engines that distribute rows by their ids
		number = `, n`
	}
	return `WITH o AS (
	UPDATE operations AS t SET (` + names("", mutableColumns) + `) = ROW(` + values(s, next, mutableColumns) + `)` + s.from + `
	WHERE t.id = ` + was(0) + spread + ` AND t.sequence = ` + was(1) + ` AND t.grant_lease_until IS NOT DISTINCT FROM ` + was(2) + `
	RETURNING t.id` + number + `),
	e AS (
	INSERT INTO events (operation_id, ` + names("", appendColumns) + `)
	SELECT o.id, ` + values(s, past, appendColumns) + ` FROM o WHERE ` + s.value(past, appendColumns[0].kind) + ` IS NOT NULL)
	SELECT id FROM o`
}
