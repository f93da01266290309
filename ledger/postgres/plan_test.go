// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/test/pgtest"
)

// openRows makes open operations, all due, a tenth of them unknown, each with an event.
func openRows(n int) string {
	return `WITH o AS (INSERT INTO operations (` + allColumns + `, downstream_key)
	SELECT 1, CASE WHEN i % 10 = 0 THEN 5 ELSE 1 END, 1, '', 0, 1, 1, sha256(i::text::bytea), now() - i * interval '1 second', 1, '', 4, 0, 0, '', '', 0, NULL, NULL, NULL, 0,
		FALSE, FALSE, FALSE, FALSE, 0, 0, FALSE, NULL, NULL, now() + i * interval '1 second', 0, NULL, NULL, FALSE,
		'', NULL, NULL, NULL, NULL, NULL, FALSE, NULL, '{}',
		gen_random_uuid(), sha256(i::text::bytea), 'scope-a', 'p', 'tool-' || i % 7, 'task-' || i % 100, NULL, NULL, now() - i * interval '1 second',
		NULL, NULL, NULL, 1, 's', 'c', sha256(i::text::bytea), NULL, md5(i::text)::uuid
	FROM generate_series(1, ` + strconv.Itoa(n) + `) i RETURNING id, scope, task, tool, create_time, state, next_check_time),
	d AS (INSERT INTO due SELECT next_check_time, id, hashtextextended(tool, 0) FROM o),
	u AS (INSERT INTO unknown SELECT ` + likeKey("scope", "task", "tool") + `, hashtextextended(tool, 0), create_time, id FROM o WHERE state = 5)
	INSERT INTO events (operation_id, scope_key, ` + names("", eventColumns) + `)
	SELECT id, hashtextextended(scope, 0), 1, 1, 1, create_time, 2, 0, 2, 1, 'p', 'claim', id::text, '', 'c', NULL, '', NULL, sha256('') FROM o`
}

// planned opens an empty store, and a connection beside it as the store has its own, whose statements may take their time.
func planned(t *testing.T) (conn *pgx.Conn, run func(sql string)) {
	t.Helper()
	server := pgtest.Any(t)
	s, err := Open(t.Context(), server.DSN(server.Database(t)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conn, err = pgx.ConnectConfig(t.Context(), s.pool.Config().ConnConfig.Copy()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	run = func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("SET statement_timeout = 0") // this machine may be slow
	return conn, run
}

// TestPlans: a planner that takes a partial index for the compare-and-swap reads all open operations for each batch, one that takes none
// reads all there are. It looks at the plans that fit all values, as the store has them made, and at those made for the values, as the
// transactions of others have them.
func TestPlans(t *testing.T) {
	server := pgtest.Any(t)
	name := server.Database(t)
	s, err := Open(t.Context(), server.DSN(name), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ours, err := pgx.ConnectConfig(t.Context(), s.pool.Config().ConnConfig.Copy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close(t.Context()) }()
	others, err := pgx.Connect(t.Context(), server.DSN(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = others.Close(t.Context()) }()
	run := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	byID := map[string]string{
		"insertOne": insertOne, "insertMany": insertMany, "updateOne": updateOne, "updateMany": updateMany, "touchRows": touchRows, "lockRow": lockRow, "selectRows": selectRows,
		"selectPrior": selectPrior, "selectEvents": selectEvents, "noteUnknown": noteUnknown, "forgetUnknown": forgetUnknown,
	}
	scans := map[string][2]string{
		"selectDue": {selectDue, "due_pkey"}, "selectSiblings": {selectSiblings, "unknown_pkey"}, "countUnknowns": {countUnknowns, "unknown_by_tool"},
		"listByCreate": {listByCreate, "operations_by_create"}, "listByTask": {listByTask, "operations_by_task"},
		"listByUpdate": {listByUpdate, "events_by_time"}, "selectByDownstream": {selectByDownstream, "operations_downstream_key"},
	}
	for _, state := range []string{"empty", "empty, analysed", "many open rows", "many open rows, analysed"} {
		switch state {
		case "empty, analysed", "many open rows, analysed":
			run(others, "ANALYZE")
		case "many open rows":
			run(others, openRows(100_000))
		}
		for _, c := range []struct {
			mode string
			rows int // in each array; 0: no matter how many
			conn *pgx.Conn
		}{
			{"force_generic_plan", 0, ours},
			{"force_generic_plan", 0, others},
			{"force_custom_plan", 1, ours},
			{"force_custom_plan", 1, others},
			{"force_custom_plan", 512, ours},
		} {
			run(c.conn, "SET plan_cache_mode = "+c.mode)
			who := fmt.Sprintf("%s, %s for %d rows, ours %t", state, c.mode, c.rows, c.conn == ours)
			for name, sql := range byID {
				plan := explain(t, c.conn, sql, c.rows)
				for _, index := range []string{"operations_by", "events_by"} {
					// On an empty table all ways are equal, and a plan made for values is made anew for the next ones.
					equal := state == "empty, analysed" || state == "empty" && c.mode == "force_custom_plan"
					if strings.Contains(plan, index) && !equal {
						t.Errorf("%s: %s uses %s:\n%s", who, name, index, plan)
					}
				}
				if m := whole.FindString(plan); m != "" && (c.conn == ours || state == "many open rows, analysed") {
					t.Errorf("%s: %s reads a whole index:\n%s", who, name, plan)
				}
				if seq := strings.Contains(strings.ReplaceAll(plan, "Seq Scan on meta", ""), "Seq Scan"); seq && (c.conn == ours || state == "many open rows, analysed") {
					t.Errorf("%s: %s reads a whole table:\n%s", who, name, plan)
				}
			}
			if c.rows > 0 {
				continue // no arrays
			}
			for name, scan := range scans {
				plan := explain(t, c.conn, scan[0], 0)
				if (state == "many open rows, analysed" || c.conn == ours && state != "empty, analysed") && (!strings.Contains(plan, scan[1]) || strings.Contains(plan, "Seq Scan")) {
					t.Errorf("%s: %s does not use %s alone:\n%s", who, name, scan[1], plan)
				}
			}
		}
	}
}

// whole finds a scan of an index of what is kept beside the rows that has no condition: it would read all of it.
var whole = regexp.MustCompile(`(?m)(?:Index|Index Only) Scan using (?:due|unknown)_pkey .*\n\s*(?:->|Filter|$)`)

var parameter = regexp.MustCompile(`\$(\d+)(::\w+(?:\[\])?)?`)

// explain returns the plan of a statement: without rows, all its parameters are NULL, else its arrays are that long, and a parameter that
// is none is an id.
func explain(t *testing.T, conn *pgx.Conn, sql string, rows int) string {
	t.Helper()
	given := map[string]string{}
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		kind, array := strings.CutSuffix(m[2], "[]")
		value := "NULL" + kind
		if kind == "" || kind == "::uuid" {
			value = "gen_random_uuid()"
		}
		if array {
			value = fmt.Sprintf("array_fill(%s, ARRAY[%d])", value, rows)
		}
		switch {
		case rows == 0:
			given[m[1]] = "NULL"
		case given[m[1]] == "":
			given[m[1]] = value
		}
	}
	args := make([]string, len(given))
	for i := range args {
		args[i] = given[strconv.Itoa(i+1)]
	}
	execute := "EXPLAIN EXECUTE statement"
	if len(args) > 0 {
		execute += "(" + strings.Join(args, ", ") + ")"
	}
	for _, statement := range []string{"DEALLOCATE ALL", "PREPARE statement AS " + sql} {
		if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	result, err := conn.Query(t.Context(), execute, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
