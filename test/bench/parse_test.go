// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
)

func TestProcessTimes(t *testing.T) {
	const rest = " S 41 1 1 0 -1 4194560 2 0 0 0 150 25 1000 200 20 0 1 0 100 1 1"
	want := process{Parent: 41, Own: 1.75, Children: 12}
	for _, name := range []string{"(postgres)", "(a b) (c))", "()"} {
		if got, err := parseStat([]byte("4711 " + name + rest)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, line := range []string{"", "4711 postgres S 41", "4711 (postgres) S 41", "4711 (postgres)" + strings.Replace(rest, "150", "x", 1)} {
		if got, err := parseStat([]byte(line)); err == nil {
			t.Errorf("%q gave %+v", line, got)
		}
	}
}

func TestMachineTimes(t *testing.T) {
	busy, stolen, err := parseMachine([]byte("cpu  100 20 300 99999 777 4 6 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if err != nil || busy != 4.3 || stolen != .5 {
		t.Errorf("%v busy, %v stolen, %v; want 4.3 and 0.5: waiting for a disk is idle", busy, stolen, err)
	}
	for _, text := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9 10\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 x 8 9 10\n"} {
		if _, _, err := parseMachine([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestOwnProcessIsMeasured(t *testing.T) {
	sum := 0
	for ownSeconds(os.Getpid()) == 0 && sum < 1<<40 { // ends with the first tick
		for i := range 1 << 16 {
			sum += i
		}
	}
	if ownSeconds(os.Getpid()) == 0 {
		t.Error("this process has taken no time")
	}
	if got := ownSeconds(1 << 30); got != 0 {
		t.Errorf("a process that does not exist has taken %v s", got)
	}
}

func TestPgbenchLog(t *testing.T) {
	const text = `0 1 1500 0 1000 0
1 1 2500 0 1000 1
0 2 900 0 1003 0
0 3 800 0 1003 1
`
	got, err := pgbenchLog(strings.NewReader(text), time.Unix(1000, 0), time.Unix(1003, 0))
	want := []time.Duration{2500 * time.Microsecond, 900 * time.Microsecond}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v; want %v, what ended within the window", got, err, want)
	}
	for _, text := range []string{"0 1 1500 0 1000\n", "0 1 skipped 0 1000 0\n", "0 1 failed 0 1000 0\n"} {
		if _, err := pgbenchLog(strings.NewReader(text), time.Unix(0, 0), time.Unix(1003, 0)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestPgbenchFailures(t *testing.T) {
	const good = "number of transactions actually processed: 4711\nnumber of failed transactions: 0 (0.000%)\ntps = 2921.1 (without initial connection time)\n"
	if err := pgbenchFailures(good); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		strings.Replace(good, ": 0 (", ": 3 (", 1),
		"pgbench: error: client 3 script 0 aborted in command 1: ERROR:  deadlock detected\n" + good,
	} {
		if pgbenchFailures(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestScript(t *testing.T) {
	text := func(s string) *string { return &s }
	operation := []column{
		{Name: "id", Type: "uuid", Claim: text("x"), Done: text("x")},
		{Name: "scope", Type: "text", Claim: text("bench"), Done: text("bench")},
		{Name: "state", Type: "int2", Claim: text("2"), Done: text("3")},
		{Name: "sequence", Type: "int8", Claim: text("1"), Done: text("2")},
		{Name: "update_time", Type: "timestamptz", Claim: text("2026-01-01"), Done: text("2026-01-02")},
		{Name: leaseColumn, Type: "timestamptz", Claim: text("2026-01-03"), Done: text("2026-01-03")},
		{Name: "custodian", Type: "text", Claim: text(""), Done: text("")},
		{Name: "result", Type: "bytea", Claim: nil, Done: text(`\x00`)},
	}
	event := []column{
		{Name: "operation_id", Type: "uuid", Claim: text("x"), Done: text("x")},
		{Name: "sequence", Type: "int8", Claim: text("1"), Done: text("2")},
	}
	const want = `\set unit random(1, 9000000000000000000)
WITH o AS (INSERT INTO operations (id, scope, state, sequence, update_time, grant_lease_until, custodian, result) VALUES (md5(:unit::text)::uuid, :c_scope::text, :c_state::int2, :c_sequence::int8, now(), :c_grant_lease_until::timestamptz, ''::text, NULL::bytea) ON CONFLICT (id) DO NOTHING RETURNING id, tool, next_check_time),
e AS (INSERT INTO events (operation_id, sequence) SELECT o.id, :e_sequence::int8 FROM o)
INSERT INTO due (next_check_time, operation_id, tool_key) SELECT next_check_time, id, hashtextextended(tool, 0) FROM o RETURNING next_check_time AS due \gset
WITH o AS (UPDATE operations SET (state, sequence, update_time, grant_lease_until, custodian, result) = ROW(:d_state::int2, :d_sequence::int8, now(), :d_grant_lease_until::timestamptz, ''::text, :d_result::bytea)
WHERE id = md5(:unit::text)::uuid AND sequence = :c_sequence::int8 AND grant_lease_until IS NOT DISTINCT FROM :c_grant_lease_until::timestamptz RETURNING id),
d AS (DELETE FROM due USING o WHERE operation_id = o.id AND next_check_time = :due::timestamptz)
INSERT INTO events (operation_id, sequence) SELECT o.id, :f_sequence::int8 FROM o;
`
	got, variables := script(operation, event)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{
		"c_scope": "bench", "c_state": "2", "c_sequence": "1", "c_grant_lease_until": "2026-01-03",
		"d_state": "3", "d_sequence": "2", "d_grant_lease_until": "2026-01-03", "d_result": `\x00`, "e_sequence": "1", "f_sequence": "2",
	}, variables); diff != "" {
		t.Error(diff)
	}
}

func TestTopFrames(t *testing.T) {
	const text = `File: ledgerd
Type: cpu
Showing nodes accounting for 1.23s, 45.67% of 2.70s total
      flat  flat%   sum%        cum   cum%
     0.50s 18.52% 18.52%      0.50s 18.52%  internal/runtime/syscall.Syscall6
         0     0% 18.52%      2.70s   100%  runtime.goexit
     0.10s  3.70% 22.22%      1.20s 44.44%  github.com/jackc/pgx/v5.(*Conn).Query (inline)
`
	own, err := parseTop(text, false)
	want := []frame{{18.52, "internal/runtime/syscall.Syscall6"}, {0, "runtime.goexit"}, {3.7, "github.com/jackc/pgx/v5.(*Conn).Query (inline)"}}
	if err != nil || !cmp.Equal(own, want) {
		t.Errorf("%v, %v; want %v", own, err, want)
	}
	sum, err := parseTop(text, true)
	want = []frame{{18.52, "internal/runtime/syscall.Syscall6"}, {100, "runtime.goexit"}, {44.44, "github.com/jackc/pgx/v5.(*Conn).Query (inline)"}}
	if err != nil || !cmp.Equal(sum, want) {
		t.Errorf("%v, %v; want %v", sum, err, want)
	}
	if _, err := parseTop("no table", false); err == nil {
		t.Error("no table was taken")
	}
	if got := shortName("github.com/jackc/pgx/v5.(*Conn).Query (inline)"); got != "v5.(*Conn).Query" {
		t.Errorf("the short name is %s", got)
	}
}

func TestPartsOfTheLog(t *testing.T) {
	const text = `rmgr: Heap        len (rec/tot):    600/   600, tx:        745, lsn: 0/019B3BB8, prev 0/019B3B80, desc: INSERT off 1 flags 0x00, blkref #0: rel 1663/16384/16396 blk 0
rmgr: Heap        len (rec/tot):    700/   700, tx:        746, lsn: 0/019B3BB8, prev 0/019B3B80, desc: INSERT+INIT off: 1, flags: 0x00, blkref #0: rel 1663/16384/16396 blk 1
rmgr: Btree       len (rec/tot):     64/  4000, tx:        746, lsn: 0/019B3BB8, prev 0/019B3B80, desc: SPLIT_L level 0, blkref #0: rel 1663/16384/17000 blk 3 FPW
rmgr: Btree       len (rec/tot):     64/    96, tx:        746, lsn: 0/019B3BB8, prev 0/019B3B80, desc: INSERT_LEAF off 7, blkref #0: rel 1663/16384/17000 blk 3
rmgr: Transaction len (rec/tot):     34/    34, tx:        746, lsn: 0/019B3BB8, prev 0/019B3B80, desc: COMMIT 2026-01-01 00:00:00.000000 UTC
not a record
`
	got := parseLog(text, map[string]string{"16396": "events", "17000": "events_pkey"}, 2)
	want := []logPart{
		{"events_pkey", "Btree SPLIT", .5, 2000}, {"events", "Heap INSERT", 1, 650}, {"events_pkey", "Btree INSERT", .5, 48}, {"-", "Transaction COMMIT", .5, 17},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPartsOfAProfile(t *testing.T) {
	const line = "-----------+-------------------------------------------------------\n"
	const text = "File: ledgerd\nDuration: 5s\n" + line +
		"      30ms   runtime.memmove\n             crypto/tls.(*Conn).Read\n             google.golang.org/grpc/internal/transport.x\n" + line +
		"     1.05s   runtime.scanobject\n             runtime.gcBgMarkWorker\n" + line +
		"      20ms   github.com/opsledger/opsledger/ledger/postgres.x\n             github.com/opsledger/opsledger/ledger/rpc.y\n" + line +
		"     100ms   runtime.usleep\n" + line
	got, err := parseTraces(text)
	want := []frame{{87.5, "garbage collector"}, {100 * .1 / 1.2, "other"}, {2.5, "TLS"}, {100 * .02 / 1.2, "store"}}
	if err != nil || !cmp.Equal(got, want, cmpopts.EquateApprox(0, 1e-9)) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := parseTraces(line + "  much   runtime.x\n" + line); err == nil {
		t.Error("a time that is none was taken")
	}
}

func TestEchoMessagesHaveTheSizesThatAreAskedFor(t *testing.T) {
	for _, s := range []messageSizes{{40, 30}, {129, 131}, {131, 129}, {375, 461}} {
		request := echoMessage(s.Request, s.Answer)
		if got := (messageSizes{proto.Size(request), proto.Size(echo(request))}); got != s {
			t.Errorf("%+v, want %+v", got, s)
		}
	}
}

func TestMachineInGeneralWords(t *testing.T) {
	const mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/data xfs rw 0 0\nproc /proc proc rw 0 0\n"
	for dir, want := range map[string]string{"/tmp/bench": "tmpfs", "/tmp/data/x": "xfs", "/tmp/database": "tmpfs", "/var": "ext4"} {
		if got := fileSystem(mounts, dir); got != want {
			t.Errorf("%s is on %s, want %s", dir, got, want)
		}
	}
	if got := release("6.1.0-18-cloud-of-somebody\n"); got != "6.1.0" {
		t.Errorf("the kernel is %s", got)
	}
	if got := processor("processor : 0\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n"); got != "AMD EPYC" {
		t.Errorf("the processor is %s", got)
	}
}

func TestTablesAsMarkdown(t *testing.T) {
	var out bytes.Buffer
	table{Title: "Goals", Note: "A note.", Head: []string{"#", "goal"}, Rows: [][]string{{"1", "a"}}}.markdown(&out)
	if diff := cmp.Diff("\n## Goals\n\nA note.\n\n| # | goal |\n| --- | --- |\n| 1 | a |\n", out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestPageTellsOfOthersBesideTheVerdicts(t *testing.T) {
	v := variant{targetPostgres, 128}
	r := report{Samples: samples{v: {{outcome: outcome{Units: 1, Seconds: 1}, Server: 1, Ours: .3, Others: .6}}}}
	var out bytes.Buffer
	r.markdown(&out)
	goals, figures, remark := strings.Index(out.String(), "## Goals"), strings.Index(out.String(), "## Figures"), strings.Index(out.String(), "\n- others took 60 to 60 %")
	if goals < 0 || remark < goals || remark > figures {
		t.Errorf("goals, others and figures are at %d, %d, %d:\n%s", goals, remark, figures, out.String())
	}
}
