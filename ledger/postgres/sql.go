// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"slices"
	"strconv"
	"strings"
)

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

	selectMeta = `SELECT clock_timestamp(), schema_version, timeline, watermark_time, watermark_lost_since, paused FROM meta WHERE id = 1`

	selectNow = `SELECT clock_timestamp()`
	// OFFSET 0 keeps the planner from walking the primary key, in its order, to the first row that fits.
	selectByDownstream = `SELECT id FROM (SELECT id FROM operations WHERE downstream_key = $1 OFFSET 0) AS o ORDER BY id LIMIT 1`

	// The last one that is looked at is returned, too, lest what was left out be looked at again.
	selectDue = `SELECT next_check_time, operation_id, wanted, last FROM (
		SELECT next_check_time, operation_id, tool_key <> ALL (ARRAY(SELECT hashtextextended(tool, 0) FROM unnest($5::text[]) AS tool)) AS wanted,
			row_number() OVER (ORDER BY next_check_time, operation_id) = $6::bigint AS last
		FROM (SELECT * FROM due
			WHERE next_check_time <= $1 AND (next_check_time, operation_id) > ($2::timestamptz, $3::uuid)
			ORDER BY next_check_time, operation_id LIMIT $6::bigint) AS scanned) AS looked
	WHERE wanted OR last
	ORDER BY next_check_time, operation_id LIMIT $4`

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

	// The digest that a row has itself can't be compared with those made under other secrets: what has one of them may be of the same
	// subject, and counts. Arrays of arrays are rectangles: digests come as the text of an array.
	selectSiblings = `SELECT r.n, s.id
	FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[]) AS r (n, scope, task, tool, self, digests)
	CROSS JOIN LATERAL (
		SELECT o.create_time, o.id FROM unknown AS u JOIN operations AS o ON o.id = u.operation_id
		WHERE u.like_key = ` + likeKey("r.scope", "r.task", "r.tool") + `
			AND o.state = 5 AND o.scope = r.scope AND o.task = r.task AND o.tool = r.tool AND o.id <> r.self
			AND (o.subject_digest = ANY(r.digests::bytea[]) OR (r.digests = '{}' AND o.subject_digest IS NULL)
				OR (cardinality(r.digests::bytea[]) = 1 AND o.subject_digest IS NOT NULL AND o.fingerprint_secret <>
					(SELECT me.fingerprint_secret FROM operations AS me WHERE me.id = r.self AND me.subject_digest = (r.digests::bytea[])[1])))
		ORDER BY u.create_time, u.operation_id LIMIT 32) AS s
	ORDER BY r.n, s.create_time, s.id`

	// What changes to and from UNKNOWN has its place in unknown, whoever has won.
	noteUnknown = `INSERT INTO unknown (like_key, tool_key, create_time, operation_id)
	SELECT ` + likeKey("scope", "task", "tool") + `, hashtextextended(tool, 0), create_time, id FROM operations WHERE id = ANY($1::uuid[]) AND state = 5 ORDER BY id
	ON CONFLICT DO NOTHING`
	forgetUnknown = `DELETE FROM unknown USING operations AS o
	WHERE o.id = ANY($1::uuid[]) AND o.state <> 5 AND like_key = ` + likeKey("o.scope", "o.task", "o.tool") + `
		AND unknown.create_time = o.create_time AND operation_id = o.id
		AND like_key = ANY(ARRAY(SELECT ` + likeKey("scope", "task", "tool") + ` FROM operations WHERE id = ANY($1::uuid[])))`

	// No more of a tool are counted than matter. Their order keeps the planner from walking the whole table to the limit.
	countUnknowns = `SELECT r.n, (SELECT count(*) FROM (SELECT 1 FROM unknown WHERE tool_key = hashtextextended(r.tool, 0) ORDER BY create_time LIMIT r.most) AS u)
	FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS r (n, tool, most)`

	selectRows = `SELECT ` + allColumns + ` FROM operations WHERE id = ANY($1::uuid[])`

	listByCreate = `SELECT ` + allColumns + ` FROM operations
	WHERE hashtextextended(scope, 0) = hashtextextended($1::text, 0) AND scope = $1 AND (create_time, id) > ($3::timestamptz, $4::uuid) AND $2::text IS NOT NULL` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	listByTask = `SELECT ` + allColumns + ` FROM operations
	WHERE hashtextextended(task, hashtextextended(scope, 0)) = hashtextextended($2::text, hashtextextended($1::text, 0))
		AND scope = $1 AND task = $2 AND (create_time, id) > ($3::timestamptz, $4::uuid)` + listFilter + `
	ORDER BY create_time, id LIMIT $7`
	// Of a row's events the last one counts.
	listByUpdate = `SELECT o.* FROM events AS e CROSS JOIN LATERAL (
		SELECT ` + allColumns + ` FROM operations
		WHERE id = e.operation_id AND sequence = e.sequence AND scope = $1 AND ($2::text = '' OR task = $2)` + listFilter + ` OFFSET 0) AS o
	WHERE e.scope_key = hashtextextended($1::text, 0) AND (e.time, e.operation_id) > ($3::timestamptz, $4::uuid)
	ORDER BY e.time, e.operation_id LIMIT $7`
)

// The statements that write. Each changes those of its rows whose race is not lost, appends their events, and returns their ids. Rows
// come in the order of their ids, and so are their locks taken; ids are there once.
var (
	insertOne, insertMany = inserting(oneRow), inserting(manyRows)
	updateOne, updateMany = updating(oneRow), updating(manyRows)

	insertColumns = append(slices.Concat(identityColumns, mutableColumns), downstreamKey)
)

func inserting(s shape) string {
	past := 1 + len(insertColumns)
	own := past + len(eventColumns) + len(dueColumns)
	return `WITH i AS (
	INSERT INTO operations (` + names("", insertColumns) + `)
	SELECT ` + values(s, 1, insertColumns) + s.from + `
	WHERE ` + guard{}.holds(s.value(own, "boolean"), own+len(guardColumns)) + `
		AND (NOT ` + s.value(own+1, "boolean") + ` OR ` + unpaused(insertedAs(s, "tool")) + `)
		AND (NOT ` + s.value(own+2, "boolean") + ` OR (SELECT min(create_time) FROM unknown WHERE like_key = ` + likeIt(s) + `) IS NULL)
	ON CONFLICT (id) DO NOTHING RETURNING id, scope, tool),
	o AS (SELECT i.id, i.scope, i.tool` + s.number + ` FROM i` + s.match + `),` + following(s, past) + `
	SELECT id FROM o`
}

// likeKey is what unknown has of a scope, task and tool.
func likeKey(scope, task, tool string) string {
	return `hashtextextended(` + tool + `, hashtextextended(` + task + `, hashtextextended(` + scope + `, 0)))`
}

// likeIt is that of the row to be inserted.
func likeIt(s shape) string {
	return likeKey(insertedAs(s, "scope"), insertedAs(s, "task"), insertedAs(s, "tool"))
}

// insertedAs is a column's value of the row to be inserted.
func insertedAs(s shape, name string) string {
	i := slices.IndexFunc(insertColumns, func(c column[operation]) bool { return c.name == name })
	return s.value(1+i, insertColumns[i].kind)
}

// unpaused says that a tool gets grants, as of the statement itself. It is looked up once in a statement.
func unpaused(tool string) string {
	return `NOT (ARRAY[` + tool + `, '*'] && (SELECT p.paused FROM meta AS p WHERE p.id = 1))`
}

// updating: the swap names no column of a partial index, so that no plan can use one.
func updating(s shape) string {
	next := 1 + len(swapColumns)
	past := next + len(mutableColumns)
	own := past + len(eventColumns)
	was := func(i int) string { return s.value(1+i, swapColumns[i].kind) }
	return `WITH o AS (
	UPDATE operations AS t SET (` + names("", mutableColumns) + `) = ROW(` + values(s, next, mutableColumns) + `)` + s.from + `
	WHERE t.id = ` + was(0) + s.among("t.id", 1, "uuid") + ` AND t.sequence = ` + was(1) + ` AND t.grant_lease_until IS NOT DISTINCT FROM ` + was(2) + ` AND t.last_hash = ` + was(3) + `
		AND t.record_version <= ` + strconv.Itoa(recordVersion) + ` AND ` + guard{}.holds(s.value(own+len(dueColumns), "boolean"), own+len(dueColumns)+2) + `
		AND (NOT ` + s.value(own+len(dueColumns)+1, "boolean") + ` OR ` + unpaused("t.tool") + `)
		AND (SELECT TRUE FROM events AS same WHERE same.operation_id = t.id AND ` + sameCommand(s, past) + ` LIMIT 1) IS NULL
	RETURNING t.id, t.scope, t.tool` + s.number + `),
	done AS (DELETE FROM due USING o WHERE due.operation_id = o.id AND due.next_check_time = ` + was(4) + s.among("due.next_check_time", 5, "timestamptz") + `),` + following(s, past) + `
	SELECT id FROM o`
}

// sameCommand says that an event is of the very command of the one to be appended. What has no id is no command.
func sameCommand(s shape, past int) string {
	var list []string
	for i, c := range eventColumns {
		value := s.value(past+i, c.kind)
		switch c.name {
		case "command_id":
			list = append(list, `same.command_id = NULLIF(`+value+`, '')`)
		case "command", "command_digest":
			list = append(list, `same.`+c.name+` = `+value)
		}
	}
	return strings.Join(list, " AND ")
}

// following appends the events of the rows that were written (o), and notes when they are due, with parameters from that one on.
func following(s shape, past int) string {
	due := values(s, past+len(eventColumns), dueColumns)
	return `
	e AS (INSERT INTO events (operation_id, scope_key, ` + names("", eventColumns) + `)
		SELECT o.id, hashtextextended(o.scope, 0), ` + values(s, past, eventColumns) + ` FROM o WHERE ` + s.value(past, eventColumns[0].kind) + ` IS NOT NULL),
	d AS (INSERT INTO due (next_check_time, operation_id, tool_key) SELECT ` + due + `, o.id, hashtextextended(o.tool, 0) FROM o WHERE ` + due + ` IS NOT NULL)`
}
