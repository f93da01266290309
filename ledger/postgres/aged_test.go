// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestAgedPlans: a page of what is old, and what is forgotten, cost what they have, however much else there is.
func TestAgedPlans(t *testing.T) {
	conn, exec := planned(t)
	const every = 50_000
	for _, state := range []string{"empty", "many", "many, analysed"} {
		switch state {
		case "many":
			exec(openRows(every))
			exec("VACUUM operations") // what is visible to all, as in a table that was not made a moment ago
		case "many, analysed":
			exec("ANALYZE")
		}
		for name, sql := range map[string]string{
			"selectAged": selectAged, "selectScopeAfter": selectScopeAfter, "selectFirstScope": selectFirstScope,
		} {
			if plan := explain(t, conn, sql, 0); !strings.Contains(plan, "operations_by_create") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s: %s does not use the order of creation alone:\n%s", state, name, plan)
			}
		}
		for name, sql := range map[string]string{"forgetHistories": forgetHistories, "forgetKeys": forgetKeys} {
			plan := explain(t, conn, sql, 0)
			if m := scanned.FindAllStringSubmatch(plan, -1); len(m) == 0 || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s: %s reads a whole table:\n%s", state, name, plan)
			} else {
				for _, index := range m {
					if index[2] == "" {
						t.Errorf("%s: %s reads the whole of %s:\n%s", state, name, index[1], plan)
					}
				}
			}
		}
	}
	const limit = 256
	for name, sql := range map[string]string{
		"a page in the middle": fmt.Sprintf("EXECUTE page(hashtextextended('scope-a', 0), now() - interval '%d seconds', gen_random_uuid(), now(), %d)", every/2, limit),
		"the first page":       fmt.Sprintf("EXECUTE page(hashtextextended('scope-a', 0), '-infinity', gen_random_uuid(), now(), %d)", limit),
		"nothing so old":       fmt.Sprintf("EXECUTE page(hashtextextended('scope-a', 0), '-infinity', gen_random_uuid(), now() - interval '1 year', %d)", limit),
		"the next scope":       "EXECUTE scope(hashtextextended('scope-a', 0))",
		"the first scope":      "EXECUTE first",
	} {
		exec("DEALLOCATE ALL")
		exec("PREPARE page AS " + selectAged)
		exec("PREPARE scope AS " + selectScopeAfter)
		exec("PREPARE first AS " + selectFirstScope)
		rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		read := 0
		if m := buffers.FindStringSubmatch(plan); m != nil { // of the topmost node, which has those of all
			for _, n := range m[1:] {
				if n != "" {
					pages, err := strconv.Atoi(n)
					if err != nil {
						t.Fatal(err)
					}
					read += pages
				}
			}
		}
		t.Logf("%s: %d pages", name, read)
		if read == 0 || read > limit {
			t.Errorf("%s reads %d pages, want at most one for each row:\n%s", name, read, plan)
		}
	}
}

var (
	scanned = regexp.MustCompile(`(?m)Scan (?:Backward )?(?:using|on) (\w+_(?:pkey|by_\w+)).*(?:\n\s*(Index Cond|Recheck Cond): )?`)
	buffers = regexp.MustCompile(`Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`)
)
