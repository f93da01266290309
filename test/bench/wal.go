// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// logPart is what one kind of record about one table or index adds to PostgreSQL's log, for each unit.
type logPart struct {
	Of, Kind       string
	Records, Bytes float64
}

// logParts asks pg_waldump what some work has added.
func (c *counter) logParts(ctx context.Context, dsn string, n count) ([]logPart, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var bin, data string
	// The rest of the log's file is skipped, so that all of the records are in it.
	if err := conn.QueryRow(ctx, "SELECT setting, current_setting('data_directory'), pg_switch_wal() FROM pg_config WHERE name = 'BINDIR'").
		Scan(&bin, &data, nil); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, "SELECT pg_relation_filenode(oid)::text, relname::text FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL")
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	var node, name string
	if _, err := pgx.ForEachRow(rows, []any{&node, &name}, func() error { names[node] = name; return nil }); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "pg_waldump"), "--path="+filepath.Join(data, "pg_wal"), "--start="+n.from, "--end="+n.to).Output()
	if err != nil {
		return nil, fmt.Errorf("pg_waldump: %w", err)
	}
	return parseLog(string(out), names, n.units), nil
}

var (
	logRecord   = regexp.MustCompile(`^rmgr: (\S+)\s+len \(rec/tot\):\s*\d+/\s*(\d+),.* desc: (\S+)`)
	logRelation = regexp.MustCompile(`blkref #0: rel \d+/\d+/(\d+)`)
)

// parseLog adds up pg_waldump's lines, the largest first.
func parseLog(text string, names map[string]string, units float64) []logPart {
	type key struct{ of, kind string }
	sums := map[key]*logPart{}
	for line := range strings.Lines(text) {
		record := logRecord.FindStringSubmatch(line)
		if record == nil {
			continue
		}
		size, err := strconv.Atoi(record[2])
		if err != nil {
			continue
		}
		of := "-"
		if relation := logRelation.FindStringSubmatch(line); relation != nil {
			of = cmp.Or(names[relation[1]], "-")
		}
		// Whether a page was new, or which half of a split it is, does not matter here.
		kind, _, _ := strings.Cut(record[3], "+")
		kind = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(kind, "_L"), "_R"), "_LEAF")
		k := key{of, record[1] + " " + kind}
		if sums[k] == nil {
			sums[k] = &logPart{Of: k.of, Kind: k.kind}
		}
		sums[k].Records += 1 / units
		sums[k].Bytes += float64(size) / units
	}
	var out []logPart
	for _, p := range sums {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b logPart) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Of+a.Kind, b.Of+b.Kind))
	})
	return out
}
