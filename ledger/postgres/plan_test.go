// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/test/pgtest"
)

// manyRows are open operations, all due, a tenth of them unknown.
const manyRows = `INSERT INTO operations (` + allColumns + `, downstream_key)
	SELECT 1, CASE WHEN i % 10 = 0 THEN 5 ELSE 1 END, 1, '', 0, 1, 1, sha256(i::text::bytea), now(), 1, '', 4, 0, 0, '', '', 0, NULL, NULL, NULL, 0,
		FALSE, FALSE, FALSE, FALSE, 0, 0, FALSE, NULL, NULL, now() + i * interval '1 second', 0, NULL, NULL, FALSE,
		'', NULL, NULL, NULL, NULL, FALSE, NULL, '{}',
		gen_random_uuid(), sha256(i::text::bytea), 'scope-a', 'p', 'tool', 'task-' || i % 100, NULL, NULL, now() - i * interval '1 second',
		NULL, NULL, NULL, 1, 's', 'c', sha256(i::text::bytea), NULL, md5(i::text)
	FROM generate_series(1, 20000) i`

// TestPlans looks at the plans that fit all parameters: a planner that takes a partial index for the compare-and-swap reads all open
// operations for each change.
func TestPlans(t *testing.T) {
	server := pgtest.Any(t)
	s, err := Open(t.Context(), server.DSN(server.Database(t)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), s.pool.Config().ConnConfig.Copy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("SET plan_cache_mode = force_generic_plan")
	run("SET statement_timeout = 0") // the many rows take their time
	byID := map[string]string{"insertRow": insertRow, "updateRow": updateRow, "renewRow": renewRow, "touchRow": touchRow, "lockRow": lockRow, "selectRow": selectRow}
	scans := map[string][2]string{ // only told apart where there are rows
		"selectDue": {selectDue, "operations_due"}, "selectSiblings": {selectSiblings, "operations_unknown"},
		"listByCreate": {listByCreate, "operations_by_create"}, "listByTask": {listByTask, "operations_by_task"},
		"listByUpdate": {listByUpdate, "operations_by_update"}, "selectByDownstream": {selectByDownstream, "operations_downstream_key"},
	}
	for _, state := range []string{"empty", "analysed", "many open rows", "many open rows, analysed"} {
		switch state {
		case "analysed", "many open rows, analysed":
			run("ANALYZE operations")
		case "many open rows":
			run(manyRows)
		}
		for name, sql := range byID {
			plan := explain(t, conn, sql)
			for _, index := range []string{"operations_due", "operations_unknown", "operations_by"} {
				if strings.Contains(plan, index) {
					t.Errorf("%s, %s uses %s:\n%s", state, name, index, plan)
				}
			}
			if state == "many open rows, analysed" && name != "insertRow" && !strings.Contains(plan, "operations_pkey") {
				t.Errorf("%s, %s does not use the primary key:\n%s", state, name, plan)
			}
		}
	}
	for name, scan := range scans {
		if plan := explain(t, conn, scan[0]); !strings.Contains(plan, scan[1]) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s does not use %s:\n%s", name, scan[1], plan)
		}
	}
}

// explain returns the generic plan of a statement with parameters.
func explain(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	count := 0
	for strings.Contains(sql, fmt.Sprintf("$%d", count+1)) {
		count++
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", count), ", ")
	for _, statement := range []string{"DEALLOCATE ALL", "PREPARE statement AS " + sql} {
		if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE statement("+nulls+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
