// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
)

// place is a kind of source.
type place int

const (
	// outside: logs, traces, metrics, statuses.
	outside place = iota
	// inside: what the database keeps, and PostgreSQL's own log, which with log_statement=all shows the parameters of each statement
	// in a DETAIL line; and answers to those who may see the result. What the contract stores in clear stands there.
	inside
)

// source is something that ledgerd wrote or said, whole.
type source struct {
	place place
	// parts by name: a database has many files.
	parts map[string][]byte
}

func (s source) size() int {
	n := 0
	for _, text := range s.parts {
		n += len(text)
	}
	return n
}

// find names the parts that hold the text in any form in which it may have been written.
func (s source) find(text string) []string { return s.findAny(formsOf(text)) }

// findAny names the parts that hold one of the forms. All are looked for at once, by their first two bytes: a database is large.
func (s source) findAny(forms []writtenAs) []string {
	begins := make([][]writtenAs, 1<<16)
	for _, form := range forms {
		first := uint16(form.bytes[0])<<8 | uint16(form.bytes[1])
		begins[first] = append(begins[first], form)
	}
	var in []string
	for _, name := range slices.Sorted(maps.Keys(s.parts)) {
		text, found := s.parts[name], map[string]bool{}
		for i := 0; i+1 < len(text); i++ {
			for _, form := range begins[uint16(text[i])<<8|uint16(text[i+1])] {
				if bytes.HasPrefix(text[i:], form.bytes) {
					found[form.name] = true
				}
			}
		}
		for _, form := range slices.Sorted(maps.Keys(found)) {
			in = append(in, name+" ("+form+")")
		}
	}
	return in
}

type writtenAs struct {
	name  string
	bytes []byte
}

// formsOf are the ways in which a text may stand somewhere: as it is, in hex (bytea in PostgreSQL's log) and in base64 (bytes in JSON),
// there at each of three places within a group.
func formsOf(text string) []writtenAs {
	forms := []writtenAs{
		{"plain", []byte(text)}, {"hex", []byte(hex.EncodeToString([]byte(text)))}, {"HEX", bytes.ToUpper([]byte(hex.EncodeToString([]byte(text))))},
	}
	for before := range 3 {
		whole := base64.StdEncoding.EncodeToString(append(make([]byte, before), text...))
		// Only the characters that hold nothing but bits of the text.
		forms = append(forms, writtenAs{"base64", []byte(whole[(before*8+5)/6 : (before+len(text))*8/6])})
	}
	return forms
}

// watched is a ledgerd of whose every word there is a record.
type watched struct {
	*env
	dir      string
	program  string // ledgerd itself
	flags    []string
	postgres *pgtest.Server // nil for SQLite
	rogue    *rogue
	down     func(t *testing.T) (up func())

	mu       sync.Mutex
	answers  []byte
	statuses []byte
	scraped  []byte
	fields   map[protoreflect.FullName]bool // of requests, that have carried a canary
	// open are SQLite's files as they were before each end of ledgerd: after it the log beside the database is gone.
	open  map[string][]byte
	stops int
}

// watch starts a ledgerd at the debug level, with traces, on a database that logs every statement.
func watch(t *testing.T, store string) *watched {
	t.Helper()
	w := &watched{dir: t.TempDir(), open: map[string][]byte{}, fields: map[protoreflect.FullName]bool{}}
	o := nodeOptions{failpoints: "rpc.claim.before-commit=off"}
	if store == "sqlite" {
		w.env = newStore(t, store)
		w.down = w.lock
	} else {
		w.postgres = pgtest.Own(t, pgtest.Options{LogStatements: true})
		w.env = &env{store: store, database: w.postgres.Database(t), own: w.postgres}
		var isDown atomic.Bool
		proxy, err := faultproxy.Start("tcp", w.postgres.Addr(), faultproxy.Options{OnClientData: func(int, []byte) faultproxy.Action {
			if isDown.Load() {
				return faultproxy.Action{Cut: &faultproxy.Cut{What: faultproxy.Both, How: faultproxy.RST}}
			}
			return faultproxy.Action{}
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = proxy.Close() })
		w.down = func(*testing.T) func() {
			isDown.Store(true)
			return func() { isDown.Store(false) }
		}
		w.dsn = postgresURL(proxy.Addr().String(), w.database)
	}
	w.rogue = startRogue(t)
	contracts := filepath.Join(w.dir, "contracts.yaml")
	declared := contractsText + `
  note.write:
    effect: keyed
    attributes: [order_id]
    request: {fields: {note: {category: body}, to: {category: recipient}}} # noteFields
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 120s, verify: [body]}
    replay: {schemas: ["note.write.result/1"], result_attributes: [etag]}
` + w.rogue.contract(t, w.dir)
	if err := os.WriteFile(contracts, []byte(declared), 0o600); err != nil {
		t.Fatal(err)
	}
	o.args = []string{"--contracts", contracts, "--recovery", "on", "--probe-allow", "127.0.0.1"}
	o.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + startCollector(t, w.traces()), "OTEL_BSP_SCHEDULE_DELAY=100"}
	w.node = w.start(t, o)

	// Once more, with standard output and standard error apart.
	w.node.kill(t)
	w.program, w.flags = w.node.binary, w.node.args[1:]
	w.node.binary, w.node.args = "/bin/sh", append([]string{"-c", `exec "$0" "$@" >>` + strconv.Quote(w.stdout()), w.program}, w.node.args...)
	w.node.run(t)
	w.run(t, append([]string{"config", "print", "--origin"}, w.flags...)...)
	w.run(t, "version")
	return w
}

func (w *watched) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(within(t), w.program, args...)
	cmd.Env = w.node.env
	return cmd
}

// stop ends ledgerd in order, so that its last spans are sent.
func (w *watched) stop(t *testing.T) {
	t.Helper()
	w.scrape(t)
	if w.postgres == nil {
		w.stops++
		for name, text := range w.sqliteFiles(t) {
			w.open[fmt.Sprintf("%s, before stop %d", name, w.stops)] = text
		}
	}
	if err := w.node.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// lock keeps others from writing to the SQLite file.
func (w *watched) lock(t *testing.T) func() {
	t.Helper()
	db := w.db(t)
	conn, err := db.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(within(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(within(t), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		// A connection that stayed open would lose its locks when this process reads the file, and then see what it must not.
		_, _ = conn.Close(), db.Close()
	}
}

func (w *watched) stdout() string { return filepath.Join(w.dir, "stdout") }
func (w *watched) traces() string { return filepath.Join(w.dir, "traces") }

// run runs another command of ledgerd and keeps what it prints.
func (w *watched) run(t *testing.T, args ...string) {
	t.Helper()
	out, err := os.OpenFile(w.stdout(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	log, err := os.OpenFile(w.node.logPath, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := w.command(t, args...)
	cmd.Stdout, cmd.Stderr = out, log
	if err := cmd.Run(); err != nil {
		t.Fatalf("ledgerd %s: %v", args[0], err)
	}
}

// keepStatus is an interceptor that keeps what a call is told: statuses with their details, headers and trailers; and answers.
func (w *watched) keepStatus(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var header, trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+canaryToken, "x-request-note", canaryHeader)
	err := invoke(ctx, method, req, reply, conn, append(opts, grpc.Header(&header), grpc.Trailer(&trailer))...)
	told, encodeErr := proto.Marshal(status.Convert(err).Proto())
	var answer []byte
	if m, ok := reply.(proto.Message); ok && err == nil {
		answer, encodeErr = proto.Marshal(m)
	}
	if encodeErr != nil {
		return errors.Join(err, encodeErr)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := req.(proto.Message); ok {
		w.carried(m.ProtoReflect())
	}
	w.statuses = fmt.Appendf(w.statuses, "%s %s %v %v %v\n", method, told, err, header, trailer)
	w.answers = append(w.answers, answer...)
	return err
}

// scrape keeps what the metrics are now.
func (w *watched) scrape(t *testing.T) {
	t.Helper()
	response, err := http.Get("http://" + w.node.adminAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("the metrics were answered %s: %v", response.Status, err)
	}
	w.scraped = append(w.scraped, text...)
}

// sources reads everything. ledgerd must have ended: then its last spans have been sent.
func (w *watched) sources(t *testing.T) map[string]source {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	one := func(p place, text []byte) source { return source{p, map[string][]byte{"": text}} }
	all := map[string]source{
		"stdout": one(outside, contentOf(t, w.stdout())), "stderr": one(outside, contentOf(t, w.node.logPath)),
		"traces": one(outside, contentOf(t, w.traces())), "metrics": one(outside, w.scraped),
		"statuses": one(outside, w.statuses), "answers": one(inside, w.answers),
	}
	all["dump"] = w.dump(t)
	if w.postgres == nil {
		all["database"] = source{inside, w.sqliteFiles(t)}
		maps.Copy(all["database"].parts, w.open)
		return all
	}
	conn, err := pgx.Connect(within(t), w.postgres.DSN(w.database))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(within(t), "CHECKPOINT"); err != nil { // else what was written stands in memory and in the WAL only
		t.Fatal(err)
	}
	all["PostgreSQL's log"] = one(inside, contentOf(t, w.postgres.LogFile()))
	all["database"] = source{inside, files(t, filepath.Join(filepath.Dir(w.postgres.LogFile()), "data"), "*")}
	return all
}

func (w *watched) sqliteFiles(t *testing.T) map[string][]byte {
	t.Helper()
	return files(t, filepath.Dir(w.database), filepath.Base(w.database)+"*")
}

func contentOf(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// files reads all files below a directory whose names match. One that the database has removed meanwhile is no matter.
func files(t *testing.T, dir, pattern string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if ok, _ := filepath.Match(pattern, entry.Name()); !ok { // the pattern is well-formed
				return nil
			}
			var text []byte
			text, err = os.ReadFile(path)
			all[path] = text
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
