// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// pgbench does the store's work without the store: one statement inserts the row with all its columns and its first event, if there is
// no such row, and notes when it is due; one changes it with all its columns and appends an event, if nobody was faster. Two statements, two commits. It reads
// nothing and decides nothing, so it is a strict measure of what asks the database for each call by itself. The columns and their values
// are those that the store itself has written for one unit, whatever the schema becomes.

// column of a table, and what the store wrote there for a claim and after its completion. None: NULL.
type column struct {
	Name, Type  string
	Claim, Done *string
}

// writtenOnce are the columns that no statement of the store changes.
var writtenOnce = []string{
	"id", "key_hash", "downstream_key", "scope", "principal", "tool", "task", "subject_digest", "intent_time", "create_time",
	"compensates", "corrects", "depends_on",
	"fingerprint_spec", "fingerprint_secret", "fingerprint_contract", "fingerprint_digest", "fingerprint_categories",
}

// leaseColumn is compared when the row is changed.
const leaseColumn = "grant_lease_until"

// unitColumns differ from unit to unit, and so lie apart in their indexes.
var unitColumns = []string{"id", "key_hash", "downstream_key", "task"}

// unitValue makes the value of such a column, by its type.
var unitValue = map[string]string{
	"uuid":  "md5(:unit::text)::uuid",
	"bytea": "sha256(:unit::text::bytea)",
	"text":  "md5(:unit::text)",
}

// script makes pgbench's script, and the variables that it is given: values that are neither NULL nor empty travel as parameters, as the
// store's do.
func script(operation, event []column) (text string, variables map[string]string) {
	variables = map[string]string{}
	value := func(prefix string, c column, v *string) string {
		switch {
		case slices.Contains(unitColumns, c.Name):
			return unitValue[c.Type]
		case v == nil:
			return "NULL::" + c.Type
		case *v == "":
			return "''::" + c.Type
		case c.Type == "timestamptz" && c.Name != leaseColumn:
			return "now()" // not a constant: indexes grow at their end, as they do in life
		}
		name := prefix + "_" + c.Name
		variables[name] = *v
		return ":" + name + "::" + c.Type
	}
	var columns, claim, mutable, done, events, granted, completed []string
	var lease, sequence string
	for _, c := range operation {
		columns = append(columns, c.Name)
		first := value("c", c, c.Claim)
		claim = append(claim, first)
		switch c.Name {
		case leaseColumn:
			lease = first
		case "sequence":
			sequence = first
		}
		if !slices.Contains(writtenOnce, c.Name) {
			mutable = append(mutable, c.Name)
			done = append(done, value("d", c, c.Done))
		}
	}
	for _, c := range event {
		events = append(events, c.Name)
		if c.Name == "operation_id" {
			granted, completed = append(granted, "o.id"), append(completed, "o.id")
			continue
		}
		granted = append(granted, value("e", c, c.Claim))
		completed = append(completed, value("f", c, c.Done))
	}
	list := func(items []string) string { return strings.Join(items, ", ") }
	insertEvent := "INSERT INTO events (" + list(events) + ") SELECT "
	text = `\set unit random(1, 9000000000000000000)
WITH o AS (INSERT INTO operations (` + list(columns) + `) VALUES (` + list(claim) + `) ON CONFLICT (id) DO NOTHING RETURNING id, tool, next_check_time),
e AS (` + insertEvent + list(granted) + ` FROM o)
INSERT INTO due (next_check_time, operation_id, tool_key) SELECT next_check_time, id, hashtextextended(tool, 0) FROM o RETURNING next_check_time AS due \gset
WITH o AS (UPDATE operations SET (` + list(mutable) + `) = ROW(` + list(done) + `)
WHERE id = ` + unitValue["uuid"] + ` AND sequence = ` + sequence + ` AND ` + leaseColumn + ` IS NOT DISTINCT FROM ` + lease + ` RETURNING id),
d AS (DELETE FROM due USING o WHERE operation_id = o.id AND next_check_time = :due::timestamptz)
` + insertEvent + list(completed) + ` FROM o;
`
	return text, variables
}

// yardstick is pgbench, ready to run.
type yardstick struct {
	program, dir, dsn string
	args              []string
	pid               int // of the run under way
}

// newYardstick writes the script for a database with the schema and nothing else in it, and sees that it does what a unit does.
func newYardstick(ctx context.Context, dir, dsn string) (*yardstick, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	operation, event, err := oneUnit(ctx, conn, dsn)
	if err != nil {
		return nil, err
	}
	var bin string
	if err := conn.QueryRow(ctx, "SELECT setting FROM pg_config WHERE name = 'BINDIR'").Scan(&bin); err != nil {
		return nil, err
	}
	y := &yardstick{program: filepath.Join(bin, "pgbench"), dir: dir, dsn: dsn}
	text, variables := script(operation, event)
	path := filepath.Join(dir, "unit.sql")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	y.args = []string{"--no-vacuum", "--protocol=prepared", "--file=" + path}
	for name, value := range variables {
		y.args = append(y.args, "--define="+name+"="+value)
	}
	return y, y.check(ctx, conn)
}

// check runs a few units and looks at what they have left.
func (y *yardstick) check(ctx context.Context, conn *pgx.Conn) error {
	const units = 20
	cmd := y.command(ctx, 2, "--transactions="+strconv.Itoa(units/2))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench (its script is of the schema that the store has written to): %w: %s", err, out)
	}
	var completed, events int
	if err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM operations WHERE state = 3), (SELECT count(*) FROM events)`).Scan(&completed, &events); err != nil {
		return err
	}
	if completed != units+1 || events != 2*(units+1) { // and the store's own
		return fmt.Errorf("pgbench: %d units left %d completed operations and %d events beside the first", units, completed-1, events-2)
	}
	return nil
}

func (y *yardstick) command(ctx context.Context, clients int, more ...string) *exec.Cmd {
	args := slices.Concat(y.args, []string{"--client=" + strconv.Itoa(clients), "--jobs=" + strconv.Itoa(min(clients, 2))}, more, []string{y.dsn})
	cmd := exec.CommandContext(ctx, y.program, args...)
	cmd.Dir, cmd.Env = y.dir, []string{"LC_ALL=C", "TZ=UTC"}
	return cmd
}

// run is drive's twin: the same warm-up and window, and the units that ended within it by pgbench's own log.
func (y *yardstick) run(ctx context.Context, p plan, begun, ended func()) (outcome, error) {
	seconds := int((p.Warm + p.Window + time.Second - 1) / time.Second)
	cmd := y.command(ctx, p.Callers, "--time="+strconv.Itoa(seconds), "--log", "--log-prefix=units")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return outcome{}, err
	}
	y.pid = cmd.Process.Pid
	wait(ctx, p.Warm)
	begin := time.Now()
	begun()
	wait(ctx, p.Window)
	end := time.Now()
	ended()
	if err := cmd.Wait(); err != nil {
		return outcome{}, fmt.Errorf("pgbench: %w: %s", err, out.String())
	}
	if err := pgbenchFailures(out.String()); err != nil {
		return outcome{}, err
	}
	logs, err := filepath.Glob(filepath.Join(y.dir, "units.*"))
	if err != nil {
		return outcome{}, err
	}
	var took []time.Duration
	for _, name := range logs {
		file, err := os.Open(name)
		if err != nil {
			return outcome{}, err
		}
		found, err := pgbenchLog(file, begin, end)
		if err := errors.Join(err, file.Close(), os.Remove(name)); err != nil {
			return outcome{}, err
		}
		took = append(took, found...)
	}
	return summary(end.Sub(begin).Seconds(), took, nil), nil
}

// pgbenchLog reads the log of one thread: client, number, microseconds, script, and when it ended in seconds and microseconds.
func pgbenchLog(r io.Reader, begin, end time.Time) ([]time.Duration, error) {
	var took []time.Duration
	in := bufio.NewScanner(r)
	for in.Scan() {
		fields := strings.Fields(in.Text())
		if len(fields) < 6 {
			return nil, fmt.Errorf("pgbench's log: %q", in.Text())
		}
		var n [6]int64
		for i := range n {
			var err error
			if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
				return nil, fmt.Errorf("pgbench's log: %w", err)
			}
		}
		at := time.Unix(n[4], n[5]*1000)
		if at.After(begin) && !at.After(end) {
			took = append(took, time.Duration(n[2])*time.Microsecond)
		}
	}
	return took, in.Err()
}

// pgbenchFailures reads what it prints at its end: transactions that failed, or clients that gave up.
func pgbenchFailures(text string) error {
	for line := range strings.Lines(text) {
		count, ok := strings.CutPrefix(line, "number of failed transactions: ")
		if ok && !strings.HasPrefix(count, "0 ") {
			return fmt.Errorf("pgbench: transactions failed: %s", strings.TrimSpace(count))
		}
		if strings.Contains(line, "aborted") {
			return fmt.Errorf("pgbench: %s", strings.TrimSpace(line))
		}
	}
	return nil
}
