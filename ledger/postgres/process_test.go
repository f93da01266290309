// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/postgres"
	"github.com/opsledger/opsledger/test/pgtest"
)

// asWorker makes the test binary another process that works on a store: "NAME DSN".
const asWorker = "OPSLEDGER_POSTGRES_TEST_WORKER"

func TestMain(m *testing.M) {
	if name, dsn, ok := strings.Cut(os.Getenv(asWorker), " "); ok {
		if err := work(context.Background(), name, dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

// work has many callers write until the process is killed, or the store can't be used any more. Each key is inserted, changed, and
// changed once more together with one that all share; each answer is printed: the key, and how many events it then has at least.
func work(ctx context.Context, name, dsn string) error {
	s, err := postgres.Open(ctx, dsn, postgres.Options{MaxConns: 8})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	for caller := range 48 {
		group.Go(func() {
			for n := 0; ; n++ {
				k := fmt.Sprintf("%s-%d-%d", name, caller, n)
				for event, call := range []func() error{
					putting(ctx, s, k, "inserted"), putting(ctx, s, k, "changed"), linking(ctx, s, k),
				} {
					if event == 2 && n%8 != 0 {
						continue // they take turns
					}
					if call() != nil {
						return
					}
					fmt.Println(k, event+1)
				}
			}
		})
	}
	group.Wait()
	return s.Close()
}

// linking changes a key and the hub in one transaction.
func linking(ctx context.Context, s ledger.Store, k string) func() error {
	both := reads(key(k))
	hub := key("hub").Hash().OperationID()
	both.Related = []ledger.OperationID{hub}
	return func() error {
		return s.Update(ctx, both, func(v ledger.View) (ledger.Change, error) {
			was := v.Related[hub]
			companion, err := put(key("hub"), k)(ledger.View{Now: v.Now, Timeline: v.Timeline, Current: &was})
			if err != nil {
				return ledger.Change{}, err
			}
			c, err := put(key(k), "linked")(v)
			c.Companion = &companion
			return c, err
		})
	}
}

// TestKilledProcessesLoseNothingAcknowledged: of what the callers of a process were told everything is there, and of what they were not,
// whole changes; when the process ends at any moment, and when the server does.
func TestKilledProcessesLoseNothingAcknowledged(t *testing.T) {
	server := pgtest.Own(t, pgtest.Options{Durable: true})
	const database = "postgres" // one of its own could not be removed: its name has another port after the crash
	if err := errors.Join(data{dsn: server.DSN(database)}.open(t, postgres.Options{}).Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	mustPut(t, data{dsn: server.DSN(database)}.open(t, postgres.Options{}), "hub", "")
	told := map[string]int{}
	for round, victim := range []string{"client", "server", "client", "server"} {
		worker := exec.CommandContext(t.Context(), os.Args[0])
		worker.Env = append(os.Environ(), asWorker+"="+fmt.Sprint("round", round)+" "+server.DSN(database), "PGAPPNAME="+asWorker)
		worker.Stderr = os.Stderr
		out, err := worker.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := worker.Start(); err != nil {
			t.Fatal(err)
		}
		answers := 0
		for lines := bufio.NewScanner(out); lines.Scan(); answers++ {
			var k string
			var events int
			if _, err := fmt.Sscan(lines.Text(), &k, &events); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			told[k] = events
			if answers != 150+100*round {
				continue
			}
			kill := worker.Process.Kill
			if victim == "server" {
				kill = func() error { return server.Crash(t.Context()) }
			}
			if err := kill(); err != nil {
				t.Fatal(err)
			}
		}
		var exit *exec.ExitError
		killed := errors.As(worker.Wait(), &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != (victim == "client") || answers < 150 {
			t.Fatalf("round %d: %d answers, killed %t: it has shown nothing", round, answers, killed)
		}
		wantGone(t, data{dsn: server.DSN(database)})
		verifyAll(t, data{dsn: server.DSN(database)}, told)
	}
}

// wantGone waits until the server has ended what a worker had begun: what it commits after that one's death would be seen in one read and not in another.
func wantGone(t *testing.T, d data) {
	t.Helper()
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	for deadline := time.Now().Add(30 * time.Second); ; {
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", asWorker).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions of a dead process are still there", n)
		}
	}
}

// verifyAll checks what was told, and that every row and every event belong to each other.
func verifyAll(t *testing.T, d data, told map[string]int) {
	t.Helper()
	s := d.open(t, postgres.Options{})
	for k, events := range told {
		if got := history(t, s, key(k)); len(got) < events {
			t.Errorf("%s: history %q, and event %d was acknowledged", k, got, events)
		}
	}
	conn := d.connect(t)
	defer func() { _ = conn.Close(t.Context()) }()
	rows, err := conn.Query(t.Context(), "SELECT id::text, sequence FROM operations ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	sequences := map[string]int{}
	for rows.Next() {
		var id string
		var sequence int
		if err := rows.Scan(&id, &sequence); err != nil {
			t.Fatal(err)
		}
		sequences[id] = sequence
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	events := 0
	for text, sequence := range sequences {
		id, err := ledger.ParseOperationID(text)
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		chain, err := s.Events(t.Context(), id)
		if err != nil || ledger.VerifyChain(chain, o.LastHash) != nil || len(chain) != sequence {
			t.Errorf("%s: %d events, sequence %d: %v", text, len(chain), sequence, err)
		}
		events += len(chain)
	}
	var all, linked int
	err = conn.QueryRow(t.Context(), "SELECT count(*), count(*) FILTER (WHERE sequence = 3) FROM events WHERE operation_id <> $1",
		key("hub").Hash().OperationID().String()).Scan(&all, &linked)
	hub := history(t, s, key("hub"))
	if err != nil || all != events-len(hub) {
		t.Errorf("%d events, and %d have an operation: %v", all, events-len(hub), err)
	}
	if linked != len(hub)-1 {
		t.Errorf("%d keys are linked, and the hub has %d: half of a pair was kept", linked, len(hub)-1)
	}
}
