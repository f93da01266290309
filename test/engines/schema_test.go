// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// breaches finds what would keep an engine from spreading the rows by operation id, or from telling keys apart. Spread are operations,
// their events and what is kept of them beside, contracts by their version, check values by the id of their secret, slots by themselves, gates and what was forgotten by their tool, what people say of tools by its id, timelines by their number; meta has one row,
// which each node can have; of goose's table no change of an operation depends.
const breaches = `WITH spread (name, by) AS (VALUES ('operations', 'id'), ('events', 'operation_id'), ('due', 'operation_id'),
		('unknown', 'operation_id'), ('contracts', 'version'), ('fingerprint_secrets', 'id'), ('slots', 'slot'),
		('gates', 'tool'), ('forgotten', 'tool'), ('tool_commands', 'command_id'), ('timelines', 'number')),
	own AS (SELECT c.oid, c.relname, c.relkind, s.by FROM pg_class c LEFT JOIN spread s ON s.name = c.relname
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relname NOT LIKE 'goose\_db\_version%'),
	tables AS (SELECT * FROM own WHERE relkind NOT IN ('i', 'S'))
SELECT 'it is not said how it is spread: ' || relname FROM tables WHERE by IS NULL AND relname <> 'meta'
UNION ALL SELECT 'sequence: ' || relname FROM own WHERE relkind = 'S'
UNION ALL SELECT 'unique without what it is spread by: ' || x.indexrelid::regclass FROM tables JOIN pg_index x ON x.indrelid = tables.oid
	WHERE by IS NOT NULL AND (x.indisunique OR x.indisexclusion) AND NOT EXISTS (SELECT FROM pg_attribute a
		WHERE a.attrelid = tables.oid AND a.attname = by AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1]))
UNION ALL SELECT 'identity: ' || relname || '.' || attname FROM tables JOIN pg_attribute a ON a.attrelid = tables.oid WHERE a.attidentity <> ''
UNION ALL SELECT 'default by a sequence: ' || relname FROM tables JOIN pg_attrdef d ON d.adrelid = tables.oid
	WHERE pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval%'
UNION ALL SELECT 'foreign key: ' || k.conname FROM tables JOIN pg_constraint k ON k.conrelid = tables.oid WHERE k.contype = 'f'
UNION ALL SELECT 'trigger: ' || g.tgname FROM tables JOIN pg_trigger g ON g.tgrelid = tables.oid WHERE NOT g.tgisinternal
UNION ALL SELECT 'rewrite rule: ' || r.rulename FROM tables JOIN pg_rewrite r ON r.ev_class = tables.oid
UNION ALL SELECT 'text that does not compare byte by byte: ' || relname || '.' || attname FROM tables
	JOIN pg_attribute a ON a.attrelid = tables.oid JOIN pg_collation o ON o.oid = a.attcollation WHERE o.collname <> 'C' AND a.attnum > 0`

// migrated is a connection to a database with the schema of this release, and its DSN.
func migrated(t *testing.T) (*pgx.Conn, string) {
	t.Helper()
	server := pgtest.Any(t)
	dsn := server.DSN(server.Database(t))
	s, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Migrate(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, dsn
}

// found is what the rules find, one a line.
func found(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), breaches, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestSchemaCanBeSpreadByOperationID(t *testing.T) {
	conn, _ := migrated(t)
	defer func() { _ = conn.Close(t.Context()) }()
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if got := found(t, conn); got != "" {
		t.Error(got)
	}
	for breach, want := range map[string]string{
		"CREATE UNIQUE INDEX one_key ON operations (downstream_key)":                           "unique without what it is spread by: one_key",
		"CREATE UNIQUE INDEX one_key ON operations (downstream_key) INCLUDE (id)":              "unique without what it is spread by: one_key",
		"ALTER TABLE events ADD CONSTRAINT once EXCLUDE USING btree (hash WITH =)":             "unique without what it is spread by: once",
		"ALTER TABLE slots ADD UNIQUE (operation_id)":                                          "unique without what it is spread by: slots_operation_id_key",
		"ALTER TABLE contracts ADD UNIQUE (create_time)":                                       "unique without what it is spread by: contracts_create_time_key",
		"ALTER TABLE operations ADD number bigint GENERATED ALWAYS AS IDENTITY":                "identity: operations.number",
		"ALTER TABLE events ADD number bigserial":                                              "default by a sequence: events",
		"CREATE SEQUENCE numbers":                                                              "sequence: numbers",
		"ALTER TABLE events ADD CONSTRAINT f FOREIGN KEY (operation_id) REFERENCES operations": "foreign key: f",
		"CREATE TABLE reservations (hash bytea PRIMARY KEY)":                                   "it is not said how it is spread: reservations",
		"CREATE VIEW open AS SELECT id FROM operations":                                        "it is not said how it is spread: open",
		"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER late BEFORE UPDATE ON operations FOR EACH ROW EXECUTE FUNCTION f()": "trigger: late",
		"CREATE RULE quiet AS ON DELETE TO events DO INSTEAD NOTHING":      "rewrite rule: quiet",
		"ALTER TABLE operations ALTER scope TYPE text COLLATE \"default\"": "text that does not compare byte by byte: operations.scope",
	} {
		run("BEGIN")
		run(breach)
		if got := found(t, conn); !strings.Contains(got, want) {
			t.Errorf("%s: found %q, want %q", breach, got, want)
		}
		run("ROLLBACK")
	}
}

// TestPostgresCutsTheTables asks the engine itself.
func TestPostgresCutsTheTables(t *testing.T) {
	conn, dsn := migrated(t)
	defer func() { _ = conn.Close(t.Context()) }()
	file, err := filepath.Abs("partitioned.sql")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OPSLEDGER_TEST_AFTER_MIGRATE", file)
	if err := pgtest.AfterMigrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	var cut int
	err = conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_partitioned_table WHERE partrelid IN ('operations'::regclass, 'events'::regclass, 'contracts'::regclass, 'slots'::regclass)").Scan(&cut)
	if err != nil || cut != 4 {
		t.Errorf("%d tables are cut, want 4: %v", cut, err)
	}
}

// onOneNode is SQL that only one node could keep.
var onOneNode = regexp.MustCompile(`pg_(try_)?advisory\w*|\b(nextval|lastval|SKIP LOCKED|LISTEN|NOTIFY|LOCK TABLE|SERIAL|BIGSERIAL|IDENTITY|REFERENCES|TRIGGER)\b`)

var sqlComment = regexp.MustCompile(`--.*`)

// TestStatementsNeedNoSingleNode reads the migrations and the store. That migrations take turns is goose's, before there are rows.
func TestStatementsNeedNoSingleNode(t *testing.T) {
	look := func(where, sql string) {
		if bad := onOneNode.FindString(sql); bad != "" {
			t.Errorf("%s: %s", where, bad)
		}
	}
	files, err := filepath.Glob("../../migrations/postgres/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no migrations: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		look(name, sqlComment.ReplaceAllString(string(text), ""))
	}
	if files, err = filepath.Glob("../../ledger/postgres/*.go"); err != nil {
		t.Fatal(err)
	}
	statements := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				look(fset.Position(text.Pos()).String(), text.Value)
				if strings.Contains(text.Value, "SELECT ") {
					statements++
				}
			}
			return true
		})
	}
	if statements < 10 {
		t.Errorf("%d statements are read: the store's SQL lies elsewhere", statements)
	}
	for _, bad := range []string{"SELECT pg_try_advisory_xact_lock(1)", "SELECT id FROM operations FOR UPDATE SKIP LOCKED", "LISTEN changes"} {
		if !onOneNode.MatchString(bad) {
			t.Errorf("%s is not seen", bad)
		}
	}
}
